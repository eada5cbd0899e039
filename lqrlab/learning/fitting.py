"""The loop around the train step: dispatch, progress, validation, checkpoints, resume."""

import contextlib
import dataclasses
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from lqrlab.compute import Backend, EagerFallbackWarning, checks
from lqrlab.compute.files import locked, read_rows, write_atomic
from lqrlab.dataset import Source
from lqrlab.learning import checkpoints, models, training_step
from lqrlab.learning.batches import Mixture, check_source
from lqrlab.learning.checkpoints import Checkpoint
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.learning.training_step import Metrics, Recipe, TrainState, initial, learning_rate

METRICS = "metrics.jsonl"  # the file of a run's metrics, one JSON object a line
_WINDOWS, _PLANTS = 4096, 128  # of a validation

Progress = Callable[[dict[str, Any]], None]


class NonFiniteLossError(RuntimeError):
    """The training loss was not a number; the message gives the step and the kept checkpoint."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """Result of :func:`fit`.

    Attributes:
        model: with the parameters of the last step.
        metrics: the rows of ``metrics.jsonl``.
        stopped: whether it was interrupted before it was done.
        steps: steps taken; fewer than asked for if it was interrupted or told to stop.
    """

    model: nnx.Module
    metrics: list[dict[str, Any]]
    stopped: bool
    steps: int


def stop(folder: str | Path) -> None:
    """Stop the run in ``folder``, in any process, after its current steps, as complete.

    :func:`fit` called again returns at once; removing ``checkpoints/stop_requested`` takes the request back.

    Raises:
        ValueError: no training has begun there.
    """
    checkpoints = checks.path("folder", folder) / "checkpoints"
    if not checkpoints.is_dir():
        raise ValueError(f"folder: no training has begun in {folder}, so there is none to stop")
    _stop_file(folder).touch()


def _stop_file(folder: str | Path) -> Path:
    return Path(folder) / "checkpoints" / "stop_requested"


def fit(
    source: Source,
    model: ModelConfig,
    config: TrainConfig,
    folder: str | Path,
    *,
    backend: Backend | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Train a model on windows, or resume an interrupted call with the same settings.

    Every batch follows from the seed and the step: a run that was stopped and resumed is the run that was not stopped.
    Ctrl-C and SIGTERM save and return, to go on another time; :func:`stop` ends a run for good. A loss with a Python
    ``if`` on an array is computed uncompiled; an ``EagerFallbackWarning`` tells of the line, once.

    Args:
        source: the windows of the trained split, see :func:`lqrlab.dataset.source`; its seed is the order's.
        model, config: what to train, and how.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` go.
        backend: where it is computed, and how exactly. On several devices the result is that of one but for rounding.
            Of several processes each makes the same call; the first writes.
        progress: called with each row of metrics: step, epoch, loss and its parts (means since the last row),
            validation_loss, validation_efficiency (mean of least over actual cost of unseen variants; a loop that does
            not converge counts 0), validation_diverged (share of those), learning_rate, windows_per_second, seconds,
            and ``compilation`` (calls, programs).

    Raises:
        ValueError: another training writes to the folder; it holds a run with other settings, or checkpoints of which
            none is whole (if the newest is damaged, a warning says so and the run resumes from the one before); the
            source does not fit the model or the config.
        NonFiniteLossError: the loss stopped being a number; the last checkpoint is kept.
    """
    backend, folder = backend or Backend(), checks.path("folder", folder)
    checks.instance("backend", backend, Backend, "a Backend")
    check_source(source, model, config)
    place = folder / "checkpoints"
    order = source.shuffling | {"seed": source.spec.seed}
    with contextlib.ExitStack() as held:
        if _writes():
            place.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(place))
        settings = checkpoints.write_settings(place, model, config, source.data.config, order, backend)
        held.enter_context(backend.active())
        interrupted = held.enter_context(_interruptible())
        run = _Run(source, model, config, folder, backend, settings)
        run.resume()
        ending = False
        while run.step < config.num_steps and not (run.done or ending):
            ending = run.dispatch(interrupted, progress)
        params = jax.tree.map(jnp.asarray, run.recipe.on_host(run.state.params))
        trained = models.merge(run.recipe.graph, params)
    return Fit(trained, run.rows, run.step < config.num_steps and not run.done, run.step)


class _Run:
    """A training run: its state, its programs' arguments, what it has written."""

    def __init__(
        self,
        source: Source,
        model: ModelConfig,
        config: TrainConfig,
        folder: Path,
        backend: Backend,
        settings: dict[str, Any],
    ):
        self.source, self.config, self.folder, self.settings = source, config, folder, settings
        self.place = folder / "checkpoints"
        training_step.check_settings(config, backend)
        built = models.build(model)
        graph, params = models.split(built)
        self.recipe = Recipe(graph, model, config, backend)
        params = jax.tree.map(lambda a: a.astype(backend.dtype), params)
        self.state = backend.put(initial(params, config))
        self.mixture = Mixture.of(source, config, backend.place, full_weights=getattr(built, "any_weights", False))
        held_out = source.of_split("validation")
        rows = np.asarray(self.mixture.table.validation)  # of the plants whose closed loops are costed
        self.validation = (  # the same in each report
            backend.put(held_out.windows(0, min(_WINDOWS, held_out.num_windows))),
            self.mixture.table,
            backend.put(rows[np.linspace(0, len(rows) - 1, min(_PLANTS, len(rows))).round().astype(int)]),
        )
        self.before, self.watch = training_step.run_steps.report(), _Watch(config.batch_size)
        self.step, self.rows, self.best = 0, list[dict[str, Any]](), -np.inf
        self.done = False

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        found, flaws = checkpoints.whole(self.place, "last")
        if found:
            self.step, self.state = found.step, self.recipe.backend.put(found.state(self.state))
            self.rows = found.rows
        self.best = max((row["validation_efficiency"] for row in self.rows), default=-np.inf)
        if _writes():
            checkpoints.remove(self.place, "last", list(flaws))
            self._put_back()
        self._mend_best()
        self.done = bool(self.rows) and _stop_file(self.folder).exists()

    def _put_back(self) -> None:
        """Write the rows up to the checkpoint; later ones are measured again, lines that are no rows are told of."""
        file = self.folder / METRICS
        rows = read_rows(file)[:-1]  # the last may have been cut short
        foreign = sum(type((row or {}).get(checkpoints.SCORE)) is not float for row in rows)
        if foreign:
            warnings.warn(f"{file}: lines that are no rows of metrics are left out ({foreign} of them)", stacklevel=4)
        write_atomic(file, "".join(json.dumps(row) + "\n" for row in self.rows))

    def _save(self, which: str, state: object) -> None:
        """With all that a run goes on from, should the files beside the checkpoints be lost."""
        arrays = checkpoints.by_path(self.recipe.on_host(state))
        if _writes():
            checkpoints.save(self.place, which, Checkpoint(self.step, arrays, self.settings, self.rows))

    def _mend_best(self) -> None:
        """Make a damaged best checkpoint again, if its step is this one; else the best from here on takes its place."""
        _, flaws = checkpoints.newest(self.place, "best")
        here, lost = _agreed(self.step in flaws, bool(flaws))
        what = "it is made again" if here else "the best report from here on takes its place"
        for step, flaw in flaws.items():
            checkpoints.remove(self.place, "best", [step])
            warnings.warn(
                f"{self.folder}: the 'best' checkpoint of step {step} is damaged ({flaw}); {what}", stacklevel=4
            )
        if here:
            self._save("best", {"params": self.state.params})
        elif lost:
            self.best = -np.inf

    def dispatch(self, interrupted: threading.Event, progress: Progress | None) -> bool:
        """Take some steps, and do what is due after them; true if somebody has interrupted the run."""
        config, first = self.config, self.step
        due = (k - first % k for k in (config.report_every, config.checkpoint_every))
        count = min(config.steps_per_dispatch, config.num_steps - first, *due)
        windows = self.recipe.put_batches(self.mixture.windows(first, count, config.seed))
        self.state, metrics = training_step.run_steps(
            self.recipe, self.state, windows, self.mixture.table, np.uint32(config.seed)
        )
        self.watch.add(count, metrics)
        self.step += count
        ending, self.done = _agreed(interrupted.is_set(), _stop_file(self.folder).exists())
        last = self.step == config.num_steps or self.done
        report = self.step % config.report_every == 0 or last
        save = self.step % config.checkpoint_every == 0 or last
        if report or save or ending:  # only now is anything fetched from the device
            row = {"step": self.step} | self.watch.look()
            if not np.isfinite(row["loss"]) or not _finite(self.state):
                raise NonFiniteLossError(self._why(row, first, metrics))
        if report:
            self._report(row, progress)
            (ending,) = _agreed(ending or interrupted.is_set())
        if save or ending:
            self._save("last", self.state)
        return ending

    def _report(self, row: dict[str, Any], progress: Progress | None) -> None:
        steps, before = training_step.run_steps.report(), self.before
        with warnings.catch_warnings():
            if steps.eager != before.eager:  # the steps have told of it
                warnings.simplefilter("ignore", EagerFallbackWarning)
            judged = training_step.validate(self.recipe, self.state.params, *self.validation)
        row |= {
            "epoch": self.step * self.config.batch_size / self.source.num_windows,
            **training_step.summary(*self.recipe.on_host(judged)),
            "learning_rate": float(learning_rate(self.config)(self.step)),
            "compilation": {"calls": steps.calls - before.calls, "programs": steps.programs - before.programs},
        }
        self.rows.append(row)
        if _writes():
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        if row["validation_efficiency"] > self.best:
            self.best = row["validation_efficiency"]
            self._save("best", {"params": self.state.params})
        if progress and _writes():
            progress(row)
        self.watch.restart()

    def _why(self, row: dict[str, Any], first: int, metrics: Metrics) -> str:
        """A sentence or two on a loss that is not a number, met in the dispatch that began with step ``first``."""
        bad = np.flatnonzero(~np.isfinite(np.asarray(metrics["loss"])))
        step = first + int(bad[0]) if len(bad) else first + len(metrics["loss"])
        windows = self.mixture.windows(step, 1, self.config.seed)
        batch = jax.tree.map(lambda a: a[0], windows).batch(self.mixture.table)
        size = np.max(np.abs(np.nan_to_num(np.asarray(batch.target), nan=np.inf)), axis=(1, 2))
        of = int(batch.variant[int(np.argmax(size))])
        variants, kept = self.source.data.variants, checkpoints.newest(self.place, "last")[0]
        plant = f"{variants.family[of]}, variant {variants.variant[of]}" if of < len(variants) else "a random system"
        return (
            f"the loss is {row['loss']} within the steps up to {row['step']}, or the parameters after them are not "
            f"numbers (first seen at step {step}; the largest target of its batch, {size.max():.3g}, is that of the "
            f"plant {plant}); training stops. "
            + (f"The checkpoint of step {kept.step} is kept." if kept else "No checkpoint had been made yet.")
            + " Lower learning_rate or clip, and look at the data for values out of scale."
        )


class _Watch:
    """Metrics of the dispatches since the last report, left on the device until they are looked at."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self.since, self.taken = time.perf_counter(), 0
        self.seen: list[Metrics] = []

    def add(self, count: int, metrics: Metrics) -> None:
        """Take in a dispatch of so many steps."""
        if self.seen:  # at most two dispatches are under way, so that a signal is heard
            jax.block_until_ready(self.seen[-1])
        self.taken += count
        self.seen.append(metrics)

    def look(self) -> dict[str, Any]:
        """Means over the steps, windows per second, seconds."""
        fetched = jax.device_get(self.seen)
        row = {name: float(np.mean(np.concatenate([m[name] for m in fetched]))) for name in fetched[0]}
        seconds = time.perf_counter() - self.since
        return row | {"windows_per_second": self.taken * self.batch_size / seconds, "seconds": seconds}


@jax.jit
def _finite(state: TrainState) -> jax.Array:
    """True if parameters and optimizer are numbers, so that training can resume from a checkpoint of them."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves((state.params, state.opt_state))]))


def _writes() -> bool:
    """True in the process that writes."""
    return jax.process_index() == 0


def _agreed(*heard: bool) -> tuple[bool, ...]:
    """The first process's stop request, shared so that all processes end after the same step."""
    if jax.process_count() == 1:
        return heard
    return tuple(map(bool, multihost_utils.broadcast_one_to_all(np.array(heard))))


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that a dispatch ends before the loop does."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = {s: signal.signal(s, lambda *_: interrupted.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
