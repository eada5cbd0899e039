"""How fast windows come: from the device, from memory, from the disk, and from loops that are simulated."""

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measurement import Row, last_line, measure, row
from lqrlab import dataset
from lqrlab.compute import seconds

WINDOW, BATCH = 32, 2048
TARGETS = {"resident": 2000, "memory": 2000, "streaming": 1000}
POOL = 160 << 20  # bytes; two of them, Python and JAX are within 1 GiB

_UNIT = "thousand windows/s"


def config(trajectories: int, variants: int = 60, per_shard: int = 30) -> dataset.DataConfig:
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
        data = dataset.generate(config(trajectories), Path(folder) / "data")
        rows = source_rows(data, repeats=repeats)
        fresh = dataset.source(data, kind="simulated", batch_size=BATCH, window=WINDOW)
        return [*rows, row("loader, live: simulated as they come", _speed(fresh, 2, most=100), _UNIT)]


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


def _speed(source: dataset.Source, repeats: int, most: int | None = None) -> float:
    """Thousand windows/s in an epoch, or in its first ``most`` batches."""

    def epoch() -> None:
        for batch in itertools.islice(source, most):
            jax.block_until_ready(batch)

    batches = min(len(source), most or len(source))
    return batches * source.batch_size / measure({"epoch": epoch}, repeats)["epoch"] / 1e3


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


# Larger than memory ----------------------------------------------------------------------------------------


def bench_large(gigabytes: float = 10.0) -> list[Row]:
    """Stream a data set that is larger than the memory allowed, in another process, and count its windows.

    A ``ValueError`` says so where the folder for temporary files has too little space.
    """
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free < 1.2e9 * gigabytes:
        raise ValueError(
            f"--large: needs {1.2 * gigabytes:.0f} GB of disk in {place}, which has {free / 1e9:.0f}; TMPDIR says "
            "where else"
        )
    wanted = config(max(round(gigabytes * 1e9 / 9.7e3 / 500), 1), variants=500, per_shard=5)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "data"
        taken = seconds(lambda: dataset.generate(wanted, path))
        data = dataset.open(path)
        size = sum(shard["bytes"] for shard in data.shards)
        streamed, expected = json.loads(last_line(stream, str(path))), _expected(data)
    name, once = f"{size / 1e9:.1f} GB", {key: streamed[key] for key in expected} == expected
    return [
        row(f"{name} generated", size / taken / 1e6, "MB/s"),
        row(f"{name} streamed", streamed["speed"] / 1e3, _UNIT, 1000),
        row(f"{name} streamed: most memory held", streamed["memory"] / 2**20, "MiB", 1024, least=False),
        row(f"{name} streamed: each of {expected['count']} windows once (1: yes)", once, "", 1),
    ]


_FACTORS = np.random.default_rng(0).integers(2**63, size=6, dtype=np.uint64) | np.uint64(1)


def _fingerprints(x: np.ndarray, variant: np.ndarray) -> dict[str, int]:
    """Sums over windows that do not depend on their order: their count, and two sums mod 2⁶⁴.

    Args:
        x: scaled states ``[..., 12]`` that the windows end in.
        variant: rows of their plants.
    """
    words = np.ascontiguousarray(x).view(np.uint64)
    mixed = (words * _FACTORS).sum(-1, dtype=np.uint64) ^ (variant.astype(np.uint64) << np.uint64(40))
    mixed ^= mixed >> np.uint64(29)
    prints = mixed * np.uint64(0xBF58476D1CE4E5B9)
    sums = {"sum": prints.sum(dtype=np.uint64), "squares": (prints * prints).sum(dtype=np.uint64)}
    return {"count": prints.size, **{name: int(value) for name, value in sums.items()}}


def _added(parts: Iterator[dict[str, int]]) -> dict[str, int]:
    total = {"count": 0, "sum": 0, "squares": 0}
    for part in parts:
        total = {name: (total[name] + part[name]) % 2**64 for name in total}
    return total


def _expected(data: dataset.Dataset) -> dict[str, int]:
    """The same sums over the files, by h5py alone."""

    def parts() -> Iterator[dict[str, int]]:
        first = 0
        for shard in data.shards:
            with h5py.File(data.path / shard["file"]) as file:
                variant, states = (file[f"trajectories/{name}"][...] for name in ("variant", "states"))
                scale = (1 / file["variants/scale_x"][...]).astype(np.float32)[variant]
            for part in (slice(i, i + 2000) for i in range(0, len(states), 2000)):
                ends = states[part, :-1] * scale[part, None]
                yield _fingerprints(ends, (variant[part] + first)[:, None])
            first += shard["variants"]

    return _added(parts())


def stream(path: str) -> None:
    """One epoch of streaming, in a process whose memory is counted; prints a line of JSON."""
    source = dataset.source(
        dataset.open(path), kind="streaming", batch_size=BATCH, window=WINDOW, pool_bytes=POOL
    )

    def parts() -> Iterator[dict[str, int]]:
        for number, batch in enumerate(source):
            new = slice(source.num_windows - number * BATCH)  # the last batch goes on into the next epoch
            yield _fingerprints(np.asarray(batch.signals)[new, -1, :12], np.asarray(batch.variant)[new])

    total: dict[str, int] = {}
    taken = seconds(lambda: total.update(_added(parts())))
    print(json.dumps(total | {"speed": total["count"] / taken, "memory": _most_memory()}))


def _most_memory() -> int:
    """Most bytes that this process has held; getrusage would count what its parent held when it was started."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        import resource  # which Windows lacks

        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
