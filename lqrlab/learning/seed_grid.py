"""Several seeds and learning rates in one program, so that a curve comes with its spread."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from lqrlab import compute
from lqrlab.compute import Backend
from lqrlab.compute.compilation import SURVIVABLE, where_it_failed
from lqrlab.compute.configuration import Positive, Seed, checked
from lqrlab.dataset import Source, VariantTable, Windows
from lqrlab.learning import compiled_steps, models
from lqrlab.learning.batches import Mixture, check_source, train_batch
from lqrlab.learning.compiled_steps import Recipe
from lqrlab.learning.fitting import validation_rows, validation_windows
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.learning.training_step import Metrics, TrainState, initial, objective, optimizer, train_step


@dataclasses.dataclass(frozen=True)
class Curves:
    """Result of :func:`grid`, one entry a seed and learning rate.

    Attributes:
        seeds, learning_rates: along the first two axes.
        steps: at which reports were made ``[reports]``.
        metrics: name → ``[seeds, rates, reports]``: loss (mean since the last report), validation_loss,
            validation_efficiency, validation_diverged.
        params: of the last step ``[seeds, rates, …]``.
        graph: the model's structure.
    """

    seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]
    steps: np.ndarray
    metrics: dict[str, np.ndarray]
    params: dict[str, Array]
    graph: nnx.GraphDef

    def model(self, seed: int, rate: int) -> nnx.Module:
        """The trained model of one entry, by its two positions."""
        return models.merge(self.graph, {name: jnp.asarray(a[seed, rate]) for name, a in self.params.items()})


def grid(
    source: Source,
    model: ModelConfig,
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    learning_rates: Sequence[float] = (),
    backend: Backend | None = None,
) -> Curves:
    """Train one model from several seeds, with several learning rates, all at once: one ``vmap``, one program.

    Each entry is the run that :func:`fit` makes with that seed (of parameters, and of the source) and that rate.
    Nothing is written and nothing can be resumed: it is meant for small models.

    Args:
        source, model, config: as for :func:`fit`; ``dagger_rounds`` must be 0, ``num_steps`` a multiple of
            ``report_every``.
        seeds: at least one.
        learning_rates: peaks of the schedule; the config's own if left out.
        backend: where it is computed.

    Raises:
        ValueError: settings that runs side by side cannot have, or a loss that needs numbers in Python, such as an
            ``if`` on an array; :func:`fit` computes it uncompiled.
    """
    check_source(source, model, config)
    seeds = checked("seeds", seeds, tuple[Seed, ...])
    rates = checked("learning_rates", learning_rates, tuple[Positive, ...]) or (config.learning_rate,)
    if not seeds:
        raise ValueError("seeds: expected at least one, but found none")
    if config.dagger_rounds or config.patience or config.num_steps % config.report_every:
        raise ValueError(
            "config: runs side by side take the same steps: expected dagger_rounds = 0, patience = 0 and num_steps a "
            f"multiple of report_every, but found {config.dagger_rounds}, {config.patience}, {config.num_steps} and "
            f"{config.report_every}"
        )
    backend = backend or Backend()
    with backend.active():
        built = [models.split(models.build(dataclasses.replace(model, seed=int(s)))) for s in seeds]
        compiled_steps.check_settings(config, model, source.data.config.excitation, backend)
        recipe = Recipe(built[0][0], model, config, backend)
        put = recipe.backend.put
        mixture = Mixture.of(source, config, recipe.backend.place)
        mixtures = [dataclasses.replace(mixture, source=source.reseeded(int(s))) for s in seeds]
        table = mixture.table
        held_out, rows = put(validation_windows(source)), put(validation_rows(table))
        params = jax.tree.map(lambda *a: jnp.stack(a).astype(backend.dtype), *(params for _, params in built))
        scales = put(jnp.asarray(rates, backend.dtype) / config.learning_rate)
        state = _initial(recipe, put(params), scales)
        reports = []
        for first in range(0, config.num_steps, config.report_every):
            parts = [m.windows(first, config.report_every, int(s)) for m, s in zip(mixtures, seeds)]
            windows = put(jax.tree.map(lambda *a: jnp.stack(a), *parts))
            with _told(config.loss):
                state, metrics = _steps(recipe, state, scales, windows, table, jnp.asarray(seeds, jnp.uint32))
            judged = _validate(recipe, state.best, held_out, table, rows)
            reports.append({"loss": np.asarray(metrics["loss"]).mean(-1)} | _summaries(*judged))
        steps = config.report_every * np.arange(1, len(reports) + 1)
        curves = {name: np.stack([r[name] for r in reports], axis=-1) for name in reports[0]}
    return Curves(tuple(int(s) for s in seeds), rates, steps, curves, state.best, recipe.graph)


@contextlib.contextmanager
def _told(loss: str) -> Iterator[None]:
    """Tracing errors in the words of somebody who wrote a loss."""
    try:
        yield
    except SURVIVABLE as error:
        raise ValueError(
            "config: runs side by side are one program, in which no Python if, float() or mask can look at a "
            f"number: {where_it_failed(error)}; write {loss!r} with jnp.where, or fit one after another"
        ) from error


def _optimizer(config: TrainConfig, scale: Array) -> optax.GradientTransformation:
    """AdamW's update is proportional to its rate."""
    return optax.chain(optimizer(config), optax.scale(scale))


@compute.compile(static="recipe")
def _initial(recipe: Recipe, params: dict[str, Array], scales: Array) -> TrainState:
    def one(params: dict[str, Array], scale: Array) -> TrainState:
        opt_state = _optimizer(recipe.config, scale).init(params)
        return dataclasses.replace(initial(params, recipe.config), opt_state=opt_state)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(params, scales)


@compute.compile(static="recipe", donate="state", strict=True)
def _steps(
    recipe: Recipe, state: TrainState, scales: Array, windows: Windows, table: VariantTable, seeds: Array
) -> tuple[TrainState, Metrics]:
    config = recipe.config
    value = objective(recipe.graph, config, recipe.backend)

    def one(state: TrainState, scale: Array, windows: Windows, seed: Array) -> tuple[TrainState, Metrics]:
        step = train_step(value, _optimizer(config, scale), accumulate=config.accumulate, ema=config.ema)
        return jax.lax.scan(lambda s, w: step(s, train_batch(table, w, seed, s.step)), state, windows)

    return jax.vmap(jax.vmap(one, (0, 0, None, None)), (0, None, 0, 0))(state, scales, windows, seeds)


@compute.compile(static="recipe")
def _validate(
    recipe: Recipe, params: dict[str, Array], held_out: Windows, table: VariantTable, rows: Array
) -> tuple[Array, Array, Array]:
    def one(params: dict[str, Array]) -> tuple[Array, Array, Array]:
        return compiled_steps.validate(recipe, params, held_out, table, rows)

    return jax.vmap(jax.vmap(one))(params)


def _summaries(loss: Array, excess: Array, verdicts: Array) -> dict[str, np.ndarray]:
    """:func:`compiled_steps.summary` of each entry ``[seeds, rates]``."""
    table = [
        [compiled_steps.summary(*entry) for entry in zip(*row)]
        for row in zip(*jax.device_get((loss, excess, verdicts)))
    ]
    return {name: np.array([[entry[name] for entry in row] for row in table]) for name in table[0][0]}
