"""Linear-quadratic regulators: continuous, discrete and sampled-data."""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Complex, Float

from lqrlab.compute import as_jax, broadcast, linalg, pytree
from lqrlab.compute.checks import traced
from lqrlab.compute.linalg import batch_last
from lqrlab.control import matrix_checks
from lqrlab.control.riccati import equations

_ONE_DIGIT = 0.1


@pytree
@dataclasses.dataclass(frozen=True)
class LQR:
    """An optimal regulator u = −Kx with its certificate; unpacks as ``K, P, poles, residual, stabilizing``.

    Attributes:
        K: gain; NaN where the problem has no stabilizing optimum.
        P: the optimal cost from x0 is x0ᵀP x0.
        closed_loop: A − BK.
        residual: of the Riccati equation, relative to its largest term; infinite where no stable loop was found.
        stabilizing: whether the closed loop is stable and the equation holds.
    """

    K: Float[Array, "*batch m n"]
    P: Float[Array, "*batch n n"]
    closed_loop: Float[Array, "*batch n n"]
    residual: Float[Array, "*batch"]
    stabilizing: Bool[Array, "*batch"]

    @property
    def poles(self) -> Complex[Array, "*batch n"]:
        """Eigenvalues of the closed loop ``[..., n]``: in rad/s for :func:`lqr`, else of the discrete loop."""
        dtype = np.result_type(self.closed_loop.dtype, np.complex64)
        if not traced(self.closed_loop):
            return as_jax(_eigenvalues(np.asarray(self.closed_loop)).astype(dtype))
        shape = jax.ShapeDtypeStruct(self.closed_loop.shape[:-1], dtype)
        a = jax.lax.stop_gradient(self.closed_loop)
        return jax.pure_callback(_eigenvalues, shape, a, vmap_method="expand_dims")

    @property
    def uncertified(self) -> Bool[Array, "*batch"]:
        """True where K is NaN although a stable loop was found: its equation holds to ``residual`` only, too coarsely.

        Such a problem has, or is close to one that has, an optimum of which double precision does not hold the digits;
        where neither this nor ``stabilizing`` is True, none was found, or the weights bound no cost below.
        """
        coarse = self.residual >= equations.accepted(self.residual.dtype)
        return ~self.stabilizing & coarse & (self.residual < _ONE_DIGIT)

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P, self.poles, self.residual, self.stabilizing))


def _eigenvalues(a: ArrayLike) -> np.ndarray:
    """On the host: no accelerator has ``eig``. NaN for a matrix with a number that is not finite."""
    a = np.asarray(a)
    good = np.all(np.isfinite(a), axis=(-1, -2), keepdims=True)
    values = np.linalg.eigvals(np.where(good, a, 0.0)).astype(np.result_type(a, np.complex64))
    return np.where(good[..., 0], values, np.nan)


@batch_last.solver(2, 2, 2)
def _bounded_below(Q: Array, R: Array, N: Array) -> Array:
    """True where R > 0 and Q − NR⁻¹Nᵀ ≥ 0, to rounding; the batch on the last axis."""
    scale = jnp.maximum(batch_last.largest(Q), float(jnp.finfo(Q.dtype).tiny) ** 0.5)
    # stored, else each entry of the sum below would look for the largest one again
    some = linalg.stored(matrix_checks.tolerance(Q.dtype) * scale)
    rest = Q - batch_last.mul(N, batch_last.mul(batch_last.inverse(R), batch_last.t(N)))
    return batch_last.positive(R) & batch_last.positive(rest + some[None, None] * batch_last.eye(len(Q), Q))


def _sound(holds: Any, weights: tuple[Array | np.ndarray, ...], *, singular_R: bool) -> Any:
    """Those answers whose equation ``holds`` and whose cost is bounded below.

    The equation may have a solution although R > 0 or [Q N; Nᵀ R] ≥ 0 does not hold and the cost has no lower bound.
    """
    bounded = _bounded_in_a_program(*weights) if isinstance(holds, jax.Array) else None
    if traced(bounded, holds):
        return holds & bounded
    if bounded is None and not np.ndim(holds):
        return holds  # a single problem's weights have been checked before
    holds = np.asarray(holds)
    sound = np.zeros_like(holds) if bounded is None else holds & np.asarray(bounded)
    if (doubtful := holds & ~sound).any():
        Q, R, N = (np.broadcast_to(a, (*holds.shape, *a.shape[-2:]))[doubtful] for a in map(np.asarray, weights))
        sound[doubtful] = matrix_checks.bounded_below(Q, R, N, True, singular_R)[0]
    return sound


@jax.jit
def _bounded_in_a_program(*weights: ArrayLike) -> Array:
    return _bounded_below(*(jax.lax.stop_gradient(a) for a in matrix_checks.together(*weights)))


def _design(args: tuple[Array | np.ndarray, ...], *, continuous: bool, singular_R: bool = False) -> LQR:
    """The design of checked A, B, Q, R, N, and a sample time if that of the sampled problem is asked for.

    NaN where it is not certified: not stable, the equation does not hold, no bound below. A single problem outside a
    trace that has no answer is an error that says why.
    """
    with jax.debug_nans(False):  # NaN marks what has no answer; a single problem's reason is said below
        solution = equations.solution(args, continuous=continuous)
        sound = _sound(equations.certain(solution), args[2:5], singular_R=singular_R)
        found = (*equations.certified(solution, sound)[:4], sound)
        design = LQR(*(found if traced(*found) else jax.device_put(found)))
    if design.P.ndim == 2 and not traced(design) and not bool(design.stabilizing):
        from lqrlab.control.analysis import diagnosis  # stands above; only a problem without an answer needs it

        why = float(design.residual) if bool(design.uncertified) else None
        raise ValueError(diagnosis.why_not([np.asarray(a) for a in args], continuous=continuous, residual=why))
    return design


def lqr(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> LQR:
    """Minimise ∫ xᵀQx + uᵀRu + 2xᵀNu dt for ẋ = Ax + Bu.

    Args:
        A: ``[..., n, n]`` [1/s].
        B: ``[..., n, m]``.
        Q: ``[..., n, n]``, symmetric, ≥ 0; outside a trace ≥ 0 up to the rounding of a printed table, with a warning.
        R: ``[..., m, m]``, symmetric, > 0.
        N: ``[..., n, m]`` cross weight; zero if left out.

    Returns:
        :class:`LQR` with u = −Kx; leading axes broadcast.

    Raises:
        ValueError: bad arguments, or (a single problem, outside a trace) no stabilizing optimum: the mode at
            fault is named. In a batch or a trace such members carry NaN and ``stabilizing=False``; in a trace
            so do those that are answered with a warning outside. ``uncertified`` tells those of which a stable loop
            is known, but too few digits of its gain: where P is some 10¹⁰ times Q and more.

    Inside a program of your own a batch is solved on one core; ``compute.Backend(mesh="data=…").split`` shares it out
    over the processor's devices (:func:`lqrlab.compute.setup`), as a call outside does by itself.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Control: Linear Quadratic Methods (1990), section 3.2.

    >>> control.lqr([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], np.eye(2), [[1.0]]).K
    Array([[1.        , 1.73205081]], dtype=float64)
    """
    return _design(matrix_checks.design_arguments(A, B, Q, R, N, certified=True), continuous=True)


def dlqr(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> LQR:
    """Minimise Σ xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t]; arguments and errors as in :func:`lqr`.

    R may be singular outside a trace, with a warning, if R + BᵀPB > 0: R = 0 gives a deadbeat controller.

    Source: Anderson and Moore (1990), section 2.4 and chapter 3.

    >>> round(float(control.dlqr([[1.0]], [[1.0]], [[1.0]], [[1.0]]).P[0, 0]), 6)  # the golden ratio
    1.618034
    """
    return _design(
        matrix_checks.design_arguments(A, B, Q, R, N, certified=True, singular_R=True),
        continuous=False,
        singular_R=True,
    )


def lqrd(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, N: ArrayLike | None = None) -> LQR:
    """Minimise the *continuous* cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt over inputs held for dt: the sampled-data optimum.

    Args:
        A, B, Q, R, N: the continuous problem, as in :func:`lqr`; R may be singular as in :func:`dlqr`.
        dt: sample time [s], scalar or with the leading axes.

    Returns:
        :class:`LQR` with the discrete gain u[t] = −K x[t]; x0ᵀP x0 is the continuous cost that it reaches. Where
        dt is so short that sampling rounds the plant away, a warning says how many digits the gain has.

    Source: G. F. Franklin, J. D. Powell, M. Workman, Digital Control of Dynamic Systems (1998), section 9.3.4.

    >>> design = control.lqrd([[0.0]], [[1.0]], [[1.0]], [[1.0]], dt=0.1)
    >>> design.P.round(3).tolist(), bool(design.stabilizing)
    ([[1.0]], True)
    """
    args = matrix_checks.design_arguments(A, B, Q, R, N, certified=True, singular_R=True)
    step = matrix_checks.design_sample_time(dt, args[0].dtype, *args)
    design = _design((*args, step), continuous=True, singular_R=True)
    if not traced(design):
        _warn_of_lost_digits(np.asarray(design.closed_loop), np.asarray(design.stabilizing))
    return design


def _warn_of_lost_digits(closed: np.ndarray, good: np.ndarray) -> None:
    """Say so where a loop moves so little within a sample that I + A dt has not kept the digits of A."""
    motion = np.abs(closed - np.eye(closed.shape[-1], dtype=closed.dtype)).max(axis=(-1, -2))
    least = float(np.min(motion, where=good, initial=np.inf))
    lost = float(np.finfo(closed.dtype).eps) / max(least, 1e-300)
    if lost > equations.accepted(closed.dtype):
        warnings.warn(
            f"dt: a loop moves by only {least:.1g} of its state within a sample, and a sampled plant in {closed.dtype} "
            f"keeps that to a relative {lost:.1g}: no better is the gain; choose a longer sample time, or lqr, which "
            "the optimum approaches",
            stacklevel=3,
        )


def unsaturated_level(K: ArrayLike, P: ArrayLike, limit: ArrayLike) -> Float[Array, "*batch"]:
    """The largest c such that u = −Kx stays within ±limit wherever xᵀPx ≤ c.

    With P of an LQR design the linear loop never leaves that ellipsoid, so its inputs never saturate: a place to
    hand over to it. Of a nonlinear plant nothing is proved.

    Args:
        K: ``[..., m, n]``.
        P: ``[..., n, n]``, > 0.
        limit: of the inputs' deviation from the equilibrium, a scalar or ``[..., m]``.

    Returns:
        c ``[...]`` = min over inputs of limit² / (K P⁻¹ Kᵀ).
    """
    K, P = matrix_checks.matrices(K=(K, "mn"), P=(P, "nn"))
    limit = jnp.asarray(matrix_checks.real("limit", limit, low=0), K.dtype)
    limit = jnp.broadcast_to(limit, jnp.broadcast_shapes(limit.shape, K.shape[-2:-1]))

    def one(K: Array, P: Array, limit: Array) -> Array:
        return jnp.min(limit**2 / jnp.sum(K * linalg.solve(P, K.T).T, axis=1))

    return broadcast(one, (K, 2), (P, 2), (limit, 1))
