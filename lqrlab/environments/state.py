"""What an environment knows of its plant, and where it is."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from lqrlab.compute import pytree
from lqrlab.simulation import Env


@pytree
@dataclasses.dataclass(frozen=True)
class Model:
    """A plant in its environment, and its optimum: gain K, cost to go P, and S, the cost of an error of the input."""

    world: Env
    K: Float[Array, "*batch m n"]
    P: Float[Array, "*batch n n"]
    S: Float[Array, "*batch m m"]
    scale: Float[Array, "*batch n"]

    def cast(self, dtype: Any) -> "Model":
        """The same with all floating numbers of this type."""
        return jax.tree.map(
            lambda a: jnp.asarray(a, dtype) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a, self
        )


@pytree
@dataclasses.dataclass(frozen=True)
class State:
    """Where an environment is.

    Attributes:
        x: deviation from the equilibrium, or from the reference.
        time: steps since the reset.
        variant: which of the environment's plants this is.
        optimum: the least that the episode can cost, x0ᵀP x0; NaN where it is not known.
        paid: what was paid above the optimum (linear plants), or in all (nonlinear ones).
        bound: size of a state, in scales, at which the episode ends.
        held: the last action's inputs, where inputs hold.
        queue: inputs on their way, the newest first.
        history: what was seen, and the input before it, the newest first.
        model: the plant, where :meth:`Environment.reset` was given one.
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
    model: Model | None = None
