"""Mechanisms, written as energies."""

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab.compute import linalg
from lqrlab.systems.plant import Plant


class Mechanical(Plant):
    """A mechanism, written as energies: the equations of motion are Euler and Lagrange's.

    With q the first half of the state and v = q̇ the second, a subclass writes :meth:`kinetic` T(q, v),
    quadratic in v, :meth:`potential` V(q) and :meth:`forces` F(q, v, u) (inputs, friction). Then
    M(q) v̇ = F + ∂T/∂q − ∂V/∂q − (∂²T/∂v∂q) v with the mass matrix M = ∂²T/∂v².

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

    def mass_matrix(self, q: Array) -> Array:
        """M(q) = ∂²T/∂v², symmetric positive definite [n/2, n/2]."""
        return jax.hessian(self.kinetic, argnums=1)(q, jnp.zeros_like(q))

    def dynamics(self, x: Array, u: Array) -> Array:
        """ẋ = (v, v̇) from the energies."""
        q, v = jnp.split(x, 2)
        momentum = jax.grad(self.kinetic, argnums=1)
        dT, dV = jax.grad(self.kinetic)(q, v), jax.grad(self.potential)(q)
        _, coriolis = jax.jvp(lambda q: momentum(q, v), (q,), (v,))
        a = linalg.solve(self.mass_matrix(q), self.forces(q, v, u) + dT - dV - coriolis)
        return jnp.concatenate([v, a])

    def energy(self, x: Array) -> Array:
        """Total energy T + V [J], conserved when no generalised force acts."""
        q, v = jnp.split(x, 2)
        return self.kinetic(q, v) + self.potential(q)
