"""Two policies, one after the other: a swing-up, and the regulator that catches."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lqrlab.compute import pytree
from lqrlab.compute.linalg import expand_batch, quadratic
from lqrlab.simulation import Policy


@pytree
@dataclasses.dataclass(frozen=True)
class SwitchingPolicy:
    """One policy until xᵀPx ≤ level, from then on another: a swing-up, and the regulator that catches.

    Attributes:
        first, then: the two policies; both see every state, so either may remember.
        level: :func:`lqrlab.control.unsaturated_level` is one choice.
    """

    first: Policy
    then: Policy
    P: Float[Array, "*batch n n"]
    level: Float[Array, "*batch"]

    def inside(self, x: Array) -> Array:
        """True where the second policy takes over at x ``[*batch, *extra, n]``: ``[*batch, *extra]``."""
        level = expand_batch(jnp.asarray(self.level, x.dtype), x.ndim - 1, 0)
        return level >= quadratic(self.P.astype(x.dtype), x)

    def init(self, batch_shape: tuple[int, ...]) -> tuple[PyTree, PyTree, Array]:
        """Initial memory of both policies; not yet switched."""
        return self.first.init(batch_shape), self.then.init(batch_shape), jnp.zeros(batch_shape, bool)

    def __call__(self, carry: tuple[PyTree, PyTree, Array], x: Array) -> tuple[tuple[PyTree, PyTree, Array], Array]:
        """The input of whichever is in charge; once handed over it stays so."""
        before, after, caught = carry
        caught = caught | self.inside(x)
        before, swing = self.first(before, x)
        after, catch = self.then(after, x)
        return (before, after, caught), jnp.where(caught[..., None], catch, swing)
