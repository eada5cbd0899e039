"""Several seeds and learning rates in one program, so that a curve comes with its spread."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from lqrlab import dataset as data
from lqrlab.compute import Backend
from lqrlab.learning import batches, models
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.programs import Programs
from lqrlab.learning.training_step import initial, objective, optimizer, train_step


@dataclasses.dataclass(frozen=True)
class Curves:
    """What :func:`grid` found, one entry a seed and learning rate.

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
        return models.merge(self.graph, {name: a[seed, rate] for name, a in self.params.items()})


def grid(
    dataset: data.Dataset,
    model: ModelConfig,
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    learning_rates: Sequence[float] = (),
    backend: Backend | None = None,
) -> Curves:
    """Train one model from several seeds, with several learning rates, all at once: one ``vmap``, one program.

    Each entry is the run that :func:`fit` makes with that seed (of parameters and batches) and that rate. Nothing
    is written and nothing can be resumed: it is meant for small models.

    Args:
        dataset, model, config: as for :func:`fit`; ``dagger_rounds`` must be 0, ``num_steps`` a multiple of
            ``report_every``.
        seeds: at least one.
        learning_rates: peaks of the schedule; the config's own if left out.
        backend: where it is computed.
    """
    rates = tuple(learning_rates) or (config.learning_rate,)
    if not seeds or min(rates) <= 0:
        raise ValueError(
            f"seeds, learning_rates: expected seeds and rates > 0, but found {seeds} and {rates}"
        )
    if config.dagger_rounds or config.patience or config.num_steps % config.report_every:
        raise ValueError(
            "config: runs side by side take the same steps: expected dagger_rounds = 0, patience = 0 and num_steps a "
            f"multiple of report_every, but found {config.dagger_rounds}, {config.patience}, {config.num_steps} and "
            f"{config.report_every}"
        )
    backend = backend or Backend()
    with backend.active():
        built = [models.split(models.build(dataclasses.replace(model, seed=int(s)))) for s in seeds]
        graph = built[0][0]
        programs = Programs(dataset, graph, model, config, backend)
        params = jax.tree.map(lambda *a: jnp.stack(a).astype(backend.dtype), *(params for _, params in built))
        reports = config.num_steps // config.report_every

        def one(params: Any, seed: Array, scale: Array, given: batches.Sources, held: Any) -> tuple[Any, Any]:
            # AdamW's update is proportional to its rate
            optimize = optax.chain(optimizer(config), optax.scale(scale))
            value = objective(graph, config, programs.expert_std, backend)
            step = train_step(value, optimize, accumulate=config.accumulate, ema=config.ema)
            state = dataclasses.replace(initial(params, config), opt_state=optimize.init(params))

            def take(state: Any, _: None) -> tuple[Any, Array]:
                state, metrics = step(state, batches.gather(given, config, state.step, seed))
                return state, metrics["loss"]

            def report(state: Any, _: None) -> tuple[Any, dict[str, Array]]:
                state, values = jax.lax.scan(take, state, length=config.report_every)
                loss, efficient, back = programs.judged(state.best, *held)
                return state, {
                    "loss": jnp.mean(values),
                    "validation_loss": loss,
                    "validation_efficiency": jnp.mean(efficient),
                    "validation_diverged": 1 - jnp.mean(back),
                }

            state, rows = jax.lax.scan(report, state, length=reports)
            return state.best, rows

        across = jax.vmap(jax.vmap(one, (None, None, 0, None, None)), (0, 0, None, None, None))
        scales = jnp.asarray(rates) / config.learning_rate
        # a seed is a seed: the windows that are validated on are those of the config's own
        trained, rows = jax.jit(across)(
            *programs.put((params, jnp.asarray(seeds, jnp.uint32), scales)), programs.sources, programs.held
        )
        steps = config.report_every * np.arange(1, reports + 1)
        fetched = {name: np.asarray(a) for name, a in rows.items()}
    return Curves(tuple(int(s) for s in seeds), rates, steps, fetched, trained, graph)
