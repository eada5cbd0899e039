"""Pareto fronts of weights: state cost against effort, for thousands of designs at once."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import pytree
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import Sampled, discretize
from lqrlab.control.regulator import lqrd
from lqrlab.control.weights import cost_to_go

_STEPS = 300  # samples among which the peak is searched


@pytree
@dataclasses.dataclass(frozen=True)
class Front:
    """Loops of many weights, measured with the same Q and R; infinite costs where a design failed.

    Attributes:
        K: gains.
        state_cost: ∫ xᵀQx dt, summed over the initial states that make up X0.
        effort: ∫ uᵀRu dt, the same.
        peak: largest |u| at any sample from any x0 with x0ᵀX0⁻¹x0 ≤ 1, each input for itself.
        dominated: another loop has less of one cost and no more of the other.
    """

    K: Float[Array, "N m n"]
    state_cost: Float[Array, " N"]
    effort: Float[Array, " N"]
    peak: Float[Array, "N m"]
    dominated: Bool[Array, " N"]


def pareto(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    dt: ArrayLike,
    Qs: ArrayLike,
    Rs: ArrayLike,
    *,
    X0: ArrayLike | None = None,
) -> Front:
    """Design with each of many weights and measure all loops by the same Q and R.

    Args:
        A, B, dt: one plant and its sample time [s], as in :func:`lqrd`.
        Q, R: the weights that all loops are measured with ``[n, n]``, ``[m, m]``.
        Qs, Rs: weights to design with ``[N, n, n]``, ``[N, m, m]``; either may be one for all.
        X0: initial states as a covariance ``[n, n]``; the identity if left out.

    Returns:
        :class:`Front`. The front of the two costs is convex, and all of it comes from Qs = Q, Rs = ρ R: other
        weights lie above it. They may still be better in another respect, such as the peak.
    """
    designs = lqrd(A, B, Qs, Rs, dt)
    if designs.K.ndim != 3:
        raise ValueError(f"Qs, Rs: expected a batch of weights [N, …], but found {designs.K.shape[:-2]}")
    problem = discretize(A, B, Q, R, dt)
    held = jnp.asarray(dt) * jnp.broadcast_to(jnp.asarray(R), problem.R.shape)  # ∫ R over a held input
    state = problem._replace(R=problem.R - held)
    effort = problem._replace(Q=jnp.zeros_like(problem.Q), R=held, N=jnp.zeros_like(problem.N))
    start = jnp.eye(len(problem.Q)) if X0 is None else jnp.asarray(matrix_checks.real("X0", X0))
    if start.shape != problem.Q.shape:
        raise ValueError(f"X0: expected a covariance of shape {problem.Q.shape}, but found {start.shape}")
    matrix_checks.weight("X0", start)
    return _measured(designs.K, state, effort, start)


@jax.jit
def _measured(K: Array, state: Sampled, effort: Sampled, X0: Array) -> Front:
    def cost(problem: Sampled) -> Array:
        P = cost_to_go(problem, K)
        total = jnp.sum(P * jnp.broadcast_to(X0, P.shape), axis=(-1, -2))
        return jnp.where(jnp.isnan(total), jnp.inf, total)

    first, second = cost(state), cost(effort)
    # the largest kᵀx over the ellipsoid is √(kᵀX0 k), and a row k of the gain acts on x[t] as (Fᵀ)ᵗ k does on x0
    A, B, gains = matrix_checks.together(state.A, state.B, K)
    turned = (A - B @ gains).mT
    _, squares = jax.lax.scan(lambda k, _: (turned @ k, jnp.sum((X0 @ k) * k, axis=-2)), gains.mT, None, length=_STEPS)
    return Front(K, first, second, jnp.sqrt(jnp.max(squares, axis=0)), _dominated(first, second))


def _dominated(first: Array, second: Array) -> Array:
    """True if another member is better in one and no worse in the other, by more than rounding."""
    order = jnp.lexsort((second, first))
    least = jax.lax.cummin(second[order])  # of all that have no more of the first
    worse = least < second[order] * (1 - 1e-9)
    return jnp.zeros(len(first), bool).at[order].set(worse) | jnp.isinf(first)
