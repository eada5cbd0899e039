"""The loop around the train step: dispatch, progress, checkpoints, resume."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lqrlab import dataset as data
from lqrlab.compute import Backend
from lqrlab.learning import losses, models
from lqrlab.learning.checkpoints import Checkpoints, write_settings
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.training import TrainState, forward, optimizer, schedule, train_step

_VALIDATION_WINDOWS = 4096


class NonFiniteLossError(RuntimeError):
    """Training met a loss that is not a number; the message says at which step and what was kept."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """What :func:`fit` leaves: the model, the metric rows, and whether it was stopped before its last step."""

    model: nnx.Module
    metrics: list[dict[str, float]]
    stopped: bool


def gather(windows: data.Resident, config: TrainConfig, step: Array) -> data.Batch:
    """The batch of a step: a function of the seed and the step alone, so a resumed run sees the same."""
    per_epoch = max(windows.num_windows // config.batch_size, 1)
    epoch, position = step // per_epoch, step % per_epoch
    # a set smaller than one batch is gone through more than once
    positions = (position * config.batch_size + jnp.arange(config.batch_size)) % windows.num_windows
    return windows.gather(windows.order(positions, config.seed, epoch))


def fit(
    dataset: data.Dataset,
    model: ModelConfig,
    config: TrainConfig,
    folder: str | Path,
    *,
    backend: Backend | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> Fit:
    """Train a model on a data set, or go on where an earlier call with the same settings was cut off.

    Every batch follows from the seed and the step, so a run that was stopped and resumed is the run that was
    not stopped. Ctrl-C and SIGTERM save and return.

    Args:
        dataset: an opened data set.
        model: what to train.
        config: how.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` go.
        backend: where it is computed.
        progress: called with each row of metrics: step, epoch, loss, validation_loss, learning_rate,
            windows_per_second, seconds.

    Raises:
        ValueError: the folder holds a run with other settings.
        NonFiniteLossError: the loss stopped being a number; the last checkpoint is kept.
    """
    backend = backend or Backend()
    folder = Path(folder)
    write_settings(folder / "checkpoints", model, config, dataclasses.asdict(dataset.config))
    log = folder / "metrics.jsonl"
    store = Checkpoints(folder / "checkpoints")
    with contextlib.closing(store), backend.active(), _stoppable() as stop:
        graph, params = models.split(models.build(model))
        state = TrainState(params, optimizer(config).init(params), jnp.zeros((), jnp.int32))
        first = store.step("last") or 0
        if first:
            state = store.restore("last", state)
        rows = _kept(log, first)
        best = min((row["validation_loss"] for row in rows), default=np.inf)
        steps = _dispatches(dataset, model, config, graph, backend.put(state), first, backend)
        step = first
        for state, row in steps:
            step = row["step"]
            due = stop.is_set() or step % config.checkpoint_every == 0 or step == config.num_steps
            # the loss is that of before the update: what is saved is looked at itself
            if not np.isfinite(row["loss"]) or (("validation_loss" in row or due) and not _finite(state)):
                raise NonFiniteLossError(_diverged(row, store.step("last")))
            if "validation_loss" in row:
                rows.append(row)
                _append(log, row)
                if row["validation_loss"] < best:
                    best = row["validation_loss"]
                    store.save("best", step, {"params": state.params})
                if progress:
                    progress(row)
            if due:
                store.save("last", step, state)
            if stop.is_set():
                break
        trained = models.merge(graph, jax.device_get(state.params))
    return Fit(trained, rows, step < config.num_steps)


def _dispatches(
    dataset: data.Dataset,
    model: ModelConfig,
    config: TrainConfig,
    graph: nnx.GraphDef,
    state: TrainState,
    first: int,
    backend: Backend,
) -> Iterator[tuple[TrainState, dict[str, Any]]]:
    """States and metric rows, one a dispatch of ``steps_per_dispatch`` steps; validated when a report is due."""
    windows, held = (
        data.resident(dataset, split, window=model.window, device=backend.jax_device)
        for split in ("train", "validation")
    )
    pick = jnp.arange(min(_VALIDATION_WINDOWS, held.num_windows))
    rate, one = schedule(config), train_step(graph, optimizer(config))

    @partial(jax.jit, donate_argnums=0, static_argnames="count")
    def many(state: TrainState, windows: data.Resident, count: int) -> tuple[TrainState, Array]:
        def body(state: TrainState, _: None) -> tuple[TrainState, Array]:
            state, metrics = one(state, gather(windows, config, state.step), windows.table)
            return state, metrics["loss"]

        return jax.lax.scan(body, state, length=count)

    @jax.jit
    def validate(params: Any, held: data.Resident) -> Array:
        batch = held.gather(held.order(pick, config.seed, 0))
        prediction, live = forward(graph, params, held.table, batch)
        return losses.masked_mse(prediction, batch.target, live)

    step, since, done, recent = first, time.perf_counter(), 0, []
    while step < config.num_steps:
        ends = (config.report_every, config.checkpoint_every)
        count = min(
            config.steps_per_dispatch, config.num_steps - step, *(every - step % every for every in ends)
        )
        state, values = many(state, windows, count)
        step, done = step + count, done + count * config.batch_size
        recent.append(float(jnp.mean(values)))
        row: dict[str, Any] = {"step": step, "loss": recent[-1]}
        if step % config.report_every == 0 or step == config.num_steps:
            now = time.perf_counter()
            row |= {
                "epoch": step * config.batch_size / windows.num_windows,
                "loss": float(np.mean(recent)),
                "validation_loss": float(validate(state.params, held)),
                "learning_rate": float(rate(step)),
                "windows_per_second": done / (now - since),
                "seconds": now - since,
            }
            since, done, recent = time.perf_counter(), 0, []
        yield state, row


@jax.jit
def _all_finite(leaves: list[Array]) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in leaves]))


def _finite(state: TrainState) -> bool:
    """Whether parameters and optimizer are numbers, so that a checkpoint of them can be gone on from."""
    return bool(_all_finite(jax.tree.leaves((state.params, state.opt_state))))


def _diverged(row: dict[str, Any], kept: int | None) -> str:
    return (
        f"the loss is {row['loss']} within the steps up to {row['step']}, or the parameters after them are not "
        "numbers; training stops. "
        + (f"The checkpoint of step {kept} is kept." if kept else "No checkpoint had been made yet.")
        + " Lower learning_rate or clip, and look at the data for values out of scale."
    )


def _append(log: Path, row: dict[str, Any]) -> None:
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _kept(log: Path, step: int) -> list[dict[str, Any]]:
    """The rows up to the checkpoint; later ones will be measured again, and a line cut short is dropped."""
    rows = []
    for line in log.read_text().splitlines() if log.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    rows = [row for row in rows if row["step"] <= step]
    temporary = log.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, log)
    return rows


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that a dispatch ends before the loop does."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
