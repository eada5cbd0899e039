"""Tests of residuals: whiteness, independence of the inputs."""

import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float

from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log

_QUANTILE = 2.576  # of the normal distribution: 99 %, both sides


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """Tests of residuals; prints as sentences.

    Attributes:
        values: the residuals.
        auto: autocorrelation at lags 1 … ``lags``.
        cross: correlation with each input, which leads by −``lags`` … ``lags`` samples, by output and input.
        band: of 99 % under independence.
        sentences: the findings in words.

    Source: L. Ljung, System Identification, 2nd ed. (1999), section 16.6.
    """

    values: Float[np.ndarray, "T p"]
    auto: Float[np.ndarray, "lags p"]
    cross: Float[np.ndarray, "both p m"]
    band: float
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    @property
    def white(self) -> bool:
        """True if no more autocorrelations are outside of the band than chance allows."""
        return bool(np.all(_share(self.auto, self.band) <= 0.05))

    @classmethod
    def of(cls, log: Log, values: Float[np.ndarray, "T p"], lags: int = 25) -> Self:
        """The tests of the residuals of a log."""
        lags = min(checks.whole("lags", lags), len(log) // 4)
        e = (values - values.mean(0)) / np.maximum(values.std(0), 1e-300)
        spread = log.us.std(0)
        u = (log.us - log.us.mean(0)) / np.where(spread > 0, spread, 1.0)
        T = len(e)
        auto = np.stack([np.sum(e[k:] * e[: T - k], 0) / T for k in range(1, lags + 1)])

        def at(k: int) -> np.ndarray:
            return (e[k:].T @ u[: T - k] if k >= 0 else e[: T + k].T @ u[-k:]) / T

        cross = np.stack([at(k) for k in range(-lags, lags + 1)])
        # what is correlated in itself spreads wider: Bartlett's formula
        inner = np.stack([np.sum(u[k:] * u[: T - k], 0) / T for k in range(1, lags + 1)])
        cross = cross / np.sqrt(np.maximum(1 + 2 * np.sum(auto[:, :, None] * inner[:, None], 0), 1.0))[None]
        band = _QUANTILE / np.sqrt(T)
        return cls(values, auto, cross, band, _sentences(log, auto, cross, band))


def _share(correlation: np.ndarray, band: float) -> np.ndarray:
    return np.mean(np.abs(correlation) > band, axis=0)


def _sentences(log: Log, auto: np.ndarray, cross: np.ndarray, band: float) -> tuple[str, ...]:
    found, lags = [], len(auto)
    for i, y in enumerate(log.outputs):
        outside = _share(auto, band)[i]
        if outside > 0.05:
            lag = int(np.argmax(np.abs(auto[:, i]))) + 1
            found.append(
                f"{y.name}: residuals are not white ({outside:.0%} of lags outside the 99 % band, most at lag {lag}): "
                "the model lacks dynamics or a model of the noise; raise the order"
            )
        for j, u in enumerate(log.inputs):
            if _share(cross[lags + 1 :], band)[i, j] > 0.1:
                found.append(
                    f"{y.name}: residuals follow {u.name}: the model lacks an effect of the input; raise the order, "
                    "or look for a delay, friction or saturation"
                )
            if np.abs(cross[: lags + 1, i, j]).max() > 1.4 * band:  # one of many lags
                found.append(
                    f"{u.name} follows the residuals of {y.name}: the log was made in feedback; estimates by "
                    "simulation error are then biased, take prediction error"
                )
    return tuple(found) or ("residuals are white and independent of the inputs",)


def fit_percent(ys: Float[np.ndarray, "T p"], found: Float[np.ndarray, "T p"]) -> Float[np.ndarray, " p"]:
    """100 (1 − ‖y − ŷ‖ / ‖y − mean‖) of each output (NRMSE)."""
    spread = np.linalg.norm(ys - ys.mean(0), axis=0)
    return 100 * (1 - np.linalg.norm(ys - found, axis=0) / np.where(spread > 0, spread, np.nan))
