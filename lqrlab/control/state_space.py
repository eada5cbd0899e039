"""The state space of whatever is u = K(z) y: controllers, reduced and identified models; frequency responses."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Complex, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import traced
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import c2d


@pytree
@dataclasses.dataclass(frozen=True)
class StateSpace:
    """x' = Ax + Bu, y = Cx + Du, where x' is the derivative or, with a sample time, the next state.

    Of a controller the input is what is measured, the output what it does. Its arrays are NumPy's or JAX's, as given.

    Attributes:
        A, B, C, D: ``[*batch, n, n]``, ``[*batch, n, m]``, ``[*batch, p, n]``, ``[*batch, p, m]``.
        dt: sample time [s]; None in continuous time.

    Raises:
        ValueError: matrices that do not go together, or a sample time that is not above 0 s.

    >>> slow = control.StateSpace([[-1.0]], [[1.0]], [[2.0]], [[0.0]])
    >>> slow.order, slow.response([1.0])[0, 0, 0]  # 2 / (1 + j)
    (1, Array(1.-1.j, dtype=complex128))
    """

    A: Float[Array | np.ndarray, "*batch n n"]
    B: Float[Array | np.ndarray, "*batch n m"]
    C: Float[Array | np.ndarray, "*batch p n"]
    D: Float[Array | np.ndarray, "*batch p m"]
    dt: Any = None

    def __post_init__(self) -> None:
        found = {name: matrix_checks.real(name, getattr(self, name)) for name in "ABCD"}
        matrix_checks.shapes(found, {"A": "nn", "B": "nm", "C": "pn", "D": "pm"})
        matrix_checks.finite(found)
        for name, a in found.items():
            # a copy of NumPy's: what the caller writes there later is not this system
            object.__setattr__(self, name, np.array(a) if isinstance(a, np.ndarray) else a)
        if self.dt is not None:
            matrix_checks.sample_time(self.dt, np.dtype(float))

    @property
    def matrices(self) -> tuple[Any, Any, Any, Any]:
        """A, B, C, D."""
        return self.A, self.B, self.C, self.D

    @property
    def order(self) -> int:
        """Number of states."""
        return np.shape(self.A)[-1]

    @property
    def poles(self) -> Complex[np.ndarray, "*batch n"]:
        """Eigenvalues of A [rad/s], or in z, on the host."""
        return np.linalg.eigvals(np.asarray(self.A, float)).astype(complex)

    def response(self, frequencies: ArrayLike) -> Complex[Array, "*batch f p m"]:
        """C (sI − A)⁻¹B + D at frequencies [rad/s], see :func:`lqrlab.control.frequency_response`."""
        if not self.order:
            return jnp.broadcast_to(jnp.asarray(self.D, complex), (*np.shape(frequencies), *np.shape(self.D)))
        return frequency_response(self.A, self.B, self.C, frequencies, self.D, self.dt)

    def sampled(self, dt: ArrayLike) -> "StateSpace":
        """The system with its input held for dt [s], exactly; one that is sampled has to have that sample time."""
        if self.dt is None:
            return StateSpace(*(c2d(self.A, self.B, dt) if self.order else (self.A, self.B)), self.C, self.D, dt)
        if not traced(self.dt, dt) and not np.allclose(self.dt, dt, rtol=1e-6, atol=0):
            raise ValueError(f"dt: expected the system's own sample time, {self.dt} s, but found {dt} s")
        return self


def frequency_response(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    frequencies: ArrayLike,
    D: ArrayLike | None = None,
    dt: ArrayLike | None = None,
) -> Complex[Array, "*batch f p m"]:
    """C (sI − A)⁻¹B + D at s = jω, or at z = exp(jω dt); batched, differentiable.

    Args:
        A, B, C, D: ``[..., n, n]``, ``[..., n, m]``, ``[..., p, n]``, ``[..., p, m]`` (zero if left out).
        frequencies: ω [rad/s], ``[..., f]``; their leading axes broadcast with the others.
        dt: sample time [s] of a discrete system, scalar or with the leading axes.

    Returns:
        Complex ``[..., f, p, m]``; not finite at a pole.

    A dead time is a factor exp(−jω delay), exactly.

    >>> control.frequency_response([[-1.0]], [[2.0]], [[1.0]], [1.0])[0, 0, 0]  # 2 / (1 + j)
    Array(1.-1.j, dtype=complex128)
    """
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    A, B, C, *rest = matrix_checks.matrices(**given)
    D = rest[0] if rest else jnp.zeros((C.shape[-2], B.shape[-1]), A.dtype)
    w = jnp.asarray(matrix_checks.real("frequencies", frequencies), A.dtype)
    if not w.ndim:
        raise ValueError("frequencies: expected an array [..., f], but found one number; put it into a list")
    return _response(A, B, C, D, w, None if dt is None else matrix_checks.sample_time(dt, A.dtype))


def response_at(A: np.ndarray, B: np.ndarray, C: np.ndarray, z: np.ndarray) -> np.ndarray:
    """C (zI − A)⁻¹B ``[f, p, m]`` at complex z ``[f]``, on the host: of one small system, nothing is compiled.

    NaN at a pole.
    """
    try:
        return C @ np.linalg.solve(z[:, None, None] * np.eye(len(A)) - A, B.astype(complex)[None])
    except np.linalg.LinAlgError:  # one of them is a pole, of which NumPy does not say which
        if len(z) == 1:
            return np.full((1, len(C), B.shape[1]), complex(np.nan, np.nan))
        return np.concatenate([response_at(A, B, C, half) for half in np.array_split(z, 2)])


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
    return frequency_response(A - B @ K, B, -K, frequencies, np.eye(K.shape[-2], dtype=K.dtype), dt)
