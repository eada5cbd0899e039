"""Windows without a file: closed loops of the same plants, simulated as they are needed."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from lqrlab.dataset import shard_contents, trajectories, windows
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import plan
from lqrlab.dataset.sources.protocol import BatchSpec, Source
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.variant_table import Columns
from lqrlab.dataset.windows import Windows, WindowSet
from lqrlab.simulation import Problem


class DrawnData(Dataset):
    """A data set without files: the variants that :func:`lqrlab.dataset.generate` would write, in memory."""

    @classmethod
    def of(cls, config: DataConfig) -> "DrawnData":
        """Draw and design."""
        config.check_registered()
        drawn = cls(Path("simulated"), config, {})
        drawn.record["shards"] = [
            {"family": shard.family, "variants": len(table["dt"])} for shard, table in zip(plan(config), drawn.tables)
        ]
        return drawn

    @functools.cached_property
    def tables(self) -> tuple[Columns, ...]:
        """Group ``variants`` of each file that there would be."""
        with jax.enable_x64(True):
            return tuple(
                shard_contents.columns(self.config, shard, trajectories.drawn(self.config, shard)[: shard.count])
                for shard in plan(self.config)
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Family:
    """The plants of one family in a split: rows of the table, their problem, and the number of loops in a round."""

    rows: Int[np.ndarray, " v"]
    problem: Problem
    loops: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedSource(Source):
    """Closed loops of plants drawn at random from the split: a round of new ones after all windows of the last.

    An epoch has as many windows as that of a data set with this config.

    Attributes:
        families: of the split.
    """

    families: tuple[_Family, ...]

    @property
    def loops(self) -> int:
        """Simulated in a round."""
        return sum(family.loops for family in self.families)

    @property
    def shuffling(self) -> dict[str, str | int]:
        """See :class:`Source`."""
        return {"shuffling": "rounds", "loops": self.loops}

    @property
    def num_positions(self) -> int:
        """See :class:`Source`; here it is rounds that are numbered."""
        return 2**32 * self.loops * self.data.config.num_steps

    def _gather(self, first: int, count: int) -> Windows:
        """See :class:`Source`; windows may end at any step of a loop."""
        parts, per_round = [], self.loops * self.data.config.num_steps
        while count:
            number, start = divmod(first, per_round)
            take = min(count, per_round - start)
            at, key, seed = (np.uint32(i) for i in (start, number, self.spec.seed))
            parts.append(windows.shuffled(self._round(number), at, key, take, seed))
            first, count = first + take, count - take
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *parts)

    def of_split(self, split: str) -> Source:
        """See :class:`Source`."""
        return simulated_source(self.data, dataclasses.replace(self.spec, split=split), loops=self.loops)

    @functools.cached_property
    def _round(self) -> Callable[[int], WindowSet]:
        config = dataclasses.replace(self.data.config, keep_every=1)  # windows may end at any step of a loop
        simulate = functools.partial(_simulate, config, self.spec, self.families)
        return functools.lru_cache(2)(simulate)  # a batch may need two


def _simulate(config: DataConfig, spec: BatchSpec, families: tuple[_Family, ...], number: int) -> WindowSet:
    """The loops of a round; one that is not kept gives its place to one that is."""
    total = sum(family.loops for family in families)
    rows = windows.zeros(total, spec.window, config.num_steps)
    variant, stays, at = np.empty(total, np.int32), np.empty(total, bool), 0
    key = jax.random.key(spec.seed, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, number), spec.part[0])
    with jax.enable_x64(True), jax.default_device(spec.device), np.errstate(over="ignore", invalid="ignore"):
        for k, family in enumerate(families):
            here = slice(at, at + family.loops)
            of, stays[here] = _simulate_family(config, family, jax.random.fold_in(key, k), rows[here], spec.window)
            variant[here], at = family.rows[of], here.stop
    if not stays.any():
        raise ValueError("config: all loops of a round diverge; take a smaller gain_error or less noise")
    if not stays.all():
        good = np.resize(np.flatnonzero(stays), total)
        rows, variant = rows[good], variant[good]
    signals, of = jax.device_put((rows, variant), spec.device)
    return WindowSet(signals, of, spec.window, config.num_steps)


def _simulate_family(
    config: DataConfig, family: _Family, key: PRNGKeyArray, rows: windows.Rows, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fill rows with loops of plants drawn at random: which plants ``[loops]``, and which of the loops are kept."""
    pick, begin, error, noise = jax.random.split(key, 4)
    of = np.asarray(jax.random.randint(pick, (family.loops,), 0, len(family.rows)))
    problem = family.problem[of]
    x0 = trajectories.initial_states(problem, begin, 1)
    runs = trajectories.simulate(config, problem, x0, noise, gain_key=error)
    kept, _ = trajectories.kept(config, problem, runs)
    windows.put(rows, window, runs["states"][:, 0], runs["controls"][:, 0], problem.coordinates)
    return of, kept[:, 0]


def simulated_source(data: Dataset | DataConfig, spec: BatchSpec, *, loops: int) -> SimulatedSource:
    """Draw and design the plants; see :func:`lqrlab.dataset.source`."""
    config = data if isinstance(data, DataConfig) else data.config
    if config.controller != "lqr":
        raise ValueError(
            f"data: its loops are run by the policy {config.controller!r}, which a simulated source does not have; "
            "read a data set made with it"
        )
    drawn = data if isinstance(data, DrawnData) else DrawnData.of(config)
    total = len(drawn.rows(spec.split))
    if not total:
        raise ValueError(f"split: the config has no variant in {spec.split!r}")
    wanted = max(loops, -(-spec.batch_size // config.num_steps))
    families = []
    for name in config.families:
        rows = drawn.rows(spec.split, name)
        if len(rows):
            with jax.enable_x64(True):
                problem = trajectories.posed(config, drawn.plants(spec.split, name))
            families.append(_Family(rows, problem, -(-wanted * len(rows) // total)))
    return SimulatedSource(
        data=drawn,
        spec=spec,
        table=jax.device_put(drawn.table(), spec.device),
        num_windows=max(total * config.trajectories * config.kept_steps // spec.part[1], 1),
        families=tuple(families),
    )
