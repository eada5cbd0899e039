"""PID controllers: how far the best one is from the regulator on plants of the catalogue, and the time of a design.

The cost is that of the linearised loop from initial states as large as the plant's scales, over the regulator's, which
sees all states. Ms, phase and delay margin are those of the sampled loop.
"""

import time
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks.measurement import Parts, Row, main, row
from lqrlab import classical, control, evaluation, systems
from lqrlab.extensions.classical.channels import revealing_output

METHODS = ("optimal", "max_ki", "simc", "amigo", "ziegler_nichols")


def _figures(plant: systems.Plant, output: int, method: str, num_starts: int, kind: str = "pid") -> dict[str, float]:
    """Cost over the regulator's and robustness of the best PID controller; none where there is no stable loop."""
    settings = {"num_starts": num_starts, "ms": 2.0} if method == "optimal" else {}
    try:
        design = classical.pid(plant, method, kind=kind, pairs=[(output, 0)], **settings)
    except ValueError:
        return {}
    problem = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
    best, W = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt), np.diag(np.asarray(plant.scales[0]) ** 2)
    joint, K = design.loop(problem)
    P = np.asarray(control.cost_to_go(joint, K))[: plant.n, : plant.n]
    (margin,) = control.margins(joint.A, joint.B, K, plant.dt)
    score = evaluation.evaluate(design, plant, key=jax.random.key(0), num_initial=8)
    return {
        "cost over the optimum": float(np.trace(P @ W) / np.trace(np.asarray(best.P) @ W)),
        "loops that converged": float(np.mean(score.converged)),
        "Ms": 1 / margin.modulus_margin,
        "phase margin [°]": float(np.rad2deg(margin.phase)),
        "gain margin": margin.gain_up,
        "delay margin, sample times": margin.delay_margin / plant.dt,
    }


def bench_catalogue(families: tuple[str, ...] = (), num_starts: int = 512) -> Iterator[Row]:
    """Cost over the regulator's of the best PID controller with Ms ≤ 2 from one measured output."""
    for name in families or systems.names():
        plant = systems.make(name)
        if plant.m != 1:
            continue
        output = revealing_output(np.asarray(plant.matrices()[0]), np.asarray(plant.output_matrix()))
        found, kind = {}, ""
        for kind in ("pid", "pd"):  # without an integral where there is none that helps
            found = _figures(plant, output, "optimal", num_starts, kind)
            if found:
                break
        named = f"{name} from {plant.outputs[output].name}, {kind}"
        for what, value in found.items():
            yield row(f"{named}: {what}", value, "")
        if not found:
            yield row(f"{named}: no PID controller with Ms ≤ 2", np.nan, "")


def bench_methods(families: tuple[str, ...] = ("dc_motor", "coupled_tanks"), num_starts: int = 256) -> Iterator[Row]:
    """All methods on stable plants: cost over the regulator's and Ms."""
    for name in families:
        for method in METHODS:
            found = _figures(systems.make(name), 0, method, num_starts)
            for what in ("cost over the optimum", "Ms"):
                yield row(f"{name} by {method}: {what}", found.get(what, np.nan), "")


def bench_starts(num_starts: int = 1000, repeats: int = 3) -> Iterator[Row]:
    """Seconds of a design of least cost from a thousand starts, compiled."""
    for name in ("double_integrator", "dc_motor", "cart_pole"):
        plant = systems.make(name)
        pairs, kind = ([(0, 0), (1, 0)], "pd") if name == "cart_pole" else (None, "pid")
        times = []
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            classical.pid(plant, "optimal", kind=kind, pairs=pairs, num_starts=num_starts, ms=4.0)
            times.append(time.perf_counter() - begun)
        yield row(f"{name}: {num_starts} starts", min(times[1:]), "s", 1.0, least=False)
        yield row(f"{name}: the first time, with compiling", times[0], "s")


PARTS: Parts = {
    "catalogue": (bench_catalogue, {"families": ("dc_motor",), "num_starts": 32}),
    "methods": (bench_methods, {"families": ("dc_motor",), "num_starts": 32}),
    "starts": (bench_starts, {"num_starts": 32, "repeats": 1}),
}

if __name__ == "__main__":
    main(PARTS)
