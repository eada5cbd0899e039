"""Who makes the files of a data set: this process, on one device or several, or other processes; the same bytes."""

import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from lqrlab.compute.files import locked
from lqrlab.dataset import card, manifest, shards, store, trajectories
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import Shard, plan

Progress = Callable[[int, int, str], None]
Record = dict[str, Any]
"""What the manifest says of a file."""

Engine = Callable[[Callable[[Shard], Record], Sequence[Shard]], Iterable[Record]]
"""Calls a function, which can be pickled, for each shard, anywhere; answers in the order of the shards."""

_WRITERS = 2


def generate(
    config: DataConfig,
    path: str | Path,
    *,
    progress: Progress | None = None,
    engine: Engine | None = None,
    devices: Sequence[jax.Device] | None = None,
    controller: trajectories.Controller | None = None,
) -> "store.Dataset":
    """Make a data set, or finish one that was begun.

    Each shard is written to a temporary file, flushed and renamed; the manifest comes last. What a killed run
    left is kept where its checksums are right; the same call goes on from there and ends in the same bytes.

    Args:
        config: what to make.
        path: a folder, made if it is missing.
        progress: called as ``(shards done, shards in all, what is done now)``.
        engine: who makes the shards; this process by default. See ``lqrlab.workbench.runs.cluster`` for others,
            which must see the folder under the same path.
        controller: plants → :class:`lqrlab.simulation.Policy` that runs their loops in place of the optimum, as
            ``functools.partial(learning.policy, model)`` for rounds on a policy's own loops; the config's
            ``controller`` names it. Targets remain the optimum's. No other process can tell what it was: to
            make the data set again, the same policy is needed.
        devices: of this process, each computes a shard at a time; JAX's default one by default.

    Returns:
        The data set, opened.

    Raises:
        ValueError: an unknown family; a folder that holds something else, with the differing keys.
    """
    config.check_registered()
    if engine and devices:
        raise ValueError("devices: are those of this process, and engine hands the work to others; give one")
    if (controller is None) != (config.controller == "lqr"):
        said = (
            "the optimum runs the loops" if controller is None else "a policy was given that runs the loops"
        )
        raise ValueError(f"controller: the config says {config.controller!r}, but {said}")
    # a policy can be called too, but with states; its class, with plants
    policy = hasattr(controller, "init") and not isinstance(controller, type)
    if controller is not None and (policy or not callable(controller)):
        raise ValueError(
            f"controller: expected a function plants → policy, but found {type(controller).__name__}"
        )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        manifest.claim(folder, config)
        manifest.remove_partial(folder, config)
        todo = plan(config)
        tell = partial(_tell, progress or (lambda done, total, what: None), todo)
        if engine:
            records = []
            tell(0)
            for record in engine(partial(produce, config, folder.resolve(), controller=controller), todo):
                records.append(record)
                tell(len(records))
        else:
            records = _here(config, folder, todo, tell, devices, controller)
            tell(len(todo))
        manifest.seal(folder, config, records)
        data = store.open(folder)
        manifest.put(folder / card.FILE, card.write(data))
    return data


def produce(
    config: DataConfig, folder: Path, shard: Shard, *, controller: trajectories.Controller | None = None
) -> Record:
    """Make one shard, unless it is there and whole, and say what is in it."""
    kept = _kept(config, folder, shard)
    return _written(folder, shard, kept or trajectories.make(config, shard, controller), kept is not None)


def _tell(progress: Progress, todo: Sequence[Shard], done: int) -> None:
    if done == len(todo):
        progress(done, done, "all shards written")
        return
    shard = todo[done]
    last = shard.first + shard.count - 1
    progress(done, len(todo), f"{shard.family}, variants {shard.first} to {last}")


def _here(
    config: DataConfig,
    folder: Path,
    todo: Sequence[Shard],
    tell: Callable[[int], None],
    devices: Sequence[jax.Device] | None,
    controller: trajectories.Controller | None,
) -> list[Record]:
    """In this process: what is computed is written by other threads meanwhile."""
    with (
        concurrent.futures.ThreadPoolExecutor(_WRITERS, thread_name_prefix="lqrlab-write") as writers,
        concurrent.futures.ThreadPoolExecutor(
            max(len(devices or ()), 1), thread_name_prefix="lqrlab-make"
        ) as makers,
    ):

        def begin(number: int) -> concurrent.futures.Future:
            shard = todo[number]
            kept = _kept(config, folder, shard)
            if kept is not None:
                return writers.submit(_written, folder, shard, kept, True)
            if not devices:
                content = trajectories.make(config, shard, controller)
                return writers.submit(_written, folder, shard, content, False)

            def made() -> Record:
                with jax.default_device(devices[number % len(devices)]):
                    content = trajectories.make(config, shard, controller)
                return writers.submit(_written, folder, shard, content, False).result()

            return makers.submit(made)

        records: list[Record] = []
        pending: list[concurrent.futures.Future] = []
        for number in range(len(todo)):
            tell(number)
            pending.append(begin(number))
            if len(pending) > _WRITERS + len(devices or ()):  # what waits to be written stays small
                records.append(pending.pop(0).result())
        return records + [future.result() for future in pending]


def _kept(config: DataConfig, folder: Path, shard: Shard) -> shards.Content | None:
    """What an earlier run left, where it is whole."""
    kept = shards.sound(folder / shard.name)
    return kept if kept is not None and config.is_written(kept.attributes.get("config")) else None


def _written(folder: Path, shard: Shard, content: shards.Content, there: bool) -> Record:
    """Write what is not there yet, and what the manifest is to say of it."""
    path = folder / shard.name
    digests = content.digests() if there else shards.write(path, content)
    return manifest.record(path, shard.family, content, digests)
