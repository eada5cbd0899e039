"""Regulators that follow a set-point: integral action, feedforward, weights on outputs, placed poles."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import scipy.signal
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import linalg, pytree
from lqrlab.control import checks
from lqrlab.control.regulator import LQR, dlqr, lqr
from lqrlab.control.riccati import equations


@pytree
@dataclasses.dataclass(frozen=True)
class Integral:
    """u = −Kx − Ki z with z' the integral (or sum) of y − r.

    Attributes:
        K: gain on the state ``[..., m, n]``.
        Ki: gain on the integrals ``[..., m, p]``.
        design: :class:`LQR` of the state widened by z.
    """

    K: Array
    Ki: Array
    design: LQR


def lqi(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    Qi: ArrayLike,
    *,
    discrete: bool = False,
) -> Integral:
    """A regulator with integral action: constant disturbances leave no error in y = Cx.

    Args:
        A, B, Q, R: as in :func:`lqr` (or :func:`dlqr` if ``discrete``).
        C: what is to be held ``[..., p, n]``, p ≤ m.
        Qi: weight of the integrals ``[..., p, p]``, > 0.
        discrete: sum the error step by step instead of integrating it.

    Raises:
        ValueError: bad arguments, or a plant that cannot hold y: a transmission zero at the origin.

    Source: H. Kwakernaak and R. Sivan, Linear Optimal Control Systems (1972), section 3.7.
    """
    A, B, C, Q, Qi = checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"), Q=(Q, "nn"), Qi=(Qi, "pp"))
    n, m, p = A.shape[-1], B.shape[-1], C.shape[-2]
    if p > m:
        raise ValueError(f"C: {m} inputs cannot hold {p} outputs at will; choose at most {m}")
    A, B, C, Q, Qi = equations.together(A, B, C, Q, Qi)
    lead = A.shape[:-2]
    corner = jnp.eye(p, dtype=A.dtype) if discrete else jnp.zeros((p, p), A.dtype)
    wide = jnp.concatenate(
        [
            jnp.concatenate([A, jnp.zeros((*lead, n, p), A.dtype)], axis=-1),
            jnp.concatenate([C, jnp.broadcast_to(corner, (*lead, p, p))], axis=-1),
        ],
        axis=-2,
    )
    inputs = jnp.concatenate([B, jnp.zeros((*lead, p, m), B.dtype)], axis=-2)
    weight = jnp.concatenate(
        [
            jnp.concatenate([Q, jnp.zeros((*lead, n, p), Q.dtype)], axis=-1),
            jnp.concatenate([jnp.zeros((*lead, p, n), Q.dtype), Qi], axis=-1),
        ],
        axis=-2,
    )
    design = (dlqr if discrete else lqr)(wide, inputs, weight, R)
    return Integral(design.K[..., :n], design.K[..., n:], design)


def feedforward(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, discrete: bool = False) -> tuple[Array, Array]:
    """The state and the input that hold y = Cx = r: x = Nx r, u = Nu r; track with u = Nu r − K(x − Nx r).

    Args:
        A, B: ``[..., n, n]``, ``[..., n, m]``.
        C: ``[..., m, n]``: as many outputs as inputs.
        discrete: of x[t+1] = Ax[t] + Bu[t] instead of ẋ = Ax + Bu.

    Returns:
        ``(Nx [..., n, m], Nu [..., m, m])``; not finite where a transmission zero lies at the origin (at 1 if
        discrete): no constant input holds such an output.

    Source: G. F. Franklin, J. D. Powell and M. Workman, Digital Control of Dynamic Systems, 3rd ed. (1998),
    section 8.4.
    """
    A, B, C = equations.together(*checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn")))
    n, m = B.shape[-2:]
    if C.shape[-2:] != (m, n):
        raise ValueError(f"C: expected shape ({m}, {n}), as many outputs as inputs, but found {C.shape[-2:]}")
    drift = A - jnp.broadcast_to(jnp.eye(n, dtype=A.dtype), A.shape) if discrete else A
    lead = A.shape[:-2]
    zero = jnp.zeros((*lead, m, m), A.dtype)
    top, below = jnp.concatenate([drift, B], axis=-1), jnp.concatenate([C, zero], axis=-1)
    system = jnp.concatenate([top, below], axis=-2)
    wish = jnp.broadcast_to(jnp.eye(n + m, m, -n, dtype=A.dtype), (*lead, n + m, m))
    both = linalg.solve_many(system, wish)
    return both[..., :n, :], both[..., n:, :]


def output_weights(
    C: ArrayLike, Qy: ArrayLike, R: ArrayLike, D: ArrayLike | None = None
) -> tuple[Array, Array, Array]:
    """(Q, R, N) of the cost yᵀQy y + uᵀRu of outputs y = Cx + Du.

    Args:
        C: ``[..., p, n]``.
        Qy: ``[..., p, p]``, ≥ 0.
        R: ``[..., m, m]``.
        D: ``[..., p, m]``; zero if left out.
    """
    C, Qy, R = (jnp.asarray(a) for a in (C, Qy, R))
    p = C.shape[-2]
    if Qy.shape[-2:] != (p, p):
        raise ValueError(f"Qy: expected shape ({p}, {p}), one weight an output, but found {Qy.shape[-2:]}")
    D = jnp.zeros((p, R.shape[-1]), C.dtype) if D is None else jnp.asarray(D)
    C, Qy, R, D = equations.together(C, Qy, R, D)
    left = jnp.swapaxes(C, -1, -2) @ Qy
    return linalg.symmetric(left @ C), R + linalg.symmetric(jnp.swapaxes(D, -1, -2) @ Qy @ D), left @ D


def place(A: ArrayLike, B: ArrayLike, poles: ArrayLike) -> Array:
    """K [m, n] that gives A − BK the ``poles`` [n]; one problem, on the host.

    Raises:
        ValueError: bad shapes, a pole without its conjugate, more equal poles than inputs, a mode out of reach.

    Source: A. L. Tits and Y. Yang, IEEE Trans. Autom. Control 41 (1996), as in ``scipy.signal.place_poles``.
    """
    if checks.traced(A, B, poles):
        raise ValueError("place: runs on the host, so not inside jit, vmap or grad")
    A, B, wish = np.asarray(A, float), np.asarray(B, float), np.atleast_1d(np.asarray(poles, complex))
    n = A.shape[-1]
    if A.shape != (n, n) or B.ndim != 2 or len(B) != n or wish.shape != (n,):
        raise ValueError(
            f"expected A [n, n], B [n, m] and n poles, but found {A.shape}, {B.shape} and {wish.shape}"
        )
    try:
        K = scipy.signal.place_poles(A, B, wish).gain_matrix
    except ValueError as error:
        raise ValueError(f"poles: {error}") from error
    found = np.linalg.eigvals(A - B @ K)
    far = max(np.abs(found - w).min() for w in wish)
    if not far < 1e-3 * max(1.0, np.abs(wish).max()):
        raise ValueError(
            f"poles: the nearest that was reached is {far:.2g} away from one of them: a mode is out of the "
            "inputs' reach (see diagnose) or the wish is very badly conditioned"
        )
    return jnp.asarray(K)
