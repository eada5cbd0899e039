"""Mechanisms, written as energies, and the bodies that they are made of: rods, and rigid bodies in flight."""

import itertools
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lqrlab.compute import linalg
from lqrlab.systems.declaration import Signal
from lqrlab.systems.plant import Input, Plant, State

Position = Float[Array, "q"]  # generalised coordinates of one mechanism
Velocity = Float[Array, "q"]  # their rates
Force = Float[Array, "q"]  # generalised forces
Energy = Float[Array, ""]  # an energy [J]


class Mechanical(Plant):
    """A mechanism defined by its energies; the Euler-Lagrange equations follow.

    With q the first half of the state and v = q̇ the second, a subclass writes :meth:`kinetic` T(q, v), quadratic in v,
    :meth:`potential` V(q) and :meth:`forces` F(q, v, u) (inputs, friction). Then M(q) v̇ = F + ∂T/∂q − ∂V/∂q −
    (∂²T/∂v∂q) v with the mass matrix M = ∂²T/∂v². Measured are the coordinates q unless ``outputs`` says otherwise. The
    drawing that a subclass writes is to scale, in metres, unless ``drawn_in`` says otherwise.

    Source: H. Goldstein, Classical Mechanics, 3rd ed. (2002), eq. (1.57) and section 1.5.
    """

    def __init_subclass__(cls, static: tuple[str, ...] = ()) -> None:
        super().__init_subclass__(static)
        if "draw" in vars(cls) and "drawn_in" not in vars(cls):
            cls.drawn_in = "m"

    def kinetic(self, q: Position, v: Velocity) -> Energy:
        """Kinetic energy [J], a scalar."""
        raise NotImplementedError(f"{type(self).__name__} declares no kinetic(q, v)")

    def potential(self, q: Position) -> Energy:
        """Potential energy [J], a scalar; zero unless a family says otherwise."""
        return jnp.zeros((), q.dtype)

    def forces(self, q: Position, v: Velocity, u: Input) -> Force:
        """Generalised forces [n/2] that no potential gives: actuators and friction."""
        raise NotImplementedError(f"{type(self).__name__} declares no forces(q, v, u)")

    @classmethod
    def _measured(cls) -> tuple[Signal, ...]:
        return cls.states[: len(cls.states) // 2]

    def held(self) -> tuple[State, Input]:
        """Operating point with a motor at each coordinate: at rest where the states are declared, held there."""
        x, _ = self.point()
        return x, jax.grad(self.potential)(x[: self.n // 2])

    def mass_matrix(self, q: Position) -> Float[Array, "q q"]:
        """M(q) = ∂²T/∂v², symmetric positive definite [n/2, n/2]."""
        # T is quadratic in v, so its gradient is linear: one unit velocity a column
        return jax.vmap(lambda v: jax.grad(self.kinetic, argnums=1)(q, v))(jnp.eye(len(q), dtype=q.dtype))

    def dynamics(self, x: State, u: Input) -> State:
        """ẋ = (v, v̇) from the energies."""
        q, v = jnp.split(x, 2)
        slopes = jax.grad(self.kinetic, argnums=(1, 0))
        (_, dT), (coriolis, _) = jax.jvp(lambda q: slopes(q, v), (q,), (v,))
        dV = jax.grad(self.potential)(q)
        a = linalg.solve(self.mass_matrix(q), self.forces(q, v, u) + dT - dV - coriolis, definite=True)
        return jnp.concatenate([v, a])

    def balance(self, x: State, u: Input) -> Force:
        """Static forces F(q, 0, u) − ∂V/∂q [n/2], which vanish at rest."""
        q, v = jnp.split(x, 2)
        return self.forces(q, v, u) - jax.grad(self.potential)(q)

    def matrices(self) -> tuple[Float[Array, "n n"], Float[Array, "n m"]]:
        """Continuous-time ``(A [n, n], B [n, m])`` at the equilibrium, by exact differentiation.

        At rest, terms quadratic in v have no first derivative and the balance that M⁻¹ multiplies is zero: so
        A and B are M⁻¹ times the derivatives of :meth:`balance`.
        """
        x, u = self.equilibrium()
        half = len(x) // 2
        slopes = jax.jacfwd(lambda z: self.balance(z[: 2 * half], z[2 * half :]))(jnp.concatenate([x, u]))
        a = linalg.solve(self.mass_matrix(x[:half]), slopes, definite=True)
        both = jnp.concatenate([jnp.eye(half, a.shape[1], half, dtype=a.dtype), a])
        return both[:, : 2 * half], both[:, 2 * half :]


class PlanarBody(Mechanical):
    """A rigid body in a vertical plane: q = (across, up, angle). Subclasses declare mass, inertia and gravity."""

    if TYPE_CHECKING:
        mass: Array
        inertia: Array
        gravity: Array

    def kinetic(self, q: Position, v: Velocity) -> Energy:
        """Of the translation and the rotation."""
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + self.inertia * v[2] ** 2)

    def potential(self, q: Position) -> Energy:
        """Of the weight."""
        return self.mass * self.gravity * q[1]


class Rods(NamedTuple):
    """Uniform rods hinged end to end in a plane, with masses [k] and lengths [k].

    Angles [k] are absolute and count from the plane's first axis towards its second: from the horizontal with the
    axes (along, up), from upright with the axes (up, along).
    """

    mass: Array
    length: Array

    @classmethod
    def of(cls, plant: Plant) -> "Rods":
        """The rods whose parameters a plant numbers: mass1, length1, mass2, length2, …"""
        names = [name for name in plant.parameters if name[:-1] == "mass" and name[-1].isdigit()]
        lengths = [getattr(plant, name.replace("mass", "length")) for name in names]
        return cls(jnp.stack([getattr(plant, name) for name in names]), jnp.stack(lengths))

    def _carried(self, share: float) -> Array:
        """The masses [k] that move with a rod's far end: ``share`` of its mass and all rods after it."""
        count = len(self.mass)
        return share * self.mass + np.triu(np.ones((count, count)), 1) @ self.mass

    def kinetic(self, angle: Array, spin: Array, base: Array | None = None) -> Energy:
        """Kinetic energy [J] at the angular rates ``spin`` [k], the first hinge at rest or moving at ``base`` [2]."""
        speed, carried = self.length * spin, self._carried(1 / 2)
        energy = 0.5 * jnp.sum(self._carried(1 / 3) * speed**2)
        for i, j in itertools.combinations(range(len(self.mass)), 2):
            energy = energy + carried[j] * speed[i] * speed[j] * jnp.cos(angle[j] - angle[i])
        if base is None:
            return energy
        momentum = jnp.stack([-jnp.sin(angle), jnp.cos(angle)]) @ (carried * speed)
        return energy + base @ momentum + 0.5 * jnp.sum(self.mass) * jnp.sum(base**2)

    def moment(self, angle: Array) -> Float[Array, "2"]:
        """Σ mass · centre [kg·m] from the first hinge: times gravity, the component upwards is the potential."""
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)]) @ (self._carried(1 / 2) * self.length)

    def tip(self, angle: Array) -> Float[Array, "2"]:
        """The last end [m] from the first hinge."""
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)]) @ self.length

    def tip_velocity(self, angle: Array, spin: Array) -> Float[Array, "2"]:
        """Velocity of the last end [m/s] while the first hinge rests."""
        return jnp.stack([-jnp.sin(angle), jnp.cos(angle)]) @ (self.length * spin)


def absolute(angles: Array) -> Array:
    """Absolute angles [k] of links whose ``angles`` [k] count each from the link before (or rates, likewise)."""
    return jnp.asarray(np.tril(np.ones((len(angles), len(angles))))) @ angles


def euler_rates(roll: Array, pitch: Array, spin: Float[Array, "3"]) -> Float[Array, "3"]:
    """Rates of the Euler angles roll, pitch, yaw (turned in the order yaw, pitch, roll) at body rates ``spin``."""
    turn = (spin[1] * jnp.sin(roll) + spin[2] * jnp.cos(roll)) / jnp.cos(pitch)
    tilt = spin[1] * jnp.cos(roll) - spin[2] * jnp.sin(roll)
    return jnp.stack([spin[0] + turn * jnp.sin(pitch), tilt, turn])


def spin_acceleration(
    inertia: Float[Array, "3"], spin: Float[Array, "3"], moment: Float[Array, "3"]
) -> Float[Array, "3"]:
    """Angular acceleration of a rigid body about its principal axes (Euler's equations), in the body's axes."""
    gyroscopic = (jnp.roll(inertia, -1) - jnp.roll(inertia, 1)) * jnp.roll(spin, -1) * jnp.roll(spin, 1)
    return (moment + gyroscopic) / inertia
