"""Real-time loops on this machine: how late samples are, and how many deadlines are missed.

Figures count on two quiet cores only; the load of the machine is among them.
"""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.measurement import Parts, Row, main, row
from lqrlab import control, deployment, systems
from lqrlab.simulation import Problem


def _loop(plant: str, rate: float, seconds: float, jitter: float | None, *, in_c: bool) -> Iterator[Row]:
    problem = Problem.of(systems.make(plant), dt=1 / rate)
    n, p = problem.n, problem.n // 2
    noise = 1e-6 * np.eye(n), 1e-6 * np.eye(p)
    design: Any = control.lqg(
        problem.A, problem.B, np.eye(n)[:p], problem.Q, problem.R, *noise, problem.N, discrete=True
    )
    with tempfile.TemporaryDirectory() as folder:
        if in_c:
            design = deployment.load_c(deployment.to_c(design, problem, folder))
        run = deployment.realtime(design, problem, seconds=seconds, x0=0.02 * np.ones(n))
    found = run.summary()
    named = f"LQG of {plant} at {rate:g} Hz in {'C' if in_c else 'JAX'}"
    yield row(f"{named}: deadlines missed in {seconds:g} s", found["misses"], "ticks", 0, least=False)
    yield row(f"{named}: jitter, 99 %", found["jitter_p99_us"], "µs", jitter, least=False)
    for name in ("jitter_max", "computation_p50", "computation_p99", "computation_max"):
        yield row(f"{named}: {name.replace('_', ', ')}", found[f"{name}_us"], "µs")
    yield row("load of the machine, last minute", os.getloadavg()[0], "processes")


def bench_c(seconds: float = 60.0) -> Iterator[Row]:
    """1 kHz with a controller in exported C; at most 100 µs of jitter (99 %), no deadline missed in a minute."""
    yield from _loop("pendulum", 1000.0, seconds, 100.0, in_c=True)


def bench_jax(seconds: float = 60.0) -> Iterator[Row]:
    """200 Hz with a compiled policy of JAX; no deadline missed in a minute."""
    yield from _loop("cart_pole", 200.0, seconds, None, in_c=False)


PARTS: Parts = {"c": (bench_c, {"seconds": 2.0}), "jax": (bench_jax, {"seconds": 2.0})}

if __name__ == "__main__":
    main(PARTS)
