"""Generation against raw files, and the sources that feed a learner: from the device, memory, disk."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measurement import Parts, Row, last_line, main, measure, row
from lqrlab import dataset, systems
from lqrlab.compute import seconds
from lqrlab.dataset.manifest import plan
from lqrlab.dataset.trajectories import make

WINDOW, BATCH = 32, 2048
TARGETS = {"resident": 2000, "memory": 2000, "streaming": 1000}
POOL = 160 << 20  # bytes; two of them, Python and JAX are within 1 GiB

_UNIT = "thousand windows/s"


def bench_data(*, trajectories: int = 100, repeats: int = 5) -> list[Row]:
    """Measure generation and all sources; the least time of ``repeats`` counts."""
    return _files(repeats) + bench_loading(trajectories=trajectories, repeats=repeats)


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


def quadrotors(trajectories: int, variants: int = 60, per_shard: int = 30) -> dataset.DataConfig:
    """Quadrotors: 12 states and 4 inputs are 16 channels."""
    return dataset.DataConfig(
        families=("quadrotor",),
        held_out=(),
        variants=variants,
        validation=0.0,
        trajectories=trajectories,
        num_steps=150,
        variants_per_shard=per_shard,
    )


def bench_loading(*, trajectories: int = 100, repeats: int = 5) -> list[Row]:
    """All sources on a data set of 60 variants that fits everywhere (58 MB), one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        data = dataset.generate(quadrotors(trajectories), Path(folder) / "data")
        return source_rows(data, repeats=repeats)


def source_rows(data: dataset.Dataset, *, batch: int = BATCH, repeats: int = 5) -> list[Row]:
    """The three sources on any data set, and how long a training step waits for them.

    Args:
        data: opened.
        batch: windows in a batch; less where there are too few.
        repeats: the fastest epoch of so many counts.
    """
    windows = int(np.sum(data.variants.split == "train")) * data.config.trajectories * data.config.kept_steps
    batch = max(min(batch, windows // 4), 1)
    rows = []
    for kind, target in TARGETS.items():
        source = dataset.source(data, kind=kind, batch_size=batch, window=WINDOW)
        rows.append(row(f"loader, {kind}", _speed(source, repeats), _UNIT, target))
    for kind in ("memory", "streaming"):
        waited = _wait(dataset.source(data, kind=kind, batch_size=batch, window=WINDOW))
        rows.append(row(f"a training step's wait for data, {kind}", waited, "%", 5, least=False))
    return rows


def _speed(source: dataset.Source, repeats: int) -> float:
    """Thousand windows/s in an epoch."""

    def epoch() -> None:
        for batch in source:
            jax.block_until_ready(batch)

    return len(source) * source.batch_size / measure({"epoch": epoch}, repeats)["epoch"] / 1e3


def _wait(source: dataset.Source, steps: int = 60) -> float:
    """Share of its time [%] that a training loop waits for its next batch."""

    def loss(params: list[jax.Array], batch: dataset.Batch) -> jax.Array:
        y = batch.signals.reshape(len(batch.variant), -1)
        for W in params[:-1]:
            y = jnp.tanh(y @ W)
        return jnp.mean((y @ params[-1] - batch.target[:, -1]) ** 2)

    @jax.jit
    def step(params: list[jax.Array], batch: dataset.Batch) -> list[jax.Array]:
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params, batch))

    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((WINDOW * 18, 128), (128, 128), (128, 6))
    params = [0.05 * jax.random.normal(key, size, jnp.float32) for key, size in zip(keys, sizes)]
    count = min(steps, len(source))
    first = min(5, count // 2)  # from then on it is compiled, and what is read ahead is there
    waited, whole, batches = 0.0, 0.0, iter(source)
    for number in range(count):
        begin = time.perf_counter()
        batch = next(batches)
        ready = time.perf_counter()
        params = jax.block_until_ready(step(params, batch))
        if number >= first:
            waited, whole = waited + ready - begin, whole + time.perf_counter() - begin
    return 100 * waited / whole


def bench_large(gigabytes: float = 10.0) -> list[Row]:
    """Stream a data set that is larger than the memory allowed, in another process, and see what memory it holds.

    A ``ValueError`` says so where the folder for temporary files has too little space.
    """
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free < 1.2e9 * gigabytes:
        raise ValueError(
            f"large: needs {1.2 * gigabytes:.0f} GB of disk in {place}, which has {free / 1e9:.0f}; TMPDIR says "
            "where else"
        )
    wanted = quadrotors(max(round(gigabytes * 1e9 / 9.7e3 / 500), 1), variants=500, per_shard=5)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "data"
        taken = seconds(lambda: dataset.generate(wanted, path))
        data = dataset.open(path)
        size = sum(shard["bytes"] for shard in data.shards)
        streamed = json.loads(last_line(stream, str(path)))
    name = f"{size / 1e9:.1f} GB"
    return [
        row(f"{name} generated", size / taken / 1e6, "MB/s"),
        row(f"{name} streamed", streamed["speed"] / 1e3, _UNIT, 1000),
        row(f"{name} streamed: most memory held", streamed["memory"] / 2**20, "MiB", 1024, least=False),
        row(f"{name} streamed: windows", streamed["windows"] / 1e6, "million"),
    ]


def stream(path: str) -> None:
    """One epoch of streaming, in a process whose memory is counted; prints a line of JSON."""
    source = dataset.source(dataset.open(path), kind="streaming", batch_size=BATCH, window=WINDOW, pool_bytes=POOL)

    def epoch() -> None:
        for batch in source:
            jax.block_until_ready(batch)

    speed = source.num_windows / seconds(epoch)
    print(json.dumps({"speed": speed, "windows": source.num_windows, "memory": _most_memory()}))


def _most_memory() -> int:
    """Most bytes that this process has held; getrusage would count what its parent held when it was started."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        import resource  # which Windows lacks

        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PARTS: Parts = {
    "speed": (bench_data, {"trajectories": 2, "repeats": 1}),
    "loaders": (bench_loading, {"trajectories": 2, "repeats": 1}),
    "regenerate": (bench_regeneration, {"families": 1, "variants": 2, "trajectories": 2}),
    "large": (bench_large, {"gigabytes": 0.01}),
}

if __name__ == "__main__":
    main(PARTS)
