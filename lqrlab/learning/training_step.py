"""The train step: pure functions of a state and of what it learns from, and their compiled programs on any devices."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from lqrlab import compute
from lqrlab.compute import Backend, calculus, checks, pytree
from lqrlab.dataset import VariantTable, Windows
from lqrlab.learning import losses, models
from lqrlab.learning.batches import TrainBatch, starts, train_batch
from lqrlab.learning.network_policy import NetworkPolicy
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.simulation import Problem, Told, Verdict

C = TypeVar("C")
X = TypeVar("X")
Y = TypeVar("Y")
T = TypeVar("T")
Metrics = dict[str, Array]
Objective = Callable[[dict[str, Array], Any], tuple[Array, Metrics]]
"""``(params, train_batch) -> (scalar, metrics)``; every array of the batch has a leading axis to share out."""
_LARGE = 0.03  # cost above the optimum, relative, from which on it counts by its logarithm


@pytree
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state from which a training resumes.

    Attributes:
        params: a flat dict, see ``models.split``.
        opt_state: the optimizer's.
        step: steps taken.
    """

    params: dict[str, Array]
    opt_state: optax.OptState
    step: Array


def initial(params: dict[str, Array], config: TrainConfig) -> TrainState:
    """The state before the first step."""
    return TrainState(params, optimizer(config).init(params), jnp.zeros((), jnp.int32))


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
    return losses.Predictions(prediction, batch.target, weight)


def _encoded(model: Any, problem: Problem, told: Told) -> Any:
    """A model's context in the type of ``told``; a normal form is that of the problem before it was rounded to this."""
    if not getattr(model, "any_weights", False):
        return model.encode(told)
    return jax.tree.map(lambda a: a.astype(told.state_mask.dtype), model.encode(problem.told()))


def objective(graph: nnx.GraphDef, config: TrainConfig, backend: Backend | None = None) -> Objective:
    """Objective that ``config`` names for a model of this structure: a loss over windows, costs of closed loops."""
    checks.instance("graph", graph, nnx.GraphDef, "a model's structure, as models.split gives")
    checks.instance("config", config, TrainConfig, "a TrainConfig")
    loss, backend = losses.register[config.loss], backend or Backend()

    def value(params: dict[str, Array], given: TrainBatch) -> tuple[Array, Metrics]:
        if backend.compute_dtype != backend.dtype:
            params = {name: a.astype(backend.compute_dtype) for name, a in params.items()}
        model = models.merge(graph, params)
        context = _encoded(model, given.problem, given.told)
        terms, metrics = [], {}
        if config.imitation:
            metrics["imitation"] = loss(predictions(model, context, given))
            terms.append(config.imitation * metrics["imitation"])
        if config.closed_loop:
            some = slice(config.plants)
            problem, x0, key, here = jax.tree.map(lambda a: a[some], (given.problem, given.x0, given.key, context))
            policy = NetworkPolicy(params, here, given.told[some].coordinates, graph, model.config.window)
            excess, verdicts = losses.closed_loop(
                policy, model.linear, problem, x0, config.horizon, config.loop_noise, key[0]
            )
            metrics["closed_loop"] = jnp.mean(jnp.log1p(excess / _LARGE))
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
    """A pure function ``(state, train_batch) -> (state, metrics)`` that takes one optimizer step."""
    checks.function("objective", objective)
    checks.instance("optimize", optimize, optax.GradientTransformation, "an optax transformation")
    slope = jax.value_and_grad(objective, has_aux=True)

    def step(state: TrainState, given: Any) -> tuple[TrainState, Metrics]:
        (value, metrics), grads = slope(state.params, given)
        updates, opt_state = calculus.updates(optimize, grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        state = TrainState(params, opt_state, state.step + 1)
        return state, {"loss": value, "grad_norm": optax.tree.norm(grads), **metrics}

    return step


VALIDATION_STEPS = 128  # of the closed loops that a policy is validated on


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings that a run's programs are compiled for; hashable, so that equal runs share a compilation.

    Over a backend's mesh batches are shared out; parameters are whole on each device.
    """

    graph: nnx.GraphDef
    model: ModelConfig
    config: TrainConfig
    backend: Backend

    def put_batches(self, windows: Windows) -> Windows:
        """Place windows ``[steps, batch, …]``, the second axis shared out."""
        mesh = self.backend.jax_mesh
        place = self.backend.place if mesh is None else NamedSharding(mesh, PartitionSpec(None, mesh.axis_names))
        return jax.device_put(windows, place)

    def on_host(self, tree: T) -> T:
        """Arrays as the host's, from wherever their parts are; all processes call it."""
        return jax.device_get(self.backend.put(tree) if jax.process_count() > 1 else tree)

    def shared(self, tree: T) -> T:
        """Inside ``jit``: leading axes shared out."""
        mesh = self.backend.jax_mesh
        spec = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        return tree if spec is None else jax.lax.with_sharding_constraint(tree, spec)

    def whole(self, tree: T) -> T:
        """Inside ``jit``: whole on every device."""
        return jax.lax.with_sharding_constraint(tree, self.backend.place) if self.backend.jax_mesh else tree


@compute.compile(static="recipe", donate="state")
def run_steps(
    recipe: Recipe, state: TrainState, windows: Windows, table: VariantTable, seed: ArrayLike
) -> tuple[TrainState, Metrics]:
    """As many steps as there are windows ``[steps, batch, …]``, in one program; metrics ``[steps]``."""
    step = train_step(objective(recipe.graph, recipe.config, recipe.backend), optimizer(recipe.config))

    def body(state: TrainState, windows: Windows) -> tuple[TrainState, Metrics]:
        state, metrics = step(state, recipe.shared(train_batch(table, windows, seed, state.step)))
        return recipe.whole(state), metrics

    state, metrics = scan(body, state, windows)
    return state, recipe.whole(metrics)


@compute.compile(static="recipe")
def validate(
    recipe: Recipe, params: dict[str, Array], windows: Windows, table: VariantTable, rows: Array
) -> tuple[Array, Array, Array]:
    """Loss over windows ``[b, …]``; excess cost and verdict of the closed loops of the plants in ``rows`` ``[p]``."""
    seed = recipe.config.seed
    model = models.merge(recipe.graph, params)
    given = train_batch(table, windows, seed, jnp.int32(0))
    context = _encoded(model, given.problem, given.told)
    loss = losses.register[recipe.config.loss](predictions(model, context, given))
    problem, x0, _ = starts(table, rows, jax.random.fold_in(jax.random.key(seed), 4))
    told = table.told(rows)
    policy = NetworkPolicy(params, _encoded(model, problem, told), told.coordinates, recipe.graph, model.config.window)
    judged = losses.closed_loop(policy, model.linear, problem, x0, VALIDATION_STEPS)
    return loss, *judged


def check_settings(config: TrainConfig, backend: Backend) -> None:
    """Refuse settings that do not go together, before anything is compiled."""
    losses.register[config.loss]
    mesh = backend.jax_mesh
    if mesh is not None:
        for name in ("batch_size", "plants"):
            size = getattr(config, name)
            if size % mesh.size:
                raise ValueError(f"{name}: expected a multiple of the mesh's {mesh.size} devices, but found {size}")


def summary(loss: ArrayLike, excess: ArrayLike, verdicts: ArrayLike) -> dict[str, float]:
    """The numbers of a validation, of host arrays: ``validation_loss``, ``_efficiency`` and ``_diverged``."""
    excess, verdicts = np.asarray(excess), np.asarray(verdicts)
    good = (verdicts == Verdict.CONVERGED) & np.isfinite(excess)
    efficient = np.where(good, 1 / (1 + np.where(good, excess, 0.0)), 0.0)  # least over actual cost
    return {
        "validation_loss": float(np.asarray(loss)),
        "validation_efficiency": float(np.mean(efficient)),
        "validation_diverged": float(np.mean(np.asarray(verdicts) == Verdict.DIVERGED)),
    }
