"""Linear-quadratic regulators: continuous, discrete, sampled-data, finite horizon."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import broadcast, linalg
from lqrlab.control import checks, riccati
from lqrlab.control.lyapunov import is_stable, stable
from lqrlab.control.sampling import sample_one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LQR:
    """An optimal regulator u = −Kx with its certificate; unpacks as ``K, P, poles, residual, stabilizing``.

    Attributes:
        K: gain ``[..., m, n]``; NaN where the problem has no stabilizing optimum.
        P: the optimal cost from x0 is x0ᵀP x0, ``[..., n, n]``.
        closed_loop: A − BK ``[..., n, n]``.
        residual: of the Riccati equation, relative to its largest term ``[...]``.
        stabilizing: whether the closed loop is stable and the equation holds ``[...]``.
    """

    K: Array
    P: Array
    closed_loop: Array
    residual: Array
    stabilizing: Array

    @property
    def poles(self) -> Array:
        """Eigenvalues of the closed loop ``[..., n]``: in rad/s for :func:`lqr`, else of the discrete loop."""
        dtype = jnp.result_type(self.closed_loop, jnp.complex64)
        if not checks.traced(self.closed_loop):
            return jnp.asarray(_eigenvalues(np.asarray(self.closed_loop)), dtype)
        shape = jax.ShapeDtypeStruct(self.closed_loop.shape[:-1], dtype)
        a = jax.lax.stop_gradient(self.closed_loop)
        return jax.pure_callback(_eigenvalues, shape, a, vmap_method="expand_dims")

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P, self.poles, self.residual, self.stabilizing))


def _eigenvalues(a: Any) -> np.ndarray:
    """On the host: no accelerator has ``eig``."""
    a = np.asarray(a)
    good = np.isfinite(a).all(axis=(-1, -2))
    values = np.linalg.eigvals(np.where(good[..., None, None], a, 0.0)).astype(np.result_type(a, np.complex64))
    return np.where(good[..., None], values, np.nan)


def _certified(K: Array, P: Array, closed: Array, residual: Array, sound: Array) -> LQR:
    tolerance = jnp.finfo(P.dtype).eps ** 0.5
    good = sound & (residual < tolerance) & jnp.all(jnp.isfinite(P))
    nan = jnp.asarray(jnp.nan, P.dtype)
    return LQR(jnp.where(good, K, nan), jnp.where(good, P, nan), closed, residual, good)


def discrete_one(A: Array, B: Array, Q: Array, R: Array, N: Array) -> LQR:
    """One discrete design."""
    P = riccati.solve_dare(A, B, Q, R, N)
    K = riccati.gain_discrete(A, B, R, N, P)
    closed = A - B @ K
    sound = stable(closed) & linalg.definite(R + B.T @ P @ B)
    return _certified(K, P, closed, riccati.residual_discrete(A, B, Q, R, N, P), sound)


def _continuous_one(A: Array, B: Array, Q: Array, R: Array, N: Array) -> LQR:
    P = riccati.solve_care(A, B, Q, R, N)
    K = riccati.gain_continuous(B, R, N, P)
    closed = A - B @ K
    sound = is_stable(jax.lax.stop_gradient(closed), continuous=True) & linalg.definite(R)
    return _certified(K, P, closed, riccati.residual_continuous(A, B, Q, R, N, P), sound)


def sampled_one(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array) -> LQR:
    """One sampled-data design."""
    return discrete_one(*sample_one(A, B, Q, R, N, dt))


def _over(design: Callable, *cores: int) -> Callable:
    return jax.jit(lambda *args: broadcast(design, *zip(args, cores)))


_lqr, _dlqr = _over(_continuous_one, 2, 2, 2, 2, 2), _over(discrete_one, 2, 2, 2, 2, 2)
_lqrd = _over(sampled_one, 2, 2, 2, 2, 2, 0)


def _answer(design: LQR, A: Array, B: Array, Q: Array, *, continuous: bool) -> LQR:
    """Outside a trace a single problem without an answer is an error that says why; a batch marks it."""
    if checks.traced(design) or design.stabilizing.ndim or bool(design.stabilizing):
        return design
    raise ValueError(checks.why_not(np.asarray(A), np.asarray(B), np.asarray(Q), continuous=continuous))


def lqr(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> LQR:
    """Minimise ∫ xᵀQx + uᵀRu + 2xᵀNu dt for ẋ = Ax + Bu.

    Args:
        A: ``[..., n, n]`` [1/s].
        B: ``[..., n, m]``.
        Q: ``[..., n, n]``, symmetric, ≥ 0.
        R: ``[..., m, m]``, symmetric, > 0.
        N: ``[..., n, m]`` cross weight; zero if left out.

    Returns:
        :class:`LQR` with u = −Kx; leading axes broadcast.

    Raises:
        ValueError: bad arguments, or (a single problem, outside a trace) no stabilizing optimum: the mode at
            fault is named. In a batch or a trace such members carry NaN and ``stabilizing=False``.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Control: Linear Quadratic Methods (1990), section 3.2.
    """
    args = checks.arguments(A, B, Q, R, N)
    return _answer(_lqr(*args), *args[:3], continuous=True)


def dlqr(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> LQR:
    """Minimise Σ xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t]; arguments and errors as in :func:`lqr`.

    Source: Anderson and Moore (1990), section 2.4 and chapter 3.
    """
    args = checks.arguments(A, B, Q, R, N)
    return _answer(_dlqr(*args), *args[:3], continuous=False)


def lqrd(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, N: ArrayLike | None = None
) -> LQR:
    """Minimise the *continuous* cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt over inputs held for dt: the sampled-data optimum.

    Args:
        A, B, Q, R, N: the continuous problem, as in :func:`lqr`.
        dt: sample time [s], scalar or with the leading axes.

    Returns:
        :class:`LQR` with the discrete gain u[t] = −K x[t]; x0ᵀP x0 is the continuous cost that it reaches.

    Source: G. F. Franklin, J. D. Powell and M. Workman, Digital Control of Dynamic Systems, 3rd ed. (1998),
    section 9.3.4.
    """
    args = checks.arguments(A, B, Q, R, N)
    step = checks.sample_time(dt, args[0].dtype)
    return _answer(_lqrd(*args, step), *args[:3], continuous=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TimeVaryingLQR:
    """Gains ``K [..., T, m, n]`` and costs to go ``P [..., T+1, n, n]`` of a finite horizon."""

    K: Array
    P: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P))


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

    Source: Anderson and Moore (1990), eqs. (2.4-2)-(2.4-4).
    """
    if num_steps < 1:
        raise ValueError(f"num_steps: expected a horizon of at least one step, but found {num_steps}")
    A, B, Q, R, N = checks.arguments(A, B, Q, R, N)
    terminal = Q if Qf is None else jnp.asarray(Qf, Q.dtype)
    if terminal.shape[-2:] != Q.shape[-2:]:
        raise ValueError(f"Qf: expected shape {Q.shape[-2:]}, Q's, but found {terminal.shape[-2:]}")

    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
        def back(P: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
            K = riccati.gain_discrete(A, B, R, N, P)
            closed = A - B @ K
            before = closed.T @ P @ closed + riccati.stage(Q, R, N, K)
            before = (before + before.T) / 2
            return before, (K, before)

        _, (K, P) = jax.lax.scan(back, Qf, length=num_steps, reverse=True)
        return TimeVaryingLQR(K, jnp.concatenate([P, Qf[None]]))

    return broadcast(one, *((a, 2) for a in (A, B, Q, R, N, terminal)))
