"""One step of an optimiser, whatever the precision of what it improves."""

from typing import TypeVar

import jax
import optax

Params = TypeVar("Params")


def updates(
    optimizer: optax.GradientTransformation, slope: Params, state: optax.OptState, params: Params | None = None
) -> tuple[Params, optax.OptState]:
    """What the optimiser adds to the parameters along their gradient, and its new state.

    Adam takes powers of its decay by a count of steps: numbers of two types, which are not promoted elsewhere.

    Args:
        optimizer: an optax transformation.
        slope: the gradient.
        state: the optimiser's.
        params: where it looks at them, as for the decay of weights.
    """
    with jax.numpy_dtype_promotion("standard"):
        return optimizer.update(slope, state, params)  # type: ignore[return-value]
