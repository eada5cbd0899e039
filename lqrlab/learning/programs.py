"""The compiled programs of a run: steps, rounds of own loops, validation; on one device or shared out."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lqrlab import dataset as data
from lqrlab.compute import Backend
from lqrlab.learning import batches, losses, models
from lqrlab.learning.closed_loop_cost import efficiency
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.training_step import (
    Metrics,
    Plants,
    TrainBatch,
    TrainState,
    initial,
    objective,
    optimizer,
    predictions,
    train_step,
)

_WINDOWS, _PLANTS, _STEPS = 4096, 128, 128  # of a validation
_WORTH_CUTTING = 1024  # elements


class Programs:
    """What a run calls again and again, with what it calls it on.

    Args:
        dataset: an opened data set.
        graph: the model's structure.
        model, config: the run's settings.
        backend: a device, or a mesh over which batches are shared out and, along ``fsdp``, parameters.
    """

    def __init__(
        self,
        dataset: data.Dataset,
        graph: nnx.GraphDef,
        model: ModelConfig,
        config: TrainConfig,
        backend: Backend,
    ):
        self.dataset, self.graph, self.config, self.backend = dataset, graph, config, backend
        self.expert_std = dataset.config.excitation
        self.mesh = backend.jax_mesh
        _check(config, model, self.expert_std, self.mesh)
        self.place = NamedSharding(self.mesh, PartitionSpec()) if self.mesh else backend.jax_device
        self.sources = self.put(batches.gather_sources(dataset, model.window, config))
        self.round = 0
        held = data.resident(dataset, "validation", window=model.window)
        held = dataclasses.replace(held, table=self.sources.table)
        self.held = self.put(self._held_back(held))

    def put(self, tree: Any) -> Any:
        """Place arrays where the run is: on its device, or on every device of its mesh."""
        return jax.device_put(tree, self.place)

    def start(self, params: dict[str, Array]) -> TrainState:
        """The state before the first step, in its place."""
        params = jax.tree.map(lambda a: a.astype(self.backend.dtype), params)
        state = initial(params, self.config)
        return jax.device_put(state, jax.tree.map(lambda a: self._sharding(a.shape), state))

    def _sharding(self, shape: tuple[int, ...]) -> Any:
        """Of an array of the state: cut along its longest axis that ``fsdp`` divides, if it is worth it."""
        count = dict(self.mesh.shape).get("fsdp", 1) if self.mesh else 1
        axes = [(size, -i) for i, size in enumerate(shape) if size % count == 0]
        if self.mesh is None or count == 1 or not axes or math.prod(shape) < _WORTH_CUTTING:
            return self.place
        cut = -max(axes)[1]
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * cut, "fsdp"))

    def whole(self, tree: Any) -> Any:
        """Arrays as the host's, from wherever their parts are."""
        return jax.device_get(jax.device_put(tree, self.place) if jax.process_count() > 1 else tree)

    def _held_back(self, held: data.Resident) -> tuple[TrainBatch, Plants]:
        """Windows and plants of the validation split, the same in each report."""
        rows = held.table.validation
        chosen = rows[np.linspace(0, len(rows) - 1, min(_PLANTS, len(rows))).round().astype(int)]
        return self._chosen(held, self.sources.problem, chosen)

    @partial(jax.jit, static_argnames="self")
    def _chosen(self, held: data.Resident, problem: data.Problem, rows: Array) -> tuple[TrainBatch, Plants]:
        windows = held.gather(held.order(np.arange(min(_WINDOWS, held.num_windows)), self.config.seed, 0))
        key = jax.random.fold_in(jax.random.key(self.config.seed), 4)
        train_batch = batches.train_batch(held.table, problem, windows, key)
        return train_batch, batches.plants(held.table, problem, rows, key)

    def many(self, state: TrainState, count: int) -> tuple[TrainState, Metrics]:
        """``count`` steps in one program; metrics ``[count]`` stay on the device."""
        return self._many(state, self.sources, count)

    @partial(jax.jit, static_argnames=("self", "count"), donate_argnames="state")
    def _many(self, state: TrainState, given: batches.Sources, count: int) -> tuple[TrainState, Metrics]:
        step = train_step(
            objective(self.graph, self.config, self.expert_std, self.backend),
            optimizer(self.config),
            accumulate=self.config.accumulate,
            ema=self.config.ema,
        )

        def body(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
            state, metrics = step(
                state, self._shared(batches.gather(given, self.config, state.step, self.config.seed))
            )
            return self._kept(state), metrics

        state, metrics = jax.lax.scan(body, state, length=count)
        return state, jax.lax.with_sharding_constraint(metrics, self.place) if self.mesh else metrics

    def _kept(self, state: TrainState) -> TrainState:
        """Each part of the state where it is."""
        if self.mesh is None:
            return state
        return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, self._sharding(a.shape)), state)

    def _shared(self, tree: Any) -> Any:
        """Leading axes shared out over the mesh."""
        if self.mesh is None:
            return tree
        spec = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))
        return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, spec), tree)

    def begin_round(self, state: TrainState, step: int) -> TrainState:
        """Run the policy if a round begins with this step, or again if the run was resumed within one."""
        number = sum(start <= step for start in self.config.dagger_starts)
        if number and step in self.config.dagger_starts:
            state = dataclasses.replace(state, anchor=jax.tree.map(jnp.copy, state.params))
        if number > self.round:
            own = self._own(state.anchor, dataclasses.replace(self.sources, own=None), number)
            self.sources = dataclasses.replace(self.sources, own=own)
            self.round = number
        return state

    @partial(jax.jit, static_argnames="self")
    def _own(self, params: Any, given: batches.Sources, number: Array) -> data.Resident:
        return batches.own_loops(self.graph, params, given, self.config, number)

    def validate(self, state: TrainState) -> dict[str, float]:
        """Loss over windows and costs of closed loops, of variants that are not trained on."""
        loss, efficient, back = self.whole(self._validate(state.best, *self.held))
        return {
            "epoch": float(state.step) * self.config.batch_size / self.sources.windows.num_windows,
            "validation_loss": float(loss),
            "validation_efficiency": float(np.mean(efficient)),
            "validation_diverged": float(1 - np.mean(back)),
        }

    @partial(jax.jit, static_argnames="self")
    def _validate(self, params: Any, windows: TrainBatch, plants: Plants) -> tuple[Array, Array, Array]:
        return self.judged(params, windows, plants)

    def judged(self, params: Any, windows: TrainBatch, plants: Plants) -> tuple[Array, Array, Array]:
        """Loss over windows, efficiency of closed loops ``[p]`` and whether they come back ``[p]``."""
        model = models.merge(self.graph, params)
        context = model.encode(windows.plants.description)
        loss = losses.register[self.config.loss](predictions(model, context, windows, self.expert_std))
        context = model.encode(plants.description)
        return loss, *efficiency(model, context, plants.problem, plants.x0, _STEPS)

    def why(self, row: dict[str, Any], first: int, metrics: Metrics, kept: int | None) -> str:
        """A sentence or two on a loss that is not a number.

        Args:
            row: what was looked at.
            first: the step that the last dispatch began with.
            metrics: of that dispatch.
            kept: the step of the last checkpoint.
        """
        bad = np.flatnonzero(~np.isfinite(np.asarray(metrics["loss"])))
        step = first + int(bad[0]) if len(bad) else first + len(metrics["loss"])
        batch = batches.gather(self.sources, self.config, jnp.asarray(step), self.config.seed).batch
        size = np.max(np.abs(np.nan_to_num(np.asarray(batch.target), nan=np.inf)), axis=(1, 2))
        row_of = int(batch.variant[int(np.argmax(size))])
        variants = self.dataset.variants
        known = row_of < len(variants)
        plant = (
            f"{variants.family[row_of]}, variant {variants.variant[row_of]}" if known else "an invented one"
        )
        return (
            f"the loss is {row['loss']} within the steps up to {row['step']}, or the parameters after them are not "
            f"numbers (first seen at step {step}; the largest target of its batch, {size.max():.3g}, is that of the "
            f"plant {plant}); training stops. "
            + (f"The checkpoint of step {kept} is kept." if kept else "No checkpoint had been made yet.")
            + " Lower learning_rate or clip, and look at the data for values out of scale."
        )


def _check(config: TrainConfig, model: ModelConfig, expert_std: float, mesh: Mesh | None) -> None:
    """Refuse settings that do not go together, before anything is compiled."""
    losses.register[config.loss]
    if config.loss == "gaussian_kl" and not (model.stochastic and expert_std > 0):
        raise ValueError(
            "loss: gaussian_kl compares two distributions: expected a model with stochastic=True and a data set with "
            f"excitation > 0, but found stochastic={model.stochastic} and excitation={expert_std:g}"
        )
    if mesh is not None:
        for name in ("batch_size", "plants"):
            size = getattr(config, name) // config.accumulate
            if size % mesh.size:
                raise ValueError(
                    f"{name}: expected a multiple of the mesh's {mesh.size} devices in each part of a step, but found "
                    f"{size}"
                )
