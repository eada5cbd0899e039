"""Saving and restoring: JSON for the settings, orbax for the arrays, nothing that executes."""

import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lqrlab.compute import Backend, checks, files
from lqrlab.compute.configuration import Config
from lqrlab.compute.files import read_bytes, read_object, write_atomic, write_json
from lqrlab.learning import models
from lqrlab.learning.train_config import ModelConfig, TrainConfig

T = TypeVar("T")

SETTINGS = "settings.json"
"""The file beside the checkpoints that says what the run was made with."""

_STEP = "step.txt"  # in a step's folder: its number, whatever the folder is called
_ARRAYS = "default/manifest.ocdbt"
_SHRINKS = 64  # largest believable ratio of compression
_HOW = ("dtype", "compute_dtype", "precision")  # of a backend: what a run cannot be gone on with another of
_SCRATCH = "start the run from scratch (remove its checkpoints, or `lqrlab run --fresh`)"


def write_settings(
    folder: Path,
    model: ModelConfig,
    train: TrainConfig,
    data: dict[str, object],
    source: dict[str, str | int],
    backend: Backend,
) -> dict[str, Any]:
    """Store what makes the run, and return it; refuse a folder of another run, naming the settings that differ."""
    configs = {"model": model, "train": train, "backend": backend}
    new: dict[str, Any] = {part: _plain(config) for part, config in configs.items()} | {"data": data, "source": source}
    old = _read_settings(folder)
    if old is not None:
        # an older version wrote more settings
        old |= {part: _plain(type(configs[part]).from_dict(old[part])) for part in ("model", "train")}
        differ = [
            f"{part}.{key} was {old.get(part, {}).get(key)!r} and is now {new[part].get(key)!r}"
            for part in new
            for key in {**old.get(part, {}), **new[part]}
            if old.get(part, {}).get(key) != new[part].get(key) and (part != "backend" or key in _HOW)
        ]
        if differ:
            raise ValueError(
                f"folder: {folder} holds a run made with other settings ({'; '.join(differ)}); "
                f"give another folder, or {_SCRATCH}"
            )
        new = old
    if not jax.process_index() and _parse_settings(folder / SETTINGS) != new:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SETTINGS, new)
    return new


def _plain(config: Config) -> dict[str, Any]:
    """As it will be read back: tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def settings(folder: str | Path) -> tuple[ModelConfig, TrainConfig] | None:
    """Record of the run whose ``checkpoints`` folder this is; None where nothing was trained."""
    found = _read_settings(checks.path("folder", folder))
    if found is None:
        return None
    return models.used(ModelConfig.from_dict(found["model"])), TrainConfig.from_dict(found["train"])


def _read_settings(folder: Path) -> dict[str, Any] | None:
    """Record of a run: as its newest whole checkpoint says, else as the file beside them does."""
    path = folder / SETTINGS
    steps = [place for which in ("last", "best") for place in (folder / which).glob("[0-9]*")]
    steps.sort(key=lambda place: int(place.name) if place.name.isdigit() else -1, reverse=True)
    beside = _parse_settings(path)
    for place in steps:
        kept = _parse_settings(place / SETTINGS)
        if kept is not None and not files.flaw(place):
            if kept != beside:
                warnings.warn(
                    f"{path}: the file is damaged; the settings are those of the checkpoint of step {place.name}",
                    stacklevel=4,
                )
            return kept
    if beside is None and steps:
        raise ValueError(
            f"folder: {path} is damaged or missing, so that it is not known what the checkpoints were made with; "
            f"put a copy of the file back, or {_SCRATCH}"
        )
    return beside


def _parse_settings(path: Path) -> dict[str, Any] | None:
    """The settings in a file; None if there are none, or what is there is something else."""
    try:
        found = read_object(path)
    except (OSError, ValueError):
        return None
    good = all(isinstance(part, dict) for part in found.values())
    return found if good and {"model", "train"} <= set(found) else None


class Checkpoints:
    """The last two states of a run in ``folder/last``, the best one in ``folder/best``.

    In each step's folder lie the digests of its files, and as texts what else a run goes on from.
    """

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp  # in functions: it takes 0.2 s, which not everyone who learns needs

        self._folder = folder
        self._managers = {}
        for which, keep in (("last", 2), ("best", 1)):
            # not in the background: a save waits for the disk anyway, and its failure would be raised again at the end
            options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
            handler, place = ocp.PyTreeCheckpointHandler(), (folder / which).absolute()
            self._managers[which] = ocp.CheckpointManager(place, item_handlers=handler, options=options)

    def path(self, which: str, step: int) -> Path:
        """The folder of a checkpoint."""
        return self._folder / which / str(step)

    def save(self, which: str, step: int, state: object, texts: Mapping[str, str]) -> None:
        """Save a state with texts, name → content, and return only when all is on disk.

        Raises:
            OSError: the disk is full, or may not be written to.
        """
        import orbax.checkpoint as ocp

        manager = self._managers[which]
        if step <= (manager.latest_step() or 0):  # by the same run before it was cut off; it will come there again
            return
        try:
            with _quiet():
                manager.save(step, args=ocp.args.PyTreeSave(state))
        except Exception as error:
            if code := _system_code(error):
                why = f"could not be written: {os.strerror(code)}"
                raise OSError(code, why, str(self.path(which, step))) from error
            raise
        if not jax.process_index():
            for name, text in {**texts, _STEP: str(step)}.items():
                write_atomic(self.path(which, step) / name, text)
            files.write_digests(self.path(which, step))

    def step(self, which: str) -> int | None:
        """The newest step that is there."""
        return self._managers[which].latest_step()

    def restore(self, which: str, like: T) -> tuple[int, T] | None:
        """The newest whole state and its step, with the shapes, types and devices of ``like``; None if none is there.

        Damaged ones that are newer are told of and removed, for they will be made again.

        Raises:
            ValueError: there are some, but none is whole.
        """
        import orbax.checkpoint as ocp

        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        found, flaws = self._newest(which, lambda step: self._read(which, step, target))
        self._tell(which, found and found[0], flaws)
        for step in flaws:
            self._managers[which].delete(step)
        return found

    def restore_params(self, which: str) -> dict[str, jax.Array]:
        """The newest whole parameters alone, on this machine, wherever they were made; nothing is removed."""
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def read(step: int) -> dict[str, jax.Array]:
            about = {"params": self._about(which, step)["params"]}
            like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), about)
            return self._read(which, step, like)["params"]

        found, flaws = self._newest(which, read)
        self._tell(which, found and found[0], flaws)
        if found is None:
            raise ValueError(f"which: {self._folder} holds no {which!r} checkpoint; train for longer first")
        return found[1]

    def remove_damaged(self, which: str) -> dict[int, str]:
        """Remove checkpoints that are not whole; their steps, with what is wrong with each."""
        _, flaws = self._newest(which, lambda step: None)
        for step in flaws:
            self._managers[which].delete(step)
        return flaws

    def close(self) -> None:
        """Let go of the folder."""
        for manager in self._managers.values():
            manager.close()

    def _read(self, which: str, step: int, like: Any) -> Any:
        """Those arrays of a step that ``like`` has, with its shapes, types and devices."""
        import orbax.checkpoint as ocp

        how = ocp.checkpoint_utils.construct_restore_args(like)
        return self._managers[which].restore(step, args=ocp.args.PyTreeRestore(like, how, partial_restore=True))

    def _about(self, which: str, step: int) -> Any:
        """Shapes and types of the arrays of a step."""
        return self._managers[which].item_metadata(step).tree

    def _newest(self, which: str, read: Callable[[int], T]) -> tuple[tuple[int, T] | None, dict[int, str]]:
        """The newest step that is whole with what is read there, and what is wrong with those after it."""
        flaws = {}
        for step in sorted(self._managers[which].all_steps(), reverse=True):
            place = self.path(which, step)
            if flaw := _flaw(place):
                flaws[step] = flaw
                continue
            try:
                with _quiet():
                    self._check_size(which, step)
                    return (step, read(step)), flaws
            except Exception as error:  # a reader of damaged files fails in any way
                reason = str(error).strip() or type(error).__name__
                flaws[step] = f"it cannot be read, {reason.splitlines()[0][:150]}"
        return None, flaws

    def _check_size(self, which: str, step: int) -> None:
        """Refuse arrays of many more bytes than the files have: to read them would take their memory."""
        leaves = jax.tree.leaves(self._about(which, step))
        claimed = sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in leaves)
        held = sum(path.stat().st_size for path in self.path(which, step).rglob("*") if path.is_file())
        if claimed > _SHRINKS * held:
            raise ValueError(f"its arrays claim {claimed} bytes, but its files have {held}")

    def _tell(self, which: str, found: int | None, flaws: dict[int, str]) -> None:
        """Say which checkpoints are damaged; refuse to go on without any."""
        if not flaws:
            return
        damaged = "; ".join(f"step {step}: {flaw}" for step, flaw in flaws.items())
        if found is None:
            other = ', load "last"' if which == "best" else ""
            raise ValueError(
                f"folder: no {which!r} checkpoint in {self._folder} is whole ({damaged}); put a copy of one back"
                f"{other}, or {_SCRATCH}"
            )
        warnings.warn(
            f"{self._folder}: the newest {which!r} checkpoint is damaged ({damaged}); that of step {found} is taken",
            stacklevel=5,
        )


def load(folder: str | Path, which: str = "last") -> nnx.Module:
    """The trained model of a run; of the newest whole checkpoint, with a warning, if newer ones are damaged.

    Args:
        folder: the run's ``checkpoints`` folder.
        which: ``"last"`` or ``"best"`` (highest ``validation_efficiency``).

    Raises:
        ValueError: there is no such checkpoint, or none is whole; says what is there and what to do.
    """
    folder = checks.path("folder", folder)
    checks.choice("which", which, ("last", "best"))
    settings = _read_settings(folder)
    if settings is None:
        raise ValueError(
            f"folder: {folder} holds no training run (no {SETTINGS} that is whole); run notebook 03_training first"
        )
    config = models.used(ModelConfig.from_dict(settings["model"]))  # former versions wrote what does nothing
    with contextlib.closing(Checkpoints(folder)) as store:
        kept = store.restore_params(which)
    if not models.fits(config, {k: a.shape for k, a in kept.items()}):
        raise ValueError(f"folder: the checkpoint in {folder} does not fit the model that {SETTINGS} describes")
    graph, params = models.split(models.build(config))
    return models.merge(graph, {k: jnp.asarray(kept[k], a.dtype) for k, a in params.items()})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep orbax from printing tracebacks of errors that it also raises, and of what ends after the first of them.

    It closes its event loop at the first failure; arrays that are under way find it closed, and nobody can catch that.
    """
    logger, told = logging.getLogger("absl"), sys.unraisablehook
    before = logger.level

    def late(unraisable: "sys.UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            told(unraisable)

    logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = late
    try:
        yield
        sys.unraisablehook = told  # after a failure answers come for a second yet
    finally:
        logger.setLevel(before)


def _system_code(error: Exception) -> int | None:
    """The operating system's number of an error that tensorstore has put into words."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found else None


def _flaw(place: Path) -> str:
    """Faults of a checkpoint, as far as they are seen before its arrays are read; empty if there are none."""
    if flaw := files.flaw(place):
        return flaw
    if not (place / _ARRAYS).is_file():  # tensorstore fails at this in hundreds of lines
        return f"{_ARRAYS} is missing"
    mark = place / _STEP
    said = read_bytes(mark, 100).decode(errors="replace") if mark.exists() else place.name
    return "" if said == place.name else f"it is of step {said!r}"
