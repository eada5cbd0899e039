"""The state of an environment."""

import dataclasses

from jaxtyping import Array, Float, Int32

from lqrlab.compute import pytree
from lqrlab.simulation import Problem


@pytree
@dataclasses.dataclass(frozen=True)
class State:
    """The state of an environment, or of many.

    Attributes:
        x: deviation from the equilibrium, or from the reference.
        time: steps since the reset.
        variant: which of the environment's plants this is.
        optimum: the least that the episode can cost, x0ᵀP x0 or the constrained optimum; NaN where it is not known.
        paid: what was paid, with x_tᵀP x_t for the rest, above the optimum (linear plants), or in all (nonlinear ones).
        bound: size of a state, in scales, at which the episode ends.
        held: the last action's inputs, where inputs hold.
        queue: inputs on their way, the newest first.
        history: what was seen, and the input before it, the newest first.
        problem: the plant's, where :meth:`Environment.reset` was given one.
        owner: digest of the environment that it is of, see :attr:`Environment.digest`.
    """

    x: Float[Array, "*envs n"]
    time: Int32[Array, "*envs"]
    variant: Int32[Array, "*envs"]
    optimum: Float[Array, "*envs"]
    paid: Float[Array, "*envs"]
    bound: Float[Array, "*envs"]
    held: Float[Array, "*envs held"]
    queue: Float[Array, "*envs delay m"]
    history: Float[Array, "*envs k both"]
    problem: Problem | None = None
    owner: str = dataclasses.field(default="", metadata={"static": True})
