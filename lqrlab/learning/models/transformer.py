"""The causal transformer over state and input history."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.compute.registry import Registry
from lqrlab.learning.models.layers import FlatLinear, LayerNorm, attend
from lqrlab.learning.models.network import HistoryNetwork, activation, register
from lqrlab.learning.train_config import ModelConfig

block = Registry("block", "block")
"""Decorator that enters a block class, built as ``cls(config, rngs=rngs)`` and called as :class:`Attention` is."""


@block("attention")
class Attention(nnx.Module):
    """Pre-norm transformer block: attention among the tokens that are allowed, then a feed-forward layer."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.width
        config.require("width", width % config.heads == 0, f"a multiple of heads = {config.heads}")
        self.heads = config.heads
        self.activate = activation[config.activation]
        self.norm1 = LayerNorm(width, rngs=rngs)
        self.qkv = FlatLinear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = FlatLinear(width, width, rngs=rngs)
        self.norm2 = LayerNorm(width, rngs=rngs)
        self.up = FlatLinear(width, 4 * width, rngs=rngs)
        self.down = FlatLinear(4 * width, width, rngs=rngs)

    def __call__(self, h: Array, allowed: Array, rows: int) -> Array:
        """The last ``rows`` tokens of h ``[b, T, width]``, after attending where allowed ``[b, rows, T]``."""
        b, _, width = h.shape
        q, k, v = (
            z.reshape(b, -1, self.heads, width // self.heads) for z in jnp.split(self.qkv(self.norm1(h)), 3, axis=-1)
        )
        h, q = h[:, -rows:], q[:, -rows:]
        h = h + self.out(attend(q, k, v, allowed).reshape(b, rows, width))
        return h + self.down(self.activate(self.up(self.norm2(h))))


@register("transformer")
class Transformer(HistoryNetwork):
    """Causal transformer over the history; what is known of the plant is added to every token."""

    options = (*HistoryNetwork.options, "depth", "heads", "block")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        start = jax.random.normal(rngs.params(), (config.window, config.width), jnp.float32)
        self.position = nnx.Param(0.02 * start)
        self.blocks = nnx.List([block[config.block](config, rngs=rngs) for _ in range(config.depth)])
        self.norm = LayerNorm(config.width, rngs=rngs)

    def read(self, tokens: Array, prefix: Array, exists: Array, rows: int) -> Array:
        """See :class:`HistoryNetwork`."""
        w = tokens.shape[1]
        h = tokens + prefix[:, None] + self.position[None, :w]
        # A step before the episode may attend to anything: what it answers is masked, and nobody attends to it.
        allowed = jnp.tril(jnp.ones((w, w), bool))[None] & exists[:, None, :]
        for i, one in enumerate(self.blocks):
            kept = rows if i == len(self.blocks) - 1 else w
            h = one(h, allowed[:, -kept:], kept)
        return self.norm(h)
