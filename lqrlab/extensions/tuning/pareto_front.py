"""Pareto fronts of weights: state cost against effort of many designs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import pytree
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import discretize
from lqrlab.control.lyapunov import cost_to_go
from lqrlab.control.regulator import lqrd

_STEPS = 300  # samples among which the peak is searched


@pytree
@dataclasses.dataclass(frozen=True)
class Front:
    """Loops of many weights, measured with the same Q and R; infinite costs where a design failed.

    Attributes:
        K: gains.
        state_cost, effort: ∫ xᵀQx dt and ∫ uᵀRu dt, summed over the initial states that make up X0.
        peak: largest |u| at any sample from any x0 with x0ᵀX0⁻¹x0 ≤ 1, each input for itself.
        dominated: another loop has less of one cost and no more of the other, by more than rounding.
    """

    K: Float[Array, "N m n"]
    state_cost: Float[Array, " N"]
    effort: Float[Array, " N"]
    peak: Float[Array, "N m"]
    dominated: Bool[Array, " N"]


def pareto(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, Qs: ArrayLike, Rs: ArrayLike, *,
    X0: ArrayLike | None = None,
) -> Front:  # fmt: skip
    """Design with each of many weights, in one batched :func:`lqrd`, and measure all loops by the same Q and R.

    The front of the two costs is convex, and all of it comes from Qs = Q, Rs = ρ R: other weights lie above it. They
    may still be better in another respect, such as the peak.

    Args:
        A, B, dt: one plant and its sample time [s], as in :func:`lqrd`.
        Q, R: the weights that all loops are measured with ``[n, n]``, ``[m, m]``.
        Qs, Rs: weights to design with ``[N, n, n]``, ``[N, m, m]``; either may be one for all.
        X0: initial states as a covariance ``[n, n]``; the identity if left out.
    """
    K = lqrd(A, B, Qs, Rs, dt).K
    if K.ndim != 3:
        raise ValueError(f"Qs, Rs: expected a batch of weights [N, …], but found {K.shape[:-2]}")
    problem = discretize(A, B, Q, R, dt)
    *_, own, _ = matrix_checks.arguments(A, B, Q, R)
    held = matrix_checks.sample_time(dt, own.dtype) * own  # ∫ R over a held input
    effort = problem._replace(Q=jnp.zeros_like(problem.Q), R=held, N=jnp.zeros_like(problem.N))
    start = jnp.eye(len(problem.Q)) if X0 is None else jnp.asarray(matrix_checks.real("X0", X0), own.dtype)
    if start.shape != problem.Q.shape:
        raise ValueError(f"X0: expected a covariance of shape {problem.Q.shape}, but found {start.shape}")
    matrix_checks.weight("X0", start)
    both = (np.asarray(cost_to_go(p, K)) for p in (problem._replace(R=problem.R - held), effort))
    costs = [np.sum(P * np.asarray(start), axis=(-1, -2)) for P in both]
    first, second = (np.where(np.isnan(cost), np.inf, cost) for cost in costs)
    # the largest kᵀx over the ellipsoid is √(kᵀX0 k), and a row k of the gain acts on x[t] as (Fᵀ)ᵗ k does on x0
    peak = _peak(*matrix_checks.together(problem.A, problem.B, K), start)
    order = np.lexsort((second, first))
    worse = np.minimum.accumulate(second[order]) < second[order] * (1 - 1e-9)  # of all that have no more of the first
    dominated = np.isinf(first)
    dominated[order] |= worse
    return Front(K, jnp.asarray(first), jnp.asarray(second), peak, jnp.asarray(dominated))


@jax.jit
def _peak(A: Array, B: Array, K: Array, X0: Array) -> Array:
    turned = (A - B @ K).mT
    _, squares = jax.lax.scan(lambda k, _: (turned @ k, jnp.sum((X0 @ k) * k, axis=-2)), K.mT, None, length=_STEPS)
    return jnp.sqrt(jnp.max(squares, axis=0))
