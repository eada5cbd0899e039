"""The closed loop: a plant under a policy, sample by sample: a plain scan, or an engine that gives the same numbers."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from lqrlab.compute import checks, jit_by_function, pytree
from lqrlab.simulation import constant_gain
from lqrlab.simulation.binding import bind
from lqrlab.simulation.constant_gain import loops_of
from lqrlab.simulation.noise import Correlated, Noise, drawing, drawn
from lqrlab.simulation.policies import LinearPolicy, Policy, check_policy
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.recording import Arrays, Keep
from lqrlab.systems import Plant, check_plant
from lqrlab.systems.plant import is_linear

FIELDS = ("xs", "us", "costs")
KEEPABLE = (*FIELDS, "memory")
MANY = 64  # fewer loops are the reference scan's
MUCH = 1_000_000  # steps of all loops from which on the batch-last engine gains more than its compilation costs


@pytree
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Trajectories of closed loops, as deviations from the equilibrium.

    Attributes:
        ts: times [s], with batch axes only where plants differ in dt.
        xs: states.
        us: inputs that reached the plant.
        costs: continuous cost ∫ xᵀQx + uᵀRu dt of each step.
        memory: what the policy remembered before each sample, such as its estimate of the state, time after the loops.
        seen: the states as the policy saw them ``[..., T, n]``, where sensors are noisy and states are kept; else None,
            for the policy saw ``xs``.

    A field that was not to be kept is None.
    """

    ts: Float[Array, "*times T+1"]
    xs: Float[Array, "*lead T+1 n"] = None  # type: ignore[assignment]
    us: Float[Array, "*lead T m"] = None  # type: ignore[assignment]
    costs: Float[Array, "*lead T"] = None  # type: ignore[assignment]
    memory: PyTree = None
    seen: Float[Array, "*lead T n"] | None = None

    @property
    def cost(self) -> Float[Array, "*lead"]:
        """Total cost of the steps; what remains after them costs ``problem.optimal_cost(xs[..., -1, :])`` at least."""
        if self.costs is None:
            raise ValueError("cost: the costs were not kept; rollout(..., keep=(..., 'costs')) keeps them")
        return jnp.sum(self.costs, axis=-1)


def step(
    problem: Problem, policy: Policy, x: Float[Array, "*loops n"], carry: PyTree, key: PRNGKeyArray | None = None
) -> tuple[Float[Array, "*loops n"], PyTree, tuple[Float[Array, "*loops m"], Float[Array, "*loops"]]]:
    """One sample of a closed loop: the policy sees the state, the actuators hold its input, the plant moves.

    Args:
        problem: the plants, and what disturbs them.
        policy: bound to them.
        x: deviations ``[*batch, *extra, n]``.
        carry: what the policy remembers.
        key: random key of this sample; none without noise.

    Returns:
        The next state, the policy's next memory, and (input ``[*batch, *extra, m]``, cost ``[*batch, *extra]``).
    """
    disturb = excite = None
    noise = Noise() if key is None else problem.noise
    if key is not None:
        disturb, _, excite = jax.random.split(key, 3)
    carry, u = policy(carry, _seen(problem, x, key))
    u = u.astype(x.dtype)
    u = problem.saturate(u if noise.input is None else u + drawn(excite, noise.input, u))
    after, cost = problem.step(x, u, key=None if noise.state is None else disturb)
    return after, carry, (u, cost)


def _seen(problem: Problem, x: Float[Array, "*loops n"], key: PRNGKeyArray | None) -> Float[Array, "*loops n"]:
    """The state as the policy sees it, with the noise of the sensors."""
    if key is None or problem.noise.sensor is None:
        return x
    return x + drawn(jax.random.split(key, 3)[1], problem.noise.sensor, x)


def rollout(
    plant: Plant | Sequence[Plant] | Problem,
    controller: object,
    x0: ArrayLike,
    num_steps: int,
    dt: ArrayLike | Sequence[float] | None = None,
    linear: bool | None = None,
    *,
    key: PRNGKeyArray | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    noise: ArrayLike = 0.0,
    sensor_noise: ArrayLike = 0.0,
    excitation: ArrayLike = 0.0,
    substeps: int | None = None,
    keep: tuple[str, ...] = FIELDS,
) -> Trajectory:
    """Run a controller on a plant, or on a batch of plants from many initial states.

    Many loops under constant gains take engines: the same numbers to rounding, but other random ones. Loops that are
    shared out over several devices (``Backend.share(x0)``) stay there, and the trajectory with them.

    Args:
        plant: one plant, or a batch with leading axes; or a :class:`Problem`, whose dt, linear, limits and substeps
            are taken, and its noises where none are given here.
        controller: whatever :func:`lqrlab.simulation.bind` takes: a policy, a gain, a design, a network, an agent, a
            function from a problem to a policy.
        x0: initial deviations ``[*batch, *extra, n]``: the plants' axes lead.
        num_steps: T.
        dt: sample time [s], or several, one for each of x0's first axes; the plant's if left out.
        linear: simulate the linearised plant by exact zero-order hold; else, and if left out for a plant, Runge-Kutta
            4 on the nonlinear one. A plant whose equations are linear is held exactly in either case.
        key: random key; needed if any of the three noises is not zero.
        limits, noise, sensor_noise, excitation, substeps: see :meth:`Problem.of`.
        keep: which of ``xs``, ``us``, ``costs`` and the policy's ``memory`` are wanted; what is not kept need not be
            written. With noisy sensors, states come with ``seen``.

    Returns:
        :class:`Trajectory`, in x0's floating type. A loop that diverges carries inf or NaN.

    Raises:
        ValueError: shapes that do not fit, noise without a key, settings that a problem has already.
    """
    x0 = checks.floating("x0", x0, finite=True)
    settings = {"dt": dt, "linear": linear, "limits": limits, "substeps": substeps}
    disturbances = {"noise": noise, "sensor_noise": sensor_noise, "excitation": excitation}
    problem = _problem(plant, x0, settings, disturbances)
    num_steps = checks.whole("num_steps", num_steps)
    if not isinstance(keep, tuple | list) or not keep or not set(keep) <= set(KEEPABLE):
        raise ValueError(f"keep: expected a tuple of some of {', '.join(KEEPABLE)}, but found {keep!r}")
    policy = bind(controller, problem)
    if not checks.traced(x0):
        check_policy(policy, x0, problem.m)
    if all(a is None for a in problem.noise):
        key = None  # nothing is drawn
    elif key is None:
        raise ValueError("key: noise, sensor_noise and excitation need a random key")
    else:
        checks.random_key(key)
    keep = (*keep, "seen") if "xs" in keep and problem.noise.sensor is not None else tuple(keep)
    fields = None
    # an engine's policies have no memory, and its noises nothing to do with each other
    if "memory" not in keep and not any(isinstance(a, Correlated) for a in problem.noise):
        fields = _by_engine(problem, policy, x0, num_steps, keep, key)
    if fields is not None:
        return Trajectory(_times(problem.dt, num_steps, x0.dtype), **fields)
    return _run(problem.astype(x0.dtype), policy, x0, key, num_steps, keep)


def _problem(plant: Any, x0: Array, settings: Mapping[str, Any], disturbances: Mapping[str, Any]) -> Problem:
    """The problem with its settings; refuses initial states of other plants."""
    if isinstance(plant, Problem):
        either = plant.plant is not None and is_linear(plant.plant)  # then linear or not is the same
        own = settings["linear"] if either else plant.linear
        given = [name for name, value in settings.items() if value is not None and (name, value) != ("linear", own)]
        if given:
            raise ValueError(f"{given[0]}: the Problem has its own; set it in Problem.of, or by problem.limited(…)")
        more = plant.disturbed(**disturbances).noise
        noise = Noise(*(old if new is None else new for new, old in zip(more, plant.noise)))
        problem = dataclasses.replace(plant, noise=noise)
    else:
        check_plant(plant)
        _check_shape(x0, plant.batch_shape, plant.n, plant.name)
        linear = settings["linear"] is not None and checks.flag("linear", settings["linear"])
        problem = Problem.of(plant, optimum=False, **{**settings, "linear": linear}, **disturbances)
    batch = problem.batch_shape
    if np.ndim(settings["dt"]) and x0.shape[: len(batch)] != batch:
        raise ValueError(
            f"dt: expected one sample time, or as many as the first axes of x0 have (shape {x0.shape}), but found "
            f"shape {np.shape(settings['dt'])}; one start at several sample times is "
            "np.broadcast_to(x0, (*dt.shape, n))"
        )
    _check_shape(x0, batch, problem.n, problem.name)
    return problem


def _by_engine(
    problem: Problem,
    policy: Policy,
    x0: Float[Array, "*lead n"],
    num_steps: int,
    keep: tuple[str, ...],
    key: PRNGKeyArray | None,
) -> dict[str, Array] | None:
    """Kept arrays of loops that the batch-last engine runs; None for those of the reference scan.

    The engine takes many loops under constant gains, outside of traces, on one device. NumPy, which has no bfloat16,
    must know the numbers; and where JAX is to look for NaN, it has to see each step.
    """
    lead, count = x0.shape[:-1], x0.size // x0.shape[-1]
    watched = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    if type(policy) is not LinearPolicy or count < MANY or watched or not np.issubdtype(x0.dtype, np.floating):
        return None
    if checks.traced(problem, policy, x0, key, jnp.zeros(())):
        return None
    if any(len(a.devices()) > 1 for a in (x0, policy.K, problem.A) if isinstance(a, jax.Array)):
        return None  # a scan leaves them there, an engine would not
    # a linear loop's program is smaller: at 1900 loops of 500 samples it takes a third of the scan's time
    if count * num_steps * (2.5 if problem.linear else problem.substeps) < MUCH:
        return None
    loops, starts = loops_of(problem, policy.K), x0.reshape(-1, x0.shape[-1])
    out: Mapping[str, np.ndarray | Array] | None = None
    if loops.plants == 1 and problem.linear and loops.low is None and key is None and jax.default_backend() == "cpu":
        from lqrlab.simulation import closed_loop_powers  # which few runs need

        out = closed_loop_powers.simulate(loops, np.asarray(starts), num_steps, keep)
    if out is None:
        out = constant_gain.simulate(loops, starts, num_steps, _recorders(keep), key=key, substeps=problem.substeps)
    if "seen" in keep:
        out = {**out, "seen": _seen_by_engine(jnp.asarray(out["xs"]), loops.noise.sensor, key)}
    return {name: jax.device_put(out[name].reshape(*lead, *out[name].shape[1:]), may_alias=True) for name in keep}


@jax.jit
def _seen_by_engine(xs: Float[Array, "loops points n"], spread: Array, key: PRNGKeyArray) -> Float[Array, "loops T n"]:
    """The states as the policies saw them: with the noise of the sensors, which is drawn again."""
    numbers = jnp.arange(len(xs), dtype=jnp.int32)
    of_loops = jnp.moveaxis(spread[numbers // (len(xs) // len(spread))], 0, -1)
    noise = drawing(key, numbers, Noise(sensor=of_loops), xs.dtype)(xs.shape[1] - 1, jnp.int32(0)).sensor
    assert noise is not None
    return xs[:, :-1] + jnp.moveaxis(noise, -1, 0)


@functools.cache
def _recorders(keep: tuple[str, ...]) -> Keep:
    def points(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
        return {"xs": xs}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
        return {name: a for name, a in (("us", us), ("costs", costs)) if name in keep}

    return Keep(points if "xs" in keep else None, intervals if {"us", "costs"} & set(keep) else None)


def record(
    problem: Problem,
    policy: LinearPolicy,
    x0: Float[Array, "*batch s n"],
    num_steps: int,
    keep: Keep,
    *,
    key: PRNGKeyArray | None = None,
    extra: PyTree = None,
    total: int = 0,
) -> Mapping[str, np.ndarray | Array]:
    """Run loops under constant gains and record functions of states, inputs and costs.

    The loop is that of :func:`rollout`, but its arguments are not checked, and whole trajectories are never in memory.

    Args:
        keep: what is kept, see :class:`Keep`.
        extra: further arrays with the plants' batch axes in front, handed on to the functions of ``keep``.
        total: loops of this and later calls alike, if known; many are worth a good compilation.

    Returns:
        Name → array ``[loops, …]``, the loops of one plant one after another; and ``end``, the last states.
    """
    loops, starts = loops_of(problem, policy.K, extra), x0.reshape(-1, x0.shape[-1])
    quick = max(len(starts), total) * num_steps * problem.substeps < MUCH
    return constant_gain.simulate(loops, starts, num_steps, keep, key=key, substeps=problem.substeps, quick=quick)


def _check_shape(x0: Array, batch: tuple[int, ...], n: int, name: str) -> None:
    if x0.shape[-1:] != (n,) or x0.shape[:-1][: len(batch)] != batch:
        expected = "[" + ", ".join([*map(str, batch), "…", str(n)]) + "]"
        raise ValueError(f"x0: expected shape {expected} for {name}, but found {x0.shape}")


@functools.partial(jax.jit, static_argnums=(1, 2))
def _times(dt: Array, num_steps: int, dtype: np.dtype) -> Array:
    return jnp.multiply.outer(dt.astype(dtype), jnp.arange(num_steps + 1, dtype=dtype))


def _loop(
    problem: Problem, policy: Policy, x0: Array, key: PRNGKeyArray | None, num_steps: int, keep: tuple[str, ...]
) -> Trajectory:
    """The reference: one scan over the samples."""

    def sample(
        state: tuple[Array, PyTree], t: Array
    ) -> tuple[tuple[Array, PyTree], tuple[Array, Array, Array, PyTree, Array | None]]:
        x, carry = state
        before = carry if "memory" in keep else None
        at = None if key is None else jax.random.fold_in(key, t)
        seen = _seen(problem, x, at) if "seen" in keep else None
        after, carry, (u, cost) = step(problem, policy, x, carry, at)
        return (after, carry), (after, u, cost, before, seen)

    start = (x0, policy.init(x0.shape[:-1]))
    _, (xs, us, costs, memory, seen) = jax.lax.scan(sample, start, jnp.arange(num_steps))
    xs = jnp.concatenate([x0[None], xs])
    fields = {
        "xs": jnp.moveaxis(xs, 0, -2),
        "us": jnp.moveaxis(us, 0, -2),
        "costs": jnp.moveaxis(costs, 0, -1),
        "seen": None if seen is None else jnp.moveaxis(seen, 0, -2),
        "memory": jax.tree.map(lambda a: jnp.moveaxis(a, 0, min(a.ndim, x0.ndim) - 1), memory),
    }
    return Trajectory(_times(problem.dt, num_steps, x0.dtype), **{name: fields[name] for name in keep})


_run = jit_by_function(_loop, static_argnames=("num_steps", "keep"))
