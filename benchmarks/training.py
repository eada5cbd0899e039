"""Train steps: compiled against eager, share of the machine's arithmetic, time that fit adds."""

import contextlib
import dataclasses
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measurement import Call, Parts, Row, last_line, main, measure, row
from lqrlab import dataset, learning
from lqrlab.compute import Backend, seconds, setup
from lqrlab.learning import ModelConfig, TrainBatch, TrainConfig, TrainState, batches, models, training_step
from lqrlab.learning.training_step import initial

LARGE = ModelConfig(kind="transformer", window=32, width=128, depth=4, heads=4, description=False)
SMALL = dataclasses.replace(LARGE, width=32, depth=2)
SMALLEST = ModelConfig(kind="gain", window=1, hidden=16)
KINDS = ("gain", "matrix", "mlp", "transformer")
_LARGE = 10_000  # windows times channels: from there on a dispatch of several steps saves nothing
DISPATCH = 100  # steps that the smallest model takes in one program

Step = Callable[[TrainState, TrainBatch], tuple[TrainState, object]]


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
class StepTask:
    """A state, a batch, and a train step that has not been compiled."""

    state: TrainState
    train_batch: TrainBatch
    step: Step

    @classmethod
    def of(cls, data: dataset.Dataset, model: ModelConfig, batch: int) -> "StepTask":
        """A model's first state, a batch of the data and the step."""
        config = _train(batch)
        source = dataset.source(data, kind="resident", batch_size=batch, window=model.window)
        train_batch = batches.train_batch(source.table, source.windows(0, batch), 0, jnp.asarray(0))
        graph, params = models.split(models.build(model))
        rng = np.random.default_rng(0)  # a head starts from zero, and would hide all that is before it
        params = {k: a + jnp.asarray(0.05 * rng.normal(size=a.shape), a.dtype) for k, a in params.items()}
        step = learning.train_step(learning.objective(graph, config), learning.optimizer(config))
        return cls(initial(params, config), train_batch, step)

    def eager(self) -> Call:
        """A step operation by operation."""
        return self._runner(self.step)

    def compiled(self, steps: int = 1) -> Call:
        """``steps`` of them in one program."""

        def many(state: TrainState, train_batch: TrainBatch) -> tuple[TrainState, object]:
            return jax.lax.scan(lambda state, _: self.step(state, train_batch), state, length=steps)

        return self._runner(jax.jit(self.step if steps == 1 else many, donate_argnums=0))

    def _runner(self, step: Step) -> Call:
        """A call that goes on from the state that the last one ended in."""
        kept = [jax.tree.map(jnp.copy, self.state)]

        def run() -> TrainState:
            kept[0], _ = step(kept[0], self.train_batch)
            return kept[0]

        return run


def bench_train(kinds: Sequence[str] = KINDS, *, repeats: int = 10, transformers: bool = True) -> Iterator[Row]:
    """Measure train steps; the least time of ``repeats`` steps counts, of more for small ones.

    Args:
        kinds: of models.
        repeats: of each timing.
        transformers: whether the two transformers and the loop around the steps are measured too.
    """
    with _data() as data:
        for kind in kinds:
            yield from _kind(data, kind, repeats)
        yield from _smallest(data, repeats)
        if transformers:
            yield from _transformer(data, LARGE, 256, repeats, "transformer d=128")
            yield from _transformer(data, SMALL, 32, 20 * repeats, "transformer d=32")
            yield from _loop(data, repeats)


def _kind(data: dataset.Dataset, kind: str, repeats: int) -> list[Row]:
    """A model's step compiled, and run operation by operation."""
    config = ModelConfig(kind=kind, window=1 if kind in ("gain", "matrix") else 8, width=32, depth=2)
    task = StepTask.of(data, models.used(config), 32)
    run = task.compiled()
    first, second = seconds(run), seconds(run)
    eager = measure({"eager": task.eager()}, max(3, repeats // 3))["eager"]
    sustained = measure({"compiled": run}, 5 * repeats)["compiled"]
    return [
        row(f"{kind}: first step", first, "s"),
        row(f"{kind}: second step", 1e3 * second, "ms"),
        row(f"{kind}: sustained", 1e3 * sustained, "ms"),
        row(f"{kind}: eager", 1e3 * eager, "ms"),
        row(f"{kind}: compiled over eager", eager / sustained, "×"),
    ]


def _smallest(data: dataset.Dataset, repeats: int) -> list[Row]:
    task = StepTask.of(data, SMALLEST, 32)
    times = measure({"compiled": task.compiled(DISPATCH), "eager": task.eager()}, repeats)
    step = times["compiled"] / DISPATCH
    return [
        row(f"smallest (gain, 16 hidden): a step, {DISPATCH} a dispatch", 1e6 * step, "µs"),
        row("smallest: compiled over eager", times["eager"] / step, "×", 250),
    ]


def flops(model: ModelConfig, batch: int) -> float:
    """Operations in the matrix products of a train step: two a weight and token forward, twice that back."""
    width, window = model.width, model.window
    ends = (2 * 18 + 6 * 12) * width
    return 6.0 * batch * window * (ends + model.depth * (12 * width**2 + 2 * window * width))


def _gemm_peak(size: int = 2048) -> float:
    """Flop/s of a float32 product of matrices."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / measure({"": lambda: product(a, a)}, 10)[""]


@contextlib.contextmanager
def _cache(folder: str) -> Iterator[None]:
    """An empty cache of compiled programs."""
    from jax.experimental.compilation_cache import compilation_cache

    wanted = {"jax_compilation_cache_dir": folder, "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in wanted}

    def use(settings: dict[str, object]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    use(wanted)
    try:
        yield
    finally:
        use(before)


def _transformer(data: dataset.Dataset, model: ModelConfig, batch: int, repeats: int, name: str) -> list[Row]:
    task = StepTask.of(data, model, batch)
    with tempfile.TemporaryDirectory() as folder, _cache(folder):
        cold = seconds(task.compiled())
        jax.clear_caches()
        warm = seconds(task.compiled())
    several = TrainConfig().steps_per_dispatch if batch * model.width < _LARGE else 1
    calls = {"ours": task.compiled()}
    if several > 1:
        calls[f"ours, {several} a dispatch"] = task.compiled(several)
    steps = dict(zip(calls, (1, several)))
    times = {who: time / steps[who] for who, time in measure(calls, repeats).items()}
    two = _two_devices(model, batch, repeats)
    if two is not None:
        times["two virtual devices"] = two
    rows = [
        row(f"{name}: first step, compilation included", cold, "s", 10, least=False),
        row(f"{name}: first step, cache warm", warm, "s", 3, least=False),
        *(row(f"{name}: a step, {who}", 1e3 * time, "ms") for who, time in times.items()),
    ]
    if several == 1:
        peak = _gemm_peak()
        rows.append(row("float32 product of matrices", peak / 1e9, "Gflop/s"))
        for who, time in times.items():
            where = "" if who == "ours" else f", {who}"
            share = 100 * flops(model, batch) / time / peak
            rows.append(row(f"{name}: share of that{where}", share, "%", 60))
    return rows


def _two_devices(model: ModelConfig, batch: int, repeats: int) -> float | None:
    """Time [s] of a step shared out over two virtual devices, in another process; None if that fails."""
    if jax.default_backend() != "cpu":
        return None
    try:
        return float(last_line(shared_out, model.to_json(), str(batch), str(repeats)))
    except subprocess.CalledProcessError:
        return None


def shared_out(model: str, batch: str, repeats: str) -> None:
    """Print the least time [s] of a step shared out over two devices; arguments as on a command line."""
    setup(cpu_devices=2)
    mesh = Backend(mesh="data=2").jax_mesh
    assert mesh is not None
    with _data() as data:
        task = StepTask.of(data, ModelConfig.from_json(model), int(batch))
    whole, shared = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",)))
    state, train_batch = jax.device_put(task.state, whole), jax.device_put(task.train_batch, shared)
    print(measure({"": StepTask(state, train_batch, task.step).compiled()}, int(repeats))[""])


def _loop(data: dataset.Dataset, repeats: int) -> list[Row]:
    """The time that :func:`lqrlab.learning.fit` adds to its compiled steps."""
    steps, reports = 100, max(3, repeats // 2)
    config = dataclasses.replace(
        _train(32), num_steps=steps * reports, report_every=steps, checkpoint_every=steps * reports
    )
    graph, params = models.split(models.build(SMALL))
    source = dataset.source(data, kind="resident", batch_size=32, window=SMALL.window)
    recipe = training_step.Recipe(graph, SMALL, config, Backend())
    mixture, count = batches.Mixture.of(source, config), config.steps_per_dispatch
    with Backend().active(), tempfile.TemporaryDirectory() as folder:
        kept = [Backend().put(initial(params, config))]

        def bare() -> object:
            for number in range(steps // count):
                windows = mixture.windows(number * count, count, config.seed)
                kept[0], metrics = training_step.run_steps(recipe, kept[0], windows, mixture.table, np.uint32(0))
            return kept[0], metrics

        alone = measure({"steps": bare}, reports)["steps"]
        fit = learning.fit(source, SMALL, config, folder)
        fitted = min(metrics["seconds"] for metrics in fit.metrics[1:])
    return [row("loop around the steps adds", 100 * (fitted / alone - 1), "%", 2, least=False)]


PARTS: Parts = {"speed": (bench_train, {"kinds": ("gain",), "repeats": 1, "transformers": False})}

if __name__ == "__main__":
    main(PARTS)
