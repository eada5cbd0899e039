"""The loop around the train step: dispatch, progress, validation, checkpoints, resume."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from lqrlab import dataset as data
from lqrlab.compute import Backend
from lqrlab.learning import models
from lqrlab.learning.checkpoints import Checkpoints, write_settings
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.programs import Programs
from lqrlab.learning.training_step import TrainState, schedule


class NonFiniteLossError(RuntimeError):
    """Training met a loss that is not a number; the message says at which step and what was kept."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """What :func:`fit` leaves.

    Attributes:
        model: with the parameters of the last step, or their running mean if one is kept.
        metrics: the rows of ``metrics.jsonl``.
        stopped: whether it was interrupted before it was done.
        steps: steps taken; fewer than asked for if it was stopped, had stopped to improve, or was told
            that it is enough.
    """

    model: nnx.Module
    metrics: list[dict[str, Any]]
    stopped: bool
    steps: int


def stop(folder: str | Path) -> None:
    """Tell the run in ``folder``, in this process or another, that it is enough.

    :func:`fit` ends after the steps under way, validates and keeps the best, and counts the run as done: called again
    it returns at once. Removing ``checkpoints/enough`` takes the word back.

    Raises:
        ValueError: no training has begun there.
    """
    checkpoints = Path(folder) / "checkpoints"
    if not checkpoints.is_dir():
        raise ValueError(f"folder: no training has begun in {folder}, so there is none to stop")
    _enough(folder).touch()


def _enough(folder: str | Path) -> Path:
    return Path(folder) / "checkpoints" / "enough"


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
    not stopped. Ctrl-C and SIGTERM save and return, to go on another time; :func:`stop` ends a run for good.

    Args:
        dataset: an opened data set.
        model: what to train.
        config: how.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` go.
        backend: where it is computed, and how exactly. On several devices the result is that of one but for
            rounding, and a run may go on with another number of them. Of several processes each makes the same
            call; the first writes.
        progress: called with each row of metrics: step, epoch, loss and its parts (means since the last row, or
            since it was resumed), validation_loss,
            validation_efficiency (mean of least over actual cost of unseen variants, 1 at the optimum, a loop
            that does not come back counts 0), validation_diverged (share of those), learning_rate,
            windows_per_second, seconds.

    Raises:
        ValueError: the folder holds a run with other settings.
        NonFiniteLossError: the loss stopped being a number; the last checkpoint is kept.
    """
    backend = backend or Backend()
    folder = Path(folder)
    write_settings(folder / "checkpoints", model, config, json.loads(dataset.config.to_json()), backend)
    log = folder / "metrics.jsonl"
    store = Checkpoints(folder / "checkpoints")
    with contextlib.closing(store), backend.active(), _stoppable() as stop:
        graph, params = models.split(models.build(model))
        programs = Programs(dataset, graph, model, config, backend)
        state = programs.start(params)
        step = store.step("last") or 0
        if step:
            state = store.restore("last", state)
        rows = _kept(log, step)
        best = max((row["validation_efficiency"] for row in rows), default=-np.inf)
        tired = _tired(rows, config.patience) or (bool(rows) and _enough(folder).exists())
        watch = _Watch(programs)
        (ending,) = _agreed(stop.is_set())
        while step < config.num_steps and not tired and not ending:
            count = _steps_to_go(config, step)
            state = programs.begin_round(state, step)
            state, metrics = programs.many(state, count)
            watch.add(count, metrics)
            step += count
            ending, enough = _agreed(stop.is_set(), _enough(folder).exists())
            report = step % config.report_every == 0 or step == config.num_steps or enough
            due = ending or step % config.checkpoint_every == 0 or step == config.num_steps
            if report or due:  # only now is anything fetched from the device
                row = {"step": step} | watch.look()
                if not np.isfinite(row["loss"]) or not _finite(state):
                    raise NonFiniteLossError(programs.why(row, step - count, metrics, store.step("last")))
            if report:
                row |= programs.validate(state) | {"learning_rate": float(schedule(config)(step))}
                rows.append(row)
                if _first():
                    _append(log, row)
                if row["validation_efficiency"] > best:
                    best = row["validation_efficiency"]
                    store.save("best", step, {"params": state.best})
                if progress and _first():
                    progress(row)
                watch.restart()
                tired = _tired(rows, config.patience) or enough
                (ending,) = _agreed(ending or stop.is_set())
            if due or tired or ending:
                store.save("last", step, state)
        trained = models.merge(graph, programs.whole(state.best))
    return Fit(trained, rows, step < config.num_steps and not tired, step)


def _steps_to_go(config: TrainConfig, step: int) -> int:
    """Steps of the next dispatch: it ends where something is to be done."""
    every = (config.report_every, config.checkpoint_every)
    rounds = [start for start in config.dagger_starts if start > step]
    ends = [config.num_steps - step, *(k - step % k for k in every), *(start - step for start in rounds)]
    return min(config.steps_per_dispatch, *ends)


def _tired(rows: list[dict[str, Any]], patience: int) -> bool:
    """Whether the last ``patience`` reports brought nothing better."""
    scores = [row["validation_efficiency"] for row in rows]
    return bool(patience) and len(scores) > patience and len(scores) - 1 - int(np.argmax(scores)) >= patience


class _Watch:
    """Metrics of the dispatches since the last report, left on the device until they are looked at."""

    def __init__(self, programs: Programs):
        self.programs = programs
        self.restart()

    def restart(self) -> None:
        self.since, self.taken = time.perf_counter(), 0
        self.seen: list[dict[str, jax.Array]] = []

    def add(self, count: int, metrics: dict[str, jax.Array]) -> None:
        if self.seen:  # at most two dispatches are under way, so that a signal is heard
            jax.block_until_ready(self.seen[-1])
        self.taken += count
        self.seen.append(metrics)

    def look(self) -> dict[str, Any]:
        fetched = jax.device_get(self.seen)
        row = {name: float(np.mean(np.concatenate([m[name] for m in fetched]))) for name in fetched[0]}
        seconds = time.perf_counter() - self.since
        windows = self.taken * self.programs.config.batch_size
        return row | {"windows_per_second": windows / seconds, "seconds": seconds}


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in leaves]))


def _finite(state: TrainState) -> bool:
    """Whether parameters and optimizer are numbers, so that a checkpoint of them can be gone on from."""
    return bool(_all_finite(jax.tree.leaves((state.params, state.opt_state))))


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
    if not _first():
        return rows
    temporary = log.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, log)
    return rows


def _first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def _agreed(*heard: bool) -> tuple[bool, ...]:
    """What the first of all processes has heard, so that they all end after the same step."""
    if jax.process_count() == 1:
        return heard
    return tuple(map(bool, multihost_utils.broadcast_one_to_all(np.array(heard))))


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
