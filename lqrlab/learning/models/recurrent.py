"""A gated recurrent network over the history."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.learning.models.layers import FlatLinear, LayerNorm
from lqrlab.learning.models.network import HistoryNetwork, register
from lqrlab.learning.train_config import ModelConfig


@register("recurrent")
class Recurrent(HistoryNetwork):
    """A GRU that reads the window from its oldest step on, the plant's description as its first state.

    It starts anew in each window, so that in the closed loop it is what it was in training.

    Source: K. Cho et al., Learning phrase representations using RNN encoder-decoder for statistical machine
    translation, EMNLP 2014.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        width = config.width
        self.inward = FlatLinear(width, 3 * width, rngs=rngs)
        self.onward = FlatLinear(width, 3 * width, use_bias=False, rngs=rngs)
        self.norm = LayerNorm(width, rngs=rngs)

    def read(self, tokens: Array, prefix: Array, exists: Array, rows: int) -> Array:
        """See :class:`HistoryNetwork`."""
        given = jnp.moveaxis(self.inward(tokens), 1, 0)
        weight = self.onward.kernel[...]

        def step(h: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            seen, here = now
            seen_r, seen_z, seen_n = jnp.split(seen, 3, axis=-1)
            own_r, own_z, own_n = jnp.split(h @ weight, 3, axis=-1)
            reset, keep = jax.nn.sigmoid(seen_r + own_r), jax.nn.sigmoid(seen_z + own_z)
            new = keep * h + (1 - keep) * jnp.tanh(seen_n + reset * own_n)
            h = jnp.where(here[:, None], new, h)
            return h, h

        _, found = jax.lax.scan(step, jnp.tanh(prefix), (given, jnp.moveaxis(exists, 1, 0)))
        return self.norm(jnp.moveaxis(found[-rows:], 0, 1))
