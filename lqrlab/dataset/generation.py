"""Making the files of a data set: in this process, on one device or several, or in other processes; the same bytes."""

import concurrent.futures
import contextlib
import os
import queue
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import jax

from lqrlab.compute import checks
from lqrlab.compute.files import locked
from lqrlab.dataset import card, manifest, shard_contents, shards, store, verification
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import Shard, plan
from lqrlab.dataset.manifest import Record
from lqrlab.dataset.shards import BadFile

Progress = Callable[[int, int, str], None]

Engine = Callable[[Callable[[Shard], Record], Sequence[Shard]], Iterable[Record]]
"""Calls a function, which can be pickled, for each shard, anywhere; returns results in the order of the shards."""

_WRITERS = 2
_MADE_AGAIN = "made_again"  # in an entry on its way from the process that made the file


def generate(
    config: DataConfig,
    path: str | Path,
    *,
    progress: Progress | None = None,
    engine: Engine | None = None,
    devices: Sequence[jax.Device] | None = None,
    controller: object = None,
    say: Callable[[str], object] = warnings.warn,
) -> "store.Dataset":
    """Make a data set, or finish one that was begun.

    Each shard is written to a temporary file, flushed and renamed; the manifest comes last. After a kill, the same
    call keeps the files whose digests are right, makes the others, and ends in the same bytes.

    Args:
        config: what to make.
        path: a folder, made if it is missing.
        progress: called as ``(shards done, shards in all, what is being made)``.
        engine: makes the shards elsewhere, in processes that see the folder under the same path, see
            ``lqrlab.workbench.runs.cluster``; threads of this process by default.
        devices: of this process, each computes a shard at a time; JAX's default one by default.
        controller: runs the loops in place of the optimum, which remains the target: a network, or a function from a
            problem to a policy, see :func:`lqrlab.simulation.bind`; the config names it.
        say: called with a sentence about each file that was there but had to be made again.

    Returns:
        The data set, opened.

    Raises:
        ValueError: an unknown family; a controller that the config does not name; a folder that holds something else,
            with the differing keys, or that is locked by another process.
    """
    checks.instance("config", config, DataConfig, "a DataConfig")
    config.check_registered()
    if engine and devices:
        raise ValueError("devices: are those of this process, and engine hands the work to others; give one")
    shard_contents.check_controller(config, controller)
    folder = checks.path("path", path)
    folder.mkdir(parents=True, exist_ok=True)
    manifest.check_folder(folder, config)  # before the lock, whose file stays in the folder
    with locked(folder):
        manifest.claim(folder, config)
        todo, records = plan(config), list[Record]()
        here = jax.config.jax_default_device  # type: ignore[attr-defined]  # of this thread; others do not inherit it
        engine = engine or partial(_threads, devices or [here])
        _report(progress, todo, 0)
        for record in engine(partial(produce, config, folder.resolve(), controller=controller), todo):
            if why := record.pop(_MADE_AGAIN, ""):
                say(f"{folder / record['file']} was made again: {why}")
            records.append(record)
            _report(progress, todo, len(records))
        manifest.seal(folder, config, records)
        data = store.open(folder)
        manifest.put(folder / manifest.CARD, card.write(data))
    return data


def _report(progress: Progress | None, todo: Sequence[Shard], done: int) -> None:
    words = "all shards written"
    if done < len(todo):
        shard = todo[done]
        words = f"{shard.family}, variants {shard.first} to {shard.first + shard.count - 1}"
    if progress:
        progress(done, len(todo), words)


def _threads(
    devices: Sequence[jax.Device | None], make: Callable[..., Record], todo: Sequence[Shard]
) -> Iterable[Record]:
    """The engine of this process: each device computes a shard at a time, while others are written."""
    idle: queue.SimpleQueue[jax.Device | None] = queue.SimpleQueue()
    for device in devices:
        idle.put(device)
    with concurrent.futures.ThreadPoolExecutor(len(devices) + _WRITERS, "lqrlab-shard") as threads:
        yield from threads.map(partial(make, idle=idle), todo)


def produce(
    config: DataConfig,
    folder: Path,
    shard: Shard,
    *,
    controller: object = None,
    idle: "queue.SimpleQueue[jax.Device | None] | None" = None,
) -> Record:
    """Make one shard, unless its file is there and whole, and return its entry of the manifest.

    If there was another file, the entry also says what was wrong with it.

    Args:
        config, folder: of the data set.
        shard: which.
        controller: see :func:`generate`.
        idle: devices that compute nothing; one is taken while the shard is computed. By default JAX's default one.
    """
    path = folder / shard.name
    why = ""
    if os.path.lexists(path):
        try:
            return verification.examine(path, config, shard)
        except BadFile as error:
            why = error.why
    device = idle.get() if idle else None
    try:
        with jax.default_device(device) if idle else contextlib.nullcontext():
            content = shard_contents.make(config, shard, controller)
    finally:
        if idle:
            idle.put(device)
    shards.write(path, content)
    record = manifest.record(path, content)
    return record | {_MADE_AGAIN: why} if why else record
