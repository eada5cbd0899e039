"""Whether a data set on disk is still what was made: bytes, counts, splits, and the laws the numbers obey."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lqrlab.dataset import consistency, manifest, shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import Shard, plan, splits
from lqrlab.dataset.shards import BadFile


@dataclasses.dataclass(frozen=True)
class Report:
    """What :func:`verify` found.

    Attributes:
        path: the folder.
        problems: pairs of a path and what is wrong with it, in words.
        variants, trajectories: how many were looked at; of a thinned data set stretches of trajectories.
        worst: largest relative error against the laws of the sampled problem; at most some 1e-6 is rounding. None
            where they do not hold: nonlinear plants, or disturbances.
        thinned: whether the data set is.
    """

    path: Path
    problems: tuple[tuple[Path, str], ...]
    variants: int = 0
    trajectories: int = 0
    worst: float | None = None
    thinned: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        if self.ok:
            laws = (
                "dynamics and costs not computed again: nonlinear plants or disturbances"
                if self.worst is None
                else f"worst relative error {self.worst:.1e}"
            )
            what = "stretches of trajectories" if self.thinned else "trajectories"
            return (
                f"{self.path}: {self.variants} variants and {self.trajectories} {what} are as they were made "
                f"({laws})"
            )
        return "\n".join(f"{path}: {why}" for path, why in self.problems)


def verify(path: str | Path, *, progress: Callable[[int, int, str], None] | None = None) -> Report:
    """Check all of a data set again; raises nothing, but lists what is wrong.

    Checksums of every array and attribute; the counts of what is there and what was left out; finiteness; the
    split, made again from the config; and for linear data without disturbances, from each trajectory: the
    dynamics, the cost, and that it exceeds the optimum x0ᵀP x0 by exactly what its inputs differ from −Kx.

    Args:
        path: its folder.
        progress: called as ``(shards done, shards in all, file)``.
    """
    folder = Path(path)
    try:
        config, record = manifest.read(folder)
    except BadFile as error:
        return Report(folder, ((error.path, error.why),))
    problems: list[tuple[Path, str]] = [
        (file, "is not part of the data set")
        for file in sorted(folder.glob("*.h5"))
        if file.name not in {shard["file"] for shard in record["shards"]}
    ]
    totals = {"variants": 0, "trajectories": 0}
    worst: float | None = None
    left_out = {family: dict[str, int]() for family in config.families}
    for done, (shard, entry) in enumerate(zip(plan(config), record["shards"])):
        if progress:
            progress(done, len(record["shards"]), shard.name)
        file = folder / shard.name
        try:
            content, said = shards.read(file)
        except BadFile as error:
            problems.append((error.path, error.why))
            continue
        found = list(_bytes(content, said, entry)) or list(_counts(content, config, shard))
        if not found:
            totals["variants"] += len(content.arrays["variants/variant"])
            totals["trajectories"] += len(content.arrays["trajectories/variant"])
            for reason in manifest.REASONS:
                number = content.attributes[f"left_out_{reason}"]
                left_out[shard.family][reason] = left_out[shard.family].get(reason, 0) + number
            if config.linear and not config.noise:
                off, found = consistency.check(content.arrays, config)
                worst = max(worst or 0.0, off)
        problems += [(file, why) for why in found]
    counted = totals | {"left_out": left_out}
    listed = {key: record.get(key) for key in counted}
    if not problems and listed != counted:
        problems.append((folder, f"the manifest counts {listed}, but the files hold {counted}"))
    return Report(folder, tuple(problems), worst=worst, thinned=config.keep_every > 1, **totals)


def _bytes(content: shards.Content, said: dict[str, str], entry: dict[str, Any]) -> Iterator[str]:
    """Against the checksums in the file and in the manifest."""
    listed = {name: header["sha256"] for name, header in entry["arrays"].items()} | {"": entry["attributes"]}
    found = content.digests()
    for name in sorted(found.keys() | listed.keys()):
        what = name or "an attribute or unit"
        if name not in found:
            yield f"{what} is missing"
        elif name not in listed:
            yield f"{what} is not in the manifest"
        elif found[name] != listed[name]:
            yield f"{what} has changed since it was written: its checksum is not the manifest's"
        elif found[name] != said.get(name):
            yield f"{what} does not have the checksum that is written beside it"


def _counts(content: shards.Content, config: DataConfig, shard: Shard) -> Iterator[str]:
    """Shapes, counts, finiteness, split."""
    arrays, about = content.arrays, content.attributes
    if not config.is_written(about.get("config")):
        yield "was made from another config than the manifest's"
        return
    variants, runs = len(arrays["variants/variant"]), len(arrays["trajectories/variant"])
    n, m = arrays["variants/B"].shape[1:]
    steps = config.row_steps
    shapes = {"x0": (runs, n), "states": (runs, steps + 1, n), "controls": (runs, steps, m), "cost": (runs,)}
    if config.keep_every > 1:
        shapes["start"] = (runs,)
    for name, shape in shapes.items():
        there = arrays[f"trajectories/{name}"].shape
        if there != shape:
            yield f"trajectories/{name}: expected shape {shape}, but found {there}"
            return
    missing = [about.get(f"left_out_{reason}", -1) for reason in manifest.REASONS]
    if not all(isinstance(number, int) and number >= 0 for number in missing):
        yield "does not count what was left out"
        return
    if variants + missing[0] != shard.count:
        yield f"has {variants} variants and left out {missing[0]}, of {shard.count}"
    whole, rest = divmod(runs, len(config.starts))
    if rest or whole + sum(missing[1:]) != variants * config.trajectories:
        cut = "" if config.keep_every == 1 else f", each in {len(config.starts)} rows"
        yield (
            f"has {runs / len(config.starts):g} trajectories and left out {sum(missing[1:])}, of "
            f"{variants * config.trajectories}{cut}"
        )
    elif config.keep_every > 1 and not np.array_equal(
        arrays["trajectories/start"], np.tile(config.starts, whole)
    ):
        yield f"trajectories/start: expected {', '.join(map(str, config.starts))} of each trajectory in turn"
    of = arrays["trajectories/variant"]
    if runs and not (of.min() >= 0 and of.max() < variants):
        yield "trajectories/variant points at variants that are not there"
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
            yield f"{name} has numbers that are not finite"
    number, end = arrays["variants/variant"], shard.first + shard.count
    if len(np.unique(number)) < variants or not np.all((number >= shard.first) & (number < end)):
        yield f"variants/variant: expected each of {shard.first} to {end - 1} at most once"
    elif not np.array_equal(arrays["variants/split"], splits(config, shard.family)[number]):
        yield "variants/split: a variant is in another split than the seed puts it in"
    if set(arrays["variants/family"].tolist()) - {shard.family.encode()}:
        yield f"variants/family: expected {shard.family} alone"
