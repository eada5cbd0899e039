"""Linear systems in the frequency domain: responses, sensitivity, zeros, H2 and H∞ norms."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Complex, Float

from lqrlab.compute import broadcast, linalg
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.controllability import gram

if TYPE_CHECKING:
    from control import StateSpace


def to_statespace(
    A: ArrayLike, B: ArrayLike, C: ArrayLike | None = None, D: ArrayLike | None = None,
    dt: float | None = None,
) -> "StateSpace":  # fmt: skip
    """A ``control.StateSpace`` of one system; C is the identity and D zero if left out, continuous without dt.

    The way back is :func:`lqrlab.systems.from_control`.

    >>> control.to_statespace([[-1.0]], [[1.0]], dt=0.1).nstates
    1
    """
    import control as python_control

    step = matrix_checks.host_sample_time("to_statespace", dt)
    C = np.eye(np.shape(A)[-1] if np.ndim(A) else 1) if C is None else C
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    A, B, C, *rest = matrix_checks.host_matrices("to_statespace", **given)
    D = rest[0] if rest else np.zeros((len(C), B.shape[1]))
    return python_control.ss(A, B, C, D, *(() if step is None else (step,)))


def zeros(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> Complex[np.ndarray, " zeros"]:
    """Invariant (transmission) zeros of one system, on the host, the least stable first.

    At a zero the inputs can move the plant permanently without any effect on y = Cx + Du. A zero in the right
    half-plane (outside the unit circle if ``dt`` is given) makes y start the wrong way and bounds how fast any
    controller can be; one at the origin (at 1) means that no constant input holds y.

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Source: A. Emami-Naeini and P. Van Dooren, Automatica 18 (1982), as in SLICOT's AB08ND.

    >>> control.zeros([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], [[-1.0, 1.0]]).real  # (s − 1) / s²
    array([1.])
    """
    matrix_checks.on_host("zeros", A, B, C, D, dt)
    values = np.asarray(to_statespace(A, B, C, D, dt).zeros(), complex)
    return values[np.argsort(-(values.real if dt is None else np.abs(values)), kind="stable")]


def frequency_response(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, frequencies: ArrayLike, D: ArrayLike | None = None,
    dt: ArrayLike | None = None,
) -> Complex[Array, "*batch f p m"]:  # fmt: skip
    """C (sI − A)⁻¹B + D at s = jω, or at z = exp(jω dt); batched, differentiable.

    Args:
        A, B, C, D: ``[..., n, n]``, ``[..., n, m]``, ``[..., p, n]``, ``[..., p, m]`` (zero if left out).
        frequencies: ω [rad/s], ``[..., f]``; their leading axes broadcast with the others.
        dt: sample time [s] of a discrete system, scalar or with the leading axes.

    Returns:
        Complex ``[..., f, p, m]``; not finite at a pole.

    >>> control.frequency_response([[-1.0]], [[2.0]], [[1.0]], [1.0])[0, 0, 0]  # 2 / (1 + j)
    Array(1.-1.j, dtype=complex128)
    """
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    A, B, C, *rest = matrix_checks.matrices(**given)
    D = rest[0] if rest else jnp.zeros((C.shape[-2], B.shape[-1]), A.dtype)
    w = jnp.asarray(matrix_checks.real("frequencies", frequencies), A.dtype)
    if not w.ndim:
        raise ValueError("frequencies: expected an array [..., f], but found one number; put it into a list")
    step = None if dt is None else matrix_checks.sample_time(dt, A.dtype)
    return _response(A, B, C, D, w, step)


@jax.jit
def _response(A: Array, B: Array, C: Array, D: Array, w: Array, step: Array | None) -> Array:
    # the matrices meet complex s
    A, B, C, D = (M.astype(np.result_type(M.dtype, np.complex64)) for M in (A, B, C, D))

    def one(A: Array, B: Array, C: Array, D: Array, w: Array, dt: Array | None) -> Array:
        s = jax.lax.complex(jnp.zeros_like(w), w)
        s = s if dt is None else jnp.exp(s * dt.astype(s.dtype))
        eye = jnp.eye(len(A), dtype=s.dtype)
        return jax.vmap(lambda s: C @ linalg.solve(s * eye - A, B.astype(s.dtype)) + D)(s)

    return broadcast(one, (A, 2), (B, 2), (C, 2), (D, 2), (w, 1), (step, 0))


def sensitivity(
    A: ArrayLike, B: ArrayLike, K: ArrayLike, frequencies: ArrayLike, dt: ArrayLike | None = None
) -> Complex[Array, "*batch f m m"]:
    """(I + L)⁻¹ of the loop L = K (sI − A)⁻¹B that u = −Kx closes, seen at the inputs; batched, differentiable.

    Its i-th diagonal element is that of input i with the others closed.

    Args:
        A, B, K: ``[..., n, n]``, ``[..., n, m]``, ``[..., m, n]``.
        frequencies, dt: as in :func:`frequency_response`.

    Returns:
        Complex ``[..., f, m, m]``.
    """
    A, B, K = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), K=(K, "mn"))
    return frequency_response(A - B @ K, B, -K, frequencies, jnp.eye(K.shape[-2], dtype=K.dtype), dt)


def h2_norm(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, discrete: bool = False) -> Float[Array, "*batch"]:
    """H2 norm of x' = Ax + Bw, y = Cx ``[...]``: the root mean square of y under unit white noise; differentiable.

    NaN where A is unstable.

    >>> control.h2_norm([[-0.5]], [[1.0]], [[2.0]])
    Array(2., dtype=float64)
    """
    A, B, C = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    return jnp.sqrt(jnp.trace(C @ gram(A, B, discrete=discrete) @ C.mT, axis1=-1, axis2=-2))


def hinf_norm(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> tuple[float, float]:
    """H∞ norm of one system, on the host: the largest gain over all frequencies, and where it is [rad/s].

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Raises:
        ValueError: the system is not stable, so that its gain has no bound.

    >>> control.hinf_norm([[-0.5]], [[1.0]], [[1.0]])  # 1 / (s + 0.5)
    (2.0, 0.0)
    """
    import control as python_control

    matrix_checks.on_host("hinf_norm", A, B, C, D, dt)
    (a,) = matrix_checks.host_matrices("hinf_norm", A=(A, "nn"))
    dt = matrix_checks.host_sample_time("hinf_norm", dt)
    if not stable(a, dt):
        raise ValueError("A: the system is not stable, so its H∞ norm is infinite")
    system = to_statespace(A, B, C, D, dt)
    try:
        gain, frequency = python_control.linfnorm(system)
    except ArithmeticError as error:  # SLICOT's, of entries near the largest numbers
        why = "expected numbers nearer to one: their H∞ norm cannot be computed"
        raise ValueError(f"A, B, C, D: {why} ({' '.join(str(error).split())}); choose other units") from error
    return float(gain), float(frequency)


def stable(A: np.ndarray, dt: float | None) -> bool:
    """Whether all modes of one system decay, on the host by its eigenvalues; not if it is not finite."""
    if not np.isfinite(A).all():
        return False
    poles = np.linalg.eigvals(A)
    return bool(poles.real.max() < 0 if dt is None else np.abs(poles).max() < 1)
