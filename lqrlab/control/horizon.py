"""Finite-horizon regulators, step by step backwards: to an equilibrium, or along a reference."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import traced, whole
from lqrlab.control import matrix_checks
from lqrlab.control.lyapunov import stage_weight
from lqrlab.control.riccati.matrix_sign import scales

_DOUBLINGS = 64  # of a time in which the Hamiltonian's norm is 1/2
_TERMS = 17  # of its exponential's series there: the remainder is below 1e-19


@pytree
@dataclasses.dataclass(frozen=True)
class TimeVaryingLQR:
    """Gains ``K [..., T, m, n]`` and costs to go ``P [..., T+1, n, n]`` of a finite horizon T."""

    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch T+1 n n"]

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P))


@partial(jax.jit, static_argnames="num_steps")
def _solve(args: tuple[Array, ...], num_steps: int) -> TimeVaryingLQR:
    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
        def back(P: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
            K = linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)
            closed = A - B @ K
            before = linalg.symmetric(closed.T @ P @ closed + stage_weight(Q, R, N, K))
            return before, (K, before)

        _, (K, P) = jax.lax.scan(back, Qf, None, length=num_steps, reverse=True)
        return TimeVaryingLQR(K, jnp.concatenate([P, Qf[None]]))

    return broadcast(one, *((a, 2) for a in args))


def finite_horizon(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None = None,
    N: ArrayLike | None = None,
) -> TimeVaryingLQR:
    """Minimise x[T]ᵀQf x[T] + Σ_{t<T} xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t].

    Args:
        A, B, Q, R, N: as in :func:`dlqr`.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; Q if left out.

    Returns:
        :class:`TimeVaryingLQR`: u[t] = −K[t] x[t].

    Raises:
        ValueError: bad arguments.

    Source: Anderson and Moore (1990), eqs. (2.4-2)-(2.4-4).

    >>> control.finite_horizon([[1.0]], [[1.0]], [[0.0]], [[1.0]], 2, Qf=[[1.0]]).K[:, 0, 0].tolist()
    [0.3333333333333333, 0.5]
    """
    whole("num_steps", num_steps)
    args = matrix_checks.arguments(A, B, Q, R, N)
    return _solve((*args, matrix_checks.terminal_weight(Qf, args[2], args[2])), num_steps)


def continuous_horizon(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    ts: ArrayLike,
    Qf: ArrayLike | None = None,
    N: ArrayLike | None = None,
) -> TimeVaryingLQR:
    """Minimise x(T)ᵀQf x(T) + ∫ xᵀQx + uᵀRu + 2xᵀNu dt up to T for ẋ = Ax + Bu: the Riccati differential equation.

    Its solution is exact at the times asked for: the Hamiltonian's matrix exponential over a short time gives the cost
    and the closed loop over it, which are doubled to each interval, so that nothing overflows; NaN before an interval
    that is more than 10¹⁸ times the time constant of the fastest mode.

    Args:
        A, B, Q, R, N: as in :func:`lqr`.
        ts: rising times from 0 on ``[points]`` [s]; the last one is T.
        Qf: terminal weight ``[..., n, n]``; zero if left out.

    Returns:
        :class:`TimeVaryingLQR`: ``P [..., points, n, n]`` and ``K [..., points, m, n]`` at the times, u = −K(t) x.

    Source: E. J. Davison and M. C. Maki, IEEE Trans. Autom. Control 18 (1973) (the exponential); the doubling as in
    E. K.-W. Chu, H.-Y. Fan, W.-W. Lin, Linear Algebra Appl. 396 (2005).

    >>> P = control.continuous_horizon([[0.0]], [[1.0]], [[1.0]], [[1.0]], [0.0, 1.0]).P  # tanh(T − t)
    >>> bool(abs(P[0, 0, 0] - np.tanh(1.0)) < 1e-12)
    True
    """
    A, B, Q, R, N = matrix_checks.arguments(A, B, Q, R, N)
    terminal = matrix_checks.terminal_weight(Qf, Q, jnp.zeros_like(Q))
    times = jnp.asarray(matrix_checks.real("ts", ts), Q.dtype)
    if times.ndim != 1 or times.size < 2 or (not traced(times) and not bool(jnp.all(jnp.diff(times) > 0))):
        raise ValueError(f"ts: expected two rising times or more, but found {ts!r}")
    return _flowing((A, B, Q, R, N, terminal), times)


@jax.jit
def _flowing(args: tuple[Array, ...], ts: Array) -> TimeVaryingLQR:
    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
        onto = linalg.solve(R, jnp.concatenate([N.T, B.T], axis=1))  # R⁻¹ [Nᵀ Bᵀ]
        n = len(A)
        F, G, H = (A - B @ onto[:, :n], linalg.symmetric(B @ onto[:, n:]), linalg.symmetric(Q - N @ onto[:, :n]))
        d = scales(*(jax.lax.stop_gradient(a)[..., None] for a in (F, G, H)))[:, 0]
        both = d[:, None] * d[None]
        F, G, H = F * d[None] / d[:, None], G / both, H * both  # in the units of x = D x̃, D = diag(d)

        def back(P: Array, dt: Array) -> tuple[Array, Array]:
            E, gain, cost = _interval(F, G, H, dt)
            before = linalg.symmetric(cost + E.T @ P @ linalg.solve(jnp.eye(n, dtype=P.dtype) + gain @ P, E))
            return before, before

        _, P = jax.lax.scan(back, Qf * both, jnp.diff(ts), reverse=True)
        P = jnp.concatenate([P / both[None], Qf[None]])
        return TimeVaryingLQR(onto[None, :, :n] + jnp.einsum("mi,tij->tmj", onto[:, n:], P), P)

    return broadcast(one, *((a, 2) for a in args))


def _interval(F: Array, G: Array, H: Array, dt: Array) -> tuple[Array, Array, Array]:
    """E, G, H of an interval: P before it is H + Eᵀ P (I + GP)⁻¹ E of P after it."""
    n, one = len(F), jnp.eye(len(F), dtype=F.dtype)
    hamiltonian = jnp.block([[F, -G], [-H, -F.T]])
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(hamiltonian), axis=1)) * dt)
    doublings = jnp.ceil(jnp.log2(jnp.maximum(2 * size, 1.0)))
    doublings = jnp.where(doublings <= _DOUBLINGS, doublings, jnp.nan)
    step, change, term = hamiltonian * (dt / 2.0**doublings), jnp.zeros_like(hamiltonian), jnp.eye(2 * n, dtype=F.dtype)
    for k in range(1, _TERMS):
        term = term @ step / k
        change = change + term
    # (x, p) after = (x, p) before + change (x, p) before, solved for x after and p before. Of E the rest beyond the
    # identity is kept: in it slow modes have their digits beside fast ones
    inverse = linalg.solve(one + change[n:, n:], jnp.concatenate([-change[n:, :n], one], axis=1))
    start = change[:n, :n] + change[:n, n:] @ inverse[:, :n], -change[:n, n:] @ inverse[:, n:], inverse[:, :n]

    def double(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, ...]:
        rest, G, H = state
        E = one + rest
        both = linalg.solve(one + G @ H, jnp.concatenate([E, -G @ H @ E, G], axis=1))
        WE, less, WG = both[:, :n], both[:, n : 2 * n], both[:, 2 * n :]  # WE = E + less
        near = jnp.max(jnp.abs(rest)) < 2  # far from the identity the sum cancels
        further = jnp.where(near, 2 * rest + rest @ rest + less + rest @ less, E @ WE - one)
        twice = further, G + E @ WG @ E.T, H + E.T @ H @ WE
        return tuple(jnp.where(k < doublings, new, old) for new, old in zip(twice, state))

    rest, G, H = jax.lax.fori_loop(0, _DOUBLINGS, double, start)
    return one + rest, G, H


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
        before = linalg.symmetric(Q + A.T @ P @ A - (A.T @ P @ B + N) @ K), (A - B @ K).T @ slope
        return before, (K, u - k, before[0])

    _, (K, inputs, P) = jax.lax.scan(back, (Qf, jnp.zeros_like(xs[0])), (A, B, gap, us), reverse=True)
    return LQTracking(xs, inputs, K, jnp.concatenate([P, Qf[None]]))
