"""Layers of the networks: flax's, but for a product of matrices that XLA works off sooner on a CPU, and attention."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class LayerNorm(nnx.LayerNorm):
    """Flax's, in float64 too where types are not promoted."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, use_fast_variance=False, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """``[..., width]``."""
        with jax.numpy_dtype_promotion("standard"):  # flax asks which type is the wider one
            return super().__call__(x, mask=mask)


def _flat(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


# with more axes than two XLA's product takes 2.3 to 3.1 times as long on a CPU: the gradient at [512, 8, 32] and
# [256, 32, 128] with jax 0.10.2, on two cores
FlatLinear = partial(nnx.Linear, dot_general=_flat)


def attend(q: Array, k: Array, v: Array, allowed: Array) -> Array:
    """Softmax(q kᵀ/√d) v ``[b, rows, heads, d]`` of k, v ``[b, T, heads, d]`` where allowed ``[b, rows, T]``.

    A row with nothing allowed gets the mean of all. ``jax.nn.dot_product_attention`` rounds float64 to float32.
    """
    score = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    score = score if score.dtype.itemsize >= 4 else score.astype(jnp.float32)
    share = jax.nn.softmax(jnp.where(allowed[:, None], score, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", share, v)
