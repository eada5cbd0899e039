"""The state space of whatever is u = K(z) y: controllers, reduced and identified models, plants without a cost."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Complex, Float

from lqrlab.compute import pytree
from lqrlab.compute.checks import traced
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.frequency import frequency_response, to_statespace
from lqrlab.control.discretization import c2d

if TYPE_CHECKING:
    import control as python_control


@pytree
@dataclasses.dataclass(frozen=True)
class StateSpace:
    """x' = Ax + Bu, y = Cx + Du, where x' is the derivative or, with a sample time, the next state.

    Of a controller the input is what is measured, and the output what it does. Its arrays are NumPy's or JAX's, as
    given; of a design on the host NumPy's.

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
        for name, a in found.items():
            object.__setattr__(self, name, a)
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

    def to_control(self) -> "python_control.StateSpace":
        """As a system of python-control; the way back: :func:`lqrlab.systems.from_control`."""
        return to_statespace(*self.matrices, self.dt)
