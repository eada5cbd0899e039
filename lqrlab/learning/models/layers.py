"""Layers of the networks: flax's, but for a product of matrices that XLA works off sooner on a CPU, and attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class LayerNorm(nnx.LayerNorm):
    """Flax's, in float64 too where types are not promoted; the variance after the mean has been taken off."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, use_fast_variance=False, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """``[..., width]``."""
        with jax.numpy_dtype_promotion("standard"):  # flax asks which type is the wider one
            return super().__call__(x, mask=mask)


class FlatLinear(nnx.Linear):
    """x W + b as one product of two matrices; with more axes than two XLA's takes 2.3 to 3.1 times as long on a CPU.

    Measured for the gradient at ``[512, 8, 32]`` and ``[256, 32, 128]`` with jax 0.10.2, on two cores.
    """

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """``[*lead, in]`` to ``[*lead, out]``."""
        flat = super().__call__(inputs.reshape(-1, inputs.shape[-1]), out_sharding)
        return flat.reshape(*inputs.shape[:-1], self.out_features)


def attend(q: Array, k: Array, v: Array, allowed: Array) -> Array:
    """Softmax(q kᵀ/√d) v among the tokens that are allowed.

    ``jax.nn.dot_product_attention``, which flax calls, rounds float64 to float32.

    Args:
        q: ``[b, rows, heads, d]``.
        k, v: ``[b, T, heads, d]``.
        allowed: ``[b, rows, T]``; a row with nothing allowed gets the mean of all.
    """
    score = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    score = score if score.dtype.itemsize >= 4 else score.astype(jnp.float32)
    share = jax.nn.softmax(jnp.where(allowed[:, None], score, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", share, v)
