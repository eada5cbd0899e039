"""What a run learns from: the data set's windows, plants of no family, and what the policy itself has met.

Everything follows from the seed, the step and, for the policy's own loops, the parameters that they were run
with: a run that is resumed draws the same again.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from lqrlab import dataset as data
from lqrlab.compute import pytree
from lqrlab.learning import closed_loop_cost, models
from lqrlab.learning.config import TrainConfig
from lqrlab.learning.training_step import Plants, TrainBatch, weights

_OWN_LOOPS = 512  # in a round
_LARGEST = 3.0  # state of a recorded loop, in units of its scale


@pytree
@dataclasses.dataclass(frozen=True)
class Sources:
    """Everything on the device.

    Attributes:
        windows: the data set's, of the trained split.
        random: windows of random systems under their optimum; None without such plants.
        own: windows of the policy's own loops; None before the first round.
        table: all plants as networks see them; the random ones follow the data set's.
        problem: their regulator problems, in the same order.
        rows, random_rows: of the trained variants and of the random systems.
    """

    windows: data.Resident
    random: data.Resident | None
    own: data.Resident | None
    table: data.VariantTable
    problem: data.Problem
    rows: Array
    random_rows: Array


def gather_sources(dataset: data.Dataset, window: int, config: TrainConfig) -> Sources:
    """Read the data set, and invent what is to be invented."""
    windows = data.resident(dataset, "train", window=window)
    table, problem = windows.table, data.problems(dataset)
    invented, first = None, len(table.gain)
    if config.random_systems:
        key = jax.random.key(config.seed)
        description, more = data.random_systems(key, config.random_systems)
        join = lambda a, b: jnp.concatenate([jnp.asarray(a), jnp.asarray(b, a.dtype)])  # noqa: E731
        problem = jax.tree.map(join, problem, more)
        described = jax.tree.map(join, table.description, description)
        table = dataclasses.replace(table, description=described, gain=join(table.gain, more.K))
        rows = jnp.arange(first, first + config.random_systems)
        excitation = dataset.config.excitation
        invented = _optimal(jax.random.fold_in(key, 1), table, problem, rows, window, config, excitation)
    windows = dataclasses.replace(windows, table=table)
    rows = jnp.arange(first, first + config.random_systems)
    return Sources(windows, invented, None, table, problem, table.train, rows)


def _starts(key: Array, state_mask: Array) -> Array:
    """Initial states as a data set draws them: independent normal, one scale each ``[b, 12]``."""
    return jax.random.normal(key, state_mask.shape, jnp.float32) * state_mask.astype(jnp.float32)


@partial(jax.jit, static_argnames=("window", "config", "excitation"))
def _optimal(
    key: Array,
    table: data.VariantTable,
    problem: data.Problem,
    rows: Array,
    window: int,
    config: TrainConfig,
    excitation: float,
) -> data.Resident:
    """One loop of each of some plants under its optimal gain with excitation, as a data set records them."""
    of = problem[rows]
    K, input_mask = of.K.astype(jnp.float32), table.description.input_mask[rows]
    start, noise = jax.random.split(key)
    push = (
        excitation
        * jax.random.normal(noise, (config.on_policy_steps, *input_mask.shape), jnp.float32)
        * input_mask[None]
    )

    def answer(x: Array, u: Array, time_mask: Array) -> Array:
        return -jnp.einsum("bij,bj->bi", K, x[:, -1])

    x0 = _starts(start, table.description.state_mask[rows])
    return _recorded(
        *closed_loop_cost.roll(answer, 1, of, x0, config.on_policy_steps, push), rows, table, window
    )


def own_loops(
    graph: nnx.GraphDef, params: Any, sources: Sources, config: TrainConfig, round_: Array
) -> data.Resident:
    """What the policy meets when it is run, with what the optimum would have done there.

    Plants are drawn from those that are trained on, initial states as in the data set. A loop that grows is
    shrunk as a whole: half the state calls for half the input, so it is no other problem.

    Source: S. Ross, G. Gordon, D. Bagnell, A reduction of imitation learning and structured prediction to
    no-regret online learning, AISTATS 2011 (here the last round's loops alone are mixed with the data set).
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 2), round_)
    pick, start = jax.random.split(key)
    rows = jnp.concatenate([sources.rows, sources.random_rows])
    rows = rows[jax.random.randint(pick, (_OWN_LOOPS,), 0, len(rows))]
    of = sources.problem[rows]
    description = jax.tree.map(lambda a: a[rows], sources.table.description)
    model = models.merge(graph, params)
    answer = closed_loop_cost.answering(model, model.encode(description))
    x0 = _starts(start, description.state_mask)
    xs, us = closed_loop_cost.roll(answer, model.config.window, of, x0, config.on_policy_steps)
    return _recorded(xs, us, rows, sources.table, model.config.window)


def _recorded(xs: Array, us: Array, rows: Array, table: data.VariantTable, window: int) -> data.Resident:
    """Loops ``[b, T+1, 12]``, ``[b, T, 6]`` as windows; the optimum's predictions follow from the table's gains."""
    size = jnp.max(jnp.abs(xs), axis=(1, 2), keepdims=True)
    shrink = jnp.where(size > _LARGEST, _LARGEST / size, 1.0)
    good = jnp.all(jnp.isfinite(xs), axis=(1, 2), keepdims=True)  # else there is nothing to be learned
    xs, us = (jnp.where(good, a * shrink, 0.0) for a in (xs, us))
    x, steps = xs[:, :-1], us.shape[1]
    before = jnp.pad(us[:, :-1], ((0, 0), (1, 0), (0, 0)))
    signals = jnp.pad(jnp.concatenate([x, before], -1), ((0, 0), (window - 1, 0), (0, 0)))
    return data.Resident(signals, rows.astype(jnp.int32), table, window, steps)


def _some(windows: data.Resident, count: int, seed: ArrayLike, step: Array) -> data.Batch:
    """The ``count`` windows of a step: a function of the seed and the step alone."""
    per_epoch = max(windows.num_windows // count, 1)
    epoch, position = step // per_epoch, step % per_epoch
    # a set smaller than one batch is gone through more than once
    positions = (position * count + jnp.arange(count)) % windows.num_windows
    return windows.gather(windows.order(positions, seed, epoch))


def counts(config: TrainConfig, total: int, *, own: bool) -> tuple[int, int, int]:
    """How many of ``total`` come from the data set, from random systems, from the policy's own loops."""
    invented = round(config.random_share * total) if config.random_systems else 0
    mine = round(config.on_policy_share * total) if own else 0
    return total - invented - mine, invented, mine


def gather(sources: Sources, config: TrainConfig, step: Array, seed: ArrayLike) -> TrainBatch:
    """What a step learns from; can be called inside ``jit``, with a traced seed too."""
    parts = (sources.windows, sources.random, sources.own)
    each = counts(config, config.batch_size, own=sources.own is not None)
    batches = [_some(w, k, seed, step) for w, k in zip(parts, each) if w is not None and k]
    # one after another from each, so that a part of the batch is mixed as the whole is
    mixed = np.argsort(np.concatenate([(np.arange(k) + 0.5) / k for k in each if k]), kind="stable")
    batch = jax.tree.map(lambda *a: jnp.concatenate(a)[mixed], *batches)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 3), step)
    return train_batch(sources.table, sources.problem, batch, key)


def train_batch(table: data.VariantTable, problem: data.Problem, batch: data.Batch, key: Array) -> TrainBatch:
    """Windows, with what is known of their plants."""
    return TrainBatch(batch, weights(table.gain[batch.variant]), plants(table, problem, batch.variant, key))


def plants(table: data.VariantTable, problem: data.Problem, rows: Array, key: Array) -> Plants:
    """Some rows of the table, each with an initial state."""
    description = jax.tree.map(lambda a: a[rows], table.description)
    return Plants(description, problem[rows], _starts(key, description.state_mask))
