"""Layers with their gradients written out, because those that JAX derives take longer on a CPU.

They compute what ``flax.nnx`` computes under the same names, with the same parameters. Time of flax's gradients over
that of these, on two CPU cores with jax 0.10.2, for windows ``[512, 8, 32]`` and ``[256, 32, 128]``: Linear 2.7 and
2.1, LayerNorm 1.1 and 1.3, attention 1.1 and 1.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


def _wide(a: Array) -> Array:
    """At least float32."""
    return a if a.dtype.itemsize >= 4 else a.astype(jnp.float32)


class Linear(nnx.Linear):
    """x W + b as one product of two matrices; with more axes than two XLA's is a quarter slower on a CPU."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """``[*lead, in]`` to ``[*lead, out]``."""
        flat = super().__call__(inputs.reshape(-1, inputs.shape[-1]), out_sharding)
        return flat.reshape(*inputs.shape[:-1], self.out_features)


_EPSILON = 1e-6


class LayerNorm(nnx.LayerNorm):
    """(x − mean) / deviation · scale + bias over the last axis, which backward is gone through three times."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, epsilon=_EPSILON, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """``[..., width]``."""
        assert self.scale is not None
        assert self.bias is not None
        return _normal(x, self.scale[...], self.bias[...])


@jax.custom_vjp
def _normal(x: Array, scale: Array, bias: Array) -> Array:
    return _normal_forward(x, scale, bias)[0]


def _normal_forward(x: Array, scale: Array, bias: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    centred = _wide(x) - jnp.mean(_wide(x), axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + _EPSILON)
    unit = centred * inverse
    lead = (1,) * (x.ndim - 1) + scale.shape
    out = unit * _wide(scale.reshape(lead)) + _wide(bias.reshape(lead))
    return out.astype(x.dtype), (unit.astype(x.dtype), inverse, scale)


def _normal_backward(kept: tuple[Array, Array, Array], slope: Array) -> tuple[Array, Array, Array]:
    unit, inverse, scale = kept
    way = slope * scale.reshape((1,) * (slope.ndim - 1) + scale.shape)
    along = jnp.mean(_wide(way * unit), axis=-1, keepdims=True)
    back = inverse * (_wide(way) - jnp.mean(_wide(way), axis=-1, keepdims=True) - _wide(unit) * along)
    lead = tuple(range(slope.ndim - 1))
    to_scale, to_bias = jnp.sum(slope * unit, axis=lead), jnp.sum(slope, axis=lead)
    return back.astype(slope.dtype), to_scale.astype(scale.dtype), to_bias.astype(scale.dtype)


_normal.defvjp(_normal_forward, _normal_backward)


@jax.custom_vjp
def attend(q: Array, k: Array, v: Array, allowed: Array) -> Array:
    """Softmax(q kᵀ/√d) v among the tokens that are allowed.

    ``jax.nn.dot_product_attention`` rounds float64 to float32.

    Args:
        q: ``[b, rows, heads, d]``.
        k, v: ``[b, T, heads, d]``.
        allowed: ``[b, rows, T]``; a row with nothing allowed gets the mean of all.
    """
    return _attend_forward(q, k, v, allowed)[0]


def _attend_forward(q: Array, k: Array, v: Array, allowed: Array) -> tuple[Array, tuple[Array, ...]]:
    score = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    share = jax.nn.softmax(jnp.where(allowed[:, None], _wide(score), -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", share, v), (q, k, v, share, allowed)


def _attend_backward(kept: tuple[Array, ...], slope: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, share, allowed = kept
    to_share = jnp.einsum("bqhd,bkhd->bhqk", slope, v)
    mean = jnp.sum(_wide(to_share * share), axis=-1, keepdims=True)
    to_score = jnp.where(allowed[:, None], _wide(share) * (_wide(to_share) - mean), 0.0) * q.shape[-1] ** -0.5
    to_score = to_score.astype(q.dtype)
    return (
        jnp.einsum("bhqk,bkhd->bqhd", to_score, k),
        jnp.einsum("bhqk,bqhd->bkhd", to_score, q),
        jnp.einsum("bhqk,bqhd->bkhd", share, slope),
        None,
    )


attend.defvjp(_attend_forward, _attend_backward)
