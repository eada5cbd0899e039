"""Riccati designs: a batch at once against loops over SciPy and slycot; and whether any answer is wrong."""

import os
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import slycot

from benchmarks.measurement import Call, Parts, Row, last_line, main, measure, row
from lqrlab import control, learning, systems
from lqrlab.compute import Backend, seconds, setup
from lqrlab.simulation import Problem

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
        float(a) for a in last_line(inside_and_outside, *map(str, (n, num // cores * cores, repeats, cores))).split()
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


# Hard problems, judged by NumPy alone -----------------------------------------------------------------------------


def scaled(n: int, num: int, seed: int) -> Problems:
    """Dense problems (A, B, Q, R) in units that differ by up to eight decades from state to state."""
    A, B, Q, R = problems(n, num, seed)
    d = 10 ** np.random.default_rng(seed).uniform(-4, 4, (num, n))
    return A * d[:, :, None] / d[:, None], B * d[:, :, None], Q / d[:, :, None] / d[:, None], R


def chains(n: int, num: int, seed: int) -> Problems:
    """Masses on stiff springs with hardly any damping and a force on the first: ten decades of stiffness.

    With an odd n the last mass hangs on a damper alone and has no position.
    """
    rng = np.random.default_rng(seed)
    masses, springs = n - n // 2, n // 2
    k = 10 ** rng.uniform(-2, 8, (num, masses))
    mass = 10 ** rng.uniform(-2, 2, (num, masses))
    L = np.zeros((num, masses, masses))
    i = np.arange(masses)
    L[:, i, i] = k
    L[:, i[:-1], i[:-1]] += k[:, 1:]
    L[:, i[:-1], i[1:]] = L[:, i[1:], i[:-1]] = -k[:, 1:]
    damping = 10 ** rng.uniform(-4, -1, num) / np.sqrt(k.max(1) * mass.max(1))
    A, B = np.zeros((num, n, n)), np.zeros((num, n, 1))
    A[:, :springs, springs:n] = np.eye(springs, masses)
    A[:, springs:, :springs] = -(L / mass[:, :, None])[:, :, :springs]
    A[:, springs:, springs:] = -damping[:, None, None] * L / mass[:, :, None]
    B[:, springs, 0] = 1 / mass[:, 0]
    return A, B, np.broadcast_to(np.eye(n), A.shape), 10 ** rng.uniform(-6, 2, (num, 1, 1))


KINDS = {"dense": problems, "badly scaled": scaled, "stiff chain": chains}


def acceptance(dimensions: Sequence[int] = tuple(range(1, 13)), *, num: int = 10_000) -> list[Row]:
    """Design for ``num`` problems a dimension, a third of each of :data:`KINDS`, continuous and sampled.

    An answer that was given out is wrong if its closed loop has a mode that does not decay (by NumPy's
    eigenvalues, to rounding) or if it leaves more than 1e-8 of the largest term of its equation.

    Returns:
        For each kind of problem: how many were accepted, how many of these are wrong (none should be).
    """
    rows, each = [], -(-num // len(KINDS))
    for kind, draw in KINDS.items():
        for continuous in (True, False):
            counts = [_judged(*draw(n, each, n), continuous=continuous) for n in dimensions]
            accepted, certified, unstable, loose = (sum(column) for column in zip(*counts))
            name, asked = f"{'continuous' if continuous else 'sampled'}, {kind}", each * len(dimensions)
            rows += [
                row(f"{name}: problems", asked, "problems"),
                row(f"{name}: accepted", 100 * accepted / asked, "%"),
                row(f"{name}: accepted to 1e-10", 100 * certified / asked, "%"),
                row(f"{name}: accepted and unstable", unstable, "problems", 0, least=False),
                row(f"{name}: accepted and above 1e-8", loose, "problems", 0, least=False),
            ]
    return rows


def _judged(A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, *, continuous: bool) -> tuple[int, ...]:
    """Numbers of designs that were accepted, are right to 1e-10, have an unstable loop, leave more than 1e-8."""
    if continuous:
        found, N = control.lqr(A, B, Q, R), np.zeros_like(B)
    else:  # held for as long as the fastest mode takes
        dt = 1 / np.abs(np.linalg.eigvals(A)).max(-1)
        A, B, Q, R, N = (np.asarray(a) for a in control.discretize(A, B, Q, R, dt))
        found = control.dlqr(A, B, Q, R, N)
    good = np.asarray(found.stabilizing)
    A, B, Q, N, K, P = (np.asarray(a)[good] for a in (A, B, Q, N, found.K, found.P))
    closed, PA = A - B @ K, P @ A
    poles = np.linalg.eigvals(closed)
    if continuous:
        edge = poles.real.max(-1) / np.linalg.norm(closed, axis=(1, 2))
        terms = (PA, _t(PA), -(P @ B + N) @ K, Q)
    else:
        edge = np.abs(poles).max(-1) - 1
        terms = (_t(A) @ PA, -P, -(_t(PA) @ B + N) @ K, Q)
    largest = np.max([np.abs(term).max((1, 2)) for term in terms], axis=0)
    residual = np.abs(sum(terms)).max((1, 2)) / largest
    counts = (residual <= 1e-10).sum(), (edge > 1e-14).sum(), (residual > 1e-8).sum()
    return len(edge), *(int(count) for count in counts)


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


# Gains that are wrong ---------------------------------------------------------------------------------------------


def repairs(
    families: Sequence[str] = (), *, errors: Sequence[float] = (0.01, 0.1, 0.3, 1.0, 3.0), num: int = 2, seed: int = 0
) -> list[Row]:
    """Newton steps from optimal gains of which each entry is wrong by a normal share; all families unless named.

    Costs are SciPy's: of the loop on the sampled problem, from all directions of the scaled state alike.
    """
    plants = [systems.sample(name, key=jax.random.key(seed), num=num) for name in families or systems.names()]
    problem = Problem.of(plants).scaled()
    noise = np.random.default_rng(seed).normal(size=problem.K.shape)
    rows = []
    for size in errors:
        wrong = np.asarray(problem.K) * (1 + size * noise)
        for steps in (0, 1, 2, 4):
            gains = learning.repair(wrong, problem, steps) if steps else wrong
            excess = np.array([_excess(*each) for each in zip(*map(np.asarray, (*problem.sampled, problem.P, gains)))])
            name = f"entries wrong by {size:.0%}, {steps} Newton steps"
            rows.append(row(f"{name}: unstable", 100 * np.isinf(excess).mean(), "%"))
            rows.append(row(f"{name}: p95 above the optimum", 100 * np.quantile(excess, 0.95, method="higher"), "%"))
    return rows


def _excess(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, P: np.ndarray, K: np.ndarray
) -> float:
    """tr X / tr P − 1, with X the cost of u = −Kx; infinite where the loop is unstable."""
    closed = A - B @ K
    if not np.isfinite(K).all() or np.abs(np.linalg.eigvals(closed)).max() >= 1:
        return np.inf
    cross = N @ K
    return np.trace(scipy.linalg.solve_discrete_lyapunov(closed.T, Q + K.T @ R @ K - cross - cross.T)) / np.trace(P) - 1


PARTS: Parts = {
    "speed": (bench_control, {"dimensions": (2,), "num": 200, "loops": 5, "repeats": 1}),
    "hard": (acceptance, {"dimensions": (2,), "num": 30}),
    "repair": (repairs, {"families": ("pendulum", "quadrotor"), "errors": (0.3,)}),
}

if __name__ == "__main__":
    main(PARTS)
