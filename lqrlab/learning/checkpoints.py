"""Saving and restoring: JSON for the settings, orbax for the arrays, nothing that executes."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx

from lqrlab.compute import Backend
from lqrlab.compute.files import read_object, write_json
from lqrlab.learning import models
from lqrlab.learning.config import ModelConfig, TrainConfig

T = TypeVar("T")

_SETTINGS = "settings.json"
_REMEDY = "train again from scratch in another folder"


_HOW = ("dtype", "compute_dtype", "precision")  # of a backend: what a run cannot be gone on with another of


def write_settings(
    folder: Path,
    model: ModelConfig,
    train: TrainConfig,
    data: dict[str, object],
    source: dict[str, str | int],
    backend: Backend,
) -> None:
    """Store what makes the run; refuse a folder that holds another one, naming the settings that differ."""
    parts: dict[str, Any] = {"model": model, "train": train, "backend": backend}
    new = {name: dataclasses.asdict(part) for name, part in parts.items()} | {"data": data, "source": source}
    new = json.loads(json.dumps(new))  # as it will be read back: tuples as lists
    path = folder / _SETTINGS
    if path.exists():
        old = _read_settings(path)
        differ = [
            f"{part}.{key} was {old.get(part, {}).get(key)!r} and is now {new[part].get(key)!r}"
            for part in new
            for key in {**old.get(part, {}), **new[part]}
            if old.get(part, {}).get(key) != new[part].get(key) and (part != "backend" or key in _HOW)
        ]
        if differ:
            raise ValueError(
                f"folder: {folder} holds a run made with other settings ({'; '.join(differ)}); "
                "give another folder, or start this one from scratch (remove it, or `lqrlab run --fresh`)"
            )
        return
    if jax.process_index():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, new)


def _read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """The settings of a run, each part a table of names and values."""
    try:
        settings = read_object(path)
    except ValueError as error:
        raise ValueError(f"folder: {path} is damaged: {error}; {_REMEDY}") from None
    for part in ("model", *settings):
        if not isinstance(settings.get(part), dict):
            raise ValueError(f"folder: {path} is damaged: it has no table of settings {part!r}; {_REMEDY}")
    return settings


class Checkpoints:
    """The last and the best state of a run in ``folder/last`` and ``folder/best``."""

    def __init__(self, folder: Path):
        def manager(name: str, keep: int) -> ocp.CheckpointManager:
            options = ocp.CheckpointManagerOptions(max_to_keep=keep)
            return ocp.CheckpointManager(
                (folder / name).absolute(), item_handlers=ocp.StandardCheckpointHandler(), options=options
            )

        self._managers = {"last": manager("last", 2), "best": manager("best", 1)}

    def save(self, which: str, step: int, state: object) -> None:
        """Save, and return only when it is on disk."""
        manager = self._managers[which]
        if step in manager.all_steps():
            return
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()

    def step(self, which: str) -> int | None:
        """The newest step that is there."""
        return self._managers[which].latest_step()

    def restore(self, which: str, like: T) -> T:
        """The newest state, with the shapes, types and devices of ``like``."""
        manager = self._managers[which]
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(target))

    def restore_params(self, which: str) -> dict[str, jax.Array]:
        """The newest parameters alone, as host arrays."""
        manager = self._managers[which]
        step, here = manager.latest_step(), jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        # the devices that it was made on need not be there
        target = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), manager.item_metadata(step).tree
        )
        return manager.restore(step, args=ocp.args.StandardRestore(target))["params"]

    def close(self) -> None:
        """Let go of the folder."""
        for manager in self._managers.values():
            manager.close()


def load(folder: str | Path, which: str = "last") -> nnx.Module:
    """The trained model of a run.

    Args:
        folder: the run's ``checkpoints`` folder.
        which: ``"last"`` or ``"best"`` (highest ``validation_efficiency``).

    Raises:
        ValueError: there is no such checkpoint; says what is there and what to do.
    """
    folder = Path(folder)
    path = folder / _SETTINGS
    if not path.exists():
        raise ValueError(
            f"folder: {folder} holds no training run (no {_SETTINGS}); run notebook 03_training first"
        )
    config = ModelConfig.from_dict(_read_settings(path)["model"])
    graph, params = models.split(models.build(config))
    store = Checkpoints(folder)
    try:
        if which not in ("last", "best") or store.step(which) is None:
            raise ValueError(f"which: {folder} holds no {which!r} checkpoint; train for longer first")
        kept = store.restore_params(which)
    finally:
        store.close()
    if {k: a.shape for k, a in kept.items()} != {k: a.shape for k, a in params.items()}:
        raise ValueError(
            f"folder: the checkpoint in {folder} does not fit the model that {_SETTINGS} describes"
        )
    return models.merge(graph, {k: jnp.asarray(kept[k], a.dtype) for k, a in params.items()})
