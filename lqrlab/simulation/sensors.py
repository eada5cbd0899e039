"""Sensors and actuators between a plant and a policy: outputs instead of states, quantisation, delay, slow sampling."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import expand_batch, matvec
from lqrlab.simulation.policies import Policy, sent_or
from lqrlab.systems import Plant, check_plant


@pytree
@dataclasses.dataclass(frozen=True)
class Outputs:
    """The plant's own measurements y = h(x), as deviations from those at the equilibrium; :func:`outputs` makes it."""

    plant: Plant
    x_eq: Float[Array, "*batch n"]
    y_eq: Float[Array, "*batch p"]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an output matrix: ``(…, p, n)``."""
        return (*self.y_eq.shape, self.x_eq.shape[-1])

    def __call__(self, x: Float[Array, "*loops n"]) -> Float[Array, "*loops p"]:
        """y of deviations x."""
        x_eq, y_eq = (expand_batch(a.astype(x.dtype), x.ndim) for a in (self.x_eq, self.y_eq))
        return self.plant.output(x + x_eq).astype(x.dtype) - y_eq


def outputs(plant: Plant) -> Outputs:
    """The sensors that the plant declares, nonlinear where they are; a matrix C of your own is a sensor too.

    >>> simulation.outputs(systems.make("pendulum"))(jnp.array([0.1, 0.0])).shape
    (1,)
    """
    check_plant(plant)
    x_eq, _ = plant.equilibrium()
    return Outputs(plant, x_eq, plant.output(x_eq))


def measure(sensor: Array | Outputs, x: Float[Array, "*loops n"]) -> Float[Array, "*loops p"]:
    """Sensor output y of deviations x: Cx of a matrix C ``[*batch, p, n]``."""
    return sensor(x) if isinstance(sensor, Outputs) else matvec(jnp.asarray(sensor, x.dtype), x)


@pytree
@dataclasses.dataclass(frozen=True)
class Measured:
    """A policy that sees what sensors show instead of the state.

    Noise of the sensors is ``rollout``'s ``sensor_noise``, on the states before they are measured.

    Attributes:
        policy: a policy of outputs, such as :class:`LinearController` and :class:`OutputFeedback`.
        sensor: matrix C ``[*batch, p, n]`` or :class:`Outputs`.
        quantum: outputs are rounded to multiples of it, ``[]`` or ``[p]``; 0 for not at all.
        delay: samples that a measurement is late; until the first one comes, the equilibrium is shown.
    """

    policy: Policy
    sensor: Array | Outputs
    quantum: ArrayLike = 0.0
    delay: int = dataclasses.field(default=0, metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[PyTree, Array]:
        """The policy's memory, and the measurements on their way ``[*batch_shape, delay, p]``."""
        late = jnp.zeros((*batch_shape, checks.whole("delay", self.delay, 0), self.sensor.shape[-2]))
        return self.policy.init(batch_shape), late

    def __call__(self, carry: tuple[PyTree, Array], x: Array) -> tuple[tuple[PyTree, Array], Array]:
        """The policy's input for the measurement that has arrived."""
        memory, late = carry
        y = measure(self.sensor, x)
        quantum = jnp.broadcast_to(jnp.asarray(self.quantum, x.dtype), y.shape)
        coarse = jnp.where(quantum > 0, quantum, 1.0)
        y, late = _queued(late, jnp.where(quantum > 0, jnp.round(y / coarse) * coarse, y))
        memory, u = self.policy(memory, y)
        return (memory, late), u


@pytree
@dataclasses.dataclass(frozen=True)
class Delayed:
    """A policy whose inputs reach the plant some samples late; until the first one does, none acts.

    Attributes:
        policy: any policy.
        m: number of its inputs.
        steps: samples. What is not a whole number of them: :func:`delayed`.
    """

    policy: Policy
    m: int = dataclasses.field(metadata={"static": True})
    steps: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[PyTree, Array]:
        """The policy's memory, and the inputs on their way ``[*batch_shape, steps, m]``."""
        return self.policy.init(batch_shape), jnp.zeros((*batch_shape, checks.whole("steps", self.steps, 0), self.m))

    def __call__(self, carry: tuple[PyTree, Array], x: Array) -> tuple[tuple[PyTree, Array], Array]:
        """The input that arrives now."""
        memory, u = self.policy(carry[0], x)
        if self.steps:
            u = sent_or(carry[1][..., -1, :].astype(u.dtype), u, x)
        u, late = _queued(carry[1], u)
        return (memory, late), u


def _queued(late: Array, new: Array) -> tuple[Array, Array]:
    """The entry that leaves a queue ``[..., steps, k]`` when ``new [..., k]`` enters, in its type; the queue after."""
    queue = jnp.concatenate([late, new[..., None, :].astype(late.dtype)], axis=-2)
    return queue[..., 0, :].astype(new.dtype), queue[..., 1:, :]


@pytree
@dataclasses.dataclass(frozen=True)
class Held:
    """A policy that samples only now and then, and holds its input between: a slow controller in a fast loop.

    Attributes:
        policy: any policy.
        m: number of its inputs.
        every: samples of the simulation from one of the policy's to the next.
    """

    policy: Policy
    m: int = dataclasses.field(metadata={"static": True})
    every: int | Array

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, PyTree, Array]:
        """No sample taken, the policy's memory, no input."""
        if not checks.traced(self.every):
            checks.whole("every", np.asarray(self.every).tolist())
        return jnp.zeros((), int), self.policy.init(batch_shape), jnp.zeros((*batch_shape, self.m))

    def __call__(self, carry: tuple[Array, PyTree, Array], x: Array) -> tuple[tuple[Array, PyTree, Array], Array]:
        """The policy's input of its last sample."""
        step, *before = carry

        def sampled() -> tuple[PyTree, Array]:
            memory, u = self.policy(before[0], x)
            u = sent_or(before[1].astype(u.dtype), u, x)
            return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), (memory, u), tuple(before))

        after = jax.lax.cond(step % self.every == 0, sampled, lambda: tuple(before))
        return (step + 1, *after), after[1].astype(x.dtype)
