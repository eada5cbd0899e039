"""Making the files of a data set, in this process or in others, the same bytes; and verifying that they are these."""

import concurrent.futures
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import jax

from lqrlab.compute import checks
from lqrlab.compute.files import locked, write_atomic
from lqrlab.dataset import card, manifest, shards, store, trajectories
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.manifest import Record, Shard, plan
from lqrlab.dataset.shards import BadFile

Progress = Callable[[int, int, str], None]

Made = tuple[Record, str]
"""A file's entry of the manifest, and what was wrong with another that was there; empty if none was."""

Engine = Callable[[Callable[[Shard], Made], Sequence[Shard]], Iterable[Made]]
"""Calls a function, which can be pickled, for each shard, anywhere; returns results in the order of the shards."""

_THREADS = 2


def generate(
    config: DataConfig,
    path: str | Path,
    *,
    progress: Progress | None = None,
    engine: Engine | None = None,
    say: Callable[[str], object] = warnings.warn,
) -> "store.Dataset":
    """Generate a data set, or complete a partial one.

    Each shard is written to a temporary file, flushed and renamed; the manifest comes last. After a kill, the same
    call keeps the files whose digests are right, makes the others, and ends in the same bytes.

    Args:
        config: what to make.
        path: a folder, made if it is missing.
        progress: called as ``(shards done, shards in all, what is being made)``.
        engine: makes the shards elsewhere, in processes that see the folder under the same path, see
            ``lqrlab.workbench.runs.cluster``; threads of this process by default.
        say: called with a sentence about each file that was there but had to be made again.

    Returns:
        The data set, opened.

    Raises:
        ValueError: an unknown family; a folder that holds something else, with the differing keys; a locked one.
    """
    checks.instance("config", config, DataConfig, "a DataConfig")
    config.check_registered()
    folder = checks.path("path", path)
    folder.mkdir(parents=True, exist_ok=True)
    manifest.check_folder(folder, config)  # before the lock, whose file stays in the folder
    with locked(folder):
        manifest.claim(folder, config)
        todo, records = plan(config), list[Record]()
        _report(progress, todo, 0)
        for record, why in (engine or _threads)(partial(produce, config, folder.resolve()), todo):
            if why:
                say(f"{folder / record['file']} was made again: {why}")
            records.append(record)
            _report(progress, todo, len(records))
        manifest.seal(folder, config, records)
        data = store.open(folder)
        write_atomic(folder / manifest.CARD, card.write(data))
    return data


def _report(progress: Progress | None, todo: Sequence[Shard], done: int) -> None:
    if progress:
        words = [f"{shard.family}, variants {shard.first} to {shard.first + shard.count - 1}" for shard in todo]
        progress(done, len(todo), [*words, "all shards written"][done])


def _threads(make: Callable[[Shard], Made], todo: Sequence[Shard]) -> Iterable[Made]:
    """The engine of this process: a shard is computed while others are written."""
    here = jax.config.jax_default_device  # type: ignore[attr-defined]  # of this thread; others do not inherit it
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "lqrlab-shard") as threads:
        yield from threads.map(jax.default_device(here)(make), todo)


def produce(config: DataConfig, folder: Path, shard: Shard) -> Made:
    """Make one shard, unless its file is there and whole."""
    path, why = folder / shard.name, ""
    if os.path.lexists(path):
        try:
            return examine(path, config, shard), ""
        except shards.Busy:
            raise
        except BadFile as error:
            why = error.why
    content = trajectories.make(config, shard)
    shards.write(path, content)
    return manifest.record(path, content), why


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of :func:`verify`.

    Attributes:
        path: the folder.
        problems: pairs of a path and what is wrong with it, in words.
        variants, trajectories: how many were checked; of a segmented data set segments of trajectories.
        found: what is right, in words.
    """

    path: Path
    problems: tuple[tuple[Path, str], ...]
    variants: int = 0
    trajectories: int = 0
    found: str = ""

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        return "\n".join(f"{path}: {why}" for path, why in self.problems or ((self.path, self.found),))


def examine(file: Path, config: DataConfig, shard: Shard) -> Record:
    """The manifest's entry of a file that is, by its own digests, one that was written as this shard.

    Raises:
        BadFile: with what is wrong, in words.
    """
    with shards.damage(file, "is no file of this data set"):
        content = shards.read(file)
        entry, about = manifest.record(file, content), content.attributes
        manifest.check_entry(entry, config, shard)
        if DataConfig.from_json(str(about.get("config"))) != config:
            raise ValueError("it was made from another config")
        if (found := (about.get("family"), about.get("first_variant"))) != (shard.family, shard.first):
            raise ValueError(f"expected {shard.family} from variant {shard.first} on, but found {found!r:.100}")
    return entry


def verify(path: str | Path, *, again: bool = False) -> Report:
    """Compare a data set with its checksums, array by array, and list all differences.

    Args:
        path: its folder.
        again: make each file again and compare that, bit for bit; it takes as long as ``generate`` did.

    Raises:
        ValueError: with ``again``, a family that is not registered.
    """
    folder, again = checks.path("path", path), checks.flag("again", again)
    try:
        config, record = manifest.read(folder)
    except (ValueError, OSError) as error:  # no folder may have such a path
        return Report(folder, ((getattr(error, "path", folder), getattr(error, "why", f"cannot be read: {error}")),))
    if again:
        config.check_registered()
    todo, good = plan(config), []
    strange = sorted({file.name for file in folder.glob("*.h5")} - {shard.name for shard in todo})
    problems = [(folder, f"{len(strange)} files are not of the data set: {', '.join(strange[:9])}")] if strange else []
    for shard, entry in zip(todo, record["shards"]):
        file = folder / shard.name
        if why := manifest.glance(file, entry) or _difference(file, config, shard, entry, again):
            problems.append((file, why))
        else:
            good.append(entry)
    num, loops = (sum(entry[key] for entry in good) for key in ("variants", "trajectories"))
    rows = "segments of trajectories" if config.segmented else "trajectories"
    how = "made again bit for bit" if again else "by their checksums"
    words = f"{num} variants and {loops} {rows} are as they were made ({how})"
    return Report(folder, tuple(problems), num, loops, words)


def _difference(file: Path, config: DataConfig, shard: Shard, listed: Record, again: bool) -> str:
    """Differences of a file from what the manifest lists or, made again, would be; empty if there are none."""
    try:
        entry = examine(file, config, shard)
    except BadFile as error:
        return error.why
    why = manifest.changed(entry["arrays"], listed["arrays"]) or manifest.changed(entry, listed)
    if why or not again:
        return why
    made = trajectories.make(config, shard)
    here = ", ".join(f"{name} {made.attributes[name]}" for name in ("lqrlab", "jax", "numpy", "platform"))
    why = manifest.changed(made.headers, listed["arrays"])
    return why and f"made again, {why}; here are {here}, see the file's attributes for those that made it"
