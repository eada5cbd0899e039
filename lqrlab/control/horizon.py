"""Finite-horizon regulators, step by step backwards: to an equilibrium, or along a reference."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import whole
from lqrlab.control import matrix_checks
from lqrlab.control.lyapunov import stage_weight


@pytree
@dataclasses.dataclass(frozen=True)
class LQTracking:
    """u = us[t] − K[t] (x − xs[t]) follows the reference xs; :func:`lqrlab.simulation.tracking` makes its policy.

    Attributes:
        xs: the reference.
        us: its inputs, with what is to be added for the affine terms and for the reference to come.
        K: gains.
        P: the cost to go is quadratic with these matrices.
    """

    xs: Float[Array, "*batch T+1 n"]
    us: Float[Array, "*batch T m"]
    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch T+1 n n"]


def finite_horizon(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None = None,
    N: ArrayLike | None = None,
) -> LQTracking:
    """Minimise x[T]ᵀQf x[T] + Σ_{t<T} xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t].

    Args:
        A, B, Q, R, N: as in :func:`dlqr`.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; Q if left out.

    Returns:
        :class:`LQTracking` of a reference that is zero: u[t] = −K[t] x[t].

    Raises:
        ValueError: bad arguments.

    Source: Anderson and Moore (1990), eqs. (2.4-2)-(2.4-4).

    >>> control.finite_horizon([[1.0]], [[1.0]], [[0.0]], [[1.0]], 2, Qf=[[1.0]]).K[:, 0, 0].tolist()
    [0.3333333333333333, 0.5]
    """
    whole("num_steps", num_steps)
    A, B, *weights = matrix_checks.arguments(A, B, Q, R, N)
    T, (n, m) = num_steps, B.shape[-2:]
    still = (jnp.zeros(shape, B.dtype) for shape in ((T + 1, n), (T, m), (T, n)))
    A, B = (jnp.broadcast_to(a[..., None, :, :], (*a.shape[:-2], T, *a.shape[-2:])) for a in (A, B))
    return _followed(A, B, *still, *weights, matrix_checks.terminal_weight(Qf, weights[0], weights[0]))


def lq_tracking(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    xs: ArrayLike,
    us: ArrayLike | None = None,
    Qf: ArrayLike | None = None,
    N: ArrayLike | None = None,
    *,
    c: ArrayLike | None = None,
) -> LQTracking:
    """Minimise eᵀQf e at the end + Σ eᵀQe + vᵀRv + 2eᵀNv, e = x − xs[t], v = u − us[t], x[t+1] = Ax[t] + Bu[t] + c.

    Args:
        A, B: ``[n, n]``, ``[n, m]``, or of each step ``[..., T, n, n]``, ``[..., T, n, m]``: those along a trajectory
            are ``simulation.Problem.of(plant).linearised``'s.
        Q, R, N: weights ``[..., n, n]``, ``[..., m, m]``, ``[..., n, m]``, as in :func:`dlqr`.
        xs: reference ``[..., T+1, n]``; it need not be a motion of the plant.
        us: its inputs ``[..., T, m]``; zero if left out.
        Qf: terminal weight ``[..., n, n]``; Q if left out.
        c: affine terms ``[n]`` or ``[..., T, n]``, such as a known disturbance; zero if left out.

    Returns:
        :class:`LQTracking`.

    Source: Anderson and Moore (1990), section 4.2 (the regulator and the feedforward from the reference to come).

    >>> plan = control.lq_tracking([[1.0]], [[1.0]], [[1.0]], [[1e-6]], [[0.0], [2.0], [4.0]])
    >>> plan.us[:, 0].round(3)  # cheap inputs: it is in time
    Array([2., 2.], dtype=float64)
    """
    xs = jnp.asarray(matrix_checks.real("xs", xs))
    if xs.ndim < 2 or xs.shape[-2] < 2:
        raise ValueError(f"xs: expected a reference [..., T+1, n] of two points or more, but found {xs.shape}")
    T = xs.shape[-2] - 1
    A, B = (jnp.asarray(matrix_checks.real(name, a)) for name, a in (("A", A), ("B", B)))
    first = [a[..., 0, :, :] if a.ndim > 2 else a for a in (A, B)]
    *_, Q, R, N = matrix_checks.arguments(first[0], first[1], Q, R, N)
    terminal = matrix_checks.terminal_weight(Qf, Q, Q)
    n, m = first[1].shape[-2:]
    us = jnp.zeros((T, m), Q.dtype) if us is None else us
    c = jnp.zeros((T, n), Q.dtype) if c is None else jnp.asarray(matrix_checks.real("c", c))
    A, B = (jnp.broadcast_to(a, (T, *a.shape)) if a.ndim == 2 else a for a in (A, B))
    c = jnp.broadcast_to(c, (T, n)) if c.ndim == 1 else c
    over_time = (
        matrix_checks.trailing(name, a, shape, Q.dtype)
        for name, a, shape in (
            ("A", A, (T, n, n)),
            ("B", B, (T, n, m)),
            ("xs", xs, (T + 1, n)),
            ("us", us, (T, m)),
            ("c", c, (T, n)),
        )
    )
    return _followed(*over_time, Q, R, N, terminal)


@jax.jit
def _followed(*args: Array) -> LQTracking:
    return broadcast(_follow, *zip(args, (3, 3, 2, 2, 2, 2, 2, 2, 2)))


def _follow(A: Array, B: Array, xs: Array, us: Array, c: Array, Q: Array, R: Array, N: Array, Qf: Array) -> LQTracking:
    """One problem: backwards with the cost to go eᵀPe + 2pᵀe."""
    # by how much the reference is no motion of the plant
    gap = jnp.einsum("tij,tj->ti", A, xs[:-1]) + jnp.einsum("tij,tj->ti", B, us) + c - xs[1:]

    def back(after: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple, tuple]:
        P, p = after
        A, B, d, u = now
        slope = P @ d + p
        both = linalg.solve(R + B.T @ P @ B, jnp.concatenate([B.T @ P @ A + N.T, (B.T @ slope)[:, None]], axis=1))
        K, k = both[:, :-1], both[:, -1]
        closed = A - B @ K
        before = linalg.symmetric(closed.T @ P @ closed + stage_weight(Q, R, N, K))
        return (before, closed.T @ slope), (K, u - k, before)

    _, (K, inputs, P) = jax.lax.scan(back, (Qf, jnp.zeros_like(xs[0])), (A, B, gap, us), reverse=True)
    return LQTracking(xs, inputs, K, jnp.concatenate([P, Qf[None]]))
