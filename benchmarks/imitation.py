"""Networks taught by a predictive controller, next to it and to the clipped LQR: cost over the constrained optimum.

The teacher plans from every state that the student comes to (S. Ross, G. Gordon, J. A. Bagnell, AISTATS 2011). What a
student's input costs more than the teacher's is known from the plan, exactly to second order: with S = R + BᵀPB and the
multipliers μ of the inputs' limits it is (u − u*)ᵀS(u − u*) − μᵀ(u − u*).

Each plant is linear, with limits of its inputs and of one state; the starts are those from which the optimum exists.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray
from lqrlab.predictive import MPC

from benchmarks.measurement import Parts, Row, main, row
from benchmarks.recovery_policy import Layers, RecoveryPolicy, Regulator, updated
from lqrlab import predictive, simulation, systems
from lqrlab.compute import checks, pytree
from lqrlab.compute.configuration import Config, Count, Positive, Seed
from lqrlab.compute.linalg import quadratic
from lqrlab.simulation import Problem


class Setting(NamedTuple):
    """Limit of the inputs' deviations, and of a state; size of the starts, in state scales."""

    u: float
    state: str
    x: float
    start: float


SETTINGS = {
    "cart_pole": Setting(10.0, "velocity", 0.8, 0.6),
    "mass_train": Setting(1.0, "position4", 0.4, 1.0),
    "quadrotor": Setting(0.3, "z_velocity", 0.8, 0.8),
}
HORIZON, SAMPLES = 25, 400
_TINY = 1e-6


class Limited(NamedTuple):
    """A plant with its setting's limits, starts that have an optimum, its costs, limits of states, starts' share."""

    problem: Problem
    x0: Array
    best: np.ndarray
    high: np.ndarray
    held: float


def limited(family: str, starts: int) -> Limited:
    """A plant of :data:`SETTINGS`."""
    setting, plant = SETTINGS[family], systems.make(family)
    u_eq = np.asarray(plant.equilibrium()[1])
    high = np.full(plant.n, np.inf)
    high[[state.name for state in plant.states].index(setting.state)] = setting.x
    x_eq = np.asarray(plant.equilibrium()[0])
    limits = simulation.Limits(u=(u_eq - setting.u, u_eq + setting.u), x=(x_eq - high, x_eq + high))
    problem = Problem.of(plant, limits=limits, linear=True)
    scale = np.asarray(problem.scale_x)
    x0 = np.random.default_rng(1).normal(size=(starts, plant.n)) * scale * setting.start
    x0 = np.clip(x0, -high, high)
    best = predictive.optimum(problem, x0, longest=256)
    held = np.asarray(best.found)
    return Limited(problem, jnp.asarray(x0[held]), np.asarray(best.cost)[held], high, float(held.mean()))


def bench_imitation(
    families: Sequence[str] = tuple(SETTINGS), *, starts: int = 128, seed: int = 0, brief: bool = False
) -> Iterator[Row]:
    """Excess over the constrained optimum and violations, in %, of the network alone and behind a safety filter."""
    for family in families:
        problem, x0, best, high, held = limited(family, starts)
        scale = np.asarray(problem.scale_x)
        yield row(f"{family}: starts that have an optimum", 100 * held, "%")
        price = 1e3 * float(jnp.max(jnp.diag(problem.Q)))
        teacher = predictive.mpc(problem, HORIZON, soft=(0.0, price))
        config = ImitationConfig(seed=seed, spread=2 * SETTINGS[family].start)
        if brief:
            config = ImitationConfig(rounds=1, loops=8, samples=10, labels=32, num_steps=2, width=8)
        network = imitate(teacher, problem, config).policy
        contenders = {
            "clipped LQR": problem.K,
            f"MPC {HORIZON}": teacher,
            "network": network,
            "network, filtered": predictive.filtered(network, problem),
        }
        for name, controller in contenders.items():
            run = simulation.rollout(problem, controller, x0, SAMPLES)
            end = np.asarray(run.xs[:, -1])
            paid = np.asarray(run.cost) + np.einsum("bi,ij,bj->b", end, problem.P, end)
            excess = 100 * (paid / best - 1)
            beyond = (np.maximum(np.abs(run.xs) - high, 0) / scale).max((1, 2))
            yield row(f"{family}: {name}, median over the optimum", float(np.median(excess)), "%")
            yield row(f"{family}: {name}, p95", float(np.quantile(excess, 0.95)), "%")
            yield row(
                f"{family}: {name}, loops that break a limit by a thousandth", 100 * float((beyond > 1e-3).mean()), "%"
            )


@dataclasses.dataclass(frozen=True)
class ImitationConfig(Config):
    """Settings of :func:`imitate`.

    Attributes:
        rounds: in each of them the student runs, its states are given to the teacher, and it learns from all so far.
        loops, samples: of a round.
        labels: states of a round that the teacher plans from.
        num_steps: optimizer steps of a round.
        spread: starts are normal, with so many state scales at most.
        width: of the two hidden layers.
        batch_size: states of an optimizer step.
        learning_rate: Adam's peak; cosine to a twentieth.
        seed: of all that is drawn.
    """

    rounds: Count = 10
    loops: Count = 128
    samples: Count = 100
    labels: Count = 2048
    num_steps: Count = 1000
    spread: Positive = 2.0
    width: Count = 64
    batch_size: Count = 256
    learning_rate: Positive = 2e-3
    seed: Seed = 0


@dataclasses.dataclass(frozen=True)
class Imitation:
    """Result of :func:`imitate`.

    Attributes:
        policy: the student after the last round.
        metrics: a row a round: the teacher's unsolved share of the states asked, and the mean excess cost of the
            student's inputs, relative to the plan's cost, at the first and in the last optimizer steps.
    """

    policy: RecoveryPolicy
    metrics: list[dict[str, float]]


@pytree
@dataclasses.dataclass(frozen=True)
class Lessons:
    """States that the student came to, and the teacher's answers: inputs, multipliers of their limits, costs to go."""

    x: Float[Array, "num n"]
    u: Float[Array, "num m"]
    price: Float[Array, "num m"]
    cost: Float[Array, " num"]
    known: Float[Array, " num"]

    @classmethod
    def none(cls, design: MPC, num: int) -> "Lessons":
        """Room for so many."""
        n, m = design.problem.B.shape
        x, u, one = (jnp.zeros((num, *size), design.problem.A.dtype) for size in ((n,), (m,), ()))
        return cls(x, u, u, one, one)

    def including(self, new: "Lessons", first: int) -> "Lessons":
        """With new ones from a place on."""
        return jax.tree.map(lambda a, b: a.at[first : first + len(b)].set(b), self, new)


def imitate(
    design: MPC,
    problem: Problem,
    config: ImitationConfig | None = None,
    *,
    progress: Callable[[dict[str, float]], None] = lambda row: None,
) -> Imitation:
    """Train a network to be a predictive controller of one plant, from its saturated LQR on.

    The student sees the state and remembers nothing; it runs on the problem's own plant, linear or not, while the
    teacher plans with its linear model. Where no plan keeps the limits (give the design ``soft`` ones), nothing is
    learned.

    Args:
        design: the teacher, of :func:`mpc`, without a reference, a disturbance and limits of changes, which a state
            alone does not tell.
        problem: of one plant, with the limits of its inputs.
        progress: called with each row of the metrics.
    """
    config = config or ImitationConfig()
    checks.instance("design", design, MPC, "a predictive controller, as predictive.mpc makes")
    if design.target is not None or design.L is not None or design.limits.du is not None:
        raise ValueError(
            "design: expected a controller of the state alone, but found a reference, a disturbance, an estimator or "
            "limits of the inputs' changes; a network without a memory cannot follow what the state does not show"
        )
    if (shape := design.problem.B.shape) != problem.B.shape:
        raise ValueError(f"design: expected one of B {problem.B.shape}, as the problem's, but found {shape}")
    keys = jax.random.split(jax.random.key(config.seed), config.rounds + 1)
    policy = RecoveryPolicy.start(Regulator.of(problem), config.width, key=keys[0])
    optimizer = _optimizer(config)
    state = optimizer.init(policy.layers)
    lessons = Lessons.none(design, config.rounds * config.labels)
    metrics: list[dict[str, float]] = []
    for number, key in enumerate(keys[1:]):
        run_key, learn_key = jax.random.split(key)
        new = _asked(design, _visited(problem, policy, config, run_key))
        first = number * config.labels
        lessons = lessons.including(new, first)
        layers, state, losses = _learned(design, policy, state, lessons, config, first + config.labels, learn_key)
        policy = dataclasses.replace(policy, layers=layers)
        tenth = max(1, config.num_steps // 10)
        row = {"round": number + 1.0, "unsolved": 1 - float(new.known.mean())}
        metrics.append(row | {"first": float(losses[:tenth].mean()), "last": float(losses[-tenth:].mean())})
        progress(metrics[-1])
    return Imitation(policy, metrics)


def _optimizer(config: ImitationConfig) -> optax.GradientTransformation:
    steps = config.rounds * config.num_steps
    rate = optax.cosine_decay_schedule(config.learning_rate, steps, 0.05)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


@partial(jax.jit, static_argnames="config")
def _visited(problem: Problem, policy: RecoveryPolicy, config: ImitationConfig, key: PRNGKeyArray) -> Array:
    """States of the student's loops ``[labels, n]``: as many as are asked, drawn from all that stayed finite."""
    direction, size, choice = jax.random.split(key, 3)
    scale = problem.scale_x
    sizes = config.spread * jax.random.uniform(size, (config.loops, 1), scale.dtype)
    x0 = jax.random.normal(direction, (config.loops, problem.n), scale.dtype) * sizes * scale[None]
    xs = simulation.rollout(problem, policy, x0, config.samples, keep=("xs",)).xs[..., :-1, :]
    xs = xs.reshape(-1, problem.n)
    far = jnp.max(jnp.abs(xs) / scale[None], -1)
    good = (far < 10 * config.spread).astype(xs.dtype)  # NaN is not
    drawn = jax.random.choice(choice, len(xs), (config.labels,), p=good / jnp.maximum(good.sum(), 1))
    return jnp.where(good[drawn, None] > 0, xs[drawn], 0)


@jax.jit
def _asked(design: MPC, x: Float[Array, "num n"]) -> Lessons:
    plan, _ = design.plan(x)
    assert plan.multipliers.u is not None
    return Lessons(x, plan.us[..., 0, :], plan.multipliers.u[..., 0, :], plan.cost, plan.solved.astype(x.dtype))


def excess_by_plan(design: MPC, lessons: Lessons, u: Float[Array, "num m"]) -> Float[Array, " num"]:
    """The cost of inputs within the limits above the teacher's, to second order."""
    return quadratic(design.problem.S, u - lessons.u) - jnp.sum(lessons.price * (u - lessons.u), -1)


@partial(jax.jit, static_argnames="config")
def _learned(
    design: MPC,
    policy: RecoveryPolicy,
    state: optax.OptState,
    lessons: Lessons,
    config: ImitationConfig,
    num: int | Array,
    key: PRNGKeyArray,
) -> tuple[Layers, optax.OptState, Float[Array, " steps"]]:
    """The optimizer steps of a round and their losses: excess costs beside the plans' costs."""
    optimizer = _optimizer(config)

    def loss(layers: Layers, batch: Lessons) -> Array:
        student = dataclasses.replace(policy, layers=layers)
        _, u = student(None, batch.x)
        # where the demand is beyond the limits its input has no gradient: without this it would never come back
        asked = student.demand(batch.x)
        beyond = jnp.sum((asked - student.regulator.saturate(asked)) ** 2, -1).astype(u.dtype)
        relative = excess_by_plan(design, batch, u) / (batch.cost + _TINY)
        return jnp.mean(jnp.where(batch.known > 0, jnp.log1p(jnp.maximum(relative, 0)) + 0.01 * beyond, 0))

    def step(carry: tuple[Layers, optax.OptState], chosen: Int[Array, " batch"]) -> tuple:
        layers, state = carry
        value, slope = jax.value_and_grad(loss)(layers, jax.tree.map(lambda a: a[chosen], lessons))
        return updated(optimizer, slope, state, layers), value

    chosen = jax.random.randint(key, (config.num_steps, config.batch_size), 0, num)
    losses: Array
    (layers, state), losses = jax.lax.scan(step, (policy.layers, state), chosen)
    return layers, state, losses


PARTS: Parts = {"imitated": (bench_imitation, {"families": ("cart_pole",), "starts": 4, "brief": True})}

if __name__ == "__main__":
    main(PARTS)
