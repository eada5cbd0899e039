"""How fast data is made and fed: closed loops beside NumPy, writing beside raw files, loaders beside a plain copy."""

import os
import tempfile
from pathlib import Path

from lqrlab import dataset
from lqrlab.evaluation import bench_loading
from lqrlab.evaluation.bench_control import Row, _best, _row
from lqrlab.evaluation.bench_simulation import simulation_rows


def bench_data(*, trajectories: int = 20_000, repeats: int = 5) -> list[Row]:
    """Measure the data room on this machine.

    Args:
        trajectories: closed loops that are simulated at once.
        repeats: the least time of so many runs counts.

    Returns:
        One :class:`Row` a figure. Simulation counts states of one trajectory after one step, each trajectory
        with a plant of its own, all states kept; loaders count windows of 32 steps in batches of 2048.
    """
    rows = simulation_rows(trajectories, repeats)
    with tempfile.TemporaryDirectory() as folder:
        rows += _files(Path(folder), repeats)
    return rows + bench_loading.bench_loading(repeats=repeats)


def _files(folder: Path, repeats: int) -> list[Row]:
    config = dataset.DataConfig(
        families=("cart_pole", "quadrotor"), held_out=(), variants=20, trajectories=40, num_steps=150
    )
    dataset.generate(config, folder / "warm")
    size = sum(file.stat().st_size for file in (folder / "warm").iterdir())
    block = os.urandom(size)

    def raw() -> None:
        with (folder / "raw").open("wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())

    names = iter(range(100))
    made = _best(lambda: dataset.generate(config, folder / f"cold{next(names)}"), 2)
    written = _best(raw, repeats)
    return [
        _row("generation to disk, compiled", size / made / 1e6, "MB/s"),
        _row("raw writing of the same bytes with fsync", size / written / 1e6, "MB/s"),
        _row("generation over raw writing", 100 * written / made, "%", 60),
    ]
