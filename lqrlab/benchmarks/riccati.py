"""How fast the control room is, beside SciPy, slycot and contrax on the same problems in one process."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from lqrlab import control

RATIOS: dict[int, tuple[float, float, float, float]] = {
    # states: continuous over SciPy, discrete over SciPy, continuous over slycot, discrete over contrax
    2: (1500, 1000, 200, 5),
    4: (350, 250, 50, 5),
    6: (90, 80, 15, 5),
    12: (30, 25, 7, 2.5),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure: what was measured, its value and unit, what was aimed at, and whether that was reached."""

    name: str
    value: float
    unit: str
    target: float | None = None
    reached: bool | None = None


def _row(name: str, value: float, unit: str, target: float | None = None, *, least: bool = True) -> Row:
    reached = None if target is None else bool(value >= target if least else value <= target)
    return Row(name, float(value), unit, target, reached)


def problems(n: int, num: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """``num`` dense random problems (A, B, Q, R) with max(1, n/2) inputs, normal entries and Q, R > 0."""
    rng = np.random.default_rng(seed)
    m = max(1, n // 2)

    def weight(size: int) -> np.ndarray:
        L = rng.normal(size=(num, size, size))
        return L @ np.swapaxes(L, -1, -2) / size + 0.1 * np.eye(size)

    return rng.normal(size=(num, n, n)), rng.normal(size=(num, n, m)), weight(n), weight(m)


def _best(fn: Callable[[], Any], repeats: int) -> float:
    """Least wall time [s] of a few calls: what the machine can do, whoever else uses it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(fn())
        times.append(time.perf_counter() - start)
    return min(times)


def _loop(fn: Callable, args: Sequence[np.ndarray], num: int, repeats: int) -> float:
    """Time [s] a problem of a solver that takes one at a time; a problem that it fails on counts too."""

    def run() -> None:
        for i in range(num):
            try:
                fn(*(a[i] for a in args))
            except (ArithmeticError, ValueError, np.linalg.LinAlgError):
                continue

    run()
    return _best(run, repeats) / num


def _slycot() -> Callable | None:
    try:
        import slycot
    except ImportError:
        return None

    def by_schur(A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray) -> Any:
        G = B @ np.linalg.solve(R, B.T)
        return slycot.sb02md(len(A), A, (G + G.T) / 2, Q, "C")

    return by_schur


_CONTRAX = """
import sys, time, jax, numpy as np
jax.config.update("jax_enable_x64", True)
import contrax
from lqrlab.benchmarks.riccati import problems
batch = [a[:256] for a in problems(int(sys.argv[1]), int(sys.argv[3]))]
solve = jax.jit(jax.vmap(lambda A, B, Q, R: contrax.dare(A, B, Q, R).S))
best = np.inf
for _ in range(int(sys.argv[2]) + 1):
    start = time.perf_counter()
    jax.block_until_ready(solve(*batch))
    best = min(best, time.perf_counter() - start)
print(best / 256)
"""


def _contrax(n: int, repeats: int, num: int) -> float | None:
    """Time [s] a problem of contrax's batched solver; None where it is not installed or does not come back.

    In a process of its own: its batched LAPACK calls can hang two cores for good.
    """
    if importlib.util.find_spec("contrax") is None:
        return None
    command = [sys.executable, "-c", _CONTRAX, str(n), str(repeats), str(num)]
    environment = os.environ | {"PJRT_NPROC": str(max(4, os.cpu_count() or 1))}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return float(done.stdout.split()[-1])


def bench_control(
    dimensions: Sequence[int] = (2, 4, 6, 12), *, num: int = 10_000, loops: int = 200, repeats: int = 7
) -> list[Row]:
    """Measure the control room.

    Args:
        dimensions: numbers of states.
        num: problems in a batch.
        loops: problems that the one-at-a-time solvers are timed on.
        repeats: the least time of so many runs counts.

    Returns:
        One :class:`Row` a figure. First calls, with tracing and compilation, have rows of their own.
    """
    rows: list[Row] = []
    for n in dimensions:
        args = problems(n, num)
        batch = [jnp.asarray(a) for a in args]
        targets = RATIOS.get(n, (None, None, None, None))
        ours = {}
        for continuous, design, solver, target in (
            (True, control.lqr, scipy.linalg.solve_continuous_are, targets[0]),
            (False, control.dlqr, scipy.linalg.solve_discrete_are, targets[1]),
        ):
            kind = f"{'continuous' if continuous else 'discrete'} n={n}"
            rows.append(_row(f"{kind}: first call", _best(partial(design, *batch), 1), "s"))
            ours[continuous] = _best(partial(design, *batch), repeats) / num
            theirs = _loop(solver, args, loops, 3)
            rows.append(_row(f"{kind}: a problem", 1e6 * ours[continuous], "µs"))
            rows.append(_row(f"{kind}: SciPy's loop", 1e6 * theirs, "µs"))
            rows.append(_row(f"{kind}: over SciPy", theirs / ours[continuous], "×", target))
            rows += _quality(kind, design(*batch), args, continuous=continuous)
        if (schur := _slycot()) is not None:
            theirs = _loop(schur, args, loops, 3)
            rows.append(_row(f"continuous n={n}: slycot's loop", 1e6 * theirs, "µs"))
            rows.append(_row(f"continuous n={n}: over slycot", theirs / ours[True], "×", targets[2]))
        if (young := _contrax(n, repeats, num)) is not None:
            rows.append(_row(f"discrete n={n}: contrax's batch", 1e6 * young, "µs"))
            rows.append(_row(f"discrete n={n}: over contrax", young / ours[False], "×", targets[3]))
    return rows + _single(repeats)


def _quality(kind: str, found: control.LQR, args: Sequence[np.ndarray], *, continuous: bool) -> list[Row]:
    residual, good = np.asarray(found.residual), np.asarray(found.stabilizing)
    poles = np.linalg.eigvals(args[0][good] - args[1][good] @ np.asarray(found.K)[good])
    unstable = (poles.real.max(-1) >= 0) if continuous else (np.abs(poles).max(-1) >= 1)
    certified = good & (residual <= 1e-10)
    return [
        _row(f"{kind}: p99 relative residual", np.percentile(residual, 99), "1", 1e-11, least=False),
        _row(f"{kind}: certified", 100 * certified.mean(), "%"),
        _row(f"{kind}: falsely accepted", int(unstable.sum()), "problems", 0, least=False),
    ]


def _single(repeats: int) -> list[Row]:
    """What a slider feels, and what a gradient costs."""
    A, B, Q, R = (jnp.asarray(a[0]) for a in problems(4, 1))
    one = jax.jit(lambda Q: control.lqr(A, B, Q, R).K)
    many = [jnp.asarray(a) for a in problems(4, 1000)]

    def solve(*args: jax.Array) -> jax.Array:
        return jnp.sum(control.lqr(*args).K)

    solve_many, slope = jax.jit(jax.vmap(solve)), jax.jit(jax.vmap(jax.grad(solve, argnums=(0, 1, 2, 3))))
    for call in (lambda: one(Q), lambda: solve_many(*many), lambda: slope(*many)):
        jax.block_until_ready(call())
    slider = _best(lambda: one(Q), 10 * repeats)
    gradient = _best(lambda: slope(*many), repeats) / _best(lambda: solve_many(*many), repeats)
    return [
        _row("one design, compiled, n=4", 1e3 * slider, "ms", 1, least=False),
        _row("gradient over solve, n=4", gradient, "×", 4, least=False),
    ]
