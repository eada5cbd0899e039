"""Mechanisms, written as energies."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import linalg
from lqrlab.systems.plant import Plant, Signal


class Mechanical(Plant):
    """A mechanism, written as energies: the equations of motion are Euler and Lagrange's.

    With q the first half of the state and v = q̇ the second, a subclass writes :meth:`kinetic` T(q, v),
    quadratic in v, :meth:`potential` V(q) and :meth:`forces` F(q, v, u) (inputs, friction). Then
    M(q) v̇ = F + ∂T/∂q − ∂V/∂q − (∂²T/∂v∂q) v with the mass matrix M = ∂²T/∂v². Measured are the coordinates q
    unless ``outputs`` says otherwise.

    Source: H. Goldstein, Classical Mechanics, 3rd ed. (2002), eq. (1.57) and section 1.5.
    """

    def kinetic(self, q: Array, v: Array) -> Array:
        """Kinetic energy [J], a scalar."""
        raise NotImplementedError(f"{type(self).__name__} declares no kinetic(q, v)")

    def potential(self, q: Array) -> Array:
        """Potential energy [J], a scalar; zero unless a family says otherwise."""
        return jnp.zeros((), q.dtype)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Generalised forces [n/2] that no potential gives: actuators and friction."""
        raise NotImplementedError(f"{type(self).__name__} declares no forces(q, v, u)")

    @classmethod
    def _measured(cls) -> tuple[Signal, ...]:
        return cls.states[: len(cls.states) // 2]

    def held(self, pose: ArrayLike | Sequence[float]) -> tuple[Array, Array]:
        """Operating point with a motor at every coordinate: at rest at ``pose``, held there."""
        q = jnp.asarray(pose, float)
        return jnp.concatenate([q, jnp.zeros_like(q)]), jax.grad(self.potential)(q)

    def mass_matrix(self, q: Array) -> Array:
        """M(q) = ∂²T/∂v², symmetric positive definite [n/2, n/2]."""
        # T is quadratic in v, so its gradient is linear: one unit velocity a column
        return jax.vmap(lambda v: jax.grad(self.kinetic, argnums=1)(q, v))(jnp.eye(len(q), dtype=q.dtype))

    def dynamics(self, x: Array, u: Array) -> Array:
        """ẋ = (v, v̇) from the energies."""
        q, v = jnp.split(x, 2)
        (_, dT), (coriolis, _) = _along(lambda q: jax.grad(self.kinetic, argnums=(1, 0))(q, v), q, v)
        dV = jax.grad(self.potential)(q)
        a = linalg.solve(self.mass_matrix(q), self.forces(q, v, u) + dT - dV - coriolis, definite=True)
        return jnp.concatenate([v, a])

    def balance(self, x: Array, u: Array) -> Array:
        """Static forces F(q, 0, u) − ∂V/∂q [n/2], which vanish at rest."""
        q, v = jnp.split(x, 2)
        return self.forces(q, v, u) - jax.grad(self.potential)(q)

    def matrices(self) -> tuple[Array, Array]:
        """Continuous-time ``(A [n, n], B [n, m])`` at the equilibrium, by exact differentiation.

        At rest, terms quadratic in v have no first derivative and the balance that M⁻¹ multiplies is zero: so
        A and B are M⁻¹ times the derivatives of :meth:`balance`.
        """
        x, u = self.equilibrium()
        half = len(x) // 2
        slopes = jax.jacfwd(lambda z: self.balance(z[: 2 * half], z[2 * half :]))(jnp.concatenate([x, u]))
        a = linalg.solve(self.mass_matrix(x[:half]), slopes, definite=True)
        top = jnp.eye(half, a.shape[1], half, dtype=a.dtype)
        both = jnp.concatenate([top, a])
        return both[:, : 2 * half], both[:, 2 * half :]

    def energy(self, x: Array) -> Array:
        """Total energy T + V [J], conserved when no generalised force acts."""
        q, v = jnp.split(x, 2)
        return self.kinetic(q, v) + self.potential(q)


def _along(f, q: Array, v: Array):
    """f(q), a tuple, and its derivative along v."""
    return jax.jvp(f, (q,), (v,))
