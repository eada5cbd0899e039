"""Shuffling without a list: the index at any position of any epoch, computed on its own.

A permutation of 10⁸ windows as an array is 400 MB and a second of sorting an epoch. A cipher on 0 … num−1 is one
too, each value of which can be had alone: a batch is a pure function of (seed, epoch, position).

Source: J. Black and P. Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002, section 3 (cycle walking)
over a balanced Feistel network; the round function is the finaliser of MurmurHash3 (A. Appleby, 2011).
"""

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

_ROUNDS = 6
Words = TypeVar("Words", Array, np.ndarray)  # uint32, in NumPy or in JAX


def _mix(v: Words) -> Words:
    """A bijection of uint32 in which every bit of the answer depends on every bit of v."""
    v = (v ^ (v >> 16)) * np.uint32(0x85EBCA6B)
    v = (v ^ (v >> 13)) * np.uint32(0xC2B2AE35)
    return v ^ (v >> 16)


def _encipher(v: Words, word: Words, half: int) -> Words:
    """One pass over 2·half bits."""
    mask = np.uint32((1 << half) - 1)
    left, right = v >> half, v & mask
    for i in range(_ROUNDS):
        # written without a constant that overflows: NumPy warns of it for scalars
        added = _mix(right ^ _mix(word + np.uint32(0x1234567 * (i + 1)))) & mask
        left, right = right, left ^ added  # type: ignore[assignment]
    return (left << half) | right


def _half(num: int) -> int:
    if not 1 <= num <= 2**32 - 1:
        raise ValueError(f"num: expected between 1 and 2³² − 1 windows, but found {num}")
    return max((int(num - 1).bit_length() + 1) // 2, 1)


@functools.partial(jax.jit, static_argnames="num")
def shuffled(positions: ArrayLike, num: int, seed: ArrayLike, epoch: ArrayLike) -> Array:
    """The indices ``[...]`` at some positions in [0, num) of a shuffled epoch; can be called inside ``jit``.

    They are int32 (uint32 from 2³¹ on): over all positions, every number below num exactly once.
    """
    half = _half(num)
    word = _mix(
        _mix(jnp.asarray(seed).astype(jnp.uint32)) ^ jnp.asarray(epoch).astype(jnp.uint32) * np.uint32(0x9E3779B9)
    )
    limit = np.uint32(num)

    def walk(v: Array) -> Array:
        return jnp.where(v < limit, v, _encipher(v, word, half))

    start = _encipher(jnp.asarray(positions).astype(jnp.uint32), word, half)
    out = jax.lax.while_loop(lambda v: jnp.any(v >= limit), walk, start)
    return out.astype(jnp.int32 if num <= 2**31 else jnp.uint32)


def shuffled_on_host(positions: np.ndarray, num: int, seed: int, epoch: int) -> np.ndarray:
    """The same in NumPy, int64."""
    half = _half(num)
    seed_word, epoch_word = np.array([seed % 2**32], np.uint32), np.array([epoch % 2**32], np.uint32)
    word = _mix(_mix(seed_word) ^ epoch_word * np.uint32(0x9E3779B9))
    v = _encipher(np.asarray(positions).astype(np.uint32).reshape(-1), word, half)
    out_of_range = np.flatnonzero(v >= num)
    while len(out_of_range):
        v[out_of_range] = _encipher(v[out_of_range], word, half)
        out_of_range = out_of_range[v[out_of_range] >= num]
    return v.astype(np.int64).reshape(np.shape(positions))
