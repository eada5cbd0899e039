"""Description to gain, no history."""

from flax import nnx
from jax import Array

from lqrlab.learning.models.network import Context, Described, apply_gain, check_shapes, register
from lqrlab.learning.train_config import ModelConfig


class FixedGain(nnx.Module):
    """A model that answers −K x̃ with its context's gain, whatever the history; its closed loops are judged exactly."""

    linear = True

    def __call__(self, x: Array, u: Array, time_mask: Array, context: Context, *, last: bool = False) -> Array:
        """See :class:`Model`; u is not looked at."""
        check_shapes(x, u, time_mask, context, x.shape[1])
        if last:
            x, time_mask = x[:, -1:], time_mask[:, -1:]
        return apply_gain(context.gain[:, None], x, time_mask, context)


def check_described(config: ModelConfig) -> None:
    """Refuse a model with a fixed gain that is not given the description."""
    if not config.description:
        raise ValueError(f"description: a {config.kind} network sees nothing but the description; leave it on")


@register("gain")
class GainNetwork(FixedGain, Described):
    """ũ = −K(A, B) x̃, by a multilayer perceptron."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        check_described(config)
        super().__init__(config, 0, rngs=rngs)
