"""Design for a plant that is not quite known: cost of a gain on all plants that a log allows."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from lqrlab import control
from lqrlab.compute import checks, jit_by_function
from lqrlab.extensions.identification.log import Log
from lqrlab.extensions.identification.physical import fit
from lqrlab.simulation import Problem
from lqrlab.systems import Plant, check_plant

_UNSTABLE = 1e3  # cost of each unit of spectral radius above one, relative to the optimum's
OBJECTIVES = ("mean", "p95")


@dataclasses.dataclass(frozen=True, eq=False)
class CostUncertainty:
    """Costs of one gain on many plants; prints as a sentence.

    Attributes:
        excess: cost above each plant's own optimum, relative to it; inf where the loop is unstable.
    """

    excess: Float[np.ndarray, " num"]

    @property
    def stable(self) -> float:
        """Share of the plants that the gain stabilises."""
        return float(np.mean(np.isfinite(self.excess)))

    def quantile(self, q: float) -> float:
        """Quantile of the excess; inf where so many loops are unstable."""
        return float(np.sort(self.excess)[min(int(np.ceil(q * len(self.excess))), len(self.excess)) - 1])

    @property
    def mean(self) -> float:
        """Mean excess over all plants: inf if one loop is unstable."""
        return float(np.mean(self.excess))

    def __str__(self) -> str:
        median, p95, worst = (100 * self.quantile(q) for q in (0.5, 0.95, 1.0))
        return (
            f"{100 * self.stable:.1f} % of {len(self.excess)} plants are stable; cost above each optimum: median "
            f"{median:.2g} %, p95 {p95:.2g} %, worst {worst:.2g} %"
        )


def under_uncertainty(plants: Plant, K: ArrayLike) -> CostUncertainty:
    """Excess cost of the gain K ``[m, n]`` (u = −Kx, sampled) on each plant of a batch.

    The batch is such as :meth:`FittedPlant.sample` draws; initial states are as large as the scales, independent.
    """
    problem, start = _problems(plants)
    K = jnp.asarray(checks.real("K", K, finite=True), float)
    if K.shape != (plants.m, plants.n):
        raise ValueError(f"K: expected a gain [{plants.m}, {plants.n}], inputs by states, but found {K.shape}")
    F = np.asarray(problem.closed_loop(K[None]))
    stable = np.abs(np.linalg.eigvals(F)).max(-1) < 1
    excess = np.full(len(F), np.inf)
    if stable.any():
        excess[stable] = np.asarray(_excess(problem[np.flatnonzero(stable)], K, start))
    return CostUncertainty(excess)


def _problems(plants: Plant) -> tuple[Problem, Array]:
    """The sampled problems of a batch, and the covariance of initial states [n, n]."""
    check_plant(plants)
    if len(plants.batch_shape) != 1:
        raise ValueError(
            f"plants: expected a batch of plants, as fit.sample draws, but found shape {plants.batch_shape}"
        )
    problem = Problem.of(plants, linear=True)
    if not bool(jnp.all(problem.has_optimum)):
        raise ValueError("plants: some have no stabilizing regulator; narrow the parameters' ranges")
    return problem, jax.vmap(jnp.diag)(problem.scale_x**2)[0]


@jax.jit
def _excess(problem: Problem, K: Array, start: Array) -> Float[Array, " num"]:
    return _excess_of(problem, K, problem.closed_loop(K[None]), start)


def _excess_of(problem: Problem, K: Array, F: Array, start: Array) -> Array:
    """Excess costs of stable loops x[t+1] = F x of the gain K."""
    P = control.dlyap(jnp.swapaxes(F, -1, -2), problem.stage_weight(K[None]))
    paid, least = (jnp.einsum("bij,ji->b", M, start) for M in (P, problem.P))
    return paid / least - 1


def robust_gain(plants: Plant, objective: str = "mean", *, K: ArrayLike | None = None, iterations: int = 100) -> Array:
    """The gain that minimises the mean, or the 95th percentile, of the excess cost over a batch of plants.

    BFGS (SciPy) with the gradient through the closed loops' Lyapunov equations; unstable loops count by how far
    outside of the unit circle they are, so a start need not stabilise all.

    Args:
        plants: as :meth:`FittedPlant.sample` draws them.
        objective: ``"mean"`` or ``"p95"``.
        K: gain to start from; the best of some of the plants' own optima if left out.
        iterations: at most so many.
    """
    checks.choice("objective", objective, OBJECTIVES)
    problem, start = _problems(plants)
    shape = (plants.m, plants.n)
    value = partial(_sloped, problem, start, objective)
    starts = problem.K[:: max(len(plants) // 8, 1)] if K is None else [checks.floating("K", K, finite=True)]
    first = min(starts, key=lambda k: float(value(k)[0]))
    size = np.abs(np.asarray(first))
    unit = np.maximum(size, 1e-3 * size.max()) if size.any() else np.ones_like(size)  # a start from no control

    def flat(k: np.ndarray) -> tuple[float, np.ndarray]:
        v, slope = value(jnp.asarray(k.reshape(shape) * unit))
        slope = np.nan_to_num(np.asarray(slope) * unit)
        return (float(v) if np.isfinite(v) else 1e9), slope.ravel()

    begin = (np.asarray(first) / unit).ravel()
    found = scipy.optimize.minimize(flat, begin, jac=True, method="BFGS", options={"maxiter": iterations})
    return jnp.asarray(found.x.reshape(shape) * unit)


def _objective(problem: Problem, start: Array, objective: str, K: Array) -> Array:
    F = problem.closed_loop(K[None])
    radius = control.spectral_radius(F)
    stable = radius < 1 - 1e-6
    calm = jnp.where(stable[:, None, None], F, 0.0)
    excess = jnp.where(stable, _excess_of(problem, K, calm, start), _UNSTABLE * radius)
    if objective == "mean":
        return jnp.mean(excess)
    worst = jnp.sort(excess)[-max(len(excess) // 20, 1) * 2 :]  # around the percentile, so that the slope is smooth
    return jnp.mean(worst)


_sloped = jit_by_function(jax.value_and_grad(_objective, argnums=3), static_argnums=2)


def regret(
    plant: Plant,
    log: Log,
    seconds: Sequence[float],
    *,
    key: PRNGKeyArray,
    num: int = 100,
    parameters: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Value of more data: remaining uncertainty for several lengths of a log.

    Args:
        plant: as :func:`fit` takes it.
        log: the whole record.
        seconds: lengths from its beginning.
        key: of the draws.
        num: plants drawn for each.
        parameters: those that are free.

    Returns:
        One row a length: the excess cost of the estimate's own gain over plants that the log still allows (mean, p95,
        share stable), and c/T, the theory's rate, through the last row.

    Source of the rate: H. Mania, S. Tu, B. Recht, Certainty equivalence is efficient for LQ control, NeurIPS 2019.
    """
    rows, near = [], plant
    for length in sorted(seconds):
        found = fit(near, log.cut(0.0, checks.number("seconds", length, "a time above 0 s", above=0)), parameters)
        near = found.plant
        left = under_uncertainty(found.sample(key, num), control.lqrd(*near.matrices(), *near.weights(), near.dt).K)
        rows.append((length, left.mean, left.quantile(0.95), left.stable))
    frame = pd.DataFrame(rows, columns=["seconds", "mean", "p95", "stable"]).set_index("seconds")
    frame["c/T"] = frame["mean"].iloc[-1] * frame.index[-1] / frame.index
    return frame
