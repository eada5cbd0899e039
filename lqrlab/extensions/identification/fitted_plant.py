"""A plant with fitted parameters, their uncertainty, and unidentifiable combinations."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, check_log
from lqrlab.extensions.identification.residuals import Residuals, fit_percent
from lqrlab.extensions.identification.shooting import Segments, first_states, minimised
from lqrlab.extensions.robust import UncertainPlant
from lqrlab.systems import Plant, parameter_fields

_BEYOND = 20.0  # times the box of what a log allows, up to which a loss of stability is looked for
_TELLS_NOTHING = 0.5  # standard error, relative, of a combination of parameters that the log does not tell


@dataclasses.dataclass(frozen=True, eq=False)
class FittedPlant:
    """A plant with parameters fitted to a log, and their uncertainty; prints as sentences.

    Attributes:
        plant: with the estimates.
        names: of the parameters.
        values, std: estimates and standard errors, in SI units; inf where the log tells nothing.
        information: JᵀJ of the scaled parameters (logarithms where the range is above zero), initial states and
            offsets eliminated: the Hessian of half the sum of squares in units of the noise.
        noise: standard deviation of each output's error.
        offsets: of the sensors.
        x0: state at the start of each segment.
        predicted: the outputs as the plant gives them.
        fit_percent, r2: of each output.
        starts: sum of squares reached from each start that was followed to its end.
        segments: the problem as it was solved.
        log: what was explained.
    """

    plant: Plant
    values: Float[np.ndarray, " k"]
    z: Float[np.ndarray, " k"]
    information: Float[np.ndarray, "k k"]
    names: tuple[str, ...]
    noise: Float[np.ndarray, " p"]
    offsets: Float[np.ndarray, " p"]
    x0: Float[np.ndarray, "S n"]
    predicted: Float[np.ndarray, "T p"]
    starts: Float[np.ndarray, " s"]
    segments: Segments
    log: Log

    @classmethod
    def of(cls, segments: Segments, z: Float[np.ndarray, " k"], **found: Any) -> Self:
        """The plant with the scaled parameters z; ``found`` are the attributes that do not follow from them."""
        c = segments.coordinates
        plant, values = c.plant(segments.plant, jnp.asarray(z)), np.asarray(c.values(z))
        return cls(plant=plant, names=c.names, values=values, z=z, segments=segments, **found)

    @property
    def fit_percent(self) -> Float[np.ndarray, " p"]:
        """100 (1 − ‖y − ŷ‖ / ‖y − mean‖) of each output."""
        return fit_percent(self.log.ys, self.predicted)

    @property
    def r2(self) -> Float[np.ndarray, " p"]:
        """Share of each output's variance that the plant explains."""
        return 1 - (1 - self.fit_percent / 100) ** 2

    @property
    def eigen(self) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
        """Eigenvalues of :attr:`information`, the least first, and the combinations of parameters as columns."""
        values, vectors = np.linalg.eigh(self.information)
        return np.maximum(values, 0.0), vectors

    def _covariance(self, prior: bool = False) -> np.ndarray:
        """Covariance of z. With ``prior`` the ranges count as what was known before."""
        c = self.segments.coordinates
        width = np.minimum(c.high, self.z + 3) - np.maximum(c.low, self.z - 3)
        width = np.clip(width, 1e-9, None) / np.sqrt(12)
        H = self.information + (np.diag(width**-2.0) if prior else 0.0)
        values, vectors = np.linalg.eigh(H)
        return (vectors / np.maximum(values, 1e-12 * max(values.max(initial=0), 1e-300))) @ vectors.T

    @property
    def covariance(self) -> Float[np.ndarray, "k k"]:
        """Covariance of the parameters, in SI units."""
        slopes = self.segments.coordinates.slopes(self.z)
        return self._covariance() * np.outer(slopes, slopes)

    @property
    def std(self) -> Float[np.ndarray, " k"]:
        """Standard errors."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def correlation(self) -> Float[np.ndarray, "k k"]:
        """Correlation of the estimates."""
        std = np.sqrt(np.diagonal(self._covariance()))
        return self._covariance() / np.outer(std, std)

    @property
    def table(self) -> pd.DataFrame:
        """One row a parameter: value, standard error, the same relative, unit."""
        fields = parameter_fields(type(self.plant))
        units = [fields[name].metadata["unit"] for name in self.names]
        relative = 100 * self.std / np.maximum(np.abs(self.values), 1e-300)
        columns = {"value": self.values, "std": self.std, "std [%]": relative, "unit": units}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="parameter"))

    @property
    def unidentifiable(self) -> tuple[str, ...]:
        """Combinations of parameters that this log does not tell, in words."""
        values, vectors = self.eigen
        weak = values < _TELLS_NOTHING**-2
        return tuple(in_words(self.names, v, self.segments.coordinates.span == 0) for v in vectors[:, weak].T)

    def residuals(self, lags: int = 25) -> Residuals:
        """Tests of the residuals: whiteness, independence of the inputs."""
        return Residuals.of(self.log, self.log.ys - self.predicted, lags)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on parameters that the log does not tell or that ended at a bound, and on bad fits."""
        c, said = self.segments.coordinates, list(self.unidentifiable)
        named = {s.name: s.unit for s in (*self.plant.outputs, *self.plant.states, *self.plant.inputs)}
        unsaid = [f"{s.name} in {named[s.name]}" for s, _ in self.log.signals if not s.unit and named.get(s.name)]
        if unsaid:
            said.append(f"the log has no units: {', '.join(unsaid)} assumed, as in {self.plant.name}")
        for i, name in enumerate(self.names):
            if min(self.z[i] - c.low[i], c.high[i] - self.z[i]) < 1e-6:
                said.append(f"{name} ended at the edge of its range, {self.values[i]:g}: the model lacks something")
        for s, percent in zip(self.log.outputs, self.fit_percent):
            if percent < 50:
                said.append(
                    f"{s.name}: only {percent:.0f} % is explained; look at units and signs, at what the plant "
                    "leaves out, or start nearer"
                )
        return tuple(said)

    def __str__(self) -> str:
        return "\n".join([self.table.to_string(float_format=lambda v: f"{v:.4g}"), *self.remarks])

    def described(self) -> dict[str, Any]:
        """The plant as JSON holds it and ``systems.load`` reads it, with standard errors and what is not identified."""
        values = {name: float(v) for name, v in self.plant.parameters.items()}
        std = dict(zip(self.names, map(float, self.std)))
        told = {"std": std, "unidentifiable": list(self.unidentifiable)}
        return {"family": self.plant.name, "parameters": values, **told}

    def simulate(self, log: Log, x0: Float[np.ndarray, "*records n"] | None = None) -> Float[np.ndarray, "T p"]:
        """Outputs of the plant for another log's inputs.

        A plant that was fitted in segments (an unstable one) is simulated in such segments too, which have to meet.

        Args:
            log: of the same signals.
            x0: initial state of each record, then simulated in one go; fitted to the record if left out.
        """
        check_log(log)
        names, found = ([s.name for s in of.outputs] for of in (self.log, log))
        if names != found:
            raise ValueError(
                f"log: expected the outputs {', '.join(names)}, as in the log of the fit, but found "
                f"{', '.join(found)}; log.chosen(inputs, {names}) takes them in their order"
            )
        c = self.segments
        substeps = math.ceil(c.substeps * log.dt / c.dt - 1e-6)
        length = c.us.shape[1] if c.follows.any() and x0 is None else None
        own = Segments.of(self.plant, log, (), length, max(substeps, c.substeps), np.zeros(len(c.which), bool))
        if x0 is None:
            states = first_states(own, log)
            free = own.packed(np.zeros(0), np.zeros(len(c.which)), states)
            states = own.unpacked(minimised(own, free, self.noise, 30)[0])[2]
        else:
            states = np.broadcast_to(np.asarray(x0, float), (len(own.us), self.plant.n))
        return (np.asarray(own.outputs(jnp.zeros(0), jnp.asarray(states))[0]) + self.offsets)[own.mask]

    def sample(self, key: PRNGKeyArray, num: int) -> Plant:
        """Plants as likely as the log and the ranges make them: Laplace's posterior, kept within the ranges."""
        checks.random_key(key)
        checks.whole("num", num)
        return self._moved(np.asarray(jax.random.normal(key, (num, len(self.z)))))

    def uncertain(self, probability: float = 0.95) -> UncertainPlant:
        """All plants within a box that holds what :meth:`sample` draws with this probability.

        The box lies along the principal axes of the estimates, so parameters that the log does not tell apart may be
        far off together. Robust stability over it holds with that probability, given the class of the plant.
        """
        probability = checks.number("probability", probability, "a share above 0 and below 1", above=0, below=1)
        k = len(self.z)
        width = float(scipy.special.ndtri((1 + probability ** (1 / k)) / 2))
        return UncertainPlant(self.plant, self.names, lambda moves: self._moved(width * moves), k, _BEYOND)

    def _moved(self, by: Float[np.ndarray, "num k"]) -> Plant:
        """Plants so many standard errors away along each principal axis, kept within the ranges."""
        c, P = self.segments.coordinates, self._covariance(prior=True)
        values, vectors = np.linalg.eigh(P)
        half = vectors * np.sqrt(np.maximum(values, 0))
        zs, num = jnp.asarray(np.clip(self.z + by @ half.T, c.low, c.high)), len(by)
        return jax.tree.map(
            lambda a: jnp.broadcast_to(jnp.asarray(a), (num, *np.shape(a)[1:])) if np.ndim(a) else jnp.full(num, a),
            c.plant(self.segments.plant, zs),
        )


def in_words(names: Sequence[str], v: np.ndarray, logarithmic: np.ndarray) -> str:
    """The combination of parameters along v, along which the outputs hardly change."""
    v = v / np.abs(v).max()
    parts = [int(i) for i in np.flatnonzero(np.abs(v) > 0.03)]
    named = [names[i] for i in parts]
    if len(parts) == 1:
        return f"{named[0]} has no effect that this log shows: fix it, or excite what it acts on"
    if len(parts) == 2 and logarithmic[parts].all():
        ratio = v[parts[1]] / v[parts[0]]
        for sign, word in ((-1, "product"), (1, "ratio")):
            if abs(ratio - sign) < 0.15:
                return f"{named[0]} and {named[1]} enter only as their {word} in this log: fix one of them"
    steps = ", ".join(f"{names[i]} {100 * 0.1 * v[i]:+.0f} %" for i in parts)
    listed = f"{', '.join(named[:-1])} and {named[-1]}"
    return f"{listed} are indistinguishable: {steps} changes no output; fix one of them"
