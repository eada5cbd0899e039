"""How fast windows come: from the device, from memory, from the disk, beside PyTorch's and grain's loaders."""

import importlib.util
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import dataset
from lqrlab.benchmarks import other_loaders
from lqrlab.benchmarks.riccati import Row, _best, _row

WINDOW, BATCH = 32, 2048
POOL = 160 << 20  # bytes; two of them, Python and JAX are within 1 GiB

_TORCH = "PyTorch DataLoader over h5py, 2 workers"
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


def bench_loading(*, trajectories: int = 100, repeats: int = 5, others: bool = True) -> list[Row]:
    """Loaders on a data set that fits everywhere (58 MB), one after the other.

    Args:
        trajectories: of each of 60 variants.
        repeats: the fastest epoch of so many counts.
        others: measure other libraries too, where they are installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = dataset.generate(config(trajectories), Path(folder) / "data")
        rows = source_rows(data, repeats=repeats)
        fresh = dataset.source(config(trajectories), kind="simulated", batch_size=BATCH, window=WINDOW)
        some = range(min(len(fresh), 100))
        each = _best(lambda: [jax.block_until_ready(fresh.batch(i)) for i in some], 2)
        rows.append(_row("source, simulated as they come", len(some) * BATCH / each / 1e3, _UNIT))
        if others:
            rows += _others(data, folder)
    return rows


def source_rows(data: dataset.Dataset, *, batch: int = BATCH, repeats: int = 5) -> list[Row]:
    """The three loaders on any data set, and how long a training step waits for them.

    Args:
        data: opened.
        batch: windows in a batch; less where there are too few.
        repeats: the fastest epoch of so many counts.
    """
    windows = int(np.sum(data.variants.split == "train")) * data.config.trajectories * data.config.kept_steps
    batch = max(min(batch, windows // 4), 1)
    rows = []
    for kind, target in (("resident", 2000), ("memory", 2000), ("streaming", 1000)):
        load = dataset.source(data, kind=kind, batch_size=batch, window=WINDOW)

        def epoch(load: dataset.Source = load) -> None:
            for one in load:
                jax.block_until_ready(one)

        epoch()
        rows.append(_row(f"source, {kind}", len(load) * batch / _best(epoch, repeats) / 1e3, _UNIT, target))
    for kind in ("memory", "streaming"):
        waited = _wait(data, kind, batch)
        rows.append(_row(f"a training step's wait for data, {kind}", waited, "%", 5, least=False))
    return rows


def _wait(data: dataset.Dataset, kind: str, size: int, steps: int = 60) -> float:
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
    load = dataset.source(data, kind=kind, batch_size=size, window=WINDOW)
    waited, began = 0.0, time.perf_counter()
    for number, batch in enumerate(_timed(load)):
        if number == min(5, len(load) // 2):  # compiled, and what is read ahead is there
            waited, began = -batch[1], time.perf_counter()
        params = jax.block_until_ready(step(params, batch[0]))
        waited += batch[1]
        if number == steps:
            break
    return 100 * waited / (time.perf_counter() - began)


def _timed(batches: Any) -> Any:
    """Batches, with how long each was waited for [s]."""
    source = iter(batches)
    while True:
        began = time.perf_counter()
        try:
            batch = next(source)
        except StopIteration:
            return
        yield batch, time.perf_counter() - began


def _others(data: dataset.Dataset, folder: str) -> list[Row]:
    file = max(data.path.glob("*.h5"), key=lambda p: p.stat().st_size)
    plain = Path(folder) / "plain.h5"  # as kind as can be: contiguous, without checksums
    with h5py.File(file) as source, h5py.File(plain, "w") as target:
        for name in ("states", "controls"):
            target[f"trajectories/{name}"] = source[f"trajectories/{name}"][...]
    rows = []
    for label, name, path in (
        ("grain, one element a whole batch, from memory", "grain_batch", file),
        ("grain, one element a window, from memory", "grain_window", file),
        (f"{_TORCH}, the same file", "torch", file),
        (f"{_TORCH}, contiguous copy", "torch", plain),
    ):
        speed = _contender(name, path, 8.0)
        if speed is not None:
            rows.append(_row(label, speed / 1e3, _UNIT))
    return rows


def _contender(name: str, path: Path, seconds: float) -> float | None:
    """Windows/s of another library, or None where it is not installed or fails."""
    if importlib.util.find_spec(name.partition("_")[0]) is None:
        return None
    command = [sys.executable, other_loaders.__file__, name, str(path), str(BATCH), str(WINDOW), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20 * seconds + 60, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return float(done.stdout.split()[-1])


# Larger than memory ----------------------------------------------------------------------------------------


def bench_large(gigabytes: float = 10.0, *, folder: str | Path | None = None) -> list[Row]:
    """Stream a data set that is larger than the memory allowed, in a process of its own, and count its windows.

    Args:
        gigabytes: of trajectories; as much disk is needed for some minutes.
        folder: where to; the system's folder for temporary files by default.
    """
    trajectories = max(round(gigabytes * 1e9 / 9.7e3 / 500), 1)
    wanted = config(trajectories, variants=500, per_shard=5)
    free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    if free < 1.2e9 * gigabytes:
        raise ValueError(
            f"--large: needs {1.2 * gigabytes:.0f} GB of disk in {folder or tempfile.gettempdir()}, which has "
            f"{free / 1e9:.0f}; TMPDIR says where else"
        )
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "data"
        began = time.perf_counter()
        data = dataset.generate(wanted, path)
        seconds = time.perf_counter() - began
        size = sum(shard["bytes"] for shard in data.shards)
        child = [sys.executable, "-c", f"from {__name__} import stream; stream({str(path)!r})"]
        done = subprocess.run(child, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        expected = _expected(data)
        name = f"{size / 1e9:.1f} GB"
        rows = [
            _row(f"{name} generated", size / seconds / 1e6, "MB/s"),
            _row(f"{name} streamed", found["speed"] / 1e3, _UNIT, 1000),
            _row(f"{name} streamed: most memory held", found["memory"] / 2**20, "MiB", 1024, least=False),
            _row(
                f"{name} streamed: each of {expected['count']} windows once (1: yes)",
                float({k: found[k] for k in expected} == expected),
                "",
                1,
            ),
        ]
        biggest = max(path.glob("*.h5"), key=lambda p: p.stat().st_size)
        theirs = _contender("torch", biggest, 8.0)
        if theirs is not None:
            rows.append(_row(f"{_TORCH}, a file of it", theirs / 1e3, _UNIT))
            rows.append(_row(f"{name} streamed: over PyTorch", found["speed"] / theirs, "×", 10))
    return rows


_FACTORS = np.random.default_rng(0).integers(2**63, size=6, dtype=np.uint64) | np.uint64(1)


def _fingerprints(x: np.ndarray, variant: np.ndarray) -> np.ndarray:
    """64 bits of scaled states ``[..., 12]`` and the plant's row: a window is known by the state it ends in."""
    words = np.ascontiguousarray(x).view(np.uint64)
    mixed = (words * _FACTORS).sum(-1, dtype=np.uint64) ^ (variant.astype(np.uint64) << np.uint64(40))
    mixed ^= mixed >> np.uint64(29)
    return mixed * np.uint64(0xBF58476D1CE4E5B9)


def _add(total: dict[str, int], prints: np.ndarray) -> None:
    """Take some windows into sums that do not depend on the order: their count, and two sums mod 2⁶⁴."""
    total["count"] += prints.size
    total["sum"] = (total["sum"] + int(prints.sum(dtype=np.uint64))) % 2**64
    total["squares"] = (total["squares"] + int((prints * prints).sum(dtype=np.uint64))) % 2**64


def _expected(data: dataset.Dataset) -> dict[str, int]:
    """The same sums over the files, by h5py alone."""
    total, first = {"count": 0, "sum": 0, "squares": 0}, 0
    for shard in data.shards:
        with h5py.File(data.path / shard["file"]) as file:
            variant, states = (file[f"trajectories/{name}"][...] for name in ("variant", "states"))
            scale = (1 / file["variants/scale_x"][...]).astype(np.float32)[variant]
        for i in range(0, len(states), 2000):
            part = slice(i, i + 2000)
            _add(
                total, _fingerprints(states[part, :-1] * scale[part, None], (variant[part] + first)[:, None])
            )
        first += shard["variants"]
    return total


def stream(path: str) -> None:
    """One epoch of streaming, in a process whose memory is counted; prints a line of JSON."""
    data = dataset.open(path)
    total = {"count": 0, "sum": 0, "squares": 0}
    load = dataset.source(data, kind="streaming", batch_size=BATCH, window=WINDOW, pool_bytes=POOL)
    began = time.perf_counter()
    for number, batch in enumerate(load):
        new = slice(load.num_windows - number * BATCH)  # the last batch goes on into the next epoch
        signals, variant = np.asarray(batch.signals)[new, -1, :12], np.asarray(batch.variant)[new]
        _add(total, _fingerprints(signals, variant))
    seconds = time.perf_counter() - began
    print(json.dumps(total | {"speed": total["count"] / seconds, "memory": _most_memory()}))


def _most_memory() -> int:
    """Most bytes that this process has held; getrusage would count what its parent held when it was started."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
