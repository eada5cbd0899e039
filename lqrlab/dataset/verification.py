"""Verification that a data set on disk is what was made: bytes, counts, splits, consistency of the numbers."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lqrlab.compute import checks
from lqrlab.dataset import consistency, layout, manifest, shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import Shard
from lqrlab.dataset.manifest import Record
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


def examine(file: Path, config: DataConfig, shard: Shard, listed: Record | None = None) -> tuple[Record, float | None]:
    """Read a file and check all of it; its entry of the manifest, and its :attr:`Report.worst`.

    Args:
        file: anything.
        config: of the data set.
        shard: the place of the file in it.
        listed: its entry of the manifest, if there is one already.

    Raises:
        BadFile: with all that is wrong, in words.
    """
    try:
        content, worst = shards.read(file), None
        entry = manifest.record(file, content)
        known = listed or entry
        wrong = list(layout.changed(entry["arrays"], known["arrays"])) or list(manifest.faults(entry, config))
        wrong = wrong or [*_misplaced(content, config, shard), *_miscounted(content, config, shard)]
        other = (key for key in entry if entry[key] != known[key])
        wrong = wrong or [f"{key} is not what the manifest says it is" for key in other]
        if not wrong and config.linear and not config.noise:
            with np.errstate(all="ignore"):  # numbers out of any range are found as such
                worst, wrong = consistency.check(content.arrays, config)
    except BadFile:
        raise
    except Exception as error:  # of what a foreign file may hold there is no end
        wrong = [f"cannot be checked: {error!r:.300}"]
    if wrong:
        raise BadFile(file, "; ".join(wrong))
    return entry, worst


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
    good, listed = [], record["shards"]
    files = zip(layout.plan(config), listed, manifest.looked_over(folder, listed))
    for done, (shard, entry, (file, why)) in enumerate(files):
        if progress:
            progress(done, len(listed), shard.name)
        try:
            if why:
                raise BadFile(file, why)
            good.append(examine(file, config, shard, entry))
        except BadFile as error:
            problems.append((error.path, error.why))
    variants, trajectories = (sum(entry[key] for entry, _ in good) for key in ("variants", "trajectories"))
    worst = max((error for _, error in good if error is not None), default=None)
    return Report(folder, tuple(problems), variants, trajectories, worst, config.segmented)


def _strangers(folder: Path, config: DataConfig) -> Iterator[tuple[Path, str]]:
    """Files that look like those of the data set; many are counted, not listed."""
    names = {shard.name for shard in layout.plan(config)}
    found = sorted(file for file in folder.glob("*.h5") if file.name not in names)
    for file in found[:_SHOWN]:
        yield file, "is not part of the data set"
    if len(found) > _SHOWN:
        yield folder, f"{len(found) - _SHOWN} more files are not part of the data set"


def _misplaced(content: shards.Content, config: DataConfig, shard: Shard) -> Iterator[str]:
    """Errors in the place of a file: its config, family and first variant; numbers that are none."""
    about = content.attributes
    if not config.is_written(about.get("config")):
        yield "was made from another config than that of the data set"
    elif about.get("family") != shard.family or about.get("first_variant") != shard.first:
        found = f"{about.get('family')!r:.100} from variant {about.get('first_variant')!r:.100} on"
        yield f"expected {shard.family} from variant {shard.first} on, but found {found}"
    for name, array in content.arrays.items():
        if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
            yield f"{name} has numbers that are not finite"


def _miscounted(content: shards.Content, config: DataConfig, shard: Shard) -> Iterator[str]:
    """Errors in the numbers of a file's variants and trajectories, and in those left out."""
    no_design, *no_loop = (content.attributes[f"left_out_{reason}"] for reason in layout.REASONS)
    arrays, rows = content.arrays, len(config.starts)
    number, end = arrays["variants/variant"], shard.first + shard.count
    if len(number) + no_design != shard.count:
        yield f"has {len(number)} variants and left out {no_design}, of {shard.count}"
    if len(np.unique(number)) < len(number) or not np.all((number >= shard.first) & (number < end)):
        yield f"variants/variant: expected each of {shard.first} to {end - 1} at most once"
    elif not np.array_equal(arrays["variants/split"], layout.splits(config, shard.family)[number]):
        yield "variants/split: a variant is in another split than the seed puts it in"
    if set(arrays["variants/family"].tolist()) - {shard.family.encode()}:
        yield f"variants/family: expected {shard.family} alone"
    of = arrays["trajectories/variant"]
    whole, rest = divmod(len(of), rows)
    if rest or whole + sum(no_loop) != len(number) * config.trajectories:
        yield (
            f"has {len(of) / rows:g} trajectories and left out {sum(no_loop)}, of {len(number) * config.trajectories}"
            + (f", each in {rows} rows" if config.segmented else "")
        )
    elif config.segmented and not np.array_equal(arrays["trajectories/start"], np.tile(config.starts, whole)):
        yield f"trajectories/start: expected {', '.join(map(str, config.starts))} of each trajectory in turn"
    if not np.all((of >= 0) & (of < len(number))):
        yield "trajectories/variant: expected rows of the file's variants"
