"""Noise in a closed loop: on the state, on the sensors, on the input."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.compute.random import normals


class Noise(NamedTuple):
    """Standard deviations; None for none.

    Attributes:
        state: of what each step adds to the state.
        sensor: of what is added to the state that the policy sees.
        input: of what is added to the policy's input (excitation).
    """

    state: Float[Array, "*#batch n"] | None = None
    sensor: Float[Array, "*#batch n"] | None = None
    input: Float[Array, "*#batch m"] | None = None


NONE = Noise()


def spread(
    name: str, value: ArrayLike, size: int, dtype: np.dtype, batch: tuple[int, ...] = ()
) -> Array | None:
    """A standard deviation for each of ``size`` components (of each plant of the ``batch``), None if it is zero.

    Inside a trace nobody can tell whether an array is zero, so noise is drawn.

    Raises:
        ValueError: a standard deviation that is negative or not finite.
    """
    if not checks.traced(value):
        given = np.asarray(checks.real(name, value))
        if not np.all(np.isfinite(given) & (given >= 0)):
            raise ValueError(f"{name}: expected a standard deviation ≥ 0, but found {value}")
        if not given.any():
            return None
    deviation = jnp.asarray(value, dtype)
    if deviation.ndim and deviation.shape[-1] not in (1, size):
        raise ValueError(f"{name}: expected a number, or one for each of {size} signals, but found {value!r}")
    lead = deviation.shape[:-1]
    if lead and (len(lead) != len(batch) or any(k not in (1, full) for k, full in zip(lead, batch))):
        raise ValueError(
            f"{name}: expected leading axes {batch}, those of the plants, but found {deviation.shape}"
        )
    return deviation if deviation.ndim > 1 else jnp.broadcast_to(deviation, (size,))


def drawing(
    key: PRNGKeyArray | None, loops: Int[Array, " width"], noise: Noise, dtype: np.dtype
) -> Callable[[int, Array], Noise]:
    """The noise of some loops in batch-last layout, by each loop's number and the time.

    A loop's noise follows from the key, its number and the time alone, so it is the same in whatever block it runs.

    Args:
        key: random key; without one nothing is drawn.
        loops: the loops' numbers.
        noise: standard deviations ``[components, width or 1]``.
        dtype: of what is drawn.

    Returns:
        ``(steps, first) → Noise`` of arrays ``[steps, components, width]`` for the samples from ``first`` on.
    """

    def signal(which: int, spread: Array | None, steps: int, first: Array) -> Array | None:
        if spread is None or key is None:
            return None
        words = jax.random.bits(jax.random.fold_in(key, which), (2,), jnp.uint32)
        number, row = loops.astype(jnp.uint32)[None], jnp.arange(len(spread), dtype=jnp.uint32)[:, None]

        def sample(t: Array) -> Array:
            # single precision is enough for noise, and several times as fast to draw
            normal = normals(words, number, t.astype(jnp.uint32) * len(spread) + row)
            return normal.astype(dtype) * spread.astype(dtype)

        # a loop of its own writes it down, where XLA's CPU compiler would draw it anew for each use
        return jax.lax.map(sample, first + jnp.arange(steps, dtype=jnp.int32))

    return lambda steps, first: Noise(*(signal(i, spread, steps, first) for i, spread in enumerate(noise)))
