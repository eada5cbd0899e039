"""What compiling the train step buys, and the transformer beside PyTorch's: same weights, same batch, one process."""

import contextlib
import dataclasses
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import dataset, learning
from lqrlab.benchmarks.riccati import Row, _row
from lqrlab.compute import Backend
from lqrlab.learning import ModelConfig, TrainConfig, batches, models, programs
from lqrlab.learning.placement import Placement

LARGE = ModelConfig(window=32, width=128, depth=4, heads=4, description=False)
SMALL = dataclasses.replace(LARGE, width=32, depth=2)
SMALLEST = ModelConfig(kind="gain", window=1, hidden=16)
KINDS = ("gain", "matrix", "mlp", "recurrent", "transformer")
_LARGE = 10_000  # windows times channels: from there on a dispatch of several steps saves nothing
DISPATCH = 100  # steps that the smallest model takes in one program


def _train(batch: int) -> TrainConfig:
    return TrainConfig(batch_size=batch, plants=min(batch, 64), closed_loop=0.0)


@contextlib.contextmanager
def _data() -> Iterator[dataset.Dataset]:
    config = dataset.DataConfig(
        families=("cart_pole", "quadrotor"), held_out=(), variants=8, trajectories=8, num_steps=100
    )
    with tempfile.TemporaryDirectory() as folder:
        yield dataset.generate(config, Path(folder) / "set")


@dataclasses.dataclass
class _Task:
    """A model, a batch, and a train step that has not been compiled."""

    graph: Any
    state: learning.TrainState
    train_batch: learning.TrainBatch
    step: Callable[[Any, Any], tuple[Any, Any]]

    def runner(self, fn: Callable, **options: Any) -> Callable[[], Any]:
        """A call that goes on from where the last one ended, and is waited for."""
        kept = [jax.tree.map(jnp.copy, self.state)]

        def run() -> None:
            kept[0], _ = fn(kept[0], self.train_batch)
            jax.block_until_ready(kept[0])

        return run

    def compiled(self, steps: int = 1) -> Callable[[], Any]:
        """``steps`` of it in one program."""

        def many(state: Any, train_batch: Any) -> Any:
            return jax.lax.scan(lambda state, _: self.step(state, train_batch), state, length=steps)

        return self.runner(jax.jit(self.step if steps == 1 else many, donate_argnums=0))


def _task(data: dataset.Dataset, model: ModelConfig, batch: int) -> _Task:
    config = _train(batch)
    source = dataset.source(data, kind="resident", batch_size=batch, window=model.window)
    train_batch = batches.train_batch(source.table, source.windows(0, batch), 0, jnp.asarray(0))
    graph, params = models.split(models.build(model))
    rng = np.random.default_rng(0)  # a head starts from zero, and would hide all that is before it
    params = {k: a + jnp.asarray(0.05 * rng.normal(size=a.shape), a.dtype) for k, a in params.items()}
    step = learning.train_step(learning.objective(graph, config), learning.optimizer(config))
    return _Task(graph, learning.training_step.initial(params, config), train_batch, step)


def _timed(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def _race(contenders: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Least time [s] of each, their calls in turn, so that what else the machine does meets them all alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, fn in contenders.items():
            times[name].append(_timed(fn))
    return {name: min(found) for name, found in times.items()}


def bench_train(*, repeats: int = 10) -> list[Row]:
    """Measure the learning room on this machine.

    Args:
        repeats: the least time of so many steps counts; more for small ones.

    Returns:
        One :class:`Row` a figure. PyTorch's are there if it can be imported.
    """
    with _data() as data:
        rows = _eager(data, repeats)
        rows += _transformer(data, LARGE, 256, repeats, "transformer d=128", 1.05)
        rows += _transformer(data, SMALL, 32, 20 * repeats, "transformer d=32", 1.3)
        return rows + _loop(data, repeats)


def _eager(data: dataset.Dataset, repeats: int) -> list[Row]:
    """Each model's step compiled, and run operation by operation."""
    rows = []
    for kind in KINDS:
        task = _task(data, ModelConfig(kind=kind, window=1 if kind in ("gain", "matrix") else 8), 32)
        run, eager = task.compiled(), task.runner(task.step)
        first, second = _timed(run), _timed(run)
        _timed(eager)  # each operation is compiled once
        found = _race({"compiled": run, "eager": eager}, max(3, repeats // 3))
        sustained = _race({"compiled": run}, 5 * repeats)["compiled"]
        rows += [
            _row(f"{kind}: first step", first, "s"),
            _row(f"{kind}: second step", 1e3 * second, "ms"),
            _row(f"{kind}: sustained", 1e3 * sustained, "ms"),
            _row(f"{kind}: eager", 1e3 * found["eager"], "ms"),
            _row(f"{kind}: compiled over eager", found["eager"] / sustained, "×"),
        ]
    task = _task(data, SMALLEST, 32)
    run, eager = task.compiled(DISPATCH), task.runner(task.step)
    _timed(run), _timed(eager)
    found = _race({"compiled": run, "eager": eager}, repeats)
    step = found["compiled"] / DISPATCH
    return [
        *rows,
        _row(f"smallest (gain, 16 hidden): a step, {DISPATCH} a dispatch", 1e6 * step, "µs"),
        _row("smallest: compiled over eager", found["eager"] / step, "×", 250),
    ]


def flops(model: ModelConfig, batch: int) -> float:
    """Of the matrix products of a train step: two a weight and token forward, twice that back."""
    width, window = model.width, model.window
    ends = (2 * 18 + 6 * 12) * width
    return 6.0 * batch * window * (ends + model.depth * (12 * width**2 + 2 * window * width))


def _gemm_peak(repeats: int, size: int = 2048) -> float:
    """Flop/s of a float32 product of matrices."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    best = _race({"": lambda: jax.block_until_ready(product(a, a))}, repeats + 1)[""]
    return 2 * size**3 / best


@contextlib.contextmanager
def _cache(folder: str) -> Iterator[None]:
    """An own, empty cache of compiled programs."""
    from jax.experimental.compilation_cache import compilation_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (folder, 0.0)):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in zip(names, before):
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _transformer(
    data: dataset.Dataset, model: ModelConfig, batch: int, repeats: int, name: str, target: float
) -> list[Row]:
    task = _task(data, model, batch)
    with tempfile.TemporaryDirectory() as folder, _cache(folder):
        cold = _timed(task.compiled())
        jax.clear_caches()
        warm = _timed(task.compiled())
    several = TrainConfig().steps_per_dispatch if batch * model.width < _LARGE else 1
    contenders = {"ours": task.compiled()}
    if several > 1:
        contenders[f"ours, {several} a dispatch"] = task.compiled(several)
    rows = [
        _row(f"{name}: first step, compilation included", cold, "s", 10, least=False),
        _row(f"{name}: first step, cache warm", warm, "s", 3, least=False),
    ]
    if importlib.util.find_spec("torch") is not None:
        from lqrlab.benchmarks import torch_transformer

        b, d = task.train_batch.batch, task.train_batch.plants.description
        arrays = {
            "x": b.x,
            "u": b.u,
            "time_mask": b.time_mask,
            "target": b.target,
            "weight": task.train_batch.weight,
        }
        arrays |= {"state_mask": d.state_mask.astype(jnp.float32), "input_mask": b.input_mask}
        theirs, *steps = torch_transformer.contender(
            model, _train(batch), task.state.params, {k: np.asarray(a) for k, a in arrays.items()}
        )
        net = models.merge(task.graph, task.state.params)
        predictions = np.asarray(net(b.x, b.u, b.time_mask, net.encode(d)))
        gap = np.abs(theirs - predictions).max() / np.abs(predictions).max()
        rows.append(_row(f"{name}: predictions, PyTorch's against ours", gap, "relative", 1e-5, least=False))
        contenders |= dict(zip(("torch eager", "torch.compile"), steps))
    for run in contenders.values():
        _timed(run), _timed(run)
    found = {who: t / (several if "dispatch" in who else 1) for who, t in _race(contenders, repeats).items()}
    rows += [_row(f"{name}: a step, {who}", 1e3 * t, "ms") for who, t in found.items()]
    for us in list(contenders)[: 1 + (several > 1)]:
        for them, goal in (("torch eager", None), ("torch.compile", target)):
            if them in found:
                rows.append(_row(f"{name}: {us}, over {them}", found[them] / found[us], "×", goal))
    two = _two_devices(model, batch, repeats)
    if two is not None:
        rows.append(_row(f"{name}: a step, two virtual devices", 1e3 * two, "ms"))
    if several == 1:
        peak = _gemm_peak(10)
        rows.append(_row("float32 product of matrices", peak / 1e9, "Gflop/s"))
        for where, seconds in (("", found["ours"]), (", two virtual devices", two)):
            if seconds is not None:
                share = 100 * flops(model, batch) / seconds / peak
                rows.append(_row(f"{name}: share of that{where}", share, "%", 60))
    return rows


_TWO = """
import sys
from lqrlab import compute
from lqrlab.benchmarks import training
compute.setup()
print(training.shared_out(compute.Backend(mesh="data=2"), *sys.argv[1:]))
"""


def _two_devices(model: ModelConfig, batch: int, repeats: int) -> float | None:
    """Time [s] of a step shared out over two virtual devices, in a process of its own; None if that fails."""
    if jax.default_backend() != "cpu":
        return None
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-c", _TWO, model.to_json(), str(batch), str(repeats)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": flags}, check=False
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def shared_out(backend: Backend, model: str, batch: str, repeats: str) -> float:
    """Least time [s] of a step over the devices of ``backend``; arguments as on a command line."""
    config, mesh = ModelConfig.from_json(model), backend.jax_mesh
    assert mesh is not None
    with _data() as data:
        task = _task(data, config, int(batch))
        place = [jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",))]
        state = jax.device_put(task.state, place[0])
        train_batch = jax.device_put(task.train_batch, place[1])
        run = dataclasses.replace(task, state=state, train_batch=train_batch).compiled()
        _timed(run), _timed(run)
        return _race({"": run}, int(repeats))[""]


def _loop(data: dataset.Dataset, repeats: int) -> list[Row]:
    """What :func:`lqrlab.learning.fit` adds to its own compiled steps."""
    every, reports = 100, max(3, repeats // 2)
    config = dataclasses.replace(
        _train(32), num_steps=every * reports, report_every=every, checkpoint_every=every * reports
    )
    graph, params = models.split(models.build(SMALL))
    source = dataset.source(data, kind="resident", batch_size=32, window=SMALL.window)
    recipe = programs.Recipe(graph, SMALL, config, Backend(), data.config.excitation)
    mixture, count = batches.Mixture.of(source, config), config.steps_per_dispatch
    with Backend().active(), tempfile.TemporaryDirectory() as folder:
        kept = [Placement(Backend()).put_state(learning.training_step.initial(params, config))]

        def bare() -> None:
            for number in range(every // count):
                windows = mixture.windows(number * count, count, config.seed)
                kept[0], metrics = programs.run_steps(recipe, kept[0], windows, mixture.table, np.uint32(0))
            jax.block_until_ready((kept[0], metrics))

        bare()
        fit = learning.fit(source, SMALL, config, folder)
        own = min(row["seconds"] for row in fit.metrics[1:])
        alone = _race({"": bare}, reports)[""]
    return [_row("loop around the steps adds", 100 * (own / alone - 1), "%", 2, least=False)]
