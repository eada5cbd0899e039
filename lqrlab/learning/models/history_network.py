"""Networks that also look at the history: a multilayer perceptron over it, and a causal transformer."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.learning.models.network import Context, Described, FlatLinear, apply_gain, check_shapes, register
from lqrlab.learning.train_config import ModelConfig
from lqrlab.systems import M_MAX, N_MAX


class HistoryNetwork(Described):
    """A model that also looks at the history. A subclass reads tokens; what it returns is added to the gain.

    Tokens are scaled by the largest state seen so far, so that the gain does not depend on the amplitude.
    With the description off the plant must be inferred from them.
    """

    options = (*Described.options, "width")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, config.width, rngs=rngs)
        self.token = FlatLinear(2 * (N_MAX + M_MAX), config.width, rngs=rngs)
        # zero at first: what the history adds to the gain starts from nothing
        self.head = FlatLinear(config.width, M_MAX * N_MAX, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def read(self, tokens: Array, prefix: Array, exists: Array, rows: int) -> Array:
        """Features of the last ``rows`` steps (W or 1) ``[b, rows, width]``, each from itself and what came before.

        From tokens ``[b, W, width]``, a prefix, which is what is known of the plant ``[b, width]`` (zero if nothing
        is), and whether a step exists ``[b, W]``.
        """
        raise NotImplementedError(f"{type(self).__name__} declares no read(tokens, prefix, exists, rows)")

    def __call__(self, x: Array, u: Array, time_mask: Array, context: Context, *, last: bool = False) -> Array:
        """See :data:`register`."""
        check_shapes(x, u, time_mask, context, self.config.window)
        b, w, _ = x.shape
        rows = 1 if last else w
        size = jax.lax.cummax(jnp.max(jnp.abs(x), axis=-1) * time_mask, axis=1)[..., None]
        inverse = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1.0), 0.0) * time_mask[..., None]
        masks = jnp.concatenate([context.state_mask, context.input_mask], axis=-1)
        masks = jnp.broadcast_to(masks[:, None], (b, w, N_MAX + M_MAX)) * time_mask[..., None]
        seen = jnp.concatenate([x * inverse, u * inverse, masks], axis=-1)
        tokens = self.token(seen.astype(self.token.kernel.dtype))
        found = self.read(tokens, context.prefix.astype(tokens.dtype), time_mask > 0, rows)
        gain = self.head(found) + context.gain[:, None]
        return apply_gain(gain, x[:, -rows:], time_mask[:, -rows:], context)


@register("mlp")
class MLP(HistoryNetwork):
    """The last ``window`` tokens side by side, and layers as wide as four of them."""

    options = (*HistoryNetwork.options, "depth")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        wide = 4 * config.width
        sizes = [(config.window + 1) * config.width] + config.depth * [wide]
        self.layers = nnx.List([FlatLinear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])
        self.last = FlatLinear(wide, config.width, rngs=rngs)

    def read(self, tokens: Array, prefix: Array, exists: Array, rows: int) -> Array:
        """See :class:`HistoryNetwork`."""
        b, w, width = tokens.shape
        window = self.config.window
        tokens = jnp.where(exists[..., None], tokens, 0)
        padded = jnp.pad(tokens, ((0, 0), (window - 1, 0), (0, 0)))
        # each step's own window of tokens, side by side
        seen = jnp.stack([padded[:, w - rows + k : w + k] for k in range(window)], axis=2)
        h = seen.reshape(b, rows, window * width)
        h = jnp.concatenate([h, jnp.broadcast_to(prefix[:, None], (b, rows, width))], axis=-1)
        for layer in self.layers:
            h = jax.nn.gelu(layer(h))
        return self.last(h)


class LayerNorm(nnx.LayerNorm):
    """Flax's, in float64 too where types are not promoted."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        super().__init__(width, use_fast_variance=False, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """``[..., width]``."""
        with jax.numpy_dtype_promotion("standard"):  # flax asks which type is the wider one
            return super().__call__(x, mask=mask)


def attend(q: Array, k: Array, v: Array, allowed: Array) -> Array:
    """Softmax(q kᵀ/√d) v ``[b, rows, heads, d]`` of k, v ``[b, T, heads, d]`` where allowed ``[b, rows, T]``.

    A row with nothing allowed gets the mean of all. ``jax.nn.dot_product_attention`` rounds float64 to float32.
    """
    score = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    score = score if score.dtype.itemsize >= 4 else score.astype(jnp.float32)
    share = jax.nn.softmax(jnp.where(allowed[:, None], score, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", share, v)


class Attention(nnx.Module):
    """Pre-norm transformer block: attention among the tokens that are allowed, then a feed-forward layer."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.width
        config.require("width", width % config.heads == 0, f"a multiple of heads = {config.heads}")
        self.heads = config.heads
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
        return h + self.down(jax.nn.gelu(self.up(self.norm2(h))))


@register("transformer")
class Transformer(HistoryNetwork):
    """Causal transformer over the history; what is known of the plant is added to every token."""

    options = (*HistoryNetwork.options, "depth", "heads")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        start = jax.random.normal(rngs.params(), (config.window, config.width), jnp.float32)
        self.position = nnx.Param(0.02 * start)
        self.blocks = nnx.List([Attention(config, rngs=rngs) for _ in range(config.depth)])
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
