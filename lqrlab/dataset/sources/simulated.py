"""No file at all: fresh closed loops are simulated while a learner uses the last ones."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import systems
from lqrlab.dataset import trajectories, windows
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import keys, plan
from lqrlab.dataset.sources.base import BatchSpec, Source
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.trajectories import Designs
from lqrlab.dataset.windows import Windows, WindowSet


class DrawnData(Dataset):
    """A data set that is nowhere: the variants that :func:`lqrlab.dataset.generate` would write, in memory."""

    @classmethod
    def of(cls, config: DataConfig) -> "DrawnData":
        """Draw and design."""
        config.check_registered()
        drawn = cls(Path("simulated"), config, {})
        drawn.record["shards"] = [
            {"family": shard.family, "variants": len(table["dt"])}
            for shard, table in zip(plan(config), drawn.tables)
        ]
        return drawn

    @functools.cached_property
    def tables(self) -> tuple[dict[str, np.ndarray], ...]:
        """Group ``variants`` of each file that there would be."""
        size = min(self.config.variants_per_shard, self.config.variants)
        tables = []
        for shard in plan(self.config):
            with jax.enable_x64(True):
                draw, _, _ = keys(self.config, shard)
                plants = systems.sample(shard.family, key=draw, num=size, spread=self.config.spread)
                designs = trajectories.designed(plants)
                table = trajectories.variant_table(self.config, shard, designs)
            there = designs.stabilizing[: shard.count]
            tables.append({name: a[: shard.count][there] for name, a in table.items()})
        return tuple(tables)


@dataclasses.dataclass(frozen=True, eq=False)
class _Family:
    """The plants of one family in a split: rows of the table, designs, and how many loops a round has of them."""

    rows: np.ndarray
    designs: Designs
    loops: int

    def simulate(
        self, config: DataConfig, key: Array
    ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
        """Loops of plants drawn at random: which ``[loops]``, what is recorded of them, which of them are kept."""
        pick, begin, miss, noise = jax.random.split(key, 4)
        of = np.asarray(jax.random.randint(pick, (self.loops,), 0, len(self.rows)))
        designs = jax.tree.map(lambda a: a[of] if np.ndim(a) else a, self.designs)
        x0 = trajectories.initial_states(designs.plants, begin, 1, designs.coordinates)
        runs = trajectories.simulate(config, designs, x0, noise, gain_key=miss)
        kept, _ = trajectories.kept(config, designs, x0, runs)
        return of, {name: a[:, 0] for name, a in runs.items()}, kept[:, 0]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedSource(Source):
    """Windows of loops that nobody has seen before, of the plants of the data set that a config describes.

    Each round simulates new loops of randomly drawn variants and hands out their windows shuffled, each once; an
    epoch has as many windows as the data set would have.

    Attributes:
        families: the plants of the split.
    """

    families: tuple[_Family, ...]

    @property
    def per_round(self) -> int:
        """Windows of a round."""
        return sum(family.loops for family in self.families) * self.data.config.num_steps

    @property
    def order(self) -> dict[str, str | int]:
        """See :class:`Source`."""
        return {"order": "simulated", "per_round": self.per_round}

    def windows(self, first: int, count: int) -> Windows:
        """See :class:`Source`; windows may end at any step of a loop."""
        parts = []
        while count:
            number, within = divmod(first, self.per_round)
            take = min(count, self.per_round - within)
            held = self._round(number)
            parts.append(
                _shuffled(held, np.uint32(within), np.uint32(number), take, np.uint32(self.spec.seed))
            )
            first, count = first + take, count - take
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *parts)

    def of_split(self, split: str) -> Source:
        """See :class:`Source`."""
        loops = sum(family.loops for family in self.families)
        return simulated(self.data, dataclasses.replace(self.spec, split=split), loops=loops)

    @functools.lru_cache(maxsize=2)  # noqa: B019 (sources are few, and live as long as they are used)
    def _round(self, number: int) -> WindowSet:
        config, window = self.data.config, self.window
        total = sum(family.loops for family in self.families)
        signals = windows.zeros(total, window, config.num_steps)
        variant, stays, at = np.empty(total, np.int32), np.empty(total, bool), 0
        for k, family in enumerate(self.families):
            here = slice(at, at + family.loops)
            with (
                jax.enable_x64(True),
                jax.default_device(self.spec.device),
                np.errstate(over="ignore", invalid="ignore"),
            ):
                key = jax.random.fold_in(self._key(number), k)
                of, runs, stays[here] = family.simulate(config, key)
                coordinates = family.designs.coordinates[of]
                windows.put(signals, here, window, runs["states"], runs["controls"], coordinates)
            variant[here], at = family.rows[of], here.stop
        if not stays.any():
            raise ValueError("config: all loops of a round diverge; take a smaller gain_error or less noise")
        if not stays.all():  # a loop that is not kept gives its place to one that is
            good = np.resize(np.flatnonzero(stays), total)
            signals, variant = signals[good], variant[good]
        signals, of = jax.device_put((signals, variant), self.spec.device)
        return WindowSet(signals, of, window, config.num_steps)

    def _key(self, number: int) -> Array:
        key = jax.random.key(self.spec.seed, impl="threefry2x32")
        return jax.random.fold_in(jax.random.fold_in(key, number), self.spec.part[0])


@jax.jit(static_argnames="count")
def _shuffled(held: WindowSet, first: Array, epoch: Array, count: int, seed: Array) -> Windows:
    return held.shuffled(first, epoch, count, seed)


def simulated(data: Dataset | DataConfig, spec: BatchSpec, *, loops: int) -> SimulatedSource:
    """Draw and design the plants; see :func:`lqrlab.dataset.source`."""
    # nothing is cut into segments: windows may end at any step of a loop
    config = dataclasses.replace(data if isinstance(data, DataConfig) else data.config, keep_every=1)
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
                designs = trajectories.designed(drawn.plants(spec.split, name))
            families.append(_Family(rows, designs, -(-wanted * len(rows) // total)))
    return SimulatedSource(
        data=drawn,
        spec=spec,
        table=jax.device_put(drawn.table(), spec.device),
        num_windows=max(total * config.trajectories * config.kept_steps // spec.part[1], 1),
        families=tuple(families),
    )
