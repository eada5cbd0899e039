"""All plants that explain a log, by Hamiltonian Monte Carlo: for where a normal distribution says too little."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab.compute import checks, extras
from lqrlab.extensions.identification.fitted_plant import FittedPlant
from lqrlab.systems import Plant

_DEFECT = 1e-3  # by which segments may fail to meet, relative to the states' scales


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """Plants drawn in proportion to how well they explain a log; prints as a table.

    Attributes:
        plants: a batch of all draws of all chains.
        names: of the parameters.
        values: the draws, ``[chains, num, parameters]``, in SI units.
        r_hat: how much wider all chains together are than each alone; above 1.01 they have not mixed: draw more.
        effective: the number of independent draws that the mean of each parameter is as good as.
        diverged: share of draws at which the integrator failed: above a few thousandths, do not trust the tails.
    """

    plants: Plant
    names: tuple[str, ...]
    values: Float[np.ndarray, "chains num k"]
    r_hat: Float[np.ndarray, " k"]
    effective: Float[np.ndarray, " k"]
    diverged: float

    @property
    def table(self) -> pd.DataFrame:
        """One row a parameter: mean, standard deviation, the middle 95 %, R̂, effective draws."""
        all_values = self.values.reshape(-1, len(self.names))
        low, high = np.quantile(all_values, [0.025, 0.975], 0)
        columns = {
            "mean": all_values.mean(0),
            "std": all_values.std(0),
            "2.5 %": low,
            "97.5 %": high,
            "R̂": self.r_hat,
            "effective draws": self.effective,
        }
        return pd.DataFrame(columns, index=pd.Index(self.names, name="parameter"))

    def __str__(self) -> str:
        return self.table.to_string(float_format=lambda v: f"{v:.4g}")


def posterior(
    fit: FittedPlant, key: PRNGKeyArray, num: int = 500, *, chains: int = 4, warmup: int = 300, defect: float = _DEFECT
) -> Posterior:
    """Draws from all parameters, initial states and offsets that explain a fit's log, by the No-U-Turn Sampler.

    The likelihood is that of :func:`fit`. Before the log, all values of a parameter within its declared range are
    equally likely (of its logarithm, where the range is above zero).

    Args:
        fit: of physical parameters.
        key: of the draws.
        num: draws of each chain, after ``warmup`` that set the length of steps.
        chains: at once, by ``vmap``.
        defect: by how much segments may fail to meet, relative to the states' scales; the smaller, the slower.

    Raises:
        ImportError: blackjax is missing; says how to install it.

    Source: M. D. Hoffman, A. Gelman, The No-U-Turn Sampler, JMLR 15 (2014); the sampler is blackjax's.
    """
    checks.instance("fit", fit, FittedPlant, "a fit of physical parameters, as identification.fit makes")
    checks.random_key(key)
    for name, value in (("num", num), ("chains", chains), ("warmup", warmup)):
        checks.whole(name, value, 2 if name == "num" else 1)
    blackjax = extras.load("blackjax", "identification", "posterior")
    at, half = _laplace(fit, defect)

    def likely(xi: Float[Array, " f"]) -> Array:
        return _log_likely(fit, jnp.asarray(at) + jnp.asarray(half) @ xi, defect)

    xis, failed = _drawn(blackjax, likely, len(at), key, (chains, num, warmup))
    c, k = fit.segments.coordinates, len(fit.z)
    zs = np.asarray(_within(fit, jnp.asarray(at[:k] + np.asarray(xis) @ half[:k].T)))
    diagnostics = blackjax.diagnostics
    r_hat = np.asarray(diagnostics.potential_scale_reduction(zs)).reshape(k)
    effective = np.asarray(diagnostics.effective_sample_size(zs)).reshape(k)
    return Posterior(
        fit.plants(zs.reshape(-1, k)), fit.names, np.asarray(c.values(zs)), r_hat, effective, float(failed.mean())
    )


def _drawn(
    blackjax: Any, likely: Callable[[Array], Array], size: int, key: PRNGKeyArray, counts: tuple[int, int, int]
) -> tuple[Float[Array, "chains num f"], Array]:
    """Draws of some chains after a warm-up, and at which of them the integrator failed."""
    chains, num, warmup = counts

    def chain(key: PRNGKeyArray) -> tuple[Array, Array]:
        first, warm, draws = jax.random.split(key, 3)
        begin = jax.random.normal(first, (size,))
        adapted, _ = blackjax.window_adaptation(blackjax.nuts, likely).run(warm, begin, warmup)
        step = blackjax.nuts(likely, **adapted.parameters).step

        def draw(state: Any, key: PRNGKeyArray) -> tuple:
            state, info = step(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(draw, adapted.state, jax.random.split(draws, num))[1]

    return jax.jit(jax.vmap(chain))(jax.random.split(key, chains))


def _within(fit: FittedPlant, s: Float[Array, "*batch k"]) -> Float[Array, "*batch k"]:
    """z between the ends of its range, for any real s: no chain runs into an edge."""
    c = fit.segments.coordinates
    low, high = (end.reshape((1,) * (s.ndim - 1) + end.shape) for end in (c.low, c.high))
    return low + (high - low) * jax.nn.sigmoid(s)


def _laplace(fit: FittedPlant, defect: float) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, "f f"]]:
    """The fit as the sampler's unknowns, and a square root of their covariance there (Laplace's approximation)."""
    c, k = fit.segments.coordinates, len(fit.z)
    at = fit.segments.packed(fit.z, fit.offsets, fit.x0)
    J = fit.segments.condensed(at, fit.noise, defect, 0.0)[1]
    share = np.clip((fit.z - c.low) / (c.high - c.low), 1e-3, 1 - 1e-3)
    at[:k] = np.log(share / (1 - share))
    J[:, :k] *= (c.high - c.low) * share * (1 - share)
    known = np.append(np.ones(k), np.zeros(len(at) - k))
    values, vectors = np.linalg.eigh(J.T @ J + np.diag(known))
    return at, vectors / np.sqrt(np.maximum(values, 1e-12 * values.max()))


def _log_likely(fit: FittedPlant, free: Float[Array, " f"], defect: float) -> Float[Array, ""]:
    """Log likelihood of the log, given the unknowns in the order in which the fit packs them."""
    s = fit.segments
    real, offsets, starts = s.unpacked(free)
    ys, ends = s.outputs(_within(fit, real), starts)
    e = jnp.where(s.mask[:, :, None], (ys + offsets[None, None] - s.ys) / fit.noise[None, None], 0.0)
    gaps = jnp.where(s.follows[1:, None], (ends[:-1] - starts[1:]) / (defect * s.scale[None]), 0.0)
    log_slope = jnp.sum(jax.nn.log_sigmoid(real) + jax.nn.log_sigmoid(-real))  # of z by s
    value = log_slope - 0.5 * (jnp.sum(e**2) + jnp.sum(gaps**2))
    return jnp.where(jnp.isfinite(value), value, -jnp.inf)
