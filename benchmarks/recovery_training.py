"""Policies that stabilise starts from which the LQR diverges, trained by gradients through the simulator.

The gradient through a whole recovery explodes, or ends at the nearest local optimum (a pole that hangs still). So each
step differentiates a short window of many loops, and a critic, a second network, stands for all the cost after it. Both
start from the LQR: the policy is its saturated gain, the critic its xᵀPx.

Source: J. Xu, V. Makoviychuk, Y. Narang, F. Ramos, W. Matusik, A. Garg, M. Macklin, Accelerated policy learning with
parallel differentiable simulation, ICLR 2022 (SHAC).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from benchmarks.recovery_policy import Layers, RecoveryPolicy, Regulator, applied, perceptron, updated
from lqrlab import simulation
from lqrlab.compute import pytree
from lqrlab.compute.configuration import Config, Count, Positive, Range, Seed
from lqrlab.compute.linalg import quadratic
from lqrlab.simulation import Problem, Verdict, verdict

_OUTSIDE = 100.0  # scales at which a loop leaves the region that is trained in
_REST = 0.5  # of the ellipsoid where the LQR does not saturate: a loop that is inside gets a new start
_EXCESS = 0.01  # weight of demands beyond the limits, where no gradient would lead back
_TINY = 1e-6  # of cost, that its logarithm is finite
_JUDGED, _JUDGED_STEPS = 128, 1000  # starts of a validation, and samples of their loops
_SIZES = (1.0, 2.0, 4.0)  # of these starts, in state scales


@dataclasses.dataclass(frozen=True)
class RecoveryConfig(Config):
    """Settings of a recovery policy's training.

    Attributes:
        num_steps: optimizer steps.
        loops: that are run side by side.
        window: samples of them that a step differentiates through.
        longest: samples after which a loop gets a new start.
        spread: starts are normal, with up to so many state scales.
        width: of the two networks' hidden layers.
        learning_rate: Adam's peak; linear warm-up, then cosine to a twentieth.
        critic_rate: the same of the critic.
        discount: what a sample later counts less.
        steepest: largest gradient of the logarithm of a loop's cost with respect to a state, in scales.
        report_every: steps between validations; the best of them is kept.
        seed: of all that is drawn.
    """

    num_steps: Count = 2000
    loops: Count = 256
    window: Count = 32
    longest: Count = 320
    spread: Positive = 4.0
    width: Count = 48
    learning_rate: Positive = 1e-3
    critic_rate: Positive = 4e-3
    discount: Annotated[float, Range(above=0, below=1, words="a discount in (0, 1)")] = 0.995
    steepest: Positive = 5.0
    report_every: Count = 200
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.num_steps % self.report_every == 0
        self.require("num_steps", whole, f"a multiple of report_every = {self.report_every}")


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Result of :func:`train_recovery`.

    Attributes:
        policy: the best of all validations, the LQR itself among them.
        metrics: a row a report: step, loss, critic_loss, the shares of the validation's starts recovered, and their
            log_cost.
    """

    policy: RecoveryPolicy
    metrics: list[dict[str, float]]


class _Learner(NamedTuple):
    """All that a training goes on from; ``target`` is the running mean of the critic that windows end with."""

    actor: Layers
    critic: Layers
    target: Layers
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    x: Array
    age: Array


class _Window(NamedTuple):
    """States ``[T, loops, n]``, discounted costs to go and what counts ``[T, loops]``; the loops' ends."""

    xs: Array
    to_go: Array
    counts: Array
    end: Array
    alive: Array


@pytree
@dataclasses.dataclass(frozen=True)
class RecoveryTask:
    """Constants of a training."""

    problem: Problem
    regulator: Regulator
    outside_cost: Array  # of a loop that leaves the region: as if it stayed at its edge for ever
    config: RecoveryConfig = dataclasses.field(metadata={"static": True})

    def value(self, critic: Layers, x: Array) -> Array:
        """The critic's cost to go ``[...]``: xᵀPx, at most that of a loop that leaves the region, times a factor."""
        r = self.regulator
        scaled = r.scaled(x)
        size = quadratic(r.P, scaled)
        learned = applied(critic, r.features(scaled))[..., 0]
        return (size + _TINY) / (1 + size / self.outside_cost) * jnp.exp(r.beyond(scaled) * learned)

    def starts(self, key: Array, num: int) -> Array:
        """Initial states ``[num, n]``."""
        direction, size = jax.random.split(key)
        scale = self.regulator.scale_x
        z = jax.random.normal(direction, (num, len(scale)), scale.dtype)
        spread = self.config.spread
        return z * scale[None] * jax.random.uniform(size, (num, 1), scale.dtype, spread / 8, spread)


def train_recovery(
    problem: Problem,
    config: RecoveryConfig | None = None,
    *,
    progress: Callable[[dict[str, float]], None] = lambda row: None,
) -> Recovery:
    """Train a policy for one nonlinear plant with limited inputs, from its LQR on.

    The problem has finite limits of its inputs; ``progress`` is called with each row of the metrics.
    Kept is, of the policies validated that recover no less of the validation's starts than the LQR at one, two and four
    state scales, the one whose mean logarithm of the cost is least. Starts of an evaluation must come from another key.
    """
    config = config or RecoveryConfig()
    task = task_of(problem, config)
    *keys, loops_key, judge_key = jax.random.split(jax.random.key(config.seed), 5)
    learner = _started(task, keys)
    judged = jax.random.normal(judge_key, (_JUDGED, problem.n), jnp.float32) * task.regulator.scale_x[None]
    metrics: list[dict[str, float]] = []
    best, least, lqr = learner.actor, jnp.inf, jnp.zeros(len(_SIZES))
    for step in range(0, config.num_steps + 1, config.report_every):
        losses = (jnp.nan, jnp.nan)
        if step:
            learner, losses = _steps(task, learner, jax.random.fold_in(loops_key, step))
        shares, cost = _recovered(task, learner.actor, judged)
        lqr = lqr if step else shares
        row = {"step": float(step), "loss": float(losses[0]), "critic_loss": float(losses[1])}
        row |= {f"recovered_{size:g}": float(share) for size, share in zip(_SIZES, shares)}
        metrics.append(row | {"log_cost": float(cost)})
        progress(metrics[-1])
        if cost < least and jnp.all(shares >= lqr):
            best, least = learner.actor, cost
    return Recovery(RecoveryPolicy(best, task.regulator), metrics)


def task_of(problem: Problem, config: RecoveryConfig) -> RecoveryTask:
    """Plant and starts that :func:`train_recovery` works on."""
    regulator = Regulator.of(problem)
    problem = problem.astype(regulator.K.dtype)
    assert problem.continuous is not None
    weight = jnp.mean(jnp.diag(problem.continuous.Q) * regulator.scale_x**2)
    outside_cost = _OUTSIDE**2 * weight * problem.dt / (1 - config.discount)
    return RecoveryTask(
        problem, regulator, outside_cost, dataclasses.replace(config, seed=0)
    )  # one program for all seeds


def _started(task: RecoveryTask, keys: list[Array]) -> _Learner:
    """The LQR and its cost to go; the loops' ages are spread, so that not all get new starts at once."""
    config, r = task.config, task.regulator
    actor = RecoveryPolicy.start(r, config.width, key=keys[0]).layers
    critic = perceptron(r, config.width, 1, key=keys[1])
    x, age = task.starts(keys[2], config.loops), jnp.arange(config.loops) * config.longest // config.loops
    first, second = _optimizers(config)
    return _Learner(actor, critic, critic, first.init(actor), second.init(critic), x, age)


def _optimizers(config: RecoveryConfig) -> tuple[optax.GradientTransformation, ...]:
    def adam(rate: float) -> optax.GradientTransformation:
        schedule = optax.warmup_cosine_decay_schedule(0.0, rate, 50, max(config.num_steps, 51), rate / 20)
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    return adam(config.learning_rate), adam(config.critic_rate)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped(x: Array, steepest: float) -> Array:
    """x; each loop's gradient on its way back is cut to this length, so that no chaotic loop decides for all."""
    return x


def _clip_back(steepest: float, _: None, slope: Array) -> tuple[Array]:
    size = jnp.linalg.norm(slope, axis=-1, keepdims=True)
    return (slope * jnp.minimum(1.0, steepest / (size + _TINY)),)


clipped.defvjp(lambda x, steepest: (x, None), _clip_back)


def window_loss(task: RecoveryTask, actor: Layers, target: Layers, x0: Array) -> tuple[Array, _Window]:
    """The sum over loops of the logarithm of the cost from x0 ``[loops, n]``: a window of it, then the critic's.

    The logarithm makes a loop that almost diverges weigh as much as one that is nearly at rest.
    """
    policy, config = RecoveryPolicy(actor, task.regulator), task.config
    r = task.regulator

    def sample(state: tuple[Array, Array, Array], _: None) -> tuple[tuple, tuple]:
        x, alive, excess = state
        x = clipped(r.scaled(x), config.steepest) * r.scale_x[None]
        asked = policy.demand(x)
        u = r.saturate(asked)
        after, cost = task.problem.step(x, r.unscaled_input(u))
        inside = alive & (verdict.size(after, r.scale_x) < _OUTSIDE)
        after = jnp.where(inside[:, None], after, x)
        excess = excess + jnp.sum(((asked - u) / (r.high - r.low)[None]) ** 2, -1)
        return (after, inside, excess), (x, cost, alive)

    start = (x0, jnp.ones(len(x0), bool), jnp.zeros(len(x0), x0.dtype))
    (end, alive, excess), (xs, costs, counts) = jax.lax.scan(sample, start, length=config.window)

    def back(to_go: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        cost, counted = now
        to_go = jnp.where(counted, cost + config.discount * to_go, to_go)
        return to_go, to_go

    last = jnp.where(alive, task.value(target, end), task.outside_cost)
    total, to_go = jax.lax.scan(back, last, (costs, counts), reverse=True)
    loss = jnp.sum(jnp.log(total + _TINY) + _EXCESS * excess / config.window)
    return loss, jax.lax.stop_gradient(_Window(xs, to_go, counts, end, alive))


def _critic_loss(critic: Layers, task: RecoveryTask, seen: _Window) -> Array:
    error = jnp.log(task.value(critic, seen.xs)) - jnp.log(jnp.clip(seen.to_go, _TINY, task.outside_cost))
    return jnp.sum(jnp.where(seen.counts, error**2, 0.0)) / jnp.sum(seen.counts, dtype=error.dtype)


@jax.jit
def _steps(task: RecoveryTask, learner: _Learner, key: Array) -> tuple[_Learner, tuple[Array, Array]]:
    """The optimizer steps of one report, and their mean losses."""
    config = task.config
    actor_opt, critic_opt = _optimizers(config)

    def step(s: _Learner, key: Array) -> tuple[_Learner, tuple[Array, Array]]:
        slope = jax.value_and_grad(partial(window_loss, task), has_aux=True)
        (loss, seen), grad = slope(s.actor, s.target, s.x)
        grad = jax.tree.map(lambda a: a / config.loops, grad)
        actor, actor_state = updated(actor_opt, grad, s.actor_opt, s.actor)
        critic, critic_state = s.critic, s.critic_opt
        for half in range(2):
            part = seen._replace(xs=seen.xs[half::2], to_go=seen.to_go[half::2], counts=seen.counts[half::2])
            error, grad = jax.value_and_grad(_critic_loss)(critic, task, part)
            critic, critic_state = updated(critic_opt, grad, critic_state, critic)
        target = jax.tree.map(lambda a, b: a + 0.02 * (b - a), s.target, critic)
        x, age = _renewed(task, seen, s.age + config.window, key)
        done = _Learner(actor, critic, target, actor_state, critic_state, x, age)
        return done, (loss / config.loops, error)

    learner, losses = jax.lax.scan(step, learner, jax.random.split(key, config.report_every))
    return learner, jax.tree.map(jnp.mean, losses)


def _renewed(task: RecoveryTask, seen: _Window, age: Array, key: Array) -> tuple[Array, Array]:
    """The loops' states and ages: those that left the region, are at rest, or are old get new starts."""
    r = task.regulator
    rested = quadratic(r.P, r.scaled(seen.end)) < _REST * r.level
    done = ~seen.alive | rested | (age >= task.config.longest) | ~jnp.all(jnp.isfinite(seen.end), -1)
    return jnp.where(done[:, None], task.starts(key, len(age)), seen.end), jnp.where(done, 0, age)


@jax.jit
def _recovered(task: RecoveryTask, actor: Layers, x0: Array) -> tuple[Array, Array]:
    """Shares of starts ``[num, n]`` recovered, one for each of the sizes that they are taken times.

    And the mean logarithm of the cost, where a loop that does not converge costs as much as one that leaves the region.
    """
    sizes = jnp.asarray(_SIZES, x0.dtype)
    starts = sizes[:, None, None] * x0[None]
    policy = RecoveryPolicy(actor, task.regulator)
    run = simulation.rollout(task.problem, policy, starts, _JUDGED_STEPS, keep=("xs", "costs"))
    sizes = verdict.size(run.xs, task.regulator.scale_x)
    back = verdict.of_sizes(sizes, linear=task.problem.linear) == Verdict.CONVERGED
    cost = jnp.where(back, run.cost, task.outside_cost)
    return jnp.mean(back, axis=-1, dtype=x0.dtype), jnp.mean(jnp.log(cost + _TINY))
