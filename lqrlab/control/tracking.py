"""Following a reference: the finite-horizon regulator of a plant that may change with time and have affine terms."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.control import checks


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


def lq_tracking(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, xs: ArrayLike, us: ArrayLike | None = None,
    Qf: ArrayLike | None = None, N: ArrayLike | None = None, *, c: ArrayLike | None = None,
) -> LQTracking:  # fmt: skip
    """Minimise eᵀQf e at the end + Σ eᵀQe + vᵀRv + 2eᵀNv, e = x − xs[t], v = u − us[t], x[t+1] = Ax[t] + Bu[t] + c.

    Args:
        A, B: ``[n, n]``, ``[n, m]``, or of each step ``[..., T, n, n]``, ``[..., T, n, m]``: those along a trajectory
            are ``simulation.env(plant).linearised``'s.
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
    xs = jnp.asarray(checks.real("xs", xs))
    if xs.ndim < 2 or xs.shape[-2] < 2:
        raise ValueError(
            f"xs: expected a reference [..., T+1, n] of two points or more, but found {xs.shape}"
        )
    T = xs.shape[-2] - 1
    A, B = (jnp.asarray(checks.real(name, a)) for name, a in (("A", A), ("B", B)))
    first = [a[..., 0, :, :] if a.ndim > 2 else a for a in (A, B)]
    *_, Q, R, N = checks.arguments(first[0], first[1], Q, R, N)
    terminal = Q if Qf is None else jnp.asarray(checks.real("Qf", Qf), Q.dtype)
    checks.weight("Qf", terminal)
    n, m = first[1].shape[-2:]
    us = jnp.zeros((T, m), Q.dtype) if us is None else us
    c = jnp.zeros((T, n), Q.dtype) if c is None else jnp.asarray(checks.real("c", c))
    A, B = (jnp.broadcast_to(a, (T, *a.shape)) if a.ndim == 2 else a for a in (A, B))
    c = jnp.broadcast_to(c, (T, n)) if c.ndim == 1 else c
    over_time = {
        "A": (A, (T, n, n)),
        "B": (B, (T, n, m)),
        "xs": (xs, (T + 1, n)),
        "us": (us, (T, m)),
        "c": (c, (T, n)),
    }
    arrays = []
    for name, (a, shape) in over_time.items():
        a = jnp.asarray(checks.real(name, a), Q.dtype)
        if a.shape[max(a.ndim - len(shape), 0) :] != shape:
            raise ValueError(f"{name}: expected shape (…, {', '.join(map(str, shape))}), but found {a.shape}")
        arrays.append((a, len(shape)))
    return _solve(*(a for a, _ in arrays), Q, R, N, terminal)


@jax.jit
def _solve(*args: Array) -> LQTracking:
    return broadcast(_follow, *zip(args, (3, 3, 2, 2, 2, 2, 2, 2, 2)))


def _follow(
    A: Array, B: Array, xs: Array, us: Array, c: Array, Q: Array, R: Array, N: Array, Qf: Array
) -> LQTracking:
    """One problem: backwards with the cost to go eᵀPe + 2pᵀe."""
    # by how much the reference is no motion of the plant
    gap = jnp.einsum("tij,tj->ti", A, xs[:-1]) + jnp.einsum("tij,tj->ti", B, us) + c - xs[1:]

    def back(after: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple, tuple]:
        P, p = after
        A, B, d, u = now
        slope = P @ d + p
        both = linalg.solve(
            R + B.T @ P @ B, jnp.concatenate([B.T @ P @ A + N.T, (B.T @ slope)[:, None]], axis=1)
        )
        K, k = both[:, :-1], both[:, -1]
        before = linalg.symmetric(Q + A.T @ P @ A - (A.T @ P @ B + N) @ K), (A - B @ K).T @ slope
        return before, (K, u - k, before[0])

    _, (K, inputs, P) = jax.lax.scan(back, (Qf, jnp.zeros_like(xs[0])), (A, B, gap, us), reverse=True)
    return LQTracking(xs, inputs, K, jnp.concatenate([P, Qf[None]]))
