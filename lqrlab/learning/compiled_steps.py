"""The compiled programs of a run: steps, the policy's own loops, validation. Runs of one shape share them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from lqrlab import compute
from lqrlab.compute import Backend
from lqrlab.dataset import VariantTable, Windows, WindowSet
from lqrlab.learning import closed_loop_cost, losses, models
from lqrlab.learning.batches import ON_POLICY_LOOPS, on_policy_loops, starts, train_batch
from lqrlab.learning.network_policy import NetworkPolicy
from lqrlab.learning.placement import Placement
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.learning.training_step import Metrics, TrainState, objective, optimizer, predictions, scan, train_step
from lqrlab.simulation import Told

VALIDATION_STEPS = 128
"""Of the closed loops that a policy is validated on."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings that a run's programs are compiled for; hashable, so that equal runs share a compilation.

    Attributes:
        graph: the model's structure.
        model, config: the run's settings.
        backend: a device, or a mesh over which batches are shared out and, along ``fsdp``, parameters.
    """

    graph: nnx.GraphDef
    model: ModelConfig
    config: TrainConfig
    backend: Backend

    @property
    def placement(self) -> Placement:
        """Placement of the run's arrays."""
        return Placement(self.backend)

    def policy(self, params: dict[str, Array], told: Told) -> NetworkPolicy:
        """The network with these parameters, bound to what is told of plants ``[b]``."""
        context = models.merge(self.graph, params).encode(told)
        return NetworkPolicy(params, context, told.coordinates, self.graph, self.model.window)


@compute.compile(static="recipe", donate="state")
def run_steps(
    recipe: Recipe, state: TrainState, windows: Windows, table: VariantTable, seed: ArrayLike
) -> tuple[TrainState, Metrics]:
    """As many steps as there are windows ``[steps, batch, …]``, in one program; metrics ``[steps]``."""
    config, placement = recipe.config, recipe.placement
    step = train_step(objective(recipe.graph, config, recipe.backend), optimizer(config))

    def body(state: TrainState, windows: Windows) -> tuple[TrainState, Metrics]:
        given = placement.constrain_batch(train_batch(table, windows, seed, state.step))
        state, metrics = step(state, given)
        return placement.constrain_state(state), metrics

    state, metrics = scan(body, state, windows)
    return state, placement.constrain_whole(metrics)


@compute.compile(static="recipe")
def dagger_loops(
    recipe: Recipe, params: dict[str, Array], table: VariantTable, rows: Array, number: Array
) -> WindowSet:
    """The loops of a DAgger round: of plants drawn from ``rows``, under the policy with these parameters."""
    config = recipe.config
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 2), number)
    pick, start = jax.random.split(key)
    chosen = rows[jax.random.randint(pick, (ON_POLICY_LOOPS,), 0, len(rows))]
    return on_policy_loops(recipe.policy(params, table.told(chosen)), table, chosen, start, config.on_policy_steps)


@compute.compile(static="recipe")
def validate(
    recipe: Recipe, params: dict[str, Array], windows: Windows, table: VariantTable, rows: Array
) -> tuple[Array, Array, Array]:
    """Loss over windows ``[b, …]``; excess cost and verdict of the closed loops of the plants in ``rows`` ``[p]``."""
    seed = recipe.config.seed
    model = models.merge(recipe.graph, params)
    given = train_batch(table, windows, seed, jnp.int32(0))
    context = model.encode(given.told)
    loss = losses.register[recipe.config.loss](predictions(model, context, given))
    problem, x0, _ = starts(table, rows, jax.random.fold_in(jax.random.key(seed), 4))
    policy = recipe.policy(params, table.told(rows))
    judged = closed_loop_cost.closed_loop(policy, model.linear, problem, x0, VALIDATION_STEPS)
    return loss, *judged


def check_settings(config: TrainConfig, model: ModelConfig, excitation: float, backend: Backend) -> None:
    """Refuse settings that do not go together, before anything is compiled."""
    losses.register[config.loss]
    if config.loss == "gaussian_kl" and not (model.stochastic and excitation > 0):
        raise ValueError(
            "loss: gaussian_kl compares two distributions: expected a model with stochastic=True and a data set with "
            f"excitation > 0, but found stochastic={model.stochastic} and excitation={excitation:g}"
        )
    mesh = backend.jax_mesh
    if mesh is not None:
        for name in ("batch_size", "plants"):
            size = getattr(config, name)
            if size % mesh.size:
                raise ValueError(f"{name}: expected a multiple of the mesh's {mesh.size} devices, but found {size}")


def summary(loss: ArrayLike, excess: ArrayLike, verdicts: ArrayLike) -> dict[str, float]:
    """The numbers of a validation, of host arrays: ``validation_loss``, ``_efficiency`` and ``_diverged``."""
    efficient = np.asarray(closed_loop_cost.efficiency(excess, verdicts))
    return {
        "validation_loss": float(np.asarray(loss)),
        "validation_efficiency": float(np.mean(efficient)),
        "validation_diverged": float(np.mean(np.asarray(verdicts) == closed_loop_cost.Verdict.DIVERGED)),
    }
