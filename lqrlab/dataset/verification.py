"""Whether a data set on disk is still what was made: bytes, counts, splits, and the consistency of the numbers."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lqrlab.compute import checks
from lqrlab.dataset import consistency, layout, manifest, shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.plan import Shard, plan, splits
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
        """Whether nothing is wrong."""
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
    """A file after a full reading.

    Attributes:
        problems: what is wrong with it, in words.
        content, digests: as :func:`lqrlab.dataset.shards.read` returns them; None if it could not be read.
        worst: see :class:`Report`.
    """

    problems: tuple[str, ...]
    content: shards.Content | None = None
    digests: dict[str, str] | None = None
    worst: float | None = None


def examine(file: Path, config: DataConfig, shard: Shard, entry: manifest.Record | None = None) -> Examined:
    """Read a file and check all of it; raises nothing, whatever the file is.

    Args:
        file: anything.
        config: of the data set.
        shard: the place of the file in it.
        entry: of the manifest; before there is one the file's own checksums are compared.
    """
    try:
        content, digests = shards.read(file)
        headers = {name: shards.header(a) for name, a in content.arrays.items()}
        wrong = (
            list(_bytes(content, digests, entry))
            or list(layout.wrong(headers, config))
            or list(_counts(content, config, shard))
        )
        worst = None
        if not wrong and config.linear and not config.noise:
            with np.errstate(all="ignore"):  # numbers out of any range are found as such
                worst, wrong = consistency.check(content.arrays, config)
        return Examined(tuple(wrong), content, digests, worst)
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
    totals = {"variants": 0, "trajectories": 0}
    worst: float | None = None
    left_out = {family: dict.fromkeys(manifest.REASONS, 0) for family in config.families}
    entries = record["shards"]
    files = zip(plan(config), entries, manifest.looked_over(folder, entries))
    for done, (shard, entry, (file, why)) in enumerate(files):
        if progress:
            progress(done, len(entries), shard.name)
        found = Examined((why,)) if why else examine(file, config, shard, entry)
        problems += [(file, problem) for problem in found.problems]
        if found.worst is not None:
            worst = max(worst or 0.0, found.worst)
        if found.content and not found.problems:
            for name in totals:
                totals[name] += len(found.content.arrays[f"{name}/variant"])
            for reason in manifest.REASONS:
                left_out[shard.family][reason] += found.content.attributes[f"left_out_{reason}"]
    counted = totals | {"left_out": left_out}
    listed = {key: record.get(key) for key in counted}
    if not problems and listed != counted:
        problems.append((folder, f"the manifest counts {listed}, but the files hold {counted}"))
    return Report(folder, tuple(problems), worst=worst, segmented=config.segmented, **totals)


def _strangers(folder: Path, config: DataConfig) -> Iterator[tuple[Path, str]]:
    """Files that look like those of the data set; many are counted, not listed."""
    names = {shard.name for shard in plan(config)}
    found = sorted(file for file in folder.glob("*.h5") if file.name not in names)
    for file in found[:_SHOWN]:
        yield file, "is not part of the data set"
    if len(found) > _SHOWN:
        yield folder, f"{len(found) - _SHOWN} more files are not part of the data set"


def _bytes(content: shards.Content, digests: dict[str, str], entry: manifest.Record | None) -> Iterator[str]:
    """Differences from the checksums in the file and, if there is its entry, in the manifest."""
    listed, headers = digests, {}
    if entry is not None:
        headers = entry["arrays"]
        listed = {name: header["sha256"] for name, header in headers.items()} | {"": entry["attributes"]}
    actual = content.digests()
    for name in sorted(actual.keys() | listed.keys()):
        what = name or "an attribute or unit"
        if name not in actual:
            yield f"{what} is missing"
        elif name not in listed:
            yield f"{what} is not in the manifest"
        elif actual[name] != listed[name]:
            yield f"{what} has changed since it was written: its checksum differs"
        elif actual[name] != digests.get(name):
            yield f"{what} does not have the checksum that the file has for it"
        elif name in headers and shards.header(content.arrays[name]) != headers[name] | {"sha256": None}:
            yield f"{what} is not what the manifest says it is"


def _counts(content: shards.Content, config: DataConfig, shard: Shard) -> Iterator[str]:
    """Errors in counts, starts, finiteness; then those of the table of variants."""
    arrays, about = content.arrays, content.attributes
    if not config.is_written(about.get("config")):
        yield "was made from another config than that of the data set"
        return
    if about.get("family") != shard.family or about.get("first_variant") != shard.first:
        found = f"{about.get('family')!r:.100} from variant {about.get('first_variant')!r:.100} on"
        yield f"expected {shard.family} from variant {shard.first} on, but found {found}"
    variants, runs = len(arrays["variants/variant"]), len(arrays["trajectories/variant"])
    missing = [about.get(f"left_out_{reason}", -1) for reason in manifest.REASONS]
    if not all(isinstance(number, int) and number >= 0 for number in missing):
        yield "does not count what was left out"
        return
    if variants + missing[0] != shard.count:
        yield f"has {variants} variants and left out {missing[0]}, of {shard.count}"
    rows = len(config.starts)
    if runs % rows or runs // rows + sum(missing[1:]) != variants * config.trajectories:
        yield (
            f"has {runs / rows:g} trajectories and left out {sum(missing[1:])}, of {variants * config.trajectories}"
            + (f", each in {rows} rows" if config.segmented else "")
        )
    elif (
        config.segmented
        and runs
        and not np.array_equal(arrays["trajectories/start"], np.tile(config.starts, runs // rows))
    ):
        yield f"trajectories/start: expected {', '.join(map(str, config.starts))} of each trajectory in turn"
    of = arrays["trajectories/variant"]
    if runs and not (of.min() >= 0 and of.max() < variants):
        yield "trajectories/variant: expected rows of the file's variants"
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
            yield f"{name} has numbers that are not finite"
    yield from _variants(arrays, config, shard)


def _variants(arrays: dict[str, np.ndarray], config: DataConfig, shard: Shard) -> Iterator[str]:
    """Errors in the numbers, splits and families of a file's variants."""
    number, end = arrays["variants/variant"], shard.first + shard.count
    if len(np.unique(number)) < len(number) or not np.all((number >= shard.first) & (number < end)):
        yield f"variants/variant: expected each of {shard.first} to {end - 1} at most once"
    elif not np.array_equal(arrays["variants/split"], splits(config, shard.family)[number]):
        yield "variants/split: a variant is in another split than the seed puts it in"
    if set(arrays["variants/family"].tolist()) - {shard.family.encode()}:
        yield f"variants/family: expected {shard.family} alone"
