"""Model predictive control: constrained LQR, batches of a published problem, next to DAQP, OSQP and qpax.

The problem is that of acados' differentiable MPC (J. Frey et al.): 8 states, 4 inputs within ±1, all weights I. Its
plant grows by 1.54 a step. The other solvers get it as it suits them: OSQP with its states, in sparse matrices, DAQP
and qpax without them. The unknowns are then the inputs, or what they add to a feedback (see :func:`condense`): without
one DAQP is a third faster and leaves 6e-9; with 60 steps numbers of 10¹¹ cancel and it calls wrong inputs optimal.
"""

import dataclasses
import importlib.metadata
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import daqp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse

from benchmarks.measurement import Call, Parts, Row, last_line, main, measure, row
from lqrlab import predictive, simulation, systems
from lqrlab.compute import seconds, setup
from lqrlab.evaluation import Score, evaluate
from lqrlab.simulation import Problem

TARGETS = {"OSQP": 5.0, "OSQP, warm start": 5.0, "qpax": 30.0}
"""Times faster than a library; than DAQP, see :func:`bench_mpc`."""
EXACT = 1e-9
"""Relative KKT residual asked for; DAQP's tolerance too."""


class Batch(NamedTuple):
    """Problems x[t+1] = Ax + Bu + c from starts ``x0 [num, n]``; A is ``[num, n, n]`` if plants differ."""

    A: np.ndarray
    B: np.ndarray
    c: np.ndarray
    x0: np.ndarray
    steps: int

    def plant(self, k: int) -> np.ndarray:
        """A of a problem."""
        return self.A if self.A.ndim == 2 else self.A[k]


def published(num: int, steps: int = 20, *, differ: bool = False, radius: float | None = None) -> Batch:
    """The published plant from ``num`` starts; those of a batch ``differ`` by A + 0.01·randn.

    ``radius`` scales A to that spectral radius.
    """
    rng, starts = np.random.RandomState(42), np.random.RandomState(1)
    A, B, c = np.eye(8) + 0.2 * rng.randn(8, 8), rng.randn(8, 4), rng.randn(8)
    if radius is not None:
        A *= radius / np.abs(np.linalg.eigvals(A)).max()
    x0 = starts.randn(num, 8)
    return Batch(A + 0.01 * rng.randn(num, 8, 8) if differ else A, B, c, x0, steps)


class Solver(NamedTuple):
    """A contender: a call that solves ``num`` problems, and what turns its result into inputs and states."""

    call: Call
    answer: Callable[[Any], tuple[np.ndarray, np.ndarray]]
    num: int


# Ours ---------------------------------------------------------------------------------------------------------------


def ours(batch: Batch) -> Solver:
    """The batch at once."""
    A, B, c, x0 = (jnp.asarray(a) for a in batch[:4])
    solve = partial(_solve, num_steps=batch.steps)
    return Solver(lambda: solve(A, B, c, x0), lambda found: (np.asarray(found.us), np.asarray(found.xs)), len(x0))


def _solve(A: Any, B: Any, c: Any, x0: Any, Q: Any = None, R: Any = None, *, num_steps: int) -> Any:
    n, m = B.shape[-2:]
    Q, R = jnp.eye(n) if Q is None else Q, jnp.eye(m) if R is None else R
    limits, terms = simulation.Limits(u=(-1.0, 1.0)), predictive.Terms(c=c)
    return predictive.constrained_lqr(A, B, Q, R, x0, num_steps, Qf=jnp.eye(n), limits=limits, terms=terms)


# Others ---------------------------------------------------------------------------------------------------------------


class Condensed(NamedTuple):
    """½vᵀHv + (F·start)ᵀv, -1 ≤ Gv + S·start ≤ 1 for start = (x0, 1); (us, xs[1:]) = W (v, start)."""

    H: np.ndarray
    F: np.ndarray
    G: np.ndarray
    S: np.ndarray
    W: np.ndarray


def condense(A: np.ndarray, B: np.ndarray, c: np.ndarray, steps: int, *, feedback: bool) -> Condensed:
    """Problems of one plant without their states; u = v, or u = v - Kx with the LQR's gain."""
    n, m = B.shape
    nv, K = steps * m, np.zeros((m, n))
    if feedback:
        P = scipy.linalg.solve_discrete_are(A, B, np.eye(n), np.eye(m))
        K = np.linalg.solve(np.eye(m) + B.T @ P @ B, B.T @ P @ A)
    x = np.zeros((n, nv + n + 1))
    x[:, nv : nv + n] = np.eye(n)
    us, xs = [], []
    for t in range(steps):
        u = -K @ x
        u[:, t * m : (t + 1) * m] += np.eye(m)
        x = A @ x + B @ u
        x[:, -1] += c
        us.append(u)
        xs.append(x)
    W = np.vstack(us + xs)
    whole = 2 * W[:, :nv].T @ W
    return Condensed(whole[:, :nv], np.ascontiguousarray(whole[:, nv:]), W[:nv, :nv].copy(), W[:nv, nv:].copy(), W)


def _ends(x0: np.ndarray) -> np.ndarray:
    return np.append(x0, np.ones((*x0.shape[:-1], 1)), -1)


def _unpacked(batch: Batch, plants: Sequence[Condensed], vs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and states of the first problems, from their unknowns."""
    starts, m = _ends(batch.x0), batch.B.shape[1]
    w = np.array([plants[k % len(plants)].W @ np.append(v, starts[k]) for k, v in enumerate(vs)])
    us, xs = np.split(w, [batch.steps * m], axis=1)
    xs = xs.reshape(len(w), batch.steps, -1)
    return us.reshape(len(w), batch.steps, m), np.concatenate([batch.x0[: len(w), None], xs], 1)


def _plants(batch: Batch, num: int, feedback: bool) -> list[Condensed]:
    count = 1 if batch.A.ndim == 2 else num
    return [condense(batch.plant(k), batch.B, batch.c, batch.steps, feedback=feedback) for k in range(count)]


def with_daqp(batch: Batch, num: int, *, feedback: bool, condensing: bool = False) -> Solver:
    """DAQP's loop: one workspace; the same plant's is updated by its start alone.

    Args:
        batch: problems.
        num: so many of them are solved.
        feedback: see :func:`condense`; inputs' limits are no simple bounds then.
        condensing: whether the time counts that it takes to eliminate the states of plants that differ.
    """
    ready, starts = _plants(batch, num, feedback), _ends(batch.x0)
    shared, nv = len(ready) == 1, len(ready[0].H)
    model, none, one = daqp.Model(), np.zeros((0, nv)), np.ones(nv)

    def data(plant: Condensed, k: int) -> dict[str, np.ndarray]:
        moved = plant.S @ starts[k] if feedback else 0.0
        given = {"f": plant.F @ starts[k], "bupper": one - moved, "blower": -one - moved}
        return given if shared else given | {"H": plant.H} | ({"A": plant.G} if feedback else {})

    first = {"H": ready[0].H, "A": ready[0].G if feedback else none, **data(ready[0], 0)}
    model.setup(*(first[name] for name in ("H", "f", "A", "bupper", "blower")))
    model.settings = {"primal_tol": EXACT, "dual_tol": EXACT}

    def loop() -> list[np.ndarray]:
        found = []
        for k in range(num):
            plant = ready[k % len(ready)]
            if condensing and not shared:
                plant = condense(batch.plant(k), batch.B, batch.c, batch.steps, feedback=feedback)
            model.update(**data(plant, k))
            found.append(model.solve()[0])
        return found

    return Solver(loop, partial(_unpacked, batch, ready), num)


def with_osqp(batch: Batch, num: int, *, warm: bool) -> Solver:
    """OSQP's loop at 1e-6 over problems with their states: one workspace, the last solution as a start or not."""
    import osqp

    n, m = batch.B.shape
    T = batch.steps
    nu, size = T * m, T * (n + m)

    def dense(A: np.ndarray) -> np.ndarray:
        E = np.zeros((T * n, size))
        for t in range(T):
            now = slice(t * n, (t + 1) * n)
            E[now, nu + t * n : nu + (t + 1) * n] = np.eye(n)
            E[now, t * m : (t + 1) * m] = -batch.B
            if t:
                E[now, nu + (t - 1) * n : nu + t * n] = -A
        return np.vstack([E, np.eye(nu, size)])

    def edges(k: int) -> dict[str, np.ndarray]:
        e = np.tile(batch.c, T)
        e[:n] += batch.plant(k) @ batch.x0[k]
        return {"l": np.append(e, -np.ones(nu)), "u": np.append(e, np.ones(nu))}

    pattern = scipy.sparse.csc_matrix(dense(np.ones((n, n))) != 0)
    column = np.repeat(np.arange(size), np.diff(pattern.indptr))

    def entries(k: int) -> np.ndarray:
        return dense(batch.plant(k))[pattern.indices, column]

    different = [entries(k) for k in range(num)] if batch.A.ndim == 3 else []
    sparse = scipy.sparse.csc_matrix((entries(0), pattern.indices, pattern.indptr), pattern.shape)
    solver = osqp.OSQP()
    solver.setup(
        2 * scipy.sparse.eye(size, format="csc"), np.zeros(size), sparse, **edges(0), eps_abs=1e-6, eps_rel=1e-6,
        max_iter=100_000, warm_starting=warm, verbose=False,
    )  # fmt: skip

    def loop() -> list[np.ndarray]:
        found = []
        for k in range(num):
            solver.update(**edges(k), **({"Ax": different[k]} if different else {}))
            found.append(np.array(solver.solve(raise_error=False).x))
        return found

    def answer(found: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        us, xs = np.split(np.array(found), [nu], axis=1)
        whole = np.concatenate([batch.x0[:num, None], xs.reshape(num, T, n)], 1)
        return us.reshape(num, T, m), whole

    return Solver(loop, answer, num)


def with_qpax(batch: Batch, num: int, *, feedback: bool) -> Solver:
    """qpax in float64, ``vmap`` in ``jit``, to 1e-7: with less its steps shrink and it stops at 30 iterations."""
    import qpax

    ready, starts = _plants(batch, num, feedback), _ends(batch.x0[:num])
    nv, shared = len(ready[0].H), len(ready) == 1
    moved = np.array([ready[k % len(ready)].S @ start * feedback for k, start in enumerate(starts)])
    fs = jnp.asarray([ready[k % len(ready)].F @ start for k, start in enumerate(starts)])
    hs = jnp.asarray(np.concatenate([1 - moved, 1 + moved], 1))
    Hs = jnp.asarray(ready[0].H if shared else [plant.H for plant in ready])
    Gs = jnp.asarray(ready[0].G if shared else [plant.G for plant in ready])

    def one(H: jax.Array, f: jax.Array, G: jax.Array, h: jax.Array) -> jax.Array:
        sides = jnp.concatenate([G, -G])
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # qpax mixes both
            return qpax.solve_qp(H, f, jnp.zeros((0, nv)), jnp.zeros(0), sides, h, solver_tol=1e-7)[0]

    plant = None if shared else 0
    solve = jax.jit(jax.vmap(one, (plant, 0, plant, 0)))
    return Solver(lambda: solve(Hs, fs, Gs, hs), lambda vs: _unpacked(batch, ready, np.asarray(vs)), num)


def others(batch: Batch, loops: int, *, qpax: bool = True) -> dict[str, Solver]:
    """The other contenders that are installed, each on the first ``loops`` problems."""
    num, feedback = min(loops, len(batch.x0)), batch.steps > 20
    found = {"DAQP around a feedback": with_daqp(batch, num, feedback=True)}
    if not feedback:
        found["DAQP"] = with_daqp(batch, num, feedback=False)
    if batch.A.ndim == 3:
        found["DAQP with condensing"] = with_daqp(batch, num, feedback=feedback, condensing=True)
    if importlib.util.find_spec("osqp"):
        found |= {"OSQP": with_osqp(batch, num, warm=False), "OSQP, warm start": with_osqp(batch, num, warm=True)}
    if qpax and importlib.util.find_spec("qpax"):
        found["qpax"] = with_qpax(batch, num, feedback=feedback)
    return found


# Judgement ------------------------------------------------------------------------------------------------------------


def residual(batch: Batch, us: np.ndarray, xs: np.ndarray, num: int = 4) -> float:
    """Largest relative KKT residual of the first ``num`` problems, by NumPy alone.

    Costates are those that leave least of the gradient, of states and of inputs inside their limits; on a limit an
    input's gradient must push outwards.
    """
    n, m = batch.B.shape
    T, worst = batch.steps, 0.0
    for k in range(min(num, len(us))):
        A, u, x = batch.plant(k), us[k], xs[k]
        # 2u + Bᵀp[t+1] = 0, 2x[t] + Aᵀp[t+1] = p[t]
        E = np.zeros((T * (m + n), T * n))
        for t in range(T):
            now = slice(t * n, (t + 1) * n)
            E[t * m : (t + 1) * m, now] = batch.B.T
            E[T * m + t * n : T * m + (t + 1) * n, now] = -np.eye(n)
            if t:
                E[T * m + (t - 1) * n : T * m + t * n, now] = A.T
        w = 2 * np.append(u.ravel(), x[1:].ravel())
        free = np.append(np.abs(u.ravel()) < 1 - 1e-6, np.ones(T * n, bool))
        factor, costates = scipy.linalg.cho_factor(E[free].T @ E[free]), np.zeros(T * n)
        for _ in range(3):
            costates -= scipy.linalg.cho_solve(factor, E[free].T @ (w + E @ costates)[free])
        gradient = w + E @ costates
        left, inputs = gradient[T * m :], u.ravel()
        moved = inputs - np.clip(inputs - gradient[: T * m], -1, 1)
        dynamics = x[1:] - (x[:-1] @ A.T + u @ batch.B.T + batch.c)
        scale = max(np.abs(w).max(), np.abs(E @ costates).max(), 1.0)
        parts = (np.abs(left).max(), np.abs(moved).max(), np.abs(inputs).max() - 1)
        worst = max(worst, *(part / scale for part in parts), np.abs(dynamics).max() / max(1.0, np.abs(x).max()))
    return float(worst)


# Measurements ---------------------------------------------------------------------------------------------------------


def bench_mpc(
    sizes: Sequence[int] = (128, 4096), horizons: Sequence[int] = (20, 60), *, loops: int = 32, repeats: int = 3
) -> Iterator[Row]:
    """Measure solves a second: one plant for all starts, and plants that differ, next to other solvers' loops.

    Args:
        sizes: numbers of starts.
        horizons: numbers of steps.
        loops: problems that the solvers of one at a time are timed on; qpax solves them at once.
        repeats: the least time of so many runs counts.
    """
    installed = [package for package in ("daqp", "osqp", "qpax") if importlib.util.find_spec(package)]
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in installed)
    yield row(f"solvers next to ours: {versions}", len(installed), "installed")
    for steps in horizons:
        for differ in (False, True):
            yield from _speeds(sizes, steps, differ, loops, repeats)


def _speeds(sizes: Sequence[int], steps: int, differ: bool, loops: int, repeats: int) -> Iterator[Row]:
    batch = published(max(sizes), steps, differ=differ)
    name = f"N={steps}, {'plants that differ' if differ else 'one plant'}"
    solvers = others(batch, loops)
    for num in sizes:
        x0, A = batch.x0[:num], batch.A[:num] if differ else batch.A
        solvers[f"ours, {num} starts"] = ours(batch._replace(A=A, x0=x0))
    good = []
    for other, solver in solvers.items():
        left = residual(batch, *solver.answer(solver.call()))
        aim = {"ours": EXACT}.get(other.partition(",")[0])
        yield row(f"{name}: {other}: relative KKT residual", left, "1", aim, least=False)
        good += [other] if left <= 1e-5 else []
    times = {
        other: time / solvers[other].num
        for other, time in measure({other: solvers[other].call for other in good}, repeats).items()
    }
    for other, time in times.items():
        yield row(f"{name}: {other}", 1 / time, "solves/s")
    for mine in (other for other in good if other.startswith("ours")):
        for other in (other for other in good if not other.startswith("ours")):
            target = TARGETS.get(other, 3.0 if differ or steps >= 60 else 1.0)
            yield row(f"{name}: {mine}: over {other}", times[other] / times[mine], "×", target)


def bench_gradients(num: int = 128, steps: int = 20, repeats: int = 7) -> list[Row]:
    """Measure gradients a second of the sum of inputs by A, B, x0, Q and R.

    In acados' table 128 problems take 17.4 ms, and their gradients 58.4 ms, on four threads of a laptop.
    """
    batch = published(num, steps, differ=True)
    A, B, x0 = jnp.asarray(batch.A), jnp.broadcast_to(batch.B, (num, 8, 4)), jnp.asarray(batch.x0)
    Q, R = (jnp.broadcast_to(jnp.eye(size), (num, size, size)) for size in (8, 4))

    def inputs(A: Any, B: Any, x0: Any, Q: Any, R: Any) -> jax.Array:
        return jnp.sum(_solve(A, B, batch.c, x0, Q, R, num_steps=steps).us)

    forward, both = jax.jit(inputs), jax.jit(jax.grad(inputs, argnums=(0, 1, 2, 3, 4)))
    moved = 1e-6 * np.random.default_rng(0).normal(size=batch.x0.shape)
    change = float(forward(A, B, x0 + moved, Q, R) - forward(A, B, x0 - moved, Q, R))
    slope = 2 * float(jnp.sum(both(A, B, x0, Q, R)[2] * moved))
    args = A, B, x0, Q, R
    times = measure({"solve": partial(forward, *args), "both": partial(both, *args)}, repeats)
    return [
        row("gradient by x0: relative distance from differences", abs(slope / change - 1), "1", 1e-4, least=False),
        row("gradients, with their solutions", num / times["both"], "1/s", 2200),
        row(f"{num} solved", 1e3 * times["solve"], "ms", 17.4, least=False),
        row(f"{num} gradients, less solving", 1e3 * (times["both"] - times["solve"]), "ms", 58.4, least=False),
    ]


def bench_slowest(num: int = 24, copies: int = 128, steps: int = 20, repeats: int = 5) -> list[Row]:
    """Measure the slowest problem next to the median, each as a batch of copies; and the batch of all."""
    batch = published(num, steps)
    batches = {f"{k}": batch._replace(x0=np.repeat(batch.x0[k : k + 1], copies, 0)) for k in range(num)}
    batches["all"] = batch._replace(x0=np.tile(batch.x0, (-(-copies // num), 1))[:copies])
    times = measure({name: ours(one).call for name, one in batches.items()}, repeats)
    mixed, middle = times.pop("all"), statistics.median(times.values())
    return [
        row("slowest problem over the median", max(times.values()) / middle, "×", 1.5, least=False),
        row("a batch of all over copies of the median", mixed / middle, "×", 1.5, least=False),
    ]


def bench_horizons(
    horizons: Sequence[int] = (20, 50, 100, 200, 500), num: int = 128, repeats: int = 5
) -> Iterator[Row]:
    """Measure how the time grows with the number of steps; the plant's spectral radius is scaled to 1."""
    solvers = {f"{steps}": ours(published(num, steps, radius=1.0)) for steps in horizons}
    times = measure({name: solver.call for name, solver in solvers.items()}, repeats)
    for name, time in times.items():
        yield row(f"N={name}: {num} solved", 1e3 * time, "ms")
    slope = np.polyfit(np.log(horizons), np.log([times[f"{steps}"] for steps in horizons]), 1)[0]
    yield row("exponent of the time in N", slope, "1", 1.1, least=False)


def bench_first(num: int = 128, repeats: int = 200) -> Iterator[Row]:
    """Measure the first solve of a new shape, in processes of their own, and one step of a compiled loop."""
    with tempfile.TemporaryDirectory() as folder:
        for what, target in (("nothing compiled", 4.0), ("programs from disk", 0.7)):
            found = last_line(first_solve, str(num), XDG_CACHE_HOME=folder)
            yield row(f"first solve of {num}, {what}", float(found), "s", target, least=False)
    rng = np.random.default_rng(0)
    A, B = jnp.eye(4) + 0.1 * rng.normal(size=(4, 4)), jnp.asarray(rng.normal(size=(4, 1)))
    c, x0 = jnp.zeros(4), jnp.asarray(rng.normal(size=4))

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        u = _solve(A, B, c, x, num_steps=20).us[0]
        return A @ x + B @ u

    time = measure({"step": lambda: step(x0)}, repeats)["step"]
    yield row("one step of the closed loop, compiled, n=4, N=20", 1e3 * time, "ms", 0.3, least=False)


def bench_nonlinear(steps: int = 20, repeats: int = 200) -> Iterator[Row]:
    """Measure one step of nonlinear MPC, compiled: the real-time iteration of a cart-pole; and of linear MPC."""
    problem = Problem.of(systems.make("cart_pole"), limits=(-15.0, 15.0))
    designs: dict[str, object] = {
        "nonlinear MPC": predictive.nonlinear_mpc(problem, steps),
        "linear MPC": predictive.mpc(problem, steps),
    }
    x0 = jnp.array([0.1, 0.3, 0.0, 0.0])
    for name, design in designs.items():
        policy = simulation.bind(design, problem)
        step = jax.jit(lambda policy, memory, x: policy(memory, x))
        memory, _ = step(policy, policy.init(()), x0)
        call = partial(step, policy, memory, x0)
        seconds(call)
        time = statistics.median(seconds(call) for _ in range(repeats))
        yield row(f"one step of {name} of a cart-pole, compiled, N={steps}: median", 1e3 * time, "ms")


def first_solve(num: str) -> None:
    """Print the time [s] of the first batch of solutions in this process; the argument as on a command line."""
    setup()
    solver = ours(published(int(num)))
    print(seconds(solver.call))


# All families, beside the constrained optimum ------------------------------------------------------------------------

ASKED = (10.0, 5.0, 3.0, 2.0, 1.5, 1.2)
"""Times the limits that the regulator asks for at a start: the first at which the constrained optimum exists."""
SIZES = ((4, 2), (12, 6))
"""States and inputs that families are padded to: each size is compiled once."""


def bench_families(
    families: Sequence[str] = (),
    horizons: Sequence[int] = (5, 10, 20, 50),
    *,
    num: int = 32,
    longest: int = 256,
    num_steps: int = 300,
) -> Iterator[Row]:
    """Measure what clipped LQR and MPC cost above the constrained optimum, on the linear plants of all families.

    A family has no limits of its own: inputs are limited to ± one scale. A start is a random direction, of such a size
    that the regulator asks for :data:`ASKED` times what its most demanded input can give. Starts that no input holds
    even then are counted, and are not in the quantiles.

    Args:
        families: names; all if left out.
        horizons: of the predictive controllers.
        num: starts a family.
        longest: horizon up to which the optimum is searched.
        num_steps: samples of a loop.
    """
    families = families or systems.names()
    worst: dict[str, dict[str, tuple[float, float, float]]] = {}
    scores: dict[str, list[Score]] = {}
    lost = 0
    for k, (n, m) in enumerate(SIZES):
        shapes = {name: (len(systems.family(name).states), len(systems.family(name).inputs)) for name in families}
        smaller = SIZES[:k]
        names = [
            name
            for name, (states, inputs) in shapes.items()
            if states <= n and inputs <= m and not any(states <= a and inputs <= b for a, b in smaller)
        ]
        if not names:
            continue
        problem = _limited(names, n, m)
        x0, held = _starts(problem, num, longest)
        lost += int(np.sum(~held))
        runs: dict[str, Any] = {"clipped LQR": problem.K}
        for T in horizons:
            runs[f"MPC {T}"] = predictive.mpc(problem, T)
        best = predictive.reference(problem)
        for name, one in runs.items():
            score = evaluate(one, problem, key=jax.random.key(0), x0=x0, num_steps=num_steps, reference=best)
            ratio = np.where(held, score.ratio, np.nan)
            scores.setdefault(name, []).append(dataclasses.replace(score, ratio=jnp.asarray(ratio)))
            for family, mine, bad in zip(names, ratio, score.diverged & held):
                finite = mine[~np.isnan(mine)]
                if len(finite):
                    quantile = np.quantile(finite, 0.95, method="higher")
                    worst.setdefault(name, {})[family] = (float(np.median(finite)), float(quantile), float(bad.mean()))
    total = num * len(families)
    yield row(f"starts of {len(families)} families that no input was found to hold", 100 * lost / total, "%")
    for name, parts in scores.items():
        ratio = np.concatenate([np.ravel(part.ratio) for part in parts])
        known = ~np.isnan(ratio)
        diverged = np.concatenate([np.ravel(part.diverged) for part in parts])[known]
        gaps = 100 * (ratio[known] - 1)
        median, p95 = np.quantile(gaps, (0.5, 0.95), method="higher")
        yield row(f"{name}: above the constrained optimum, median", median, "%")
        yield row(f"{name}: above the constrained optimum, p95", p95, "%")
        yield row(f"{name}: diverged", 100 * diverged.mean(), "%")
        yield row(f"{name}: not converged", 100 * np.isinf(gaps).mean(), "%")
    for name, by in worst.items():
        for family in sorted(by, key=lambda family: by[family][::-1], reverse=True)[:5]:
            median, p95, share = by[family]
            yield row(f"{name}, {family}: median", 100 * (median - 1), "%")
            yield row(f"{name}, {family}: p95", 100 * (p95 - 1), "%")
            yield row(f"{name}, {family}: diverged", 100 * share, "%")


def bench_nonlinear_families(
    families: Sequence[str] = (), *, horizon: int = 20, num: int = 16, num_steps: int = 300, asked: float = 5.0
) -> Iterator[Row]:
    """Measure clipped LQR, linear and nonlinear MPC on the nonlinear plants of all families, inputs within one scale.

    The constrained optimum of a nonlinear plant is not known: costs are beside the least of the three from each start
    that one of them brings to rest. Starts are random directions in which the regulator asks for so many times what its
    most demanded input can give.
    """
    runs = []
    for name in families or systems.names():
        runs.append(one := nonlinear_family(name, horizon, num, num_steps, asked))
        yield from _beside_the_best(f"{name}: ", one)
        jax.clear_caches()  # thousands of programs would use up the process's memory maps
    yield from _beside_the_best("", {label: np.concatenate([run[label] for run in runs], axis=1) for label in runs[0]})


def nonlinear_family(name: str, horizon: int, num: int, num_steps: int, asked: float) -> dict[str, np.ndarray]:
    """Controller → costs and verdicts ``[2, num]`` on a family's nonlinear plant."""
    plant = systems.make(name)
    u_eq = plant.equilibrium()[1]
    problem = Problem.of(plant, limits=(u_eq - plant.scales[1], u_eq + plant.scales[1]))
    x0 = np.random.default_rng(0).normal(size=(num, plant.n)) * np.asarray(plant.scales[0])
    x0 *= asked / np.abs(x0 @ (problem.K / problem.scale_u[:, None]).T).max(-1, keepdims=True)
    controllers = {
        "clipped LQR": simulation.LinearPolicy(problem.K),
        f"MPC {horizon}": predictive.mpc(problem, horizon),
        f"nonlinear MPC {horizon}": predictive.nonlinear_mpc(problem, horizon),
    }
    found = {}
    for label, one in controllers.items():
        run = simulation.rollout(problem, one, x0, num_steps)
        judged = simulation.verdict.of_sizes(simulation.verdict.size(run.xs, problem.scale_x))
        found[label] = np.stack([run.cost + problem.optimal_cost(run.xs[:, -1]), np.asarray(judged, float)])
    return found


def _beside_the_best(words: str, runs: Mapping[str, np.ndarray]) -> Iterator[Row]:
    """Rows of each controller: cost above the least of all, and what became of its loops."""
    costs = {k: np.where(v == simulation.Verdict.CONVERGED, cost, np.inf) for k, (cost, v) in runs.items()}
    least = np.min([*costs.values()], axis=0)
    known = np.isfinite(least)
    yield row(f"{words}starts that none brings to rest", 100 * float(1 - known.mean()), "%")
    for label, cost in costs.items():
        for share, q in (("median", 0.5), ("p95", 0.95)) if known.any() else ():
            above = 100 * (np.quantile(cost[known] / least[known], q, method="higher") - 1)
            yield row(f"{words}{label}: above the best, {share}", above, "%")
        for verdict in (simulation.Verdict.DIVERGED, simulation.Verdict.BOUNDED):
            yield row(f"{words}{label}: {verdict.name.lower()}", 100 * float(np.mean(runs[label][1] == verdict)), "%")


def _limited(names: Sequence[str], n: int, m: int) -> Problem:
    """The families' linear problems in their scales, padded, with inputs within one scale."""
    padded = Problem.of([systems.make(name) for name in names]).scaled()
    A, Q = (a[:, :n, :n] for a in (padded.A, padded.Q))
    B, N = padded.B[:, :n, :m], padded.N[:, :n, :m]
    limit = jnp.where(padded.coordinates.input_mask[:, :m] > 0, 1.0, jnp.inf)
    return Problem.from_matrices(A, B, Q, padded.R[:, :m, :m], N, dt=padded.dt, limits=(-limit, limit))


def _starts(problem: Problem, num: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts ``[families, num, n]``, and which of them the inputs hold."""
    normal = np.random.default_rng(0).normal(size=(len(problem), num, problem.n))
    exists = np.any(np.asarray(problem.A) != 0, axis=-1) | np.any(np.asarray(problem.B) != 0, axis=-1)
    x0 = normal * exists[:, None]
    x0 /= np.abs(np.einsum("fmn,fsn->fsm", problem.K, x0)).max(-1, keepdims=True)
    found = np.stack([predictive.optimum(problem, size * x0, longest=longest).found for size in ASKED])
    first = np.argmax(found, axis=0)
    return np.array(ASKED)[first][..., None] * x0, np.any(found, axis=0)


PARTS: Parts = {
    "speed": (bench_mpc, {"sizes": (4,), "horizons": (5,), "loops": 4, "repeats": 1}),
    "gradients": (bench_gradients, {"num": 4, "steps": 5, "repeats": 1}),
    "slowest": (bench_slowest, {"num": 3, "copies": 4, "steps": 5, "repeats": 1}),
    "horizons": (bench_horizons, {"horizons": (5, 10), "num": 4, "repeats": 1}),
    "families": (bench_families, {"families": ("pendulum", "dc_motor"), "horizons": (5,), "num": 3, "longest": 64}),
    "nonlinear_families": (
        bench_nonlinear_families,
        {"families": ("pendulum",), "horizon": 5, "num": 2, "num_steps": 20},
    ),
    "first": (bench_first, {"num": 4, "repeats": 3}),
    "nonlinear": (bench_nonlinear, {"steps": 5, "repeats": 3}),
}

if __name__ == "__main__":
    main(PARTS)
