"""What a controller is: a pytree that turns the state it sees into an input, and may remember."""

import dataclasses
from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array

from lqrlab.compute import pytree


class Policy(Protocol):
    """A controller as a pytree: a gain, a network and a recurrent network look the same to a simulator.

    Being a pytree matters: a new gain is new data, not a new program, so nothing is compiled again.
    """

    def init(self, batch_shape: tuple[int, ...]) -> Any:
        """The memory that an episode starts with, for ``batch_shape`` loops at once."""

    def __call__(self, carry: Any, x: Array) -> tuple[Any, Array]:
        """``(carry, x [*batch_shape, n]) -> (carry, u [*batch_shape, m])``, both deviations."""


def matvec(M: Array, x: Array) -> Array:
    """M x for M ``[*batch, a, b]`` and x ``[*batch, *extra, b]``: the matrix's own axes lead."""
    batch = M.shape[:-2]
    flat = x.reshape(*batch, -1, x.shape[-1])
    return (flat @ jnp.swapaxes(M, -1, -2)).reshape(*x.shape[:-1], M.shape[-2])


@pytree
@dataclasses.dataclass(frozen=True)
class LinearPolicy:
    """u = −Kx with K ``[*batch, m, n]``; the batch axes are those of the plants."""

    K: Array

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """−K x."""
        return None, -matvec(self.K.astype(x.dtype), x)


def no_control(plant: Any) -> LinearPolicy:
    """Inputs held at the equilibrium: what the plant does on its own."""
    return LinearPolicy(jnp.zeros((*plant.batch_shape, plant.m, plant.n)))
