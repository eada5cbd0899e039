"""Training batches: windows of the data set and of random systems, mixed; all follows from the seed and the step."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import dataset as data
from lqrlab import simulation
from lqrlab.compute import checks, pytree
from lqrlab.dataset import VariantTable, Windows, WindowSet
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.simulation import LinearPolicy, Problem, Told

_LOOP_STEPS = 32
_LARGEST = 3.0  # state of a recorded loop, in units of its scale


@pytree
@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """Batch of one training step.

    Attributes:
        batch: windows ``[b, …]``.
        weight: of each window ``[b]``, see :func:`weights`.
        problem: their plants, scaled ``[b, …]``.
        x0, key: initial states of closed loops of these plants, and keys of noise ``[b, …]``.
    """

    batch: data.Batch
    weight: Array
    problem: Problem
    x0: Array
    key: Array

    @property
    def told(self) -> Told:
        """The network's view of the plants, in the windows' type."""
        return self.problem.told().astype(self.batch.signals.dtype)


def weights(gain: Array) -> Array:
    """1/√‖K̃‖ of optimal gains ``[..., 6, 12]``.

    Without it plants with large gains drown the others; with 1/‖K̃‖ these, which need the most exact gains, drown.
    """
    return jnp.sum(gain**2, axis=(-1, -2)) ** -0.25


def train_batch(table: VariantTable, windows: Windows, seed: ArrayLike, step: Array) -> TrainBatch:
    """Windows with prior information on their plants, and initial states of the step; works in ``jit``."""
    batch = windows.batch(table)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 3), step)
    return TrainBatch(batch, weights(batch.gain), *starts(table, batch.variant, key))


def starts(table: VariantTable, rows: Array, key: Array) -> tuple[Problem, Array, Array]:
    """Some rows of the table, an initial state of each, and a key of its noise."""
    problem = table.problem[rows]
    x0 = initial_states(key, problem.coordinates.state_mask)
    return problem, x0, jax.random.split(jax.random.fold_in(key, 1), len(rows))


def initial_states(key: Array, state_mask: Array) -> Array:
    """Scaled initial states as a data set draws them: independent normal, one scale each ``[b, 12]``."""
    return jax.random.normal(key, state_mask.shape, jnp.float32) * state_mask.astype(jnp.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """The windows of each step: shares of a source and of random systems under their optimum, if there are any.

    In the table of all plants the random systems follow the data set's.
    """

    source: data.Source
    config: TrainConfig
    table: VariantTable
    random: WindowSet | None = None

    @classmethod
    def of(
        cls, source: data.Source, config: TrainConfig, device: Any = None, *, full_weights: bool = False
    ) -> "Mixture":
        """Draw the random systems, some with ``full_weights`` or none, design for them and run their loops."""
        table, loops, excitation = source.table, None, source.data.config.excitation
        if config.random_systems:
            key, first = jax.random.key(config.seed), len(table)
            more = data.random_systems(key, config.random_systems, full_weights=full_weights, dense=True)
            table, rows = table.extended(more), jnp.arange(first, first + config.random_systems)
            loops = _optimal_loops(jax.random.fold_in(key, 1), table, rows, source.window, excitation)
        return cls(source, config, *jax.device_put((table, loops), device))

    def windows(self, step: int, count: int, seed: int) -> Windows:
        """Batches of the ``count`` steps from ``step`` on ``[count, batch_size, …]``."""
        config = self.config
        random = round(config.random_share * config.batch_size) if self.random is not None else 0
        size = config.batch_size - random
        found = self.source.windows(step * size, count * size)
        found = jax.tree.map(lambda a: a.reshape(count, size, *a.shape[1:]), found)
        if self.random is None or not random:
            return found
        return _mixed((found, _of_set(self.random, np.uint32(step), count, random, np.uint32(seed))), (size, random))


def check_source(source: data.Source, model: ModelConfig, config: TrainConfig) -> None:
    """Raise ValueError for a source that does not fit the model and the config, before computing."""
    if not isinstance(source, data.Source):
        raise ValueError(
            f"source: expected windows, as of dataset.source(data, batch_size=…, window=…), but found "
            f"{type(source).__name__}"
        )
    checks.instance("model", model, ModelConfig, "a ModelConfig")
    checks.instance("config", config, TrainConfig, "a TrainConfig")
    spec = source.spec
    for name, found, wanted, why in (
        ("window", spec.window, model.window, "as the model sees"),
        ("batch_size", spec.batch_size, config.batch_size, "as in the config"),
        ("split", spec.split, "train", "the others are for validation and tests"),
    ):
        if found != wanted:
            raise ValueError(f"source: expected {name} = {wanted!r}, {why}, but found {found!r}")
    if not len(source.table.validation):
        raise ValueError(
            "source: its data set has no variant in the split 'validation', on which a run is judged; make it with "
            "DataConfig(validation=…) above 0"
        )


@partial(jax.jit, static_argnums=(2, 3))
def _of_set(held: WindowSet, step: Array, count: int, size: int, seed: Array) -> Windows:
    """The windows of some steps ``[count, size, …]``; a small set is gone through many times."""

    def of_step(step: Array) -> Windows:
        per_epoch = max(held.num_windows // size, 1)
        return held.shuffled((step % per_epoch) * size % held.num_windows, step // per_epoch, size, seed)

    return jax.lax.map(of_step, step + jnp.arange(count, dtype=jnp.uint32))


@partial(jax.jit, static_argnums=1)
def _mixed(parts: tuple[Windows, ...], sizes: tuple[int, ...]) -> Windows:
    """Parts ``[count, size, …]`` one after another from each, so that a part of a batch is mixed as the whole is."""
    order = np.argsort(np.concatenate([(np.arange(k) + 0.5) / k for k in sizes]), kind="stable")
    return jax.tree.map(lambda *a: jnp.concatenate(a, axis=1)[:, order], *parts)


@partial(jax.jit, static_argnames=("window", "excitation"))
def _optimal_loops(key: Array, table: VariantTable, rows: Array, window: int, excitation: float) -> WindowSet:
    """One loop of each of some plants under its optimal gain with excitation, as a data set records them."""
    problem = table.problem[rows]
    start, noise = jax.random.split(key)
    x0 = initial_states(start, problem.coordinates.state_mask)
    excited = problem.disturbed(excitation=excitation * problem.coordinates.input_mask)
    policy = LinearPolicy(problem.K.astype(jnp.float32))
    run = simulation.rollout(excited, policy, x0, _LOOP_STEPS, key=noise, keep=("xs", "us"))
    return recorded(run.xs, run.us, rows, window)


def recorded(xs: Array, us: Array, rows: Array, window: int) -> WindowSet:
    """Scaled loops ``[b, T+1, 12]``, ``[b, T, 6]`` as windows.

    A loop that leaves the scale is shrunk as a whole: half the state calls for half the input.
    """
    size = jnp.max(jnp.abs(xs), axis=(1, 2), keepdims=True)
    shrink = jnp.where(size > _LARGEST, _LARGEST / size, 1.0)
    good = jnp.all(jnp.isfinite(xs), axis=(1, 2), keepdims=True)  # else there is nothing to be learned
    xs, us = (jnp.where(good, a * shrink, 0.0) for a in (xs, us))
    before = jnp.pad(us[:, :-1], ((0, 0), (1, 0), (0, 0)))
    signals = jnp.concatenate([xs[:, :-1], before], axis=-1)
    signals = jnp.pad(signals, ((0, 0), (window - 1, 0), (0, 0)))
    return WindowSet(signals=signals, variant=rows.astype(jnp.int32), window=window, num_steps=us.shape[1])
