"""Saving and restoring: one file a step holds arrays, settings and metrics so far, with a checksum of all."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

from lqrlab.compute import Backend, checks
from lqrlab.compute.configuration import Config
from lqrlab.compute.files import not_now, read_object, write_json
from lqrlab.dataset import DataConfig
from lqrlab.learning import models, weight_files
from lqrlab.learning.train_config import ModelConfig, TrainConfig

T = TypeVar("T")

SETTINGS = "settings.json"  # the file beside the checkpoints that says what the run was made with

SCORE = "validation_efficiency"  # of a row of metrics: that by which the best is kept
_KEPT = {"last": 2, "best": 1}
_ENDING = ".safetensors"
_MOST_BYTES = 1 << 36
_HOW = ("dtype", "compute_dtype", "precision")  # of a backend: what a run cannot be gone on with another of
_SCRATCH = "start the run from scratch (remove its checkpoints, or repeat the run with --fresh)"


def write_settings(
    folder: Path,
    model: ModelConfig,
    train: TrainConfig,
    data: DataConfig,
    source: dict[str, str | int],
    backend: Backend,
) -> dict[str, Any]:
    """Store what makes the run, and return it; refuse a folder of another run, naming the settings that differ."""
    configs = {"model": model, "train": train, "backend": backend, "data": data}
    new: dict[str, Any] = {part: _plain(config) for part, config in configs.items()} | {"source": source}
    old = _read_settings(folder)
    if old is not None:
        # an older version wrote more settings
        known = old.keys() & {"model", "train", "data"}
        old |= {part: _plain(type(configs[part]).from_dict(old[part])) for part in known}
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
    path, beside = folder / SETTINGS, _parse_settings(folder / SETTINGS)
    whole = [found for which in _KEPT if (found := newest(folder, which)[0])]
    if whole:
        kept = max(whole, key=lambda checkpoint: checkpoint.step)
        if kept.settings != beside:
            warnings.warn(
                f"{path}: the file is damaged; the settings are those of the checkpoint of step {kept.step}",
                stacklevel=4,
            )
        return kept.settings
    if beside is None and any(_steps(folder, which) for which in _KEPT):
        raise ValueError(
            f"folder: {path} is damaged or missing, so the settings of the checkpoints are unknown; "
            f"put a copy of the file back, or {_SCRATCH}"
        )
    return beside


def _parse_settings(path: Path) -> dict[str, Any] | None:
    """The settings in a file; None if there are none, or what is there is something else."""
    try:
        found = read_object(path)
    except (OSError, ValueError):
        return None
    return found if _are_settings(found) else None


def _are_settings(found: object) -> bool:
    parts = found.values() if isinstance(found, dict) else [None]
    return all(isinstance(part, dict) for part in parts) and {"model", "train"} <= set(found)  # type: ignore[call-overload]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """All that a run goes on from after so many steps: arrays, settings (:func:`write_settings`), metrics so far.

    The arrays are those of the train state, of a best one its parameters, by their paths, as ``"params/gain/bias"``.
    """

    step: int
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]

    def state(self, like: T) -> T:
        """The arrays in the structure of ``like``; refused where there are others, or of other shapes or types."""
        wanted, tree = by_path(like), jax.tree.structure(like)
        if {k: (a.shape, a.dtype) for k, a in wanted.items()} != {
            k: (a.shape, a.dtype) for k, a in self.arrays.items()
        }:
            raise ValueError(f"folder: the checkpoint of step {self.step} does not fit the model of {SETTINGS}")
        return jax.tree.unflatten(tree, [self.arrays[name] for name in wanted])


def by_path(tree: object) -> dict[str, Any]:
    """The arrays of a tree by their paths in it, in the tree's order."""
    return {jax.tree_util.keystr(path, simple=True, separator="/"): a for path, a in jax.tree.leaves_with_path(tree)}


def _file(folder: Path, which: str, step: int) -> Path:
    return folder / which / f"{step}{_ENDING}"


def _steps(folder: Path, which: str) -> list[int]:
    """The steps of which there are checkpoints, the newest first."""
    names = (path.name.removesuffix(_ENDING) for path in (folder / which).glob(f"[0-9]*{_ENDING}"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def save(folder: Path, which: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint of the ``"last"`` (two are kept) or ``"best"`` state (one), whole or not at all.

    Raises:
        OSError: the disk is full, or may not be written to.
    """
    file = _file(folder, which, checkpoint.step)
    file.parent.mkdir(parents=True, exist_ok=True)
    card = {"step": checkpoint.step, "settings": checkpoint.settings, "metrics": checkpoint.rows}
    weight_files.save_arrays(file, checkpoint.arrays, card)
    kept = [step for step in _steps(folder, which) if step <= checkpoint.step][: _KEPT[which]]
    remove(folder, which, [step for step in _steps(folder, which) if step not in kept])


def remove(folder: Path, which: str, steps: list[int]) -> None:
    """Remove the checkpoints of some steps."""
    for step in steps:
        _file(folder, which, step).unlink(missing_ok=True)


def newest(folder: Path, which: str) -> tuple[Checkpoint | None, dict[int, str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    flaws = dict[int, str]()
    for step in _steps(folder, which):
        try:
            arrays, card = weight_files.load_arrays(_file(folder, which, step), _MOST_BYTES)
            if card.get("step") != step:
                raise ValueError(f"it is of step {card.get('step')!r:.50}")
            rows = card.get("metrics")
            measured = isinstance(rows, list) and all(isinstance(r, dict) and type(r.get(SCORE)) is float for r in rows)
            if not (_are_settings(card.get("settings")) and measured):
                raise ValueError("it has no settings or metrics")
            return Checkpoint(step, arrays, card["settings"], card["metrics"]), flaws
        except (ValueError, OSError) as error:
            if why := not_now(error):  # it may be whole: no other takes its place
                raise ValueError(f"folder: {_file(folder, which, step)} {why}") from None
            flaws[step] = f"{error!s:.300}"
    return None, flaws


def whole(folder: Path, which: str) -> tuple[Checkpoint | None, dict[int, str]]:
    """As :func:`newest`; says which checkpoints are damaged.

    Raises:
        ValueError: there are some, but none is whole.
    """
    found, flaws = newest(folder, which)
    damaged = "; ".join(f"step {step}: {flaw}" for step, flaw in flaws.items())
    if flaws and found is None:
        other = ', load "last"' if which == "best" else ""
        raise ValueError(
            f"folder: no {which!r} checkpoint in {folder} is whole ({damaged}); put a copy of one back"
            f"{other}, or {_SCRATCH}"
        )
    if flaws and found:
        warnings.warn(
            f"{folder}: the newest {which!r} checkpoint is damaged ({damaged}); that of step {found.step} is taken",
            stacklevel=4,
        )
    return found, flaws


def load(folder: str | Path, which: str = "last") -> nnx.Module:
    """The trained model of a run, from the newest undamaged checkpoint; warns if newer ones are damaged.

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
    found, _ = whole(folder, which)
    if found is None:
        raise ValueError(f"which: {folder} holds no {which!r} checkpoint; train for longer first")
    params = {name.removeprefix("params/"): a for name, a in found.arrays.items() if name.startswith("params/")}
    try:
        return models.restored(ModelConfig.from_dict(settings["model"]), params)
    except ValueError as error:
        raise ValueError(f"folder: the checkpoint of step {found.step} in {folder}: {error}") from None
