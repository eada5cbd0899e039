"""Finite-horizon regulators, step by step backwards."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import traced, whole
from lqrlab.control import checks
from lqrlab.control.weights import stage_weight

_DOUBLINGS = 40  # of a time in which the Hamiltonian's norm is 1/2
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
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, num_steps: int,
    Qf: ArrayLike | None = None, N: ArrayLike | None = None,
) -> TimeVaryingLQR:  # fmt: skip
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
    args = checks.arguments(A, B, Q, R, N)
    Q = args[2]
    terminal = Q if Qf is None else jnp.asarray(checks.real("Qf", Qf), Q.dtype)
    if terminal.shape[-2:] != Q.shape[-2:]:
        raise ValueError(f"Qf: expected shape {Q.shape[-2:]}, Q's, but found {terminal.shape[-2:]}")
    checks.weight("Qf", terminal)
    return _solve((*args, terminal), num_steps)


def continuous_horizon(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, ts: ArrayLike,
    Qf: ArrayLike | None = None, N: ArrayLike | None = None,
) -> TimeVaryingLQR:  # fmt: skip
    """Minimise x(T)ᵀQf x(T) + ∫ xᵀQx + uᵀRu + 2xᵀNu dt up to T for ẋ = Ax + Bu: the Riccati differential equation.

    Its solution is exact at the times asked for: the Hamiltonian's matrix exponential over a short time gives the cost
    and the closed loop over it, which are doubled to each interval, so that nothing overflows however long it is.

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
    A, B, Q, R, N = checks.arguments(A, B, Q, R, N)
    terminal = jnp.zeros_like(Q) if Qf is None else jnp.asarray(checks.real("Qf", Qf), Q.dtype)
    checks.weight("Qf", terminal)
    times = jnp.asarray(checks.real("ts", ts), Q.dtype)
    if times.ndim != 1 or times.size < 2 or (not traced(times) and not bool(jnp.all(jnp.diff(times) > 0))):
        raise ValueError(f"ts: expected two rising times or more, but found {ts!r}")
    return _flowing((A, B, Q, R, N, terminal), times)


@jax.jit
def _flowing(args: tuple[Array, ...], ts: Array) -> TimeVaryingLQR:
    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
        onto = linalg.solve(R, jnp.concatenate([N.T, B.T], axis=1))  # R⁻¹ [Nᵀ Bᵀ]
        n = len(A)
        F, G, H = (
            A - B @ onto[:, :n],
            linalg.symmetric(B @ onto[:, n:]),
            linalg.symmetric(Q - N @ onto[:, :n]),
        )

        def back(P: Array, dt: Array) -> tuple[Array, Array]:
            E, gain, cost = _interval(F, G, H, dt)
            before = linalg.symmetric(cost + E.T @ P @ linalg.solve(jnp.eye(n, dtype=P.dtype) + gain @ P, E))
            return before, before

        _, P = jax.lax.scan(back, Qf, jnp.diff(ts), reverse=True)
        P = jnp.concatenate([P, Qf[None]])
        return TimeVaryingLQR(onto[None, :, :n] + jnp.einsum("mi,tij->tmj", onto[:, n:], P), P)

    return broadcast(one, *((a, 2) for a in args))


def _interval(F: Array, G: Array, H: Array, dt: Array) -> tuple[Array, Array, Array]:
    """E, G, H of an interval: P before it is H + Eᵀ P (I + GP)⁻¹ E of P after it."""
    n, one = len(F), jnp.eye(len(F), dtype=F.dtype)
    hamiltonian = jnp.block([[F, -G], [-H, -F.T]])
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(hamiltonian), axis=1)) * dt)
    doublings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(2 * size, 1.0))), 0, _DOUBLINGS)
    step, flow, term = (
        hamiltonian * (dt / 2.0**doublings),
        jnp.eye(2 * n, dtype=F.dtype),
        jnp.eye(2 * n, dtype=F.dtype),
    )
    for k in range(1, _TERMS):
        term = term @ step / k
        flow = flow + term
    # (x, p) after = flow (x, p) before, solved for x after and p before
    inverse = linalg.solve(flow[n:, n:], jnp.concatenate([-flow[n:, :n], one], axis=1))
    start = flow[:n, :n] + flow[:n, n:] @ inverse[:, :n], -flow[:n, n:] @ inverse[:, n:], inverse[:, :n]

    def double(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, ...]:
        E, G, H = state
        both = linalg.solve(one + G @ H, jnp.concatenate([E, G], axis=1))
        twice = E @ both[:, :n], G + E @ both[:, n:] @ E.T, H + E.T @ H @ both[:, :n]
        return tuple(jnp.where(k < doublings, new, old) for new, old in zip(twice, state))

    return jax.lax.fori_loop(0, _DOUBLINGS, double, start)
