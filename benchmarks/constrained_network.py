"""One network for all families within limits of their inputs: cost over the constrained optimum, time a step.

In LQR coordinates u = −Kx + v the cost above xᵀPx is Σ vᵀSv, exactly: the constrained optimum is the least v whose
demands −Kx[t] + v[t] keep the limits. A layer is a step of Douglas and Rachford's splitting of that program, a clip and
a product with a matrix that follows from A, B, K, S; the plan looks at eight samples, ever farther apart. Learned are a
step size for each layer and sample and a relaxation for each layer, the same for all plants.

The teacher is MPC of 60 samples; the loss is that of :mod:`benchmarks.imitation`. Next to it a perceptron
that sees the same demands, shared by the inputs and pooled over them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int
from functools import partial
from typing import Any, NamedTuple

import daqp
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from benchmarks.imitation import limited
from benchmarks.measurement import Parts, Row, main, measure, row
from lqrlab import predictive, simulation, systems
from lqrlab.compute import one_program, pytree
from lqrlab.compute.linalg import expand_batch, matvec, quadratic
from lqrlab.simulation import Problem

HELD_OUT = ("furuta_pendulum", "dc_motor", "ball_and_plate", "quarter_car", "omnidirectional_robot", "vtol")
SIZES = ((2, 1), (4, 1), (8, 1), (4, 2), (9, 2), (8, 4), (12, 6))
"""States and inputs that families are padded to: one program each."""
NODES = (0, 1, 2, 3, 5, 8, 13, 21, 34)
"""Samples whose demands are kept within the limits, and the end of the plan."""
SAMPLES = 400
FAILED = 900.0  # percent over the optimum


class Weights(NamedTuple):
    """What is learned: logarithms of step sizes ``[layers, nodes]``, relaxations ``[layers]``."""

    steps: Array | np.ndarray
    relaxation: Array | np.ndarray

    @classmethod
    def start(cls, layers: int) -> "Weights":
        """Steps that shrink as far as the plan is stiff, and the usual over-relaxation."""
        return cls(jnp.full((layers, len(NODES) - 1), np.log(0.3), "float32"), jnp.full(layers, 1.6, "float32"))


@pytree
@dataclasses.dataclass(frozen=True)
class Demands:
    """What the LQR asks for at the nodes from a state on, and what each correction changes of it.

    Attributes:
        ahead: demands at the nodes, by state ``[*batch, nodes·m, n]``, each in units of what it costs to change it.
        coupling: the correlation of demands by corrections of least cost ``[*batch, nodes·m, nodes·m]``.
        unit: of the demands ``[*batch, nodes·m]``.
        low, high: limits in these units.
    """

    ahead: Array
    coupling: Array
    unit: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, problem: Problem) -> "Demands":
        """Of problems with limits of their inputs, once a plant; made in float64, kept in float32."""
        n, m = problem.n, problem.m
        closed, K, nodes = problem.closed_loop(), problem.K, NODES[:-1]
        powers = [jnp.broadcast_to(jnp.eye(n), problem.A.shape)]
        held = [jnp.zeros_like(problem.B)]  # where a unit correction leads that lasts so many samples
        for _ in range(nodes[-1] + 1):
            held.append(held[-1] + powers[-1] @ problem.B)
            powers.append(closed @ powers[-1])
        eye, none = jnp.broadcast_to(jnp.eye(m), (*K.shape[:-2], m, m)), jnp.zeros((*K.shape[:-2], m, m))
        by = [
            [
                eye if t == s else none if t < s else -K @ (held[t - s] - held[t - end])
                for s, end in itertools.pairwise(NODES)
            ]
            for t in nodes
        ]
        lengths = np.repeat(np.diff(NODES), m)
        cheap = jnp.einsum("st,...ij->...sitj", jnp.eye(len(nodes)), jnp.linalg.inv(problem.S))
        cheap = cheap.reshape(*problem.batch_shape, len(lengths), len(lengths))
        cheap = cheap / jnp.broadcast_to(jnp.asarray(lengths, cheap.dtype), cheap.shape)
        change = jnp.concatenate([jnp.concatenate(line, -1) for line in by], -2)
        coupling = change @ cheap @ change.mT
        unit = jnp.sqrt(jnp.diagonal(coupling, axis1=-2, axis2=-1))
        ahead = jnp.concatenate([-K @ powers[t] for t in nodes], -2) / unit[..., None]
        low, high = (jnp.concatenate([end] * len(nodes), -1) / unit for end in (problem.low, problem.high))
        found = cls(ahead, coupling / (unit[..., None] * unit[..., None, :]), unit, low, high)
        return jax.tree.map(lambda a: a.astype("float32"), found)

    def clipped(self, demand: Array) -> Array:
        """Demands ``[..., k]``, the first ones or all, within the limits."""
        low, high = (expand_batch(end[..., : demand.shape[-1]], demand.ndim) for end in (self.low, self.high))
        return jnp.clip(demand, low, high)


@pytree
@dataclasses.dataclass(frozen=True)
class LayeredPolicy:
    """Layers of a clip and a product each, from the demands of the LQR on: it is the LQR where all keep the limits.

    Attributes:
        demands: of the plants.
        layers: matrices ``[*batch, nodes·m, nodes·m]``, the last with the rows of the first node alone.
        relaxation: of each layer.
    """

    demands: Demands
    layers: tuple[Array, ...]
    relaxation: Array

    @classmethod
    def of(cls, demands: Demands, weights: Weights, m: int) -> "LayeredPolicy":
        """With learned weights; once a plant."""
        each = jnp.repeat(jnp.exp(jnp.asarray(weights.steps)), m, axis=-1)
        H = demands.coupling
        layers = [jnp.linalg.solve(H + jnp.broadcast_to(jnp.diag(step), H.shape), H).mT for step in each]
        return cls(demands, (*layers[:-1], layers[-1][..., :m, :]), jnp.asarray(weights.relaxation))

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    @one_program
    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """The input within the limits."""
        u = self.demands.clipped(self.asked(x))
        return None, (u * expand_batch(self.demands.unit[..., : u.shape[-1]], u.ndim)).astype(x.dtype)

    def asked(self, x: Array) -> Array:
        """The first demand, corrected, before its clip."""
        plain = corrected = matvec(self.demands.ahead, x.astype("float32"))
        for number, layer in enumerate(self.layers):
            rows = layer.shape[-2]
            kept = self.demands.clipped(corrected)
            least = plain[..., :rows] + matvec(layer, 2 * kept - corrected - plain)
            corrected = corrected[..., :rows] + self.relaxation[number] * (least - kept[..., :rows])
        return corrected


@pytree
@dataclasses.dataclass(frozen=True)
class PerceptronPolicy:
    """A perceptron instead of the layers: for each input of its demands, of those cut off, and of all inputs' mean."""

    demands: Demands
    weights: list[Array]

    @classmethod
    def start(cls, key: Array, width: int = 32) -> list[Array]:
        """Its weights; the last are zero, so that it is the clipped LQR."""
        sizes = 3 * (len(NODES) - 1), 2 * width
        keys = jax.random.split(key, 2)
        hidden = [jax.random.normal(k, (s, width), "float32") * s**-0.5 for k, s in zip(keys, sizes)]
        return [*hidden, jnp.zeros((width, 1), "float32")]

    @classmethod
    def of(cls, demands: Demands, weights: list[Array], m: int) -> "PerceptronPolicy":
        """With learned weights."""
        return cls(demands, weights)

    init = LayeredPolicy.init
    __call__ = LayeredPolicy.__call__

    def asked(self, x: Array) -> Array:
        """The first demand with what the perceptron adds, nothing where no demand is cut off."""
        plain = matvec(self.demands.ahead, x.astype("float32"))
        off = plain - self.demands.clipped(plain)
        room = expand_batch(jnp.where(jnp.isfinite(self.demands.high), self.demands.high, 1), plain.ndim)
        parts = [a / room for a in (plain, off, matvec(self.demands.coupling, off))]
        m = plain.shape[-1] // (len(NODES) - 1)
        each = [jnp.swapaxes(a.reshape(*a.shape[:-1], -1, m), -1, -2) for a in parts]
        first, second, last = self.weights
        hidden = jnp.tanh(jnp.arcsinh(jnp.concatenate(each, -1)) @ first)
        pooled = jnp.broadcast_to(jnp.mean(hidden, -2, keepdims=True), hidden.shape)
        added = (jnp.tanh(jnp.concatenate([hidden, pooled], -1) @ second) @ last)[..., 0]
        far = jnp.tanh(jnp.max(jnp.abs(parts[1]), -1, keepdims=True))
        return plain[..., :m] + far * added * room[..., :m]


class Plants(NamedTuple):
    """Variants of families of one size within limits of one input scale, and their starts ``[plants, starts, n]``.

    A start's optimum is NaN where none was found, as where no size of a direction meets the limits as was asked.
    """

    families: np.ndarray
    problem: Problem
    x0: Array


def drawn(families: Sequence[str], variants: int, starts: int, seed: int) -> list[Plants]:
    """Variants (±20 %) by size, with starts from which the clipped LQR is at a limit in 30 to 90 % of its first second.

    That second counts 20 samples at least and 50 at most. Directions are normal in the states' scales.
    """
    rng, names, found = np.random.default_rng(seed), systems.names(), []
    sized: dict[tuple[int, int], list[str]] = {}
    for family in families:
        plant = systems.make(family)
        size = next(size for size in SIZES if plant.n <= size[0] and plant.m <= size[1])
        sized.setdefault(size, []).append(family)
    for (n, m), members in sized.items():
        keys = [jax.random.fold_in(jax.random.key(seed), names.index(family)) for family in members]
        plants = [systems.sample(family, key=key, num=variants, spread=0.2) for family, key in zip(members, keys)]
        scaled = [Problem.of(plant, linear=True, optimum=False).scaled().sampled for plant in plants]
        A, B, Q, R, N = (np.concatenate(part) for part in zip(*scaled))
        A, B, Q, R, N = A[:, :n, :n], B[:, :n, :m], Q[:, :n, :n], R[:, :m, :m], N[:, :n, :m]
        limit = np.where(np.abs(B).max(1) > 0, 1.0, np.inf)
        problem = Problem.from_matrices(A, B, Q, R, N, limits=(-limit, limit))
        second = np.clip(np.round(1 / np.concatenate([np.broadcast_to(p.dt, variants) for p in plants])), 20, 50)
        directions = rng.normal(size=(len(A), starts, 1, n)) * (np.abs(Q).max(-1) > 0)[:, None, None]
        x = directions * np.geomspace(0.1, 30, 32)[:, None]
        run = simulation.rollout(problem, problem.K, jnp.asarray(x), 50)
        asked = -np.einsum("pmn,psktn->psktm", problem.K, run.xs[..., :-1, :])
        at_limit = (np.abs(asked) > limit[:, None, None, None]).any(-1) & (np.arange(50) < second[:, None])[
            :, None, None
        ]
        share = at_limit.sum(-1) / second[:, None, None]
        some = (share >= 0.3) & (share <= 0.9)
        chosen = np.argmax(some * rng.uniform(size=some.shape), -1)
        x0 = np.take_along_axis(x, chosen[..., None, None], 2)[:, :, 0]
        x0 = np.where(some.any(-1)[..., None], x0, np.nan)
        found.append(Plants(np.repeat(members, variants), problem, jnp.asarray(x0)))
    return found


class Lessons(NamedTuple):
    """States ``[plants, states, n]`` with the teacher's inputs, multipliers and cost; known: it is the optimum's."""

    x: Array
    u: Array
    price: Array
    cost: Array
    known: Array


class Teacher:
    """Plans of one plant: the program of :func:`lqrlab.predictive.mpc`, its unknowns v, solved by DAQP.

    Nothing is compiled for a size; the answers are the same.
    """

    def __init__(self, problem: Problem, plant: int, horizon: int) -> None:
        A, B, K, S, self.P = (np.asarray(a[plant]) for a in (problem.A, problem.B, problem.K, problem.S, problem.P))
        high = np.asarray(problem.high[plant])
        self.inputs = np.isfinite(high)
        self.A, self.B, self.K, m = A, B[:, self.inputs], K[self.inputs], self.inputs.sum()
        closed, after, powers = A - self.B @ self.K, [np.eye(m)], [np.eye(len(A))]
        for _ in range(horizon):
            after.append(-self.K @ powers[-1] @ self.B)
            powers.append(closed @ powers[-1])
        self.closed, self.high = closed, np.tile(high[self.inputs], horizon)
        self.ahead = np.concatenate([-self.K @ power for power in powers[:-1]])
        change = np.zeros((horizon, m, horizon, m))
        for t in range(horizon):
            change[t, :, : t + 1] = np.stack(after[t::-1], 1)
        unit = np.linalg.inv(np.linalg.cholesky(S[np.ix_(self.inputs, self.inputs)])).T
        self.change = (change @ unit).reshape(horizon * m, horizon * m)

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, bool]:
        """Inputs ``[steps, m]``, multipliers of the first ``[m]``, cost; whether the LQR after it meets no limit."""
        asked, m = self.ahead @ x, len(self.K)
        us, price, cost = asked, np.zeros(m), float(x @ self.P @ x)
        if (np.abs(asked) > self.high).any():
            size, none = np.eye(len(asked)), np.zeros(len(asked))
            ends = self.high - asked, -self.high - asked
            v, _, flag, found = daqp.solve(size, none, self.change, *ends, np.zeros(len(asked), dtype=c_int))
            if flag != 1:
                return np.zeros((1, m)), price, np.nan, False
            us, price, cost = asked + self.change @ v, 2 * np.asarray(found["lam"])[:m], cost + float(v @ v)
        end = x
        for u in (us := us.reshape(-1, m)):
            end = self.A @ end + self.B @ u
        for _ in range(300):
            if (np.abs(self.K @ end) > self.high[:m] + 1e-9).any():
                return us, price, cost, False
            end = self.closed @ end
        return us, price, cost, True


def asked_of_teacher(problem: Problem, x: Array, horizons: Sequence[int]) -> Lessons:
    """Plans from states of plants: the first of the horizons at whose end no limit is left, else not known."""
    states = np.asarray(x)
    u, price, cost = (np.zeros((*states.shape[:2], *size)) for size in ((problem.m,), (problem.m,), ()))
    known = np.zeros(states.shape[:2], bool)
    for p, of_plant in enumerate(states):
        teachers = dict[int, Teacher]()
        for k, start in enumerate(of_plant):
            for horizon in horizons if np.isfinite(start).all() and start.any() else ():
                if horizon not in teachers:
                    teachers[horizon] = Teacher(problem, p, horizon)
                us, first, cost[p, k], known[p, k] = teachers[horizon](start)
                at = teachers[horizon].inputs
                u[p, k, at], price[p, k, at] = us[0], first
                if known[p, k]:
                    break
    return Lessons(x, *map(jnp.asarray, (u, price, np.nan_to_num(cost), known)))


def cost_of_mpc(problem: Problem, x0: Array, best: Array, horizon: int = 20) -> np.ndarray:
    """Costs of the teacher's loops ``[plants, starts]``, those with an optimum.

    Once a plan is the optimum of all time, its cost is the rest; without that in a loop's samples it failed.
    """
    found = np.where(np.isnan(best), np.nan, np.inf)
    for p, of_plant in enumerate(np.asarray(x0)):
        teacher, Q, R, N = Teacher(problem, p, horizon), *(np.asarray(a[p]) for a in (problem.Q, problem.R, problem.N))
        for k in np.flatnonzero(~np.isnan(found[p])):
            x, paid, u = of_plant[k], 0.0, np.zeros(problem.m)
            for _ in range(SAMPLES):
                plan, _, rest, known = teacher(x)
                if known or np.abs(x).max() > 1e6:
                    found[p, k] = paid + rest if known else np.inf
                    break
                u[teacher.inputs] = plan[0]
                paid += float(x @ Q @ x + u @ R @ u + 2 * x @ N @ u)
                x = teacher.A @ x + teacher.B @ plan[0]
    return found


Made = Callable[[Demands, Any, int], Any]


class School(NamedTuple):
    """Demands, S and lessons of plants of one size."""

    demands: Demands
    S: Array
    lessons: Lessons


def schooled(plants: Sequence[Plants], states: int, horizons: Sequence[int], seed: int) -> list[School]:
    """The teacher's answers at states of loops of the clipped LQR and of the layers before training."""
    rng, found = np.random.default_rng(seed), []
    for each in plants:
        demands = Demands.of(each.problem)
        students = each.problem.K, LayeredPolicy.of(demands, Weights.start(3), each.problem.m)
        x = jnp.concatenate([_visited(each, demands, student, states, rng) for student in students], 1)
        found.append(School(demands, each.problem.S, asked_of_teacher(each.problem, x, horizons[:1])))
    return found


def learned(made: Made, weights: Any, school: Sequence[School], *, steps: int, rate: float, seed: int) -> Any:
    """Weights after Adam's steps, each with 24 plants of one size and 16 states of each."""
    rng = np.random.default_rng(seed)
    rates = optax.cosine_decay_schedule(rate, steps, 0.05)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates))
    state, share = optimizer.init(weights), np.array([len(each.S) for each in school], float)
    for at in rng.choice(len(school), steps, p=share / share.sum()):
        size = school[at].lessons.known.shape
        which, states_of = rng.integers(size[0], size=24), rng.integers(size[1], size=(24, 16))
        lessons, demands = _chosen(school[at].lessons, which[:, None], states_of), _chosen(school[at].demands, which)
        with jax.numpy_dtype_promotion("standard"):  # the plans are of float64, the weights not; and Optax mixes them
            slope = _slope(made, weights, demands, school[at].S[which], lessons)
            updates, state = optimizer.update(slope, state, weights)
            weights = optax.apply_updates(weights, updates)
    return weights


def _chosen(tree: Any, *index: np.ndarray) -> Any:
    return jax.tree.map(lambda a: a[index], tree)


@partial(jax.jit, static_argnames="made")
def _slope(made: Made, weights: Any, demands: Demands, S: Array, batch: Lessons) -> Any:
    """Of the mean excess cost of the student's inputs in percent of the plans' costs, and of demands beyond limits."""

    def loss(weights: Any) -> Array:
        student = made(demands, weights, batch.u.shape[-1])
        asked = student.asked(batch.x)
        kept = student.demands.clipped(asked)
        change = kept * expand_batch(demands.unit[..., : kept.shape[-1]], kept.ndim) - batch.u
        excess = quadratic(S, change) - jnp.sum(batch.price * change, -1)
        excess = 100 * jnp.maximum(excess, 0) / jnp.where(batch.known, batch.cost, 1)
        beyond = jnp.minimum(jnp.sum((asked - kept) ** 2, -1), 1)
        return jnp.mean(jnp.where(batch.known, jnp.log1p(excess) + 1e-3 * beyond, 0)).astype("float32")

    return jax.grad(loss)(weights)


def _visited(plants: Plants, demands: Demands, controller: object, states: int, rng: np.random.Generator) -> Array:
    """States of the controller's loops in whose next samples the LQR would meet a limit ``[plants, states, n]``."""
    xs = np.asarray(simulation.rollout(plants.problem, controller, jnp.nan_to_num(plants.x0), 40).xs)
    xs = xs.reshape(len(xs), -1, xs.shape[-1])
    far = np.abs(np.einsum("pin,psn->psi", demands.ahead, xs)) > np.asarray(demands.high)[:, None]
    good = far.any(-1) & (np.abs(xs).max(-1) < 200)
    chosen = np.argsort(-(good + rng.uniform(size=good.shape)), -1)[:, :states]
    return jnp.asarray(np.take_along_axis(np.where(good[..., None], xs, 0), chosen[..., None], 1))


TRAINED = Weights(
    np.array(
        [
            [-1.33, -1.79, -1.29, -1.47, -1.31, -0.45, -0.05, 0.06],
            [-1.44, -2.0, -1.34, -1.31, -1.89, -1.76, -1.22, -0.87],
            [-1.33, -1.64, -1.17, -0.48, -1.14, -1.7, -2.17, -2.16],
        ],
        "float32",
    ),
    np.array([1.49, 2.3, 1.8], "float32"),
)
"""Three layers, seed 0 of :func:`bench_families`: 27 numbers."""


@dataclasses.dataclass(frozen=True)
class ControllerRow:
    """Cost over the constrained optimum of a controller's loops in percent, and the share that failed."""

    plants: str
    controller: str
    median: float
    p95: float
    failed: float
    loops: int


def cost_of(plants: Plants, controller: object) -> np.ndarray:
    """Cost of each loop; infinite where the loop does not come back."""
    p = plants.problem
    run = simulation.rollout(p, controller, jnp.nan_to_num(plants.x0), SAMPLES)
    end = run.xs[..., -1, :]
    rest = quadratic(p.P, end)
    beyond = np.any(np.abs(matvec(p.K, end)) > np.asarray(p.high)[:, None], -1)
    lost = ~np.isfinite(run.cost + rest) | (beyond & (rest > 0.01 * run.cost))
    return np.where(lost, np.inf, run.cost + rest)


def bench_families(
    families: Sequence[str] | None = None,
    *,
    variants: int = 2,
    starts: int = 8,
    layers: Sequence[int] = (1, 3),
    seeds: int = 3,
    plants: int = 2,
    states: int = 16,
    steps: int = 600,
    horizons: Sequence[int] = (60, 150),
) -> Iterator[ControllerRow]:
    """Cost over the constrained optimum on fresh variants of the families trained on, and of six others."""
    families = systems.names() if families is None else families
    fresh = drawn(families, variants, starts, 5)
    best = []
    for each in fresh:
        found = asked_of_teacher(each.problem, each.x0, horizons)
        best.append(jnp.where(found.known, found.cost, jnp.nan))
    demands = [Demands.of(each.problem) for each in fresh]

    def rows(name: str, costs: Sequence[np.ndarray]) -> Iterator[ControllerRow]:
        found = [100 * (np.asarray(cost) / np.asarray(least) - 1) for cost, least in zip(costs, best)]
        for label in ("trained", "held out"):
            of = [np.isin(each.families, HELD_OUT) == (label == "held out") for each in fresh]
            loops = np.concatenate([one[mask].ravel() for one, mask in zip(found, of)])
            loops = loops[~np.isnan(loops)]
            if len(loops):
                p95 = float(np.quantile(loops, 0.95, method="higher"))
                failed = 100 * float((loops > FAILED).mean())
                yield ControllerRow(label, name, float(np.median(loops)), p95, failed, len(loops))

    def made(how: Made, weights: Any) -> list[np.ndarray]:
        return [cost_of(each, how(mine, weights, each.problem.m)) for mine, each in zip(demands, fresh)]

    yield from rows("clipped LQR", [cost_of(each, each.problem.K) for each in fresh])
    yield from rows("MPC 20", [cost_of_mpc(each.problem, each.x0, least) for each, least in zip(fresh, best)])
    for number in layers:
        yield from rows(f"{_layers(number)}, not trained", made(LayeredPolicy.of, Weights.start(number)))
    for seed in range(seeds):
        taught = drawn([family for family in families if family not in HELD_OUT], plants, 8, 11 + seed)
        school = schooled(taught, states, horizons, seed)
        for number in layers if seed == 0 else layers[-1:]:
            weights = learned(LayeredPolicy.of, Weights.start(number), school, steps=steps, rate=0.02, seed=seed)
            print(f"{_layers(number)}, seed {seed}:", jax.tree.map(lambda a: np.round(a, 2).tolist(), weights))
            yield from rows(f"{_layers(number)}, seed {seed}", made(LayeredPolicy.of, weights))
        if seed == 0:
            weights = PerceptronPolicy.start(jax.random.key(seed))
            weights = learned(PerceptronPolicy.of, weights, school, steps=2 * steps, rate=0.005, seed=seed)
            yield from rows(f"perceptron, seed {seed}", made(PerceptronPolicy.of, weights))


def _layers(number: int) -> str:
    return f"{number} layer{'s' if number > 1 else ''}"


def bench_speed(
    families: Sequence[str] = ("cart_pole", "three_link_arm", "quadrotor"),
    loops: Sequence[int] = (1, 1024),
    repeats: int = 30,
) -> Iterator[Row]:
    """Time of a step next to MPC of 20 samples, which begins at the plan before, in one process: the least."""
    for family in families:
        plant = systems.make(family)
        bound = np.asarray(plant.equilibrium()[1]), np.asarray(Problem.of(plant).scale_u)
        problem = Problem.of(plant, limits=(bound[0] - bound[1], bound[0] + bound[1]), linear=True)
        layered = LayeredPolicy.of(Demands.of(problem), TRAINED, problem.m)
        policies = {"clipped LQR": simulation.bind(problem.K, problem), "network": layered}
        policies |= {"MPC 20": simulation.bind(predictive.mpc(problem, 20), problem)}
        for number in loops:
            x = problem.initial_state(key=jax.random.key(0), num=number)
            ways = {"a call": (_step, 1)} | ({"a step in a loop": (_loop, LOOP)} if number == 1 else {})
            for way, (called, steps) in ways.items():
                calls = {name: called(policy, problem, x) for name, policy in policies.items()}
                times = measure(calls, repeats)
                taken = {name: 1e6 / steps * time for name, time in times.items()}
                label = f"{family}, {number} at once, {way}"
                for name, time in taken.items():
                    yield row(f"{label}: {name}", time, "µs")
                yield row(f"{label}: MPC 20 over network", taken["MPC 20"] / taken["network"], "×", 20)


LOOP = 50  # samples of a compiled loop


def _step(policy: Any, problem: Problem, x: Array) -> Callable[[], object]:
    """A call of a policy at its second sample, so that MPC begins at a plan."""
    step = jax.jit(lambda carry, x: policy(carry, x))  # of one plant: its matrices are constants of the program
    carry, u = step(policy.init(x.shape[:-1]), x)
    after = problem.step(x, u)[0]
    return lambda: step(carry, after)


def _loop(policy: Any, problem: Problem, x: Array) -> Callable[[], object]:
    """A loop as one program."""

    def sample(state: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
        carry, u = policy(*state)
        return (carry, problem.step(state[1], u)[0]), None

    loop = jax.jit(lambda x: jax.lax.scan(sample, (policy.init(x.shape[:-1]), x), None, length=LOOP)[0][1])
    return lambda: loop(x)


def bench_filtered(families: Sequence[str] = ("cart_pole",), *, starts: int = 128) -> Iterator[Row]:
    """Where a state is limited too: cost over the constrained optimum and loops that break the limit, in %."""
    for family in families:
        problem, x0, best, high, _ = limited(family, starts)
        network = LayeredPolicy.of(Demands.of(problem), TRAINED, problem.m)
        for name, one in {"network": network, "network, filtered": predictive.filtered(network, problem)}.items():
            run = simulation.rollout(problem, one, x0, SAMPLES)
            over = 100 * ((run.cost + quadratic(problem.P, run.xs[:, -1])) / best - 1)
            beyond = (np.maximum(np.abs(run.xs) - high, 0) / problem.scale_x[None, None]).max((1, 2))
            for word, value in (("median", np.median(over)), ("p95", np.quantile(over, 0.95))):
                yield row(f"{family}: {name}, {word} over the optimum", float(value), "%")
            yield row(
                f"{family}: {name}, loops that break a limit by a thousandth", 100 * float((beyond > 1e-3).mean()), "%"
            )


QUICK = {"families": ("cart_pole", "dc_motor"), "variants": 1, "starts": 2, "layers": (1,), "seeds": 1}
QUICK |= {"plants": 1, "states": 2, "steps": 2, "horizons": (30,)}
PARTS: Parts = {
    "families": (bench_families, QUICK),
    "speed": (bench_speed, {"families": ("double_integrator",), "loops": (1,), "repeats": 2}),
    "filtered": (bench_filtered, {"starts": 4}),
}

if __name__ == "__main__":
    main(PARTS)
