"""A multilayer perceptron over the history."""

import itertools

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.learning.models.layers import FlatLinear
from lqrlab.learning.models.network import HistoryNetwork, activation, register
from lqrlab.learning.train_config import ModelConfig


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
        self.activate = activation[config.activation]

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
            h = self.activate(layer(h))
        return self.last(h)
