"""How fast closed loops are simulated, beside NumPy, SciPy and diffrax on the same problems."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from lqrlab import control, simulation, systems
from lqrlab.benchmarks.riccati import Row, _best, _row, problems

UNIT = "million steps/s"


def simulation_rows(trajectories: int = 20_000, repeats: int = 5, steps: int = 200) -> list[Row]:
    """Million states of a trajectory after a step, a second; float32, linear, exact zero-order hold.

    Args:
        trajectories: loops at once, each with a plant of its own unless said otherwise.
        repeats: the least time of so many runs counts.
        steps: of each loop.
    """
    rows = []
    for n, targets in ((4, (12, 1)), (12, (12, 1))):
        rows += _linear(n, trajectories, targets, repeats, steps)
    return rows + _cart_pole(trajectories, repeats, steps)


def _in_turn(contenders: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Least time [s] of each contender. They take turns, so that a machine's slow minutes are everybody's."""
    for run in contenders.values():
        jax.block_until_ready(run())
    times = [{name: _best(run, 1) for name, run in contenders.items()} for _ in range(repeats)]
    return {name: min(each[name] for each in times) for name in contenders}


def _linear(n: int, count: int, targets: tuple, repeats: int, steps: int) -> list[Row]:
    kept, shared = targets
    A, B, Q, R = problems(n, count)
    plants = systems.from_matrices(A, B, Q=Q, R=R, dt=0.02)
    world = simulation.env(plants, linear=True)
    K = np.asarray(control.lqrd(A, B, Q, R, 0.02).K)
    x0 = np.random.default_rng(1).normal(size=(count, n)).astype(np.float32)
    closed = np.asarray(world.sampled.A - world.sampled.B @ K, np.float32)
    first = simulation.env(plants[0], linear=True)

    def ours(world: simulation.Env, K: np.ndarray, **options: Any) -> Callable:
        policy = simulation.LinearPolicy(jnp.asarray(K, jnp.float32))
        return partial(simulation.rollout, world, policy, jnp.asarray(x0), steps, **options)

    xs = np.empty((steps + 1, count, n), np.float32)
    last = np.empty((steps + 1, n, count), np.float32)

    def numpy_batched() -> None:
        xs[0] = x0
        for t in range(steps):
            np.matmul(closed, xs[t][:, :, None], out=xs[t + 1][:, :, None])

    def numpy_shared() -> None:
        last[0] = x0.T
        for t in range(steps):
            np.matmul(closed[0], last[t], out=last[t + 1])

    contenders: dict[str, Callable] = {
        "states": ours(world, K, keep=("xs",)),
        "everything": ours(world, K),
        "numpy": numpy_batched,
        "together": ours(first, K[0], keep=("xs",)),
        "numpy together": numpy_shared,
    }
    rate = {name: count * steps / time / 1e6 for name, time in _in_turn(contenders, 2 * repeats).items()}
    name = f"closed loops n={n}"
    over = rate["states"] / rate["numpy"], rate["together"] / rate["numpy together"]
    rows = [
        _row(f"{name}: states kept", rate["states"], UNIT),
        _row(f"{name}: states, inputs and costs kept", rate["everything"], UNIT),
        _row(f"{name}: NumPy, vectorised, states kept", rate["numpy"], UNIT),
        _row(f"{name}: states kept, over NumPy", over[0], "×", kept),
        _row(f"{name}: one plant for all, states kept", rate["together"], UNIT),
        _row(f"{name}: one plant for all, over NumPy's best layout", over[1], "×", shared),
    ]
    if n == 4:
        rows += _saturated(world, K, x0, ours, steps, repeats)
    return rows


def _saturated(
    world: simulation.Env, K: np.ndarray, x0: np.ndarray, ours: Callable, steps: int, repeats: int
) -> list[Row]:
    """Against a loop over trajectories and steps, as it is first written."""
    plants = world.plant
    assert plants is not None
    bounded = simulation.env(plants, linear=True, limits=(-1.0, 1.0))
    A, B = (np.asarray(a, np.float32) for a in world.sampled[:2])
    gains = K.astype(np.float32)
    few = 50

    def loop() -> None:
        for i in range(few):
            x, path = x0[i], [x0[i]]
            for _ in range(steps):
                x = A[i] @ x + B[i] @ np.clip(-gains[i] @ x, -1, 1)
                path.append(x)

    times = _in_turn({"ours": ours(bounded, K, keep=("xs",)), "loop": loop}, repeats)
    fast, slow = len(x0) * steps / times["ours"] / 1e6, few * steps / times["loop"] / 1e6
    name = "closed loops n=4, saturated"
    return [
        _row(f"{name}: states kept", fast, UNIT),
        _row(f"{name}: over a NumPy loop over trajectories", fast / slow, "×", 1000),
    ]


def _cart_pole(count: int, repeats: int, steps: int) -> list[Row]:
    """The nonlinear cart-pole, saturated, one Runge-Kutta step a sample, float64, states kept."""
    plant = systems.make("cart_pole")
    limit, dt = 5.0, plant.dt
    world = simulation.env(plant, limits=(-limit, limit), substeps=1)
    K = np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), dt).K)
    x0 = 0.3 * np.asarray(plant.initial_state(key=jax.random.key(0), num=count))
    mc, mp, l, inertia, b, g = (
        float(getattr(plant, name))
        for name in ("cart_mass", "pole_mass", "pole_length", "pole_inertia", "friction", "gravity")
    )
    xs = np.empty((steps + 1, 4, count))

    def rates(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        _, angle, v, w = x
        s, c = np.sin(angle), np.cos(angle)
        a11, a12, a22 = mc + mp, mp * l * c, inertia + mp * l * l
        f1, f2 = u - b * v + mp * l * w * w * s, mp * g * l * s
        det = a11 * a22 - a12 * a12
        return np.stack([v, w, (a22 * f1 - a12 * f2) / det, (a11 * f2 - a12 * f1) / det])

    def by_numpy() -> None:
        xs[0] = x0.T
        for t in range(steps):
            x = xs[t]
            u = np.clip(-K[0] @ x, -limit, limit)
            k1 = rates(x, u)
            k2 = rates(x + dt / 2 * k1, u)
            k3 = rates(x + dt / 2 * k2, u)
            k4 = rates(x + dt * k3, u)
            xs[t + 1] = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    few = 10

    def by_scipy() -> None:
        for i in range(few):
            x = x0[i]
            for _ in range(steps):
                u = np.clip(-K[0] @ x, -limit, limit)
                x = solve_ivp(lambda _, x, u=u: rates(x, u), (0, dt), x, rtol=1e-6).y[:, -1]

    policy = simulation.LinearPolicy(jnp.asarray(K))
    ours = partial(simulation.rollout, world, policy, jnp.asarray(x0), steps, keep=("xs",))

    contenders: dict[str, Callable] = {"ours": ours, "numpy": by_numpy}
    if importlib.util.find_spec("diffrax"):
        contenders["diffrax"] = _diffrax(plant, jnp.asarray(K), jnp.asarray(x0), steps, limit)
    times = _in_turn(contenders, 2 * repeats)
    one_by_one = _best(by_scipy, 1) * count / few
    np.testing.assert_allclose(ours().xs[:, -1], xs[-1].T, rtol=1e-6, atol=1e-9)
    name = "nonlinear cart-pole, float64, saturated"
    rows = [
        _row(f"{name}: states kept", count * steps / times["ours"] / 1e6, UNIT),
        _row(f"{name}: over NumPy, vectorised", times["numpy"] / times["ours"], "×", 6),
        _row(f"{name}: over SciPy's solve_ivp", one_by_one / times["ours"], "×", 200),
    ]
    if "diffrax" in times:
        rows.append(_row(f"{name}: over diffrax", times["diffrax"] / times["ours"], "×", 4))
    return rows


def _diffrax(plant: systems.Plant, K: jax.Array, x0: jax.Array, steps: int, limit: float) -> Callable:
    import diffrax

    class RungeKutta4(diffrax.AbstractERK):
        tableau = diffrax.ButcherTableau(
            a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
            b_sol=np.array([1, 2, 2, 1]) / 6,
            b_error=np.zeros(4),
            c=np.array([0.5, 0.5, 1.0]),
        )
        interpolation_cls = diffrax.LocalLinearInterpolation

        def order(self, terms: object) -> int:
            return 4

    term = diffrax.ODETerm(lambda t, x, u: plant.dynamics(x, u))
    dt = float(plant.dt)

    def one(x0: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            u = jnp.clip(-K @ x, -limit, limit)
            x = RungeKutta4().step(term, 0.0, dt, x, u, None, made_jump=False)[0]
            return x, x

        return jax.lax.scan(step, x0, length=steps)[1]

    return partial(jax.jit(jax.vmap(one)), x0)
