"""The train step: pure functions of a state and of what it learns from."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from lqrlab.compute import Backend, checks, optimization, pytree
from lqrlab.learning import closed_loop_cost, losses, models
from lqrlab.learning.batches import TrainBatch
from lqrlab.learning.network_policy import NetworkPolicy
from lqrlab.learning.train_config import TrainConfig
from lqrlab.simulation import Verdict

C = TypeVar("C")
X = TypeVar("X")
Y = TypeVar("Y")
Metrics = dict[str, Array]
Objective = Callable[[dict[str, Array], Any], tuple[Array, Metrics]]
"""``(params, train_batch) -> (scalar, metrics)``; every array of the batch has a leading axis to share out."""


@pytree
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run goes on from.

    Attributes:
        params: a flat dict, see ``models.split``.
        opt_state: the optimizer's.
        step: steps taken.
        anchor: parameters that the present DAgger round was run with; empty where there are no rounds.
    """

    params: dict[str, Array]
    opt_state: optax.OptState
    step: Array
    anchor: dict[str, Array] = dataclasses.field(default_factory=dict)


def initial(params: dict[str, Array], config: TrainConfig) -> TrainState:
    """The state before the first step."""
    anchor = jax.tree.map(jnp.copy, params) if config.dagger_rounds else {}
    return TrainState(params, optimizer(config).init(params), jnp.zeros((), jnp.int32), anchor)


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Learning rate over steps: linear warm-up, cosine to a hundredth of the peak at the last step."""
    checks.instance("config", config, TrainConfig, "a TrainConfig")
    warm = round(config.warmup * config.num_steps)
    return optax.warmup_cosine_decay_schedule(
        0.0 if warm else config.learning_rate, config.learning_rate, warm, config.num_steps, config.learning_rate / 100
    )


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW under :func:`learning_rate`, gradients clipped to a global norm."""
    checks.instance("config", config, TrainConfig, "a TrainConfig")
    return optax.chain(
        optax.clip_by_global_norm(config.clip), optax.adamw(learning_rate(config), weight_decay=config.weight_decay)
    )


def predictions(model: Any, context: Any, given: TrainBatch) -> losses.Predictions:
    """A model's answers to windows, with the expert's."""
    batch = given.batch
    prediction = model(batch.x, batch.u, batch.time_mask, context).astype(batch.target.dtype)
    weight = batch.time_mask[..., None] * batch.input_mask[:, None] * given.weight[:, None, None]
    std = jnp.zeros_like(context.log_std) if given.expert_std is None else given.expert_std
    log_std, std = (
        jnp.broadcast_to(a[:, None].astype(prediction.dtype), prediction.shape) for a in (context.log_std, std)
    )
    return losses.Predictions(prediction, batch.target, weight, log_std, std)


def objective(graph: nnx.GraphDef, config: TrainConfig, backend: Backend | None = None) -> Objective:
    """Objective that ``config`` names: a loss over windows, and costs of closed loops.

    Args:
        graph: the model's structure, from ``models.split``.
        config: its ``loss``, weights and horizon are looked at.
        backend: its ``compute_dtype`` is.
    """
    checks.instance("graph", graph, nnx.GraphDef, "a model's structure, as models.split gives")
    checks.instance("config", config, TrainConfig, "a TrainConfig")
    loss, backend = losses.register[config.loss], backend or Backend()

    def value(params: dict[str, Array], given: TrainBatch) -> tuple[Array, Metrics]:
        if backend.compute_dtype != backend.dtype:
            params = jax.tree.map(lambda a: a.astype(backend.compute_dtype), params)
        model = models.merge(graph, params)
        context = model.encode(given.told)
        terms, metrics = [], {}
        if config.imitation:
            metrics["imitation"] = loss(predictions(model, context, given))
            terms.append(config.imitation * metrics["imitation"])
        if config.closed_loop:
            some = slice(config.plants)
            problem, x0, key, here = jax.tree.map(lambda a: a[some], (given.problem, given.x0, given.key, context))
            policy = NetworkPolicy(params, here, given.told[some].coordinates, graph, model.config.window)
            excess, verdicts = closed_loop_cost.closed_loop(
                policy, model.linear, problem, x0, config.horizon, config.loop_noise, key[0]
            )
            metrics["closed_loop"] = jnp.mean(jnp.log1p(excess))
            metrics["diverged"] = jnp.mean(verdicts == Verdict.DIVERGED)
            terms.append(config.closed_loop * metrics["closed_loop"])
        return sum(term.astype(float) for term in terms), metrics

    return value


def scan(body: Callable[[C, X], tuple[C, Y]], carry: C, xs: X) -> tuple[C, Y]:
    """``jax.lax.scan``; outside of traces a plain loop, in which a loss may ask for numbers."""
    if checks.traced(carry, xs):
        return jax.lax.scan(body, carry, xs)
    ys = []
    for i in range(len(jax.tree.leaves(xs)[0])):
        carry, y = body(carry, jax.tree.map(lambda a, i=i: a[i], xs))
        ys.append(y)
    return carry, jax.tree.map(lambda *a: jnp.stack(a), *ys)


def train_step(
    objective: Objective, optimize: optax.GradientTransformation
) -> Callable[[TrainState, Any], tuple[TrainState, Metrics]]:
    """A pure function ``(state, train_batch) -> (state, metrics)`` that takes one optimizer step.

    Args:
        objective: see :data:`Objective`.
        optimize: an optax transformation.
    """
    checks.function("objective", objective)
    checks.instance("optimize", optimize, optax.GradientTransformation, "an optax transformation")
    slope = jax.value_and_grad(objective, has_aux=True)

    def step(state: TrainState, given: Any) -> tuple[TrainState, Metrics]:
        (value, metrics), grads = slope(state.params, given)
        updates, opt_state = optimization.updates(optimize, grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        state = TrainState(params, opt_state, state.step + 1, state.anchor)
        return state, {"loss": value, "grad_norm": optax.tree.norm(grads), **metrics}

    return step
