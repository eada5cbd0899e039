"""Trees of rigid bodies on hinges and slides, in three dimensions, described by tables of numbers."""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lqrlab.compute import linalg
from lqrlab.systems.mechanics import Energy, Force, Mechanical, Position, Velocity
from lqrlab.systems.plant import Input, State


class Joint(NamedTuple):
    """A hinge or a slide: a unit axis and a point on it in the body's frame, and its coordinate in the drawn pose."""

    slides: bool
    axis: np.ndarray
    anchor: np.ndarray
    rest: float


class Body(NamedTuple):
    """A body: its parent (0 is the world), its frame in the parent's, its joints, its inertia's frame in its own."""

    parent: int
    offset: np.ndarray
    turn: np.ndarray
    joints: tuple[int, ...]
    centre: np.ndarray
    principal: np.ndarray


class Tree(NamedTuple):
    """Bodies (without the world, parents first), joints and actuators, with what the parameters do not say.

    Attributes:
        bodies, joints: in the order of their numbers; bodies count from 1, joints from 0.
        inertia: principal moments [b, 3] of the bodies at their nominal masses.
        mass: nominal masses [b].
        weight: the share [b] of a body's weight that nothing carries.
        armature, stiffness, relaxed: of the joints [q]: inertia of a rotor, spring, the spring's rest position.
        down: unit vector of gravity [3].
        acts_on: 1 where an actuator acts on a joint [q, m].
        gain, bias: [m, 3]: force = (gain · s) input + bias · s with s = (1, gear · coordinate, gear · rate).
        input_limits, force_limits: of the actuators [2, m], infinite for none.
        joint_limits: of what all actuators do to a joint [2, q].
    """

    bodies: tuple[Body, ...]
    joints: tuple[Joint, ...]
    mass: np.ndarray
    inertia: np.ndarray
    weight: np.ndarray
    armature: np.ndarray
    stiffness: np.ndarray
    relaxed: np.ndarray
    down: np.ndarray
    acts_on: np.ndarray
    gain: np.ndarray
    bias: np.ndarray
    input_limits: np.ndarray
    force_limits: np.ndarray
    joint_limits: np.ndarray

    def moves(self) -> np.ndarray:
        """1 where a joint moves a body, [b, q]."""
        rows = [np.zeros(len(self.joints))]
        for body in self.bodies:
            row = rows[body.parent].copy()
            row[list(body.joints)] = 1.0
            rows.append(row)
        return np.array(rows[1:])

    def astype(self, dtype: Any) -> "Tree":
        """The same tables in the precision of a computation."""
        return jax.tree.map(lambda a: a.astype(dtype) if isinstance(a, np.ndarray) else a, self)


class Frames(NamedTuple):
    """Joints' axes and points on them [q, 3], bodies' centres [b, 3] and principal axes [b, 3, 3], in the world."""

    axis: Array
    anchor: Array
    centre: Array
    principal: Array


def _apply(a: Any, b: Any) -> Any:
    """a @ b as a sum of products, which compiles faster than small matrix products."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a @ b
    return (a[..., None] * b[..., None, :, :]).sum(-2) if b.ndim > 1 else (a * b[None]).sum(-1)


class Multibody(Mechanical):
    """A tree of rigid bodies on hinges and slides.

    A subclass gives the ``tree`` and the names of its parameters: ``masses`` [b] (no name for a body that has none),
    ``dampings`` [q] and ``gears`` [m], besides ``gravity``. An input beyond its limits acts as the limit.

    Source: R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation
    (1994), section 4.3
    """

    smaller = "robots.from_mujoco(…, fixed=[…]) holds some of its joints still"
    tree: ClassVar[Tree]
    masses: ClassVar[tuple[str, ...]]
    dampings: ClassVar[tuple[str, ...]]
    gears: ClassVar[tuple[str, ...]]
    if TYPE_CHECKING:
        gravity: Array

    def _mass(self) -> Array:
        none = jnp.zeros_like(self.gravity)
        return jnp.stack([getattr(self, name) if name else none for name in self.masses])

    def frames(self, q: Position) -> Frames:
        """Places of joints and bodies, from the world outwards."""
        tree, one = self.tree.astype(q.dtype), np.eye(3, dtype=q.dtype)
        turns: list[Any] = [one]  # NumPy's as long as nothing moves
        places: list[Any] = [np.zeros(3, q.dtype)]
        axes: list[Any] = []
        anchors: list[Any] = []
        for body in tree.bodies:
            place = places[body.parent] + _apply(turns[body.parent], body.offset)
            turn = _apply(turns[body.parent], body.turn)
            for number in body.joints:
                joint = tree.joints[number]
                axes.append(_apply(turn, joint.axis))
                anchors.append(place + _apply(turn, joint.anchor))
                moved = q[number] - joint.rest
                if joint.slides:
                    place = place + axes[-1] * moved
                else:  # Rodrigues' formula
                    cross = np.cross(one, joint.axis).astype(q.dtype)
                    turn = _apply(turn, one + jnp.sin(moved) * cross + (1 - jnp.cos(moved)) * (cross @ cross))
                    place = anchors[-1] - _apply(turn, joint.anchor)
            turns.append(turn)
            places.append(place)
        centres = [p + _apply(R, body.centre) for p, R, body in zip(places[1:], turns[1:], tree.bodies)]
        principal = [_apply(R, body.principal) for R, body in zip(turns[1:], tree.bodies)]
        return Frames(*(jnp.stack(list(map(jnp.asarray, a))) for a in (axes, anchors, centres, principal)))

    def jacobians(self, q: Position) -> tuple[Float[Array, "b q 3"], Float[Array, "b q 3"]]:
        """Velocities of the bodies' centres, and their spins about their principal axes, for each joint's rate."""
        tree, at = self.tree.astype(q.dtype), self.frames(q)
        slides = np.array([joint.slides for joint in tree.joints])[:, None]
        moves, axis = jnp.asarray(tree.moves()[..., None], q.dtype), at.axis[None]
        arm = at.centre[:, None] - at.anchor[None]
        linear = moves * jnp.where(slides, axis, jnp.cross(axis, arm))
        return linear, _apply(moves * jnp.where(slides, 0, axis), at.principal)

    def _inertia(self) -> Float[Array, "b 3"]:
        mass = self._mass()
        per_mass = self.tree.inertia / np.where(self.tree.mass > 0, self.tree.mass, 1.0)[:, None]
        return mass[:, None] * per_mass.astype(mass.dtype)

    def _mass_matrix(self, linear: Float[Array, "b q 3"], angular: Float[Array, "b q 3"]) -> Float[Array, "q q"]:
        mass, inertia = self._mass()[:, None, None, None], self._inertia()[:, None, None]
        pairs = mass * linear[:, :, None] * linear[:, None] + inertia * angular[:, :, None] * angular[:, None]
        return jnp.sum(pairs, (0, 3)) + np.diag(self.tree.armature.astype(linear.dtype))

    def mass_matrix(self, q: Position) -> Float[Array, "q q"]:
        """M(q) [n/2, n/2] from the bodies' Jacobians."""
        return self._mass_matrix(*self.jacobians(q))

    def dynamics(self, x: State, u: Input) -> State:
        """ẋ = (v, v̇) by Newton's and Euler's laws along the joints, which compile faster than the energies' slopes."""
        q, v = jnp.split(x, 2)
        tree = self.tree.astype(q.dtype)
        (linear, angular), (turned, spun) = jax.jvp(self.jacobians, (q,), (v,))
        inertia, spin = self._inertia(), jnp.sum(angular * v[None, :, None], 1)
        weight = self.gravity * (tree.weight[:, None] * tree.down)
        push = self._mass()[:, None] * (weight - jnp.sum(turned * v[None, :, None], 1))
        twist = inertia * jnp.sum(spun * v[None, :, None], 1) + jnp.cross(spin, inertia * spin)
        loads = jnp.sum(linear * push[:, None] - angular * twist[:, None], (0, 2))
        loads = loads + self.forces(q, v, u) - tree.stiffness * (q - tree.relaxed)
        return jnp.concatenate([v, linalg.solve(self._mass_matrix(linear, angular), loads, definite=True)])

    def kinetic(self, q: Position, v: Velocity) -> Energy:
        """½ vᵀ M(q) v."""
        return 0.5 * (v @ self.mass_matrix(q) @ v)

    def potential(self, q: Position) -> Energy:
        """Forces of the weights and of the joints' springs."""
        tree = self.tree.astype(q.dtype)
        weights = self.gravity * self._mass() * tree.weight
        return 0.5 * jnp.sum(tree.stiffness * (q - tree.relaxed) ** 2) - weights @ (self.frames(q).centre @ tree.down)

    def forces(self, q: Position, v: Velocity, u: Input) -> Force:
        """Forces of the actuators within their limits, and of the joints' damping."""
        tree = self.tree.astype(q.dtype)
        gear = jnp.stack([getattr(self, name) for name in self.gears])
        motion = jnp.stack([jnp.ones_like(gear), gear * (q @ tree.acts_on), gear * (v @ tree.acts_on)], axis=1)
        within = jnp.clip(u, *tree.input_limits)
        pull = jnp.sum(tree.gain * motion, 1) * within + jnp.sum(tree.bias * motion, 1)
        joint = tree.acts_on @ (gear * jnp.clip(pull, *tree.force_limits))
        damping = jnp.stack([getattr(self, name) for name in self.dampings])
        return jnp.clip(joint, *tree.joint_limits) - damping * v
