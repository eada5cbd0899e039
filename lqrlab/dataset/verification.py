"""Verification that a data set on disk is what was made: bytes, counts, splits, consistency of the numbers."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lqrlab.compute import checks
from lqrlab.dataset import consistency, layout, manifest, shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import REASONS, Shard
from lqrlab.dataset.shards import BadFile

_SHOWN = 100  # foreign files in a report


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of :func:`verify`.

    Attributes:
        path: the folder.
        problems: pairs of a path and what is wrong with it, in words.
        variants, trajectories: how many were checked; of a segmented data set segments of trajectories.
        worst: largest relative error in the consistency checks of the sampled problem; up to some 1e-6 it is
            rounding. None where they do not apply: nonlinear plants, or disturbances.
        segmented: whether rows are segments of trajectories.
    """

    path: Path
    problems: tuple[tuple[Path, str], ...]
    variants: int = 0
    trajectories: int = 0
    worst: float | None = None
    segmented: bool = False

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        if not self.ok:
            return "\n".join(f"{path}: {why}" for path, why in self.problems)
        rows = "segments of trajectories" if self.segmented else "trajectories"
        checked = "dynamics and costs not computed again: nonlinear plants or disturbances"
        if self.worst is not None:
            checked = f"worst relative error {self.worst:.1e}"
        return f"{self.path}: {self.variants} variants and {self.trajectories} {rows} are as they were made ({checked})"


@dataclasses.dataclass(frozen=True)
class Examined:
    """A file after a full reading: what is wrong with it, or its entry of the manifest and :attr:`Report.worst`."""

    problems: tuple[str, ...] = ()
    entry: manifest.Record | None = None
    worst: float | None = None


def examine(file: Path, config: DataConfig, shard: Shard, listed: manifest.Record | None = None) -> Examined:
    """Read a file and check all of it; raises nothing, whatever the file is.

    Args:
        file: anything.
        config: of the data set.
        shard: the place of the file in it.
        listed: its entry of the manifest; before there is one the file's own checksums are compared.
    """
    try:
        content, written = shards.read(file)
        actual = content.digests()
        headers = {name: shards.header(a) for name, a in content.arrays.items()}
        wrong = (
            list(_changes(actual, written, listed))
            or list(layout.wrong(headers, config))
            or list(_counts(content, config, shard))
        )
        if wrong:
            return Examined(tuple(wrong))
        worst, entry = None, manifest.record(file, shard.family, content, actual)
        if listed not in (None, entry):
            wrong = [
                f"{name} is not what the manifest says it is" for name in entry if entry[name] != listed[name]
            ]
        elif config.linear and not config.noise:
            with np.errstate(all="ignore"):  # numbers out of any range are found as such
                worst, wrong = consistency.check(content.arrays, config)
        return Examined(tuple(wrong), None if wrong else entry, worst)
    except BadFile as error:
        return Examined((error.why,))
    except Exception as error:  # of what a foreign file may hold there is no end
        return Examined((f"cannot be checked: {error!r:.300}",))


def verify(path: str | Path, *, progress: Callable[[int, int, str], None] | None = None) -> Report:
    """Check all of a data set again; whatever is at ``path``, raises nothing, but lists what is wrong.

    Checksums of all arrays and attributes; the counts of what is in the files and of what was left out; finiteness;
    the split, made again from the config; and for linear data without disturbances, from each trajectory: the
    dynamics, the cost, and that it exceeds the optimum x0ᵀP x0 by exactly the cost of its inputs' deviation from −Kx.

    Args:
        path: its folder.
        progress: called as ``(shards done, shards in all, file)``.
    """
    folder = checks.path("path", path)
    try:
        config, record = manifest.read(folder)
        problems = list(_strangers(folder, config))
    except BadFile as error:
        return Report(folder, ((error.path, error.why),))
    except (OSError, ValueError) as error:  # no folder may have such a path
        return Report(folder, ((folder, f"cannot be read: {error}"),))
    worst: float | None = None
    found, listed = [], record["shards"]
    files = zip(layout.plan(config), listed, manifest.looked_over(folder, listed))
    for done, (shard, entry, (file, why)) in enumerate(files):
        if progress:
            progress(done, len(listed), shard.name)
        examined = Examined((why,)) if why else examine(file, config, shard, entry)
        problems += [(file, problem) for problem in examined.problems]
        if examined.worst is not None:
            worst = max(worst or 0.0, examined.worst)
        if examined.entry:
            found.append(examined.entry)
    counted = manifest.totals(config, found)
    numbers = counted["variants"], counted["trajectories"]
    return Report(folder, tuple(problems), *numbers, worst, config.segmented)


def _strangers(folder: Path, config: DataConfig) -> Iterator[tuple[Path, str]]:
    """Files that look like those of the data set; many are counted, not listed."""
    names = {shard.name for shard in layout.plan(config)}
    found = sorted(file for file in folder.glob("*.h5") if file.name not in names)
    for file in found[:_SHOWN]:
        yield file, "is not part of the data set"
    if len(found) > _SHOWN:
        yield folder, f"{len(found) - _SHOWN} more files are not part of the data set"


def _changes(
    actual: dict[str, str], written: dict[str, str], listed: manifest.Record | None
) -> Iterator[str]:
    """Arrays whose checksums are not those that the file has for them, or not those of the manifest."""
    expected = written
    if listed is not None:
        expected = {name: header["sha256"] for name, header in listed["arrays"].items()}
        expected |= {"": listed["attributes"]}
    for name in sorted(actual.keys() | expected.keys()):
        what = name or "an attribute or unit"
        if name not in actual:
            yield f"{what} is missing"
        elif name not in expected:
            yield f"{what} is not in the manifest"
        elif not actual[name] == expected[name] == written.get(name):
            yield f"{what} has changed since it was written: its checksum differs"


def _counts(content: shards.Content, config: DataConfig, shard: Shard) -> Iterator[str]:
    """Errors in the file's place, its counts and its numbers."""
    arrays, about = content.arrays, content.attributes
    if not config.is_written(about.get("config")):
        yield "was made from another config than that of the data set"
        return
    if about.get("family") != shard.family or about.get("first_variant") != shard.first:
        found = f"{about.get('family')!r:.100} from variant {about.get('first_variant')!r:.100} on"
        yield f"expected {shard.family} from variant {shard.first} on, but found {found}"
    missing = [about.get(f"left_out_{reason}", -1) for reason in REASONS]
    if not all(isinstance(number, int) and number >= 0 for number in missing):
        yield "does not count what was left out"
        return
    yield from _variants(arrays, config, shard, missing[0])
    yield from _trajectories(arrays, config, sum(missing[1:]))
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
            yield f"{name} has numbers that are not finite"


def _variants(
    arrays: dict[str, np.ndarray], config: DataConfig, shard: Shard, left_out: int
) -> Iterator[str]:
    """Errors in the count, numbers, splits and families of a file's variants."""
    number, end = arrays["variants/variant"], shard.first + shard.count
    if len(number) + left_out != shard.count:
        yield f"has {len(number)} variants and left out {left_out}, of {shard.count}"
    if len(np.unique(number)) < len(number) or not np.all((number >= shard.first) & (number < end)):
        yield f"variants/variant: expected each of {shard.first} to {end - 1} at most once"
    elif not np.array_equal(arrays["variants/split"], layout.splits(config, shard.family)[number]):
        yield "variants/split: a variant is in another split than the seed puts it in"
    if set(arrays["variants/family"].tolist()) - {shard.family.encode()}:
        yield f"variants/family: expected {shard.family} alone"


def _trajectories(arrays: dict[str, np.ndarray], config: DataConfig, left_out: int) -> Iterator[str]:
    """Errors in the count, starts and variants of a file's trajectories."""
    of, variants, rows = arrays["trajectories/variant"], len(arrays["variants/variant"]), len(config.starts)
    whole, rest = divmod(len(of), rows)
    if rest or whole + left_out != variants * config.trajectories:
        yield (
            f"has {len(of) / rows:g} trajectories and left out {left_out}, of {variants * config.trajectories}"
            + (f", each in {rows} rows" if config.segmented else "")
        )
    elif config.segmented and not np.array_equal(arrays["trajectories/start"], np.tile(config.starts, whole)):
        yield f"trajectories/start: expected {', '.join(map(str, config.starts))} of each trajectory in turn"
    if not np.all((of >= 0) & (of < variants)):
        yield "trajectories/variant: expected rows of the file's variants"
