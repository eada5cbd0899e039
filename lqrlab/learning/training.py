"""The train step: pure functions of a state and a batch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from lqrlab import dataset as data
from lqrlab.compute import pytree
from lqrlab.learning import losses, models
from lqrlab.learning.config import TrainConfig


@pytree
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Parameters (a flat dict, see ``models.split``), the optimizer's state, and the number of steps taken."""

    params: Any
    opt_state: Any
    step: Array


def schedule(config: TrainConfig) -> optax.Schedule:
    """Learning rate over steps: linear warm-up, cosine to a hundredth of the peak at the last step."""
    warm = round(config.warmup * config.num_steps)
    return optax.warmup_cosine_decay_schedule(
        0.0 if warm else config.learning_rate,
        config.learning_rate,
        warm,
        config.num_steps,
        config.learning_rate / 100,
    )


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW under :func:`schedule`, gradients clipped to a global norm."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(schedule(config), weight_decay=config.weight_decay),
    )


def forward(
    graph: nnx.GraphDef, params: Any, table: data.VariantTable, batch: data.Batch
) -> tuple[Array, Array]:
    """A model's inputs for a batch, and which entries count: ``(prediction, live)``, both ``[b, W, 6]``.

    An entry weighs 1/√‖K̃‖ of its plant's optimal gain: without it the plants that are controlled with large
    gains drown the others, and with 1/‖K̃‖ they, which need the most exact gains, are drowned.
    """
    description = jax.tree.map(lambda a: a[batch.variant], table.description)
    model = models.merge(graph, params)
    prediction = model(batch.x, batch.u, batch.live_t, model.encode(description))
    gain = table.gain[batch.variant]
    weight = jnp.sum(gain**2, axis=(-1, -2)) ** -0.25
    return prediction, batch.live_t[..., None] * batch.live_u[:, None] * weight[:, None, None]


def train_step(
    graph: nnx.GraphDef, optimize: optax.GradientTransformation, loss: Callable = losses.masked_mse
) -> Callable[[TrainState, data.Batch, data.VariantTable], tuple[TrainState, dict[str, Array]]]:
    """A pure function ``(state, batch, table) -> (state, metrics)`` that takes one optimizer step.

    Args:
        graph: the model's structure, from ``nnx.split``.
        optimize: an optax transformation.
        loss: ``(prediction, target, live) -> scalar``.
    """

    def step(
        state: TrainState, batch: data.Batch, table: data.VariantTable
    ) -> tuple[TrainState, dict[str, Array]]:
        def objective(params: Any) -> Array:
            prediction, live = forward(graph, params, table, batch)
            return loss(prediction, batch.target, live)

        value, grads = jax.value_and_grad(objective)(state.params)
        updates, opt_state = optimize.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), {
            "loss": value,
            "grad_norm": optax.tree.norm(grads),
        }

    return step
