"""Spaces of observations and actions: boxes and finite choices, drawn from inside compiled code."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

_WIDE = 1.0  # half the width that an unbounded component is drawn from


@dataclasses.dataclass(frozen=True)
class BoxSpace:
    """Vectors between ``low`` and ``high``, a bound for each component; they may be infinite."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """One axis, as long as the bounds."""
        return (len(self.low),)

    def sample(self, key: PRNGKeyArray) -> Array:
        """Uniform between the bounds; a missing one is ∓1, or 2 from the other where that is beyond ∓1."""
        low, high = (np.asarray(a, self.dtype) for a in (self.low, self.high))
        low = np.where(np.isfinite(low), low, np.minimum(-_WIDE, high - 2 * _WIDE))
        high = np.where(np.isfinite(high), high, np.maximum(_WIDE, low + 2 * _WIDE))
        return low + jax.random.uniform(key, self.shape, self.dtype) * (high - low)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The whole numbers 0 … n − 1."""

    n: int
    dtype: str = "int32"
    shape: tuple[int, ...] = ()

    def sample(self, key: PRNGKeyArray) -> Array:
        """Uniform."""
        return jax.random.randint(key, (), 0, self.n, self.dtype)


def as_of(spaces: Any, space: BoxSpace | Discrete) -> Any:
    """The same space in the words of ``gymnasium.spaces``, or of gymnax's."""
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    kind = np.dtype(space.dtype).type
    return spaces.Box(np.array(space.low, kind), np.array(space.high, kind), space.shape, kind)
