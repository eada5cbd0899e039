"""How fast Riccati designs are: a batch at once against loops over the solvers of SciPy and slycot."""

import os
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import slycot

from benchmarks.measurement import Call, Row, last_line, measure, row
from lqrlab import control
from lqrlab.compute import Backend, seconds, setup

Problems = tuple[np.ndarray, ...]
"""A, B, Q, R with a leading axis of problems."""


def _slycot(A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray) -> object:
    G = B @ np.linalg.solve(R, B.T)
    return slycot.sb02md(len(A), A, (G + G.T) / 2, Q, "C")


DESIGNS: dict[str, tuple[Callable[..., control.LQR], dict[str, Callable]]] = {
    "continuous": (control.lqr, {"SciPy": scipy.linalg.solve_continuous_are, "slycot": _slycot}),
    "discrete": (control.dlqr, {"SciPy": scipy.linalg.solve_discrete_are}),
}
"""Kind of problem → its design, and other libraries' solvers of one problem at a time."""

TARGETS: dict[tuple[str, str], dict[int, float]] = {
    ("continuous", "SciPy"): {2: 1500, 4: 350, 6: 90, 12: 30},
    ("discrete", "SciPy"): {2: 1000, 4: 250, 6: 80, 12: 25},
    ("continuous", "slycot"): {2: 200, 4: 50, 6: 15, 12: 7},
}
"""Times faster than a library, by the number of states."""


def problems(n: int, num: int, seed: int = 0) -> Problems:
    """``num`` dense random problems (A, B, Q, R) with max(1, n/2) inputs, normal entries and Q, R > 0."""
    rng = np.random.default_rng(seed)
    m = max(1, n // 2)

    def weight(size: int) -> np.ndarray:
        L = rng.normal(size=(num, size, size))
        return L @ np.swapaxes(L, -1, -2) / size + 0.1 * np.eye(size)

    return rng.normal(size=(num, n, n)), rng.normal(size=(num, n, m)), weight(n), weight(m)


def bench_control(
    dimensions: Sequence[int] = (2, 4, 6, 12), *, num: int = 10_000, loops: int = 200, repeats: int = 7
) -> list[Row]:
    """Measure designs of ``num`` problems at once, by numbers of states; first calls have their own rows.

    Args:
        dimensions: numbers of states.
        num: problems in a batch.
        loops: problems that the solvers of one at a time are timed on.
        repeats: the least time of so many runs counts.
    """
    rows = [
        each
        for n in dimensions
        for kind in DESIGNS
        for each in _designs(kind, n, problems(n, num), min(loops, num), repeats)
    ]
    return (
        rows
        + [each for n in dimensions for each in _repairs(n, problems(n, num), repeats)]
        + [each for n in dimensions for each in _cores(n, num, repeats)]
        + _single(repeats)
    )


def _repairs(n: int, args: Problems, repeats: int) -> list[Row]:
    """A Newton step from gains near the optimum, and from others that do not stabilise, against the design itself."""
    problem, rng = [jnp.asarray(a) for a in args], np.random.default_rng(1)
    optimum = control.dlqr(*problem)
    K, closed = np.asarray(optimum.K), np.asarray(optimum.closed_loop)
    B, room = np.asarray(args[1]), 1 - np.abs(np.linalg.eigvals(closed)).max(-1)
    error = rng.normal(size=K.shape)
    norms = np.linalg.norm(B @ error, axis=(-1, -2))
    near = K + (0.1 * room / norms)[:, None, None] * error
    mixed = near.copy()
    mixed[::10] = 0.0  # no control: most of these plants are unstable
    step = jax.jit(lambda K: control.policy_iteration(*problem, K=K).K)
    calls: dict[str, Callable] = {
        "Newton step from a stabilizing gain": partial(step, jnp.asarray(near)),
        "Newton step, a tenth of the gains zero": lambda: control.policy_iteration(*problem, K=mixed).K,
    }
    times = measure({"": partial(control.dlqr, *problem), **calls}, repeats)
    design = times.pop("")
    rows = []
    for name, time in times.items():
        rows.append(row(f"discrete n={n}: {name}", 1e6 * time / len(K), "µs"))
        target = 2 if "stabilizing" in name else None
        rows.append(row(f"discrete n={n}: {name}, over a design", time / design, "×", target, least=False))
    return rows


def _designs(kind: str, n: int, args: Problems, loops: int, repeats: int) -> list[Row]:
    design, solvers = DESIGNS[kind]
    batch, name = [jnp.asarray(a) for a in args], f"{kind} n={n}"
    ours = partial(design, *batch)
    rows = [row(f"{name}: first call", seconds(ours), "s")]
    others = {library: partial(_one_by_one, solver, args, loops) for library, solver in solvers.items()}
    times = measure({"": ours, **others}, repeats)
    one = times.pop("") / len(args[0])
    rows.append(row(f"{name}: a problem", 1e6 * one, "µs"))
    for library, time in times.items():
        target = TARGETS[kind, library].get(n)
        rows.append(row(f"{name}: {library}'s loop", 1e6 * time / loops, "µs"))
        rows.append(row(f"{name}: over {library}", time / loops / one, "×", target))
    return rows + _quality(name, ours(), args, continuous=kind == "continuous")


def _one_by_one(solver: Callable, args: Problems, num: int) -> None:
    """A problem that the solver fails on counts too."""
    for problem in zip(*(a[:num] for a in args)):
        try:
            solver(*problem)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):
            continue


def _quality(name: str, found: control.LQR, args: Problems, *, continuous: bool) -> list[Row]:
    residual, good = np.asarray(found.residual), np.asarray(found.stabilizing)
    poles = np.linalg.eigvals(args[0][good] - args[1][good] @ np.asarray(found.K)[good])
    unstable = (poles.real.max(-1) >= 0) if continuous else (np.abs(poles).max(-1) >= 1)
    certified = good & (residual <= 1e-10)
    return [
        row(f"{name}: p99 relative residual", np.percentile(residual, 99), "1", 1e-11, least=False),
        row(f"{name}: certified", 100 * certified.mean(), "%"),
        row(f"{name}: falsely accepted", int(unstable.sum()), "problems", 0, least=False),
    ]


def _cores(n: int, num: int, repeats: int) -> list[Row]:
    """Designs inside a program of the user's own: on one core, and split over all; outside, where threads take all."""
    cores = os.cpu_count() or 1
    if jax.default_backend() != "cpu" or cores < 2:
        return []
    times = [
        float(a)
        for a in last_line(inside_and_outside, *map(str, (n, num // cores * cores, repeats, cores))).split()
    ]
    one, split, outside = (1e6 * time / num for time in times)
    name = f"continuous n={n}: inside a jit"
    return [
        row(f"{name}, on one core", one, "µs"),
        row(f"{name}, split over {cores} cores", split, "µs"),
        row(f"{name}, {cores} cores over one", one / split, "×", 1.7),
        row(f"continuous n={n}: outside, over one core inside", one / outside, "×", 1.7),
    ]


def inside_and_outside(n: str, num: str, repeats: str, cores: str) -> None:
    """Print the least times [s] of designs: inside a ``jit``, there split over the cores, and outside."""
    setup(cpu_devices=int(cores))
    batch = [jnp.asarray(a) for a in problems(int(n), int(num))]
    backend = Backend(mesh=f"data={cores}")

    def gain(*problem: jax.Array) -> jax.Array:
        return control.lqr(*problem).K

    shared = backend.share(batch)
    calls: dict[str, Call] = {
        "one": partial(jax.jit(gain), *batch),
        "split": partial(jax.jit(backend.split(gain)), *shared),
        "outside": partial(control.lqr, *batch),
    }
    print(*measure(calls, int(repeats)).values())


def _single(repeats: int) -> list[Row]:
    """One design behind a slider, and a gradient against its solve."""
    A, B, Q, R = (jnp.asarray(a[0]) for a in problems(4, 1))
    one = jax.jit(lambda Q: control.lqr(A, B, Q, R).K)
    many = [jnp.asarray(a) for a in problems(4, 1000)]

    def total(*args: jax.Array) -> jax.Array:
        return jnp.sum(control.lqr(*args).K)

    solve, slope = (jax.jit(jax.vmap(f)) for f in (total, jax.grad(total, argnums=(0, 1, 2, 3))))
    slider = measure({"design": lambda: one(Q)}, 10 * repeats)["design"]
    times = measure({"solve": lambda: solve(*many), "gradient": lambda: slope(*many)}, repeats)
    return [
        row("one design, compiled, n=4", 1e3 * slider, "ms", 1, least=False),
        row("gradient over solve, n=4", times["gradient"] / times["solve"], "×", 4, least=False),
    ]
