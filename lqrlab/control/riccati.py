"""Algebraic Riccati equations by structure-preserving doubling, polished by a Newton step.

Sources: E. K.-W. Chu, H.-Y. Fan, W.-W. Lin, C.-S. Wang, Structure-preserving algorithms for periodic discrete-time
algebraic Riccati equations, Int. J. Control 77 (2004), eqs. (10)-(12) [discrete]; E. K.-W. Chu, H.-Y. Fan,
W.-W. Lin, A structure-preserving doubling algorithm for continuous-time algebraic Riccati equations, Linear
Algebra Appl. 396 (2005), eqs. (15)-(17) [continuous]; D. L. Kleinman, IEEE Trans. Autom. Control 13 (1968) and
G. A. Hewer, ibid. 16 (1971) [Newton]. The derivative is that of the equation, not of the iteration.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import broadcast, linalg
from lqrlab.control import checks
from lqrlab.control.lyapunov import solve_continuous, solve_discrete

_DOUBLINGS = 40


def gain_discrete(A: Array, B: Array, R: Array, N: Array, P: Array) -> Array:
    """K = (R + BᵀPB)⁻¹ (BᵀPA + Nᵀ)."""
    return linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)


def gain_continuous(B: Array, R: Array, N: Array, P: Array) -> Array:
    """K = R⁻¹ (BᵀP + Nᵀ)."""
    return linalg.solve(R, B.T @ P + N.T)


def stage(Q: Array, R: Array, N: Array, K: Array) -> Array:
    """The weight on x of a step with u = −Kx: Q + KᵀRK − NK − KᵀNᵀ."""
    return Q + K.T @ R @ K - N @ K - K.T @ N.T


def _doubled(A: Array, G: Array, H: Array) -> Array:
    """The stabilizing solution of X = AᵀX(I + GX)⁻¹A + H for one problem: H doubles the horizon each time."""
    eye = jnp.eye(A.shape[0], dtype=A.dtype)
    tiny = jnp.finfo(A.dtype).eps

    def more(state: tuple) -> Array:
        _, _, _, change, k = state
        return (change > tiny) & (change < jnp.inf) & (k < _DOUBLINGS)

    def double(state: tuple) -> tuple:
        A, G, H, _, k = state
        # one elimination gives W⁻¹A and W⁻¹G with W = I + GH
        both = linalg.solve(eye + G @ H, jnp.concatenate([A, G], axis=1))
        WA, WG = jnp.split(both, 2, axis=1)
        step = linalg.symmetric(A.T @ H @ WA)
        size = jnp.max(jnp.abs(H + step))
        change = jnp.max(jnp.abs(step)) / jnp.where(size > 0, size, 1.0)
        return A @ WA, G + linalg.symmetric(A @ WG @ A.T), H + step, change, k + 1

    start = (A, G, H, jnp.ones((), A.dtype), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(more, double, start)[2]


@jax.custom_jvp
def solve_dare(A: Array, B: Array, Q: Array, R: Array, N: Array) -> Array:
    """P of one discrete problem; NaN or inf if the doubling finds none."""
    invR = linalg.solve(R, jnp.concatenate([B.T, N.T], axis=1))
    RB, RN = invR[:, : A.shape[0]], invR[:, A.shape[0] :]
    P = _doubled(A - B @ RN, linalg.symmetric(B @ RB), linalg.symmetric(Q - N @ RN))
    for _ in range(2):  # Newton: squares the error that the products of the doubling have left
        K = gain_discrete(A, B, R, N, P)
        P = linalg.symmetric(solve_discrete((A - B @ K).T, stage(Q, R, N, K)))
    return P


@solve_dare.defjvp
def _dare_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    A, B, Q, R, N = primals
    dA, dB, dQ, dR, dN = tangents
    P = solve_dare(A, B, Q, R, N)
    K = gain_discrete(A, B, R, N, P)
    closed = A - B @ K
    cross = closed.T @ P @ (dA - dB @ K) - dN @ K
    dP = solve_discrete(closed.T, cross + cross.T + dQ + K.T @ dR @ K)
    return P, linalg.symmetric(dP)


@jax.custom_jvp
def solve_care(A: Array, B: Array, Q: Array, R: Array, N: Array) -> Array:
    """P of one continuous problem; NaN or inf if the doubling finds none."""
    n = A.shape[0]
    eye = jnp.eye(n, dtype=A.dtype)
    invR = linalg.solve(R, jnp.concatenate([B.T, N.T], axis=1))
    RB, RN = invR[:, :n], invR[:, n:]
    F, G, H = A - B @ RN, linalg.symmetric(B @ RB), linalg.symmetric(Q - N @ RN)
    # the shift near the size of the closed loop's modes: tr(Hamiltonian²) = 2 Σ λ²
    squares = 2 * jnp.trace(F @ F) + 2 * jnp.sum(G * H)
    shift = jnp.sqrt(jnp.abs(squares) / (2 * n))
    shift = jnp.maximum(shift, 0.1 * jnp.sqrt(jnp.sum(F**2) / n) + jnp.finfo(A.dtype).tiny)
    S = F - shift * eye
    both = linalg.solve(S.T, jnp.concatenate([H, eye], axis=1))  # S⁻ᵀH, S⁻ᵀ
    SH, inverse = both[:, :n], both[:, n:].T
    V = S + G @ SH  # its transpose is Sᵀ + H S⁻¹ G
    W = linalg.solve(V, eye)
    P = _doubled(
        eye + 2 * shift * W,
        linalg.symmetric(2 * shift * inverse @ G @ W.T),
        linalg.symmetric(2 * shift * W.T @ H @ inverse),
    )
    for _ in range(2):
        K = gain_continuous(B, R, N, P)
        P = linalg.symmetric(solve_continuous((A - B @ K).T, stage(Q, R, N, K)))
    return P


@solve_care.defjvp
def _care_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    A, B, Q, R, N = primals
    dA, dB, dQ, dR, dN = tangents
    P = solve_care(A, B, Q, R, N)
    K = gain_continuous(B, R, N, P)
    cross = P @ (dA - dB @ K) - dN @ K
    dP = solve_continuous((A - B @ K).T, cross + cross.T + dQ + K.T @ dR @ K)
    return P, linalg.symmetric(dP)


def residual_discrete(A: Array, B: Array, Q: Array, R: Array, N: Array, P: Array) -> Array:
    """‖AᵀPA − P − (AᵀPB + N)K + Q‖ over the largest of its terms."""
    K = gain_discrete(A, B, R, N, P)
    return _relative(A.T @ P @ A, -P, -(A.T @ P @ B + N) @ K, Q)


def residual_continuous(A: Array, B: Array, Q: Array, R: Array, N: Array, P: Array) -> Array:
    """‖AᵀP + PA − (PB + N)K + Q‖ over the largest of its terms."""
    K = gain_continuous(B, R, N, P)
    return _relative(A.T @ P + P @ A, -(P @ B + N) @ K, Q)


def _relative(*terms: Array) -> Array:
    terms = jax.lax.stop_gradient(terms)
    size = jnp.max(jnp.stack([jnp.linalg.norm(t) for t in terms]))
    return jnp.linalg.norm(sum(terms[1:], terms[0])) / jnp.where(size > 0, size, 1.0)


def dare(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> Array:
    """Solve P = AᵀPA − (AᵀPB + N)(R + BᵀPB)⁻¹(BᵀPA + Nᵀ) + Q for the stabilizing P.

    Args:
        A, B: of x[t+1] = A x[t] + B u[t], ``[..., n, n]`` and ``[..., n, m]``.
        Q, R, N: weights of Σ xᵀQx + uᵀRu + 2xᵀNu, ``[..., n, n]``, ``[..., m, m]``, ``[..., n, m]``.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`dlqr` says why.
    """
    return _jitted["dare"](*checks.arguments(A, B, Q, R, N))


def care(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> Array:
    """Solve AᵀP + PA − (PB + N)R⁻¹(BᵀP + Nᵀ) + Q = 0 for the stabilizing P.

    Args:
        A, B: of ẋ = A x + B u, ``[..., n, n]`` and ``[..., n, m]``.
        Q, R, N: weights of ∫ xᵀQx + uᵀRu + 2xᵀNu dt.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`lqr` says why.
    """
    return _jitted["care"](*checks.arguments(A, B, Q, R, N))


def _over(solve):  # noqa: ANN001, ANN202
    return jax.jit(lambda *args: broadcast(solve, *((a, 2) for a in args)))


_jitted = {"dare": _over(solve_dare), "care": _over(solve_care)}
