"""Networks that do what a predictive controller does, without a solver: trained on their own loops.

The teacher plans from every state that the student comes to (S. Ross, G. Gordon, J. A. Bagnell, AISTATS 2011). What a
student's input costs more than the teacher's is known from the plan, exactly to second order: with S = R + BᵀPB and the
multipliers μ of the inputs' limits it is (u − u*)ᵀS(u − u*) − μᵀ(u − u*).
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from lqrlab import control, simulation
from lqrlab.compute import calculus, checks, one_program, pytree
from lqrlab.compute.configuration import Config, Count, Positive, Seed
from lqrlab.compute.linalg import expand_batch, matvec, quadratic
from lqrlab.extensions.predictive.design import MPC
from lqrlab.simulation import Problem

_TINY = 1e-6

Layers = list[tuple[Array, Array]]
"""Weights ``[in, out]`` and biases ``[out]`` of a perceptron, one pair a layer."""


@pytree
@dataclasses.dataclass(frozen=True)
class Regulator:
    """The LQR of one plant in scaled coordinates, x̃ = x / scale_x and ũ = u / scale_u, and what its inputs can do.

    Attributes:
        K, P: gain and cost to go.
        root: its rows are P's eigenvectors, each times the square root of its eigenvalue.
        level: the largest c for which the gain stays within the limits wherever x̃ᵀP x̃ ≤ c.
        scale_x, scale_u: units of the signals.
        low, high: limits of the inputs, as deviations from the equilibrium, in these units.
        angles: places of the states that are angles.
    """

    K: Array
    P: Array
    root: Array
    level: Array
    scale_x: Array
    scale_u: Array
    low: Array
    high: Array
    angles: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, problem: Problem, dtype: str = "float32") -> "Regulator":
        """Of one plant with finite limits, in ``dtype``; the design itself is made in float64."""
        if problem.batch_shape or problem.plant is None:
            raise ValueError(f"problem: expected one plant, but found {problem.name} of batch {problem.batch_shape}")
        scale_x, scale_u = np.asarray(problem.scale_x), np.asarray(problem.scale_u)
        ends = [np.full(problem.m, np.inf) if a is None else np.abs(np.asarray(a)) for a in (problem.low, problem.high)]
        low, high = (end / scale_u for end in ends)
        if not np.all((low > 0) & (high > 0) & np.isfinite(low) & np.isfinite(high)):
            raise ValueError(
                f"limits: expected finite (low, high) around the equilibrium input {np.asarray(problem.u_eq)}, but "
                f"found deviations from {-ends[0]} to {ends[1]}; without limits the LQR loses little, and a "
                "network has nothing to add"
            )
        K = np.asarray(problem.K) * scale_x / scale_u[:, None]
        P = np.asarray(problem.P) * np.outer(scale_x, scale_x)
        level = control.unsaturated_level(K, P, np.minimum(low, high))
        sizes, vectors = np.linalg.eigh(P)
        root = np.sqrt(np.maximum(sizes, 0))[:, None] * vectors.T
        angles = tuple(i for i, state in enumerate(problem.plant.states) if state.unit == "rad")
        values = {"K": K, "P": P, "root": root, "level": level, "scale_x": scale_x, "scale_u": scale_u}
        arrays = {name: jnp.asarray(a, dtype) for name, a in (values | {"low": -low, "high": high}).items()}
        return cls(**arrays, angles=angles)

    @property
    def num_features(self) -> int:
        """Entries of :meth:`features`."""
        m, n = self.K.shape
        return 2 * n + 2 * len(self.angles) + m

    def scaled(self, x: Array) -> Array:
        """Deviations ``[..., n]`` in units of their scales."""
        return x.astype(self.K.dtype) / expand_batch(self.scale_x, x.ndim)

    def saturate(self, u: Array) -> Array:
        """Scaled inputs ``[..., m]`` within the limits."""
        return jnp.clip(u, expand_batch(self.low, u.ndim), expand_batch(self.high, u.ndim))

    def unscaled_input(self, u: Array) -> Array:
        """Scaled inputs ``[..., m]`` in SI units."""
        return u * expand_batch(self.scale_u, u.ndim)

    def input(self, x: Array) -> Array:
        """−K x̃ within the limits ``[..., m]``, of scaled states."""
        return self.saturate(-matvec(self.K, x))

    def features(self, x: Array) -> Array:
        """Features of scaled states ``[..., num_features]``.

        Each state, near and far alike; combinations of them whose squares sum up to x̃ᵀP x̃, because a state from
        which the loop almost diverges differs from others in a combination that costs much; angles as the plant sees
        them; the LQR's input.
        """
        angles = np.array(self.angles, int)
        turned = x[..., angles] * expand_batch(self.scale_x[angles], x.ndim)
        cost = matvec(self.root, x)
        parts = jnp.arcsinh(x), jnp.arcsinh(cost), jnp.sin(turned), jnp.cos(turned) - 1, self.input(x)
        return jnp.concatenate(parts, axis=-1)

    def beyond(self, x: Array) -> Array:
        """0 at the equilibrium, where the linear design is right, to 1 far outside of its ellipsoid ``[...]``."""
        size = quadratic(self.P, x)
        return size / (size + self.level)


@pytree
@dataclasses.dataclass(frozen=True)
class RecoveryPolicy:
    """u = sat(sat(−Kx) + w(x) v(x)): v a network, w from 0 at the equilibrium to 1 far from it; nothing remembered.

    With all of v's last layer zero it *is* the saturated LQR. Whatever v is, its linearisation at the equilibrium is
    the LQR's, because w is quadratic there, and no input exceeds the limits.

    Attributes:
        layers: of v.
        regulator: the plant's LQR and limits.
    """

    layers: Layers
    regulator: Regulator

    @classmethod
    def start(cls, regulator: Regulator, width: int, *, key: Array) -> "RecoveryPolicy":
        """As the LQR, with a network of two hidden layers."""
        return cls(perceptron(regulator, width, len(regulator.K), key=key), regulator)

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    @one_program
    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """The input within the limits, as a deviation from the equilibrium."""
        within = self.regulator.saturate(self.demand(x))
        return None, self.regulator.unscaled_input(within).astype(x.dtype)

    def demand(self, x: Array) -> Array:
        """Input before saturation, in units of the inputs' scales ``[..., m]``."""
        r = self.regulator
        scaled = r.scaled(x)
        reach = expand_batch(r.high - r.low, x.ndim) * r.beyond(scaled)[..., None]
        return r.input(scaled) + reach * applied(self.layers, r.features(scaled))


def perceptron(regulator: Regulator, width: int, outputs: int, *, key: Array) -> Layers:
    """Two hidden layers on a regulator's features; the last layer is zero."""
    sizes = [regulator.num_features, width, width, outputs]
    dtype = regulator.K.dtype

    def layer(key: Array, before: int, after: int) -> tuple[Array, Array]:
        return jax.random.normal(key, (before, after), dtype) * before**-0.5, jnp.zeros(after, dtype)

    layers = [layer(k, *pair) for k, pair in zip(jax.random.split(key, 3), itertools.pairwise(sizes))]
    return [*layers[:-1], (jnp.zeros_like(layers[-1][0]), layers[-1][1])]


def applied(layers: Layers, features: Array) -> Array:
    """A perceptron's outputs."""
    *hidden, (last, offset) = layers
    for weight, bias in hidden:
        features = jnp.tanh(features @ weight + expand_batch(bias, features.ndim))
    return features @ last + expand_batch(offset, features.ndim)


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


def updated(
    opt: optax.GradientTransformation, grad: Layers, state: optax.OptState, params: Layers
) -> tuple[Layers, optax.OptState]:
    """A step of Adam; none along a gradient that is not finite."""
    finite = jnp.isfinite(optax.tree.norm(grad))
    grad = jax.tree.map(lambda a: jnp.where(finite, a, jnp.zeros_like(a)), grad)
    updates, state = calculus.updates(opt, grad, state, params)
    return optax.apply_updates(params, updates), state


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
