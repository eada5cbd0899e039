"""Noise in a closed loop: on the state, on the sensors, on the input."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Float32, Int, PRNGKeyArray, UInt32

from lqrlab import control
from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import batch_last, expand_batch

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@pytree
@dataclasses.dataclass(frozen=True)
class Correlated:
    """Noise whose components go together: a lower triangular root L of its covariance LLᵀ."""

    root: Float[Array, "*#batch n n"]


class Noise(NamedTuple):
    """Standard deviations, or :class:`Correlated`; None for none.

    Attributes:
        state: of what each step adds to the state.
        sensor: of what is added to the state that the policy sees.
        input: of what is added to the policy's input (excitation).
    """

    state: Float[Array, "*#batch n"] | Correlated | None = None
    sensor: Float[Array, "*#batch n"] | Correlated | None = None
    input: Float[Array, "*#batch m"] | Correlated | None = None


NONE = Noise()


class Drawn(NamedTuple):
    """Noise of some samples, as the engines add it; None for none."""

    state: Array | None
    sensor: Array | None
    input: Array | None


def drawn(
    key: PRNGKeyArray | None, spread: Array | Correlated, like: Float[Array, "*loops k"]
) -> Float[Array, "*loops k"]:
    """Normal noise in the shape and type of ``like``."""
    assert key is not None
    normal = jax.random.normal(key, like.shape, like.dtype)
    if isinstance(spread, Correlated):
        root = expand_batch(spread.root, like.ndim + 1, 2).astype(like.dtype)
        return (root @ normal[..., None])[..., 0]
    return normal * expand_batch(spread, like.ndim).astype(like.dtype)


@one_program
def root(P: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """Lower triangular L with LLᵀ = P, without LAPACK; a direction without uncertainty has a column of zeros."""
    last = jnp.moveaxis(P.reshape(-1, *P.shape[-2:]), 0, -1)
    return jnp.moveaxis(batch_last.cholesky(last), -1, 0).reshape(P.shape)


def spread(
    name: str, value: ArrayLike, size: int, exists: Float[Array, "*batch k"], dtype: np.dtype, batch: tuple[int, ...]
) -> Array | Correlated | None:
    """A standard deviation for each of ``size`` components of each plant of the ``batch``, None if it is zero.

    It is zero where a component is padding, by the mask of those that exist.

    What has two axes more than the batch is a covariance ``[*batch, size, size]``. Inside a trace nobody can tell
    whether an array is zero, so noise is drawn.

    Raises:
        ValueError: a standard deviation that is negative or not finite, a covariance that is none.
    """
    if np.ndim(value) == len(batch) + 2:
        return _correlated(name, value, size, dtype, batch)
    if not checks.traced(value):
        given = np.asarray(checks.real(name, value, finite=True, low=0))
        if given.size and not given.any():
            return None
    deviation = jnp.asarray(value, dtype)
    if deviation.ndim and deviation.shape[-1] not in (1, size):
        raise ValueError(f"{name}: expected a number, or one for each of {size} signals, but found {value!r}")
    lead = deviation.shape[:-1]
    if lead and (len(lead) != len(batch) or any(k not in (1, full) for k, full in zip(lead, batch))):
        raise ValueError(f"{name}: expected leading axes {batch}, those of the plants, but found {deviation.shape}")
    return jnp.broadcast_to(deviation, (*batch, size)) * exists[..., :size].astype(dtype)


def _correlated(name: str, value: ArrayLike, size: int, dtype: np.dtype, batch: tuple[int, ...]) -> Correlated | None:
    covariance = jnp.asarray(checks.real(name, value), dtype)
    *lead, rows, columns = covariance.shape
    if (rows, columns) != (size, size) or any(k not in (1, full) for k, full in zip(lead, batch)):
        raise ValueError(
            f"{name}: expected a covariance of shape {(*batch, size, size)}, or standard deviations {(*batch, size)}, "
            f"but found {covariance.shape}"
        )
    if not checks.traced(covariance):
        for W in covariance.reshape(-1, size, size):
            control.matrix_checks.weight(name, W)
        if not np.any(covariance):
            return None
    return Correlated(jnp.broadcast_to(root(covariance), (*batch, size, size)))


def mean_size(
    spread: Array | Correlated | None, scale: Float[Array, "*batch n"], exists: Float[Array, "*batch n"]
) -> Float[Array, "*batch"]:
    """Root mean square over the states that exist of standard deviations in units of ``scale``; 0 for none."""
    if spread is None:
        return jnp.zeros(scale.shape[:-1], scale.dtype)
    variance = jnp.sum(spread.root**2, -1) if isinstance(spread, Correlated) else spread**2
    return jnp.sqrt(jnp.sum(exists * variance / scale**2, -1) / jnp.sum(exists, -1))


def drawing(
    key: PRNGKeyArray | None, loops: Int[Array, " width"], noise: Noise, dtype: np.dtype
) -> Callable[[int, Array], Drawn]:
    """The noise of some loops in batch-last layout, by each loop's number and the time.

    A loop's noise follows from the key, its number and the time alone, so it is the same in whatever block it runs.

    Args:
        key: random key; without one nothing is drawn.
        loops: the loops' numbers.
        noise: standard deviations ``[components, width or 1]``.
        dtype: of what is drawn.

    Returns:
        ``(steps, first) → Drawn`` of arrays ``[steps, components, width]`` for the samples from ``first`` on.
    """

    def signal(which: int, spread: Array | Correlated | None, steps: int, first: Array) -> Array | None:
        if spread is None or key is None:
            return None
        assert not isinstance(spread, Correlated), "engines draw each component by itself"
        words = jax.random.bits(jax.random.fold_in(key, which), (2,), jnp.uint32)
        number, row = loops.astype(jnp.uint32)[None], jnp.arange(len(spread), dtype=jnp.uint32)[:, None]

        def sample(t: Array) -> Array:
            # single precision is enough for noise, and several times as fast to draw
            normal = normals(words, number, t.astype(jnp.uint32) * len(spread) + row)
            return normal.astype(dtype) * spread.astype(dtype)

        # a loop of its own writes it down, where XLA's CPU compiler would draw it anew for each use
        return jax.lax.map(sample, first + jnp.arange(steps, dtype=jnp.int32))

    return lambda steps, first: Drawn(*(signal(i, spread, steps, first) for i, spread in enumerate(noise)))


def random_words(
    key: UInt32[Array, "2"], first: UInt32[Array, "#*shape"], second: UInt32[Array, "#*shape"]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Two random words for each pair of words: Threefry-2x32 with 20 rounds, elementwise.

    The numbers are those of ``jax.random``; unrolled, for a loop over the rounds writes each down on a CPU.
    Source: J. K. Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
    """
    keys = key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)
    x, y = first + keys[0], second + keys[1]
    for i in range(5):
        for by in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(by)) | (y >> np.uint32(32 - by)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def normals(
    key: UInt32[Array, "2"], first: UInt32[Array, "#*shape"], second: UInt32[Array, "#*shape"]
) -> Float32[Array, "*shape"]:
    """Independent standard normal numbers, one for each pair of coordinates; |z| < 5.9.

    Three times as fast as ``jax.random.normal`` on a CPU (51,200, jitted, 0.21 against 0.62 ms).

    Source: G. E. P. Box and M. E. Muller, A note on the generation of random normal deviates (1958).
    """
    x, y = random_words(key, first, second)
    uniform = (x >> 8).astype(jnp.int32).astype(jnp.float32) * np.float32(2**-24) + np.float32(2**-25)
    # the cosine of an angle in [−π, π) by the sine of its half: 1 − 2 sin²; the series ends below rounding
    half = y.astype(jnp.int32).astype(jnp.float32) * np.float32(np.pi / 2 * 2**-31)
    square, series = half * half, jnp.zeros_like(half)
    for term in (-1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0):
        series = series * square + np.float32(term)
    sine = half * series
    return jnp.sqrt(-2 * jnp.log(uniform)) * (1 - 2 * sine * sine)
