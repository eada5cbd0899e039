"""Verification that a data set on disk is what was made: by its digests, and by making it again."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from lqrlab.compute import checks
from lqrlab.dataset import layout, manifest, shard_contents, shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import Shard
from lqrlab.dataset.manifest import Record
from lqrlab.dataset.shards import BadFile


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of :func:`verify`.

    Attributes:
        path: the folder.
        problems: pairs of a path and what is wrong with it, in words.
        variants, trajectories: how many were checked; of a segmented data set segments of trajectories.
        segmented: whether rows are segments of trajectories.
        again: whether all of it was made again.
    """

    path: Path
    problems: tuple[tuple[Path, str], ...]
    variants: int = 0
    trajectories: int = 0
    segmented: bool = False
    again: bool = False

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        if not self.ok:
            return "\n".join(f"{path}: {why}" for path, why in self.problems)
        rows = "segments of trajectories" if self.segmented else "trajectories"
        how = "made again bit for bit" if self.again else "by their checksums"
        return f"{self.path}: {self.variants} variants and {self.trajectories} {rows} are as they were made ({how})"


def examine(file: Path, config: DataConfig, shard: Shard, listed: Record | None = None) -> Record:
    """The manifest's entry of a file that is, by its digests, what was written there.

    Args:
        file: anything.
        config: of the data set.
        shard: the place of the file in it.
        listed: its entry of the manifest, if there is one already.

    Raises:
        BadFile: with what is wrong, in words.
    """
    try:
        content = shards.read(file)
        entry, about = manifest.record(file, content), content.attributes
        manifest.check_entry(entry, config)
        wrong = []
        if not config.is_written(about.get("config")):
            wrong.append("was made from another config than that of the data set")
        elif (about.get("family"), about.get("first_variant")) != (shard.family, shard.first):
            found = f"{about.get('family')!r:.100} from variant {about.get('first_variant')!r:.100} on"
            wrong.append(f"expected {shard.family} from variant {shard.first} on, but found {found}")
        if listed and (why := manifest.changed(entry["arrays"], listed["arrays"])):
            wrong.append(why)
        elif listed:
            wrong += [f"{key} is not what the manifest lists" for key in entry if entry[key] != listed[key]]
    except BadFile:
        raise
    except Exception as error:  # of what a foreign file may hold there is no end
        wrong = [str(error) if isinstance(error, ValueError) else f"cannot be checked: {error!r:.300}"]
    if wrong:
        raise BadFile(file, "; ".join(wrong))
    return entry


def verify(
    path: str | Path,
    *,
    again: bool = False,
    controller: object = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Compare a data set with the digests of all its arrays and attributes; whatever is there, list what is wrong.

    Args:
        path: its folder.
        again: make each file again and compare that, bit for bit; it takes as long as ``generate`` did.
        controller: with ``again``, that which was given to ``generate``, if one was.
        progress: called as ``(shards done, shards in all, file)``.

    Raises:
        ValueError: with ``again``, a family that is not registered, or a controller that the config does not name.
    """
    folder = checks.path("path", path)
    try:
        config, record = manifest.read(folder)
    except BadFile as error:
        return Report(folder, ((error.path, error.why),))
    except (OSError, ValueError) as error:  # no folder may have such a path
        return Report(folder, ((folder, f"cannot be read: {error}"),))
    if checks.flag("again", again):
        config.check_registered()
        shard_contents.check_controller(config, controller)
    names = {shard.name for shard in layout.plan(config)}
    strange = sorted(file.name for file in folder.glob("*.h5") if file.name not in names)
    problems = [(folder, f"{len(strange)} files are not of the data set: {', '.join(strange[:9])}")] if strange else []
    good, listed = [], record["shards"]
    files = zip(layout.plan(config), listed, manifest.looked_over(folder, listed))
    for done, (shard, entry, (file, why)) in enumerate(files):
        if progress:
            progress(done, len(listed), shard.name)
        try:
            if why:
                raise BadFile(file, why)
            good.append(examine(file, config, shard, entry))
            if again:
                _compare(shard_contents.make(config, shard, controller), file, entry)
        except BadFile as error:
            problems.append((error.path, error.why))
    variants, trajectories = (sum(entry[key] for entry in good) for key in ("variants", "trajectories"))
    return Report(folder, tuple(problems), variants, trajectories, config.segmented, again)


def _compare(made: shards.Content, file: Path, entry: Record) -> None:
    if why := manifest.changed(made.headers, entry["arrays"]):
        here = ", ".join(f"{name} {made.attributes[name]}" for name in ("lqrlab", "jax", "numpy", "platform"))
        raise BadFile(file, f"made again, {why}; here are {here}, and the file's attributes say what made it")
