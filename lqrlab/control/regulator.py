"""Linear-quadratic regulators: continuous, discrete, sampled-data, finite horizon."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import pytree
from lqrlab.compute.linalg import batch_last
from lqrlab.control import checks, discretization
from lqrlab.control.riccati import doubling, equations
from lqrlab.control.riccati.doubling import Solution


@pytree
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
    values = np.linalg.eigvals(np.where(good[..., None, None], a, 0.0)).astype(
        np.result_type(a, np.complex64)
    )
    return np.where(good[..., None], values, np.nan)


def certified(solution: Solution) -> LQR:
    """A design with NaN in place of what is not certified: not stable, or the equation does not hold."""
    K, P, closed, residual, stable = solution
    sound = (
        jnp.all(jnp.isfinite(P), axis=(-1, -2)) & (residual < equations.accepted(P.dtype)) & (stable > 0.5)
    )
    nan = jnp.asarray(jnp.nan, P.dtype)
    keep = sound[..., None, None]
    return LQR(jnp.where(keep, K, nan), jnp.where(keep, P, nan), closed, residual, sound)


_certify = jax.jit(certified)


@jax.jit
def _with_a_minimum(design: LQR, Q: Array, R: Array, N: Array) -> LQR:
    """The design with NaN where R > 0 or [Q N; Nᵀ R] ≥ 0 does not hold: there the cost has no lower bound.

    The equation may have a solution all the same. A single problem is refused beforehand, by eigenvalues.
    """
    Q, R, N = (jax.lax.stop_gradient(a) for a in equations.together(Q, R, N))
    good = _bounded(Q, R, N)
    keep = good[..., None, None]
    nan = jnp.asarray(jnp.nan, design.P.dtype)
    return dataclasses.replace(
        design,
        K=jnp.where(keep, design.K, nan),
        P=jnp.where(keep, design.P, nan),
        stabilizing=design.stabilizing & good,
    )


@batch_last.over_lanes(2, 2, 2)
def _bounded(Q: Array, R: Array, N: Array) -> Array:
    some = checks.tolerance(Q.dtype) * jnp.maximum(
        batch_last.largest(Q), float(jnp.finfo(Q.dtype).tiny) ** 0.5
    )
    rest = Q - batch_last.mul(N, batch_last.mul(batch_last.inverse(R), batch_last.t(N)))
    return batch_last.positive(R) & batch_last.positive(rest + some[None, None] * batch_last.eye(len(Q), Q))


_traced = {
    True: jax.jit(lambda *args: certified(equations.solve_continuous_riccati(*equations.together(*args)))),
    False: jax.jit(lambda *args: certified(equations.solve_discrete_riccati(*equations.together(*args)))),
}


_CORES = (2, 2, 2, 2, 2, 0)


def _fast_sampled(*args: Array) -> tuple[Solution, Array]:
    A, B, Q, R, N, dt = args
    return doubling.fast_discrete(*discretization.sampled(A, B, Q, R, N, dt))


@jax.jit
def _traced_sampled(*args: Array) -> LQR:
    return certified(equations.solve_discrete_riccati(*discretization.sample_many(*args)))


_sampled = equations.program(_fast_sampled, *_CORES)


def _designed(*args: Array, continuous: bool, dt: Array | None = None) -> LQR:
    """The design; outside a trace a single problem without an answer is an error that says why."""
    full = args if dt is None else (*args, dt)
    if checks.traced(*full):
        design = _traced[continuous](*full) if dt is None else _traced_sampled(*full)
        return _with_a_minimum(design, *args[2:])
    if dt is None:
        design = _certify(equations.solved(full, continuous=continuous))
    else:
        design = _certify(
            equations.solved(full, continuous=False, fast=_sampled, before=discretization.compiled)
        )
    if design.stabilizing.ndim:
        return _with_a_minimum(design, *args[2:])
    if bool(design.stabilizing):
        return design
    raise ValueError(checks.why_not(*(np.asarray(a) for a in args[:3]), continuous=continuous))


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
    return _designed(*args, continuous=True)


def dlqr(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> LQR:
    """Minimise Σ xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t]; arguments and errors as in :func:`lqr`.

    Source: Anderson and Moore (1990), section 2.4 and chapter 3.
    """
    args = checks.arguments(A, B, Q, R, N)
    return _designed(*args, continuous=False)


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
    return _designed(*args, continuous=True, dt=step)
