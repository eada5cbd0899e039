"""Waiting times at first: new processes, with nothing compiled, and with programs that an earlier one left on disk."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.control import problems
from benchmarks.measurement import Parts, Row, last_line, main, row
from lqrlab import control, learning, simulation, systems
from lqrlab.compute import seconds, setup

SIZES = ((4, 2), (8, 4), (12, 6))
"""States and inputs that plants of several families are padded to."""

TARGETS = {4: (2.5, 0.7), 12: (4.0, 0.7)}
"""By states: the first designs [s] with nothing compiled, and with programs from disk."""


def bench_start(num: int = 10_000, variants: int = 1000, notebook: bool = True) -> Iterator[Row]:
    """Measure first calls, each in a process of its own.

    Args:
        num: designs of the first call.
        variants: plants of each family, of the pass over the catalogue.
        notebook: whether notebook 01 is executed too.
    """
    for n, targets in TARGETS.items():
        with tempfile.TemporaryDirectory() as folder:
            for what, target in zip(("nothing compiled", "programs from disk"), targets):
                found = last_line(first_designs, str(n), str(num), XDG_CACHE_HOME=folder)
                yield row(f"first {num} designs, n={n}, {what}", float(found), "s", target, least=False)
    with tempfile.TemporaryDirectory() as folder:
        for what, most in {"nothing compiled": 4.0, "programs from disk": None}.items():
            found = last_line(first_answer, XDG_CACHE_HOME=folder)
            yield row(f"first gain of the network, one pendulum, {what}", float(found), "s", most, least=False)
    with tempfile.TemporaryDirectory() as folder:
        first, second = last_line(catalogue, str(variants), XDG_CACHE_HOME=folder).split()
    name = f"catalogue, {len(systems.names())} × {variants} drawn, linearised, designed"
    yield row(f"{name}: first pass of a process", float(first), "s", 8, least=False)
    yield row(f"{name}: compiled", float(second), "s", 0.7, least=False)
    if notebook:
        yield from _notebook()


def first_designs(n: str, num: str) -> None:
    """Print the time [s] of the first batch of designs in this process; arguments as on a command line."""
    setup()
    arrays = [jnp.asarray(a) for a in problems(int(n), int(num))]
    print(seconds(lambda: control.lqr(*arrays)))


def first_answer() -> None:
    """Print the time [s] of the network's first verified gain in this process, its weights read."""
    setup()
    network, plant = learning.pretrained("regulator"), systems.make("pendulum")
    print(seconds(lambda: simulation.bind(network, simulation.Problem.of(plant, linear=True))))


def catalogue(variants: str) -> None:
    """Print the times [s] of two passes over all families: variants drawn, linearised, padded, designed for."""
    setup()
    print(*(seconds(_designed, int(variants)) for _ in range(2)))


def _designed(variants: int) -> list[control.LQR]:
    plants = [systems.sample(name, key=jax.random.key(0), num=variants) for name in systems.names()]

    def size(plant: systems.Plant) -> tuple[int, int]:
        return next(size for size in SIZES if plant.n <= size[0] and plant.m <= size[1])

    def stack(size_: tuple[int, int]) -> systems.Linear:
        padded = [systems.pad(systems.linearise(plant), *size_) for plant in plants if size(plant) == size_]
        return jax.tree.map(lambda *a: jnp.concatenate(a), *padded)

    stacks = [stack(each) for each in SIZES]
    return [control.lqrd(s.A, s.B, s.Q, s.R, s.dt) for s in stacks]


def _notebook() -> Iterator[Row]:
    """Notebook 01 of a new project as ``lqrlab run`` executes it, twice."""
    with tempfile.TemporaryDirectory() as folder:

        def lqrlab(*words: str) -> None:
            command = [sys.executable, "-m", "lqrlab.workbench", *words]
            environment = os.environ | {"XDG_CACHE_HOME": str(Path(folder) / "cache")}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)

        lqrlab("init", "project")
        for what, target in (("nothing compiled", 20), ("programs from disk", 10)):
            time = seconds(lqrlab, "run", "01_system_exploration", "--fresh", "--notebooks", "project/notebooks")
            yield row(f"notebook 01, {what}", time, "s", target, least=False)


PARTS: Parts = {"speed": (bench_start, {"num": 10, "variants": 2, "notebook": False})}

if __name__ == "__main__":
    main(PARTS)
