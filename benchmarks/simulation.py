"""Closed loops against NumPy and SciPy on the same problems."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from benchmarks.control import problems
from benchmarks.measurement import Call, Parts, Row, main, measure, row
from lqrlab import control, simulation, systems
from lqrlab.simulation import Problem

UNIT = "million steps/s"

TARGETS = {4: (12, 1), 12: (12, 1)}
"""By states: times NumPy with states kept, times NumPy's product with one plant."""


def bench_simulation(trajectories: int = 20_000, repeats: int = 5, steps: int = 200) -> list[Row]:
    """Steps a second, each trajectory of another plant unless the row says otherwise; float32, zero-order hold."""
    rows = []
    for n in TARGETS:
        rows += _linear(n, trajectories, repeats, steps)
    return rows + _cart_pole(trajectories, repeats, steps)


def _rollout(
    problem: Problem, K: np.ndarray, x0: np.ndarray, steps: int, keep: tuple[str, ...] = ("xs",)
) -> Callable[[], simulation.Trajectory]:
    policy = simulation.LinearPolicy(jnp.asarray(K, x0.dtype))
    return partial(simulation.rollout, problem, policy, jnp.asarray(x0), steps, keep=keep)


def _linear(n: int, count: int, repeats: int, steps: int) -> list[Row]:
    A, B, Q, R = problems(n, count)
    plants = systems.from_matrices(A, B, Q=Q, R=R, dt=0.02)
    problem = Problem.of(plants, linear=True, optimum=False)
    K = np.asarray(control.lqrd(A, B, Q, R, 0.02).K)
    x0 = np.random.default_rng(1).normal(size=(count, n)).astype(np.float32)
    first = problem[0]
    calls: dict[str, Call] = {
        "states": _rollout(problem, K, x0, steps),
        "all": _rollout(problem, K, x0, steps, ("xs", "us", "costs")),
        "costs": _rollout(problem, K, x0, steps, ("costs",)),
        "one plant": _rollout(first, K[0], x0, steps),
        **_numpy_linear(np.asarray(problem.A - problem.B @ K, np.float32), x0, steps),
    }
    rate = {name: count * steps / time / 1e6 for name, time in measure(calls, 2 * repeats).items()}
    name, (kept, shared) = f"closed loops n={n}", TARGETS[n]
    over = rate["states"] / rate["NumPy"], rate["one plant"] / rate["NumPy, one plant"]
    rows = [
        row(f"{name}: states kept", rate["states"], UNIT),
        row(f"{name}: states, inputs and costs kept", rate["all"], UNIT),
        row(f"{name}: costs alone", rate["costs"], UNIT),
        row(f"{name}: NumPy, vectorised, states kept", rate["NumPy"], UNIT),
        row(f"{name}: states kept, over NumPy", over[0], "×", kept),
        row(f"{name}: one plant for all, states kept", rate["one plant"], UNIT),
        row(f"{name}: one plant for all, over NumPy's best layout", over[1], "×", shared),
    ]
    return rows + _saturated(plants, K, x0, steps, repeats) if n == 4 else rows


def _numpy_linear(closed: np.ndarray, x0: np.ndarray, steps: int) -> dict[str, Call]:
    """NumPy's matrix products: of all loops with their plants, and of one plant with all states, batch last."""
    count, n = x0.shape
    xs = np.empty((steps + 1, count, n), np.float32)
    last = np.empty((steps + 1, n, count), np.float32)
    xs[0], last[0] = x0, x0.T

    def each() -> None:
        for t in range(steps):
            np.matmul(closed, xs[t][:, :, None], out=xs[t + 1][:, :, None])

    def one() -> None:
        for t in range(steps):
            np.matmul(closed[0], last[t], out=last[t + 1])

    return {"NumPy": each, "NumPy, one plant": one}


def _saturated(plants: systems.Plant, K: np.ndarray, x0: np.ndarray, steps: int, repeats: int) -> list[Row]:
    """Against a loop over trajectories and steps, as it is first written."""
    problem = Problem.of(plants, linear=True, limits=(-1.0, 1.0), optimum=False)
    A, B, gains = (np.asarray(a, np.float32) for a in (problem.A, problem.B, K))
    few = min(50, len(x0))

    def loop() -> None:
        for i in range(few):
            x, path = x0[i], [x0[i]]
            for _ in range(steps):
                x = A[i] @ x + B[i] @ np.clip(-gains[i] @ x, -1, 1)
                path.append(x)

    times = measure({"ours": _rollout(problem, K, x0, steps), "loop": loop}, repeats)
    fast, slow = len(x0) * steps / times["ours"] / 1e6, few * steps / times["loop"] / 1e6
    name = "closed loops n=4, saturated"
    return [
        row(f"{name}: states kept", fast, UNIT),
        row(f"{name}: over a NumPy loop over trajectories", fast / slow, "×", 1000),
    ]


def _cart_pole(count: int, repeats: int, steps: int) -> list[Row]:
    """The nonlinear cart-pole, saturated, one Runge-Kutta step a sample, float64, states kept."""
    plant = systems.make("cart_pole")
    limit, dt, few = 5.0, plant.dt, min(10, count)
    K = np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), dt).K)
    x0 = 0.3 * np.asarray(plant.initial_state(key=jax.random.key(0), num=count))
    ours = _rollout(Problem.of(plant, limits=(-limit, limit), substeps=1), K, x0, steps)
    rates, xs = _cart_pole_rates(plant), np.empty((steps + 1, 4, count))

    def saturated(x: np.ndarray) -> np.ndarray:
        return np.clip(-K[0] @ x, -limit, limit)

    def by_numpy() -> None:
        xs[0] = x0.T
        for t in range(steps):
            x, u = xs[t], saturated(xs[t])
            k1 = rates(x, u)
            k2 = rates(x + dt / 2 * k1, u)
            k3 = rates(x + dt / 2 * k2, u)
            k4 = rates(x + dt * k3, u)
            xs[t + 1] = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def by_scipy() -> None:
        for x in x0[:few]:
            for _ in range(steps):
                x = solve_ivp(lambda _, x, u: rates(x, u), (0, dt), x, args=(saturated(x),), rtol=1e-6).y[:, -1]

    times = measure({"ours": ours, "NumPy": by_numpy}, 2 * repeats)
    one_by_one = measure({"SciPy": by_scipy}, 1)["SciPy"] * count / few
    np.testing.assert_allclose(ours().xs[:, -1], xs[-1].T, rtol=1e-6, atol=1e-9)
    name = "nonlinear cart-pole, float64, saturated"
    return [
        row(f"{name}: states kept", count * steps / times["ours"] / 1e6, UNIT),
        row(f"{name}: over NumPy, vectorised", times["NumPy"] / times["ours"], "×", 6),
        row(f"{name}: over SciPy's solve_ivp", one_by_one / times["ours"], "×", 200),
    ]


def _cart_pole_rates(plant: systems.Plant) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """ẋ = f(x, u) of the cart-pole in NumPy, the batch on the last axis."""
    mc, mp, l, inertia, b, g = (
        float(getattr(plant, name))
        for name in ("cart_mass", "pole_mass", "pole_length", "pole_inertia", "friction", "gravity")
    )

    def rates(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        _, angle, v, w = x
        s, c = np.sin(angle), np.cos(angle)
        a11, a12, a22 = mc + mp, mp * l * c, inertia + mp * l * l
        f1, f2 = u - b * v + mp * l * w * w * s, mp * g * l * s
        det = a11 * a22 - a12 * a12
        return np.stack([v, w, (a22 * f1 - a12 * f2) / det, (a11 * f2 - a12 * f1) / det])

    return rates


PARTS: Parts = {"speed": (bench_simulation, {"trajectories": 20, "repeats": 1, "steps": 10})}

if __name__ == "__main__":
    main(PARTS)
