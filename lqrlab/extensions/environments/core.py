"""A plant as an environment: pure functions of a key and a state, with automatic reset and the optimum."""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int32, PRNGKeyArray

from lqrlab.compute import checks, jit_by_function, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.extensions.environments import actions
from lqrlab.extensions.environments.settings import MOST_COST, BoxSpace, Discrete, Settings
from lqrlab.extensions.predictive import predictive_policies
from lqrlab.simulation import Problem, verdict
from lqrlab.systems import Plant, check_plant


@pytree
@dataclasses.dataclass(frozen=True)
class State:
    """The state of an environment, or of many.

    Attributes:
        x: deviation from the equilibrium.
        time: steps since the reset.
        variant: which of the environment's plants this is.
        optimum: the least that the episode can cost, x0ᵀP x0; NaN where it is not known.
        paid: what was paid, with x_tᵀP x_t for the rest, above the optimum (linear plants), or in all (nonlinear ones).
        bound: size of a state at which the episode ends.
        queue: inputs on their way, the newest first.
        history: what was seen, and the input before it, the newest first.
        problem: the plant's, where :meth:`Environment.reset` was given one.
        owner: digest of the environment that it is of, see :attr:`Environment.digest`.
    """

    x: Float[Array, "*envs n"]
    time: Int32[Array, "*envs"]
    variant: Int32[Array, "*envs"]
    optimum: Float[Array, "*envs"]
    paid: Float[Array, "*envs"]
    bound: Float[Array, "*envs"]
    queue: Float[Array, "*envs delay m"]
    history: Float[Array, "*envs k both"]
    problem: Problem | None = None
    owner: str = dataclasses.field(default="", metadata={"static": True})


Step = tuple[Array, State, Array, Array, Array, dict[str, Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """A task on a plant, frozen and hashable: a static argument of ``jit``; :func:`make` makes one.

    Attributes:
        pool: the plants, one or more ``[variants, …]``, which resets draw from.
        settings: the task.
        name: the plant's.
        offset: what starts lie about ``[n]``.
        unit_x, unit_u: what observed states or outputs, and inputs, are counted in.
        sensor: standard deviations of the sensors' noise, None for none.
        x_limits: of the states ``[n]``, low and high; None for none.
        typical: mean of the least that episodes cost, over plants and starts.
        identity: what equal environments share.
    """

    pool: Problem
    settings: Settings
    name: str
    offset: np.ndarray
    unit_x: np.ndarray
    unit_u: np.ndarray
    sensor: np.ndarray | None
    x_limits: tuple[np.ndarray, np.ndarray] | None
    typical: float
    identity: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Environment) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        shown_names = {"task", "linear", "horizon", "spread", "units", "reward", "dtype"}
        shown = ", ".join(f"{name}={getattr(self.settings, name)!r}" for name in sorted(shown_names))
        return f"Environment({self.name!r}, {shown})"

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the plants and the task: a state with another one is of another environment.

        Neither the reward nor what an invalid action does is in it: states mean the same whatever they are.
        """
        _, *arrays, settings = self.identity
        whole = hashlib.blake2b(f"{self.name} {settings.words('reward', 'on_error')}".encode(), digest_size=16)
        for dtype, shape, data in arrays:
            whole.update(f"{dtype} {shape}".encode() + data)
        return whole.hexdigest()

    @property
    def n(self) -> int:
        """Number of states."""
        return self.pool.n

    @property
    def m(self) -> int:
        """Number of inputs."""
        return self.pool.m

    @property
    def dtype(self) -> np.dtype:
        """Type of all numbers."""
        return np.dtype(self.settings.dtype)

    @property
    def linear(self) -> bool:
        """True if the plant is the linearised one, so that the optimum is exact."""
        return self.pool.linear

    @property
    def action_low(self) -> np.ndarray:
        """Lowest inputs, in the environment's units."""
        return np.asarray(self.pool.low[0] / self.unit_u, self.dtype)

    @property
    def action_high(self) -> np.ndarray:
        """Highest inputs, in the environment's units."""
        return np.asarray(self.pool.high[0] / self.unit_u, self.dtype)

    @property
    def action_space(self) -> BoxSpace | Discrete:
        """All inputs, or the points of a grid of them."""
        if self.settings.levels:
            return Discrete(self.settings.levels**self.m)
        return BoxSpace(tuple(self.action_low.tolist()), tuple(self.action_high.tolist()), self.dtype.name)

    @property
    def observation_space(self) -> BoxSpace:
        """Vectors as long as an observation, without bounds."""
        size = self.settings.memory * (len(self.unit_x) + self.m) or len(self.unit_x)
        return BoxSpace((-np.inf,) * size, (np.inf,) * size, self.dtype.name)

    def problem(self, plant: Plant) -> Problem:
        """The problem of a plant of yours in this environment, for :meth:`reset`; differentiable in its parameters."""
        first = jax.tree.map(lambda a: jnp.asarray(a[0]), self.pool)
        given = jax.tree.map(lambda a: jnp.asarray(a, self.dtype).astype(float), plant)
        problem = Problem.of(given, dt=first.dt.astype(float), linear=self.linear, substeps=first.substeps)
        return dataclasses.replace(problem.astype(self.dtype), limits=first.limits, noise=first.noise)

    def problem_of(self, state: State) -> Problem:
        """The problem of the plant that a state is of."""
        return self._variant(state.variant) if state.problem is None else state.problem

    def _variant(self, number: Array) -> Problem:
        return jax.tree.map(lambda a: jnp.asarray(a)[number if len(self.pool) > 1 else 0], self.pool)

    def reset(self, key: PRNGKeyArray, plant: Plant | None = None) -> tuple[Array, State]:
        """The first observation and state.

        Args:
            key: random key: of the plant, where there are several, and of where it starts.
            plant: another plant instead of one of the environment's; of the family of these.
        """
        if plant is not None:
            self.check_family(plant)
        if checks.traced(key, plant):
            return self._reset(key, None if plant is None else self.problem(plant))
        checks.random_key(key)
        if plant is not None and plant.batch_shape:
            raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
        return _reset(self, key, plant)

    def check_family(self, plant: Plant) -> None:
        """Raise ValueError unless this is a plant of the environment's family."""
        check_plant(plant)
        if type(plant) is not type(self.pool.plant) or (plant.n, plant.m) != (self.n, self.m):
            found = f"{plant.name} of {plant.n} states and {plant.m} inputs"
            raise ValueError(f"plant: expected one of the environment's family, {self.name}, but found {found}")

    def _reset(self, key: PRNGKeyArray, problem: Problem | None) -> tuple[Array, State]:
        many, sensed = len(self.pool) > 1, self.sensor is not None
        if many or sensed:  # else one draw is enough
            key, which, sense = jax.random.split(key, 3)
        variant = jnp.int32(0)
        if many and problem is None:
            variant = jax.random.randint(which, (), 0, len(self.pool), jnp.int32)
        f, own = self.dtype, self._variant(variant) if problem is None else problem
        x = jax.random.normal(key, (self.n,), f) * own.scale_x * self.settings.start + jnp.asarray(self.offset, f)
        bound = self.settings.far * jnp.maximum(self._size(x, own), jnp.ones((), f))
        state = State(
            x=x,
            time=jnp.int32(0),
            variant=variant,
            optimum=own.optimal_cost(x) if self.settings.task != "swing_up" else jnp.asarray(jnp.nan, f),
            paid=jnp.zeros((), f),
            bound=bound.astype(f),
            queue=jnp.zeros((self.settings.delay, self.m), f),
            history=jnp.zeros((self.settings.memory, (len(self.unit_x) + self.m)), f),
            problem=problem,
            owner=self.digest,
        )
        return self._observe(state, sense if sensed else None, jnp.zeros(self.m, f))

    def _observe(self, state: State, key: PRNGKeyArray | None, u: Array) -> tuple[Array, State]:
        """The observation of a state, and the state that remembers it."""
        seen = state.x
        if self.settings.observe == "outputs":
            problem = self.problem_of(state)
            assert problem.plant is not None
            with _precision(self.dtype):
                at = problem.plant.output(jnp.stack([state.x + problem.x_eq, problem.x_eq]))
            seen = (at[0] - at[1]).astype(self.dtype)
        if key is not None:
            seen = seen + jax.random.normal(key, seen.shape, self.dtype) * jnp.asarray(self.sensor, self.dtype)
        seen = seen / jnp.asarray(self.unit_x, self.dtype)
        if not self.settings.memory:
            return seen, state
        newest = jnp.concatenate([seen, u / jnp.asarray(self.unit_u, self.dtype)])
        history = jnp.concatenate([newest[None], state.history[:-1]])
        return history.reshape(-1), dataclasses.replace(state, history=history)

    def step(self, key: PRNGKeyArray, state: State, action: ArrayLike | actions.Action) -> Step:
        """One sample time; where the episode ends, the next one begins at once.

        Args:
            key: random key of this step.
            state: of :meth:`reset` or the step before.
            action: all inputs ``[m]`` (or a grid's index), or a structured :class:`Action`.

        Returns:
            ``obs, state, reward, terminated, truncated, info``. Of an episode that ends, ``obs`` and ``state`` are the
            next one's; ``info["final_observation"]`` is its own last, and ``info["ratio"]`` its cost over the optimum;
            ``info["violation"]`` is by how many scales a state exceeds its limits now.
        """
        return self._call(key, state, action, True)

    def step_env(self, key: PRNGKeyArray, state: State, action: ArrayLike | actions.Action) -> Step:
        """One sample time as :meth:`step` makes it, without automatic reset."""
        return self._call(key, state, action, False)

    def _call(self, key: PRNGKeyArray, state: State, action: Any, again: bool) -> Step:
        self.check_own(state)
        if checks.traced(key, state, action):
            out = self._advance(key, state, action)
            if self.settings.on_error == "raise":
                actions.stop_if(out[5]["invalid"])
            return self._restart(key, out) if again else out
        return told(self, _step(self, key, state, action, again))

    def check_own(self, state: object) -> None:
        """Raise ValueError unless this is a state of this environment."""
        checks.instance("state", state, State, "a state, as env.reset makes")
        if state.owner != self.digest:  # type: ignore[attr-defined]
            raise ValueError(
                "state: expected one of this environment, but found one of other plants or of another task; "
                "env.reset begins an episode here"
            )

    def _advance(self, key: PRNGKeyArray, state: State, action: Any) -> Step:
        """A sample time, whatever the action is."""
        f = self.dtype
        asked, bad = actions.settled(actions.input_of(action, self), self)
        problem, x = self.problem_of(state), state.x
        u = sent = problem.saturate(asked * jnp.asarray(self.unit_u, f))
        if self.settings.filter_horizon:
            u = sent = self._safe(problem, x, u)
        queue = state.queue
        if self.settings.delay:
            u, queue = queue[-1], jnp.concatenate([sent[None], queue[:-1]])
        noise = None if problem.noise.state is None else jax.random.fold_in(key, 1)
        with _precision(f):
            after, cost = problem.step(x, u, key=noise)
        excess = quadratic(problem.S, u + matvec(problem.K, x))
        new = dataclasses.replace(
            state, x=after, time=state.time + 1, queue=queue, paid=state.paid + (excess if self.linear else cost)
        )
        terminated = ~(self._size(after, problem) <= state.bound)
        truncated = (new.time >= self.settings.horizon) & ~terminated
        violation = self._violation(problem, after)
        rewarded = self._reward(state, u, after, cost, excess) - self.settings.violation_weight * violation
        # as if the last step's cost were paid until the horizon: leaving the model early must not pay off
        rewarded = rewarded * jnp.where(terminated, jnp.maximum(self.settings.horizon - state.time, 1), 1).astype(f)
        sense = jax.random.fold_in(key, 2) if self.sensor is not None else None
        obs, new = self._observe(new, sense, sent)
        info = {
            "cost": cost,
            "ratio": self._ratio(new, problem, terminated),
            "optimum": state.optimum,
            "violation": violation,
            "invalid": bad,
            "final_observation": obs,
        }
        return obs, new, rewarded, terminated, truncated, info

    def _safe(self, problem: Problem, x: Array, u: Array) -> Array:
        """The input nearest to u after which all limits can be kept, as far as the linear plant tells."""
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("filter_horizon: a safety filter needs float64; call lqrlab.compute.setup() first")
        exact = dataclasses.replace(problem, plant=None).astype(jnp.float64)
        safe, _ = predictive_policies.nearest_safe(exact, self.settings.filter_horizon, x.astype(jnp.float64), u)
        return safe.astype(u.dtype)

    def _size(self, x: Array, problem: Problem) -> Array:
        """The largest deviation of a state in scales, or its cost to go over that of typical starts."""
        by_cost, typical = self.settings.terminate == "cost", jnp.asarray(self.typical, self.dtype)
        return problem.optimal_cost(x) / typical if by_cost else verdict.size(x, problem.scale_x)

    def optimal_return(self, optimum: Any) -> Any:
        """Return of the optimum over infinite time, by its cost; NaN if the reward is a function."""
        known = np.nan if callable(self.settings.reward) else float(self.settings.reward != "excess")
        return -optimum / self._unit(optimum) * known

    def _unit(self, optimum: Any) -> Any:
        """The cost that rewards are counted in."""
        return {"relative": optimum, "normalised": MOST_COST * self.typical}.get(self.settings.reward, 1.0)

    def _violation(self, problem: Problem, x: Array) -> Array:
        """By how many scales a state exceeds its limits, at most; 0 if it keeps them."""
        if self.x_limits is None:
            return jnp.zeros((), self.dtype)
        low, high = (jnp.asarray(a, self.dtype) for a in self.x_limits)
        return jnp.max(jnp.maximum(jnp.maximum(low - x, x - high), 0) / problem.scale_x)

    def _reward(self, state: State, u: Array, after: Array, cost: Array, excess: Array) -> Array:
        if callable(self.settings.reward):
            return jnp.asarray(self.settings.reward(state.x, u, after, cost), self.dtype)
        if self.settings.reward == "excess":
            return -excess
        return -cost / jnp.asarray(self._unit(state.optimum), self.dtype)

    def _ratio(self, state: State, problem: Problem, terminated: Array) -> Array:
        """Cost over the optimum, were the optimum to take over now; inf where the state has left the model."""
        least = jnp.maximum(state.optimum, jnp.finfo(self.dtype).tiny)
        ratio = 1 + state.paid / least if self.linear else (state.paid + problem.optimal_cost(state.x)) / least
        return jnp.where(terminated, jnp.inf, ratio)

    def _restart(self, key: PRNGKeyArray, out: Step) -> Step:
        """The next episode where this one is over."""
        obs, state, reward, terminated, truncated, info = out
        fresh = self._reset(jax.random.fold_in(key, 0), state.problem)
        obs, state = jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), fresh, (obs, state))
        return obs, state, reward, terminated, truncated, info


def check_environment(env: object) -> None:
    """Raise ValueError unless this is an environment."""
    checks.instance("env", env, Environment, "an environment, as environments.make makes")


@contextlib.contextmanager
def _precision(dtype: np.dtype) -> Iterator[None]:
    """Equations of motion in the environment's precision: their constants are else float64 where that is enabled."""
    double = dtype == np.float64 and jax.config.read("jax_enable_x64")
    with jax.enable_x64(double), jax.numpy_dtype_promotion("standard"):
        yield


@functools.partial(jax.jit, static_argnums=0)
def _reset(env: Environment, key: PRNGKeyArray, plant: Plant | None) -> tuple[Array, State]:
    return env._reset(key, None if plant is None else env.problem(plant))


@functools.partial(jit_by_function, static_argnums=(0, 4))
def _step(env: Environment, key: PRNGKeyArray, state: State, action: Any, again: bool) -> Step:
    out = env._advance(key, state, action)
    return env._restart(key, out) if again else out


def told(env: Environment, out: Step) -> Step:
    """The result of a compiled step, or what ``on_error`` says of its action, on the host."""
    if env.settings.on_error == "raise" and np.any(out[5]["invalid"]):
        actions.refuse()
    return out
