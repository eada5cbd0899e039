"""Description to gain, no history."""

from flax import nnx
from jax import Array

from lqrlab.learning.config import ModelConfig
from lqrlab.learning.models.base import Context, Described, apply_gain, check_shapes, register


@register("gain")
class GainNetwork(Described):
    """ũ = −K(A, B) x̃: linear in the state, so its closed loops are judged exactly."""

    linear = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        if not config.description:
            raise ValueError("description: a gain network sees nothing but the description; leave it on")
        super().__init__(config, 0, rngs=rngs)

    def __call__(
        self, x: Array, u: Array, time_mask: Array, context: Context, *, last: bool = False
    ) -> Array:
        """See :class:`Model`; u is not looked at."""
        check_shapes(x, u, time_mask, context, x.shape[1])
        if last:
            x, time_mask = x[:, -1:], time_mask[:, -1:]
        return apply_gain(context.gain[:, None], x, time_mask, context)
