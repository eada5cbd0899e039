"""How fast data is made: closed loops, writing against raw files, and the sources that feed a learner."""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.closed_loops import simulation_rows
from benchmarks.loading import bench_loading
from benchmarks.measurement import Row, measure, row
from lqrlab import dataset, systems
from lqrlab.dataset.contents import make
from lqrlab.dataset.layout import plan


def bench_data(*, trajectories: int = 20_000, repeats: int = 5) -> list[Row]:
    """Measure closed loops (``trajectories`` at once), generation and sources; the least time of ``repeats`` counts."""
    return simulation_rows(trajectories, repeats) + _files(repeats) + bench_loading(repeats=repeats)


def bench_regeneration(families: int = 50, variants: int = 50, trajectories: int = 500) -> list[Row]:
    """Compute a data set of a hundred million windows, shard by shard, and write nothing.

    Trajectories of 2500 steps, all of them simulated; of every 31 segments of 40 steps one is kept, two of each
    trajectory, and a window ends at each step of a segment: 50 × 50 × 500 × 80 windows. What a family's first shard
    takes longer than its second counts as compilation.
    """
    config = dataset.DataConfig(
        families=tuple(systems.names()[:families]),
        held_out=(),
        variants=variants,
        trajectories=trajectories,
        num_steps=2500,
        keep_every=31,
        segment_length=40,
        variants_per_shard=max(variants // 10, 1),
    )
    times: dict[str, list[float]] = {}
    kept = 0
    for shard in plan(config):
        begin = time.perf_counter()
        kept += len(make(config, shard).arrays["trajectories/cost"])
        times.setdefault(shard.family, []).append(time.perf_counter() - begin)
    whole = sum(map(sum, times.values()))
    compiled = sum(max(each[0] - each[1], 0) for each in times.values() if len(each) > 1)
    steps = len(config.families) * variants * trajectories * config.num_steps
    return [
        row("10⁸ windows' worth regenerated, first time included", whole, "s"),
        row("the same without compilation", whole - compiled, "s", 120, least=False),
        row("trajectory steps simulated for it", steps / 1e6, "million"),
        row("windows in what was kept", kept * config.row_steps / 1e6, "million"),
    ]


def _files(repeats: int) -> list[Row]:
    config = dataset.DataConfig(
        families=("cart_pole", "quadrotor"), held_out=(), variants=50, trajectories=200, num_steps=150
    )
    with tempfile.TemporaryDirectory() as place:
        folder, numbers = Path(place), iter(range(100))
        dataset.generate(config, folder / "first")
        size = sum(file.stat().st_size for file in (folder / "first").iterdir())
        block = os.urandom(size)

        def raw() -> None:
            with (folder / "raw").open("wb") as file:
                file.write(block)
                file.flush()
                os.fsync(file.fileno())

        times = measure(
            {"generate": lambda: dataset.generate(config, folder / f"{next(numbers)}"), "raw": raw}, repeats
        )
    return [
        row("generation to disk, compiled", size / times["generate"] / 1e6, "MB/s"),
        row("raw writing of the same bytes with fsync", size / times["raw"] / 1e6, "MB/s"),
        row("generation over raw writing", 100 * times["raw"] / times["generate"], "%", 60),
    ]
