"""A plant's regulator at settings, worked out once for a picture: problem, optimum, poles, loops and their cost.

Time is divided into ticks, of which sample times and delays are whole numbers. The plant is linearised and sampled
once, at a tick; what a longer sample time or a delay makes of it follows on the host, exactly, and nothing is compiled
for a new setting.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, ArrayLike, Complex, Float, Int

from lqrlab import control, simulation, systems
from lqrlab.compute import checks, jit_by_function, pytree
from lqrlab.simulation import Problem, Trajectory, verdict
from lqrlab.systems import Plant

Poles = Complex[np.ndarray, "*batch n"] | Float[np.ndarray, "*batch n"]
TICKS = 4
"""Ticks in the plant's own sample time."""
LATE = 2
"""Sample times of delay, at most."""
FREE = 100.0
"""Limits from here on, in scales of the inputs, count as none."""
PLANNED = 20
"""Samples that MPC plans."""
_LONG = 160  # samples within which the constrained optimum is to need its limits no more
OVERVIEW = "overview"
"""The picture that shows a bit of all."""


# A plant's loop as it is shown -----------------------------------------------------------------------------


def one_plant(plant: object) -> Plant:
    """A family at its defaults, or one plant of your own; a ``ValueError`` for anything else, or a batch."""
    if isinstance(plant, str):
        return systems.make(plant)
    if not isinstance(plant, Plant):
        raise ValueError(
            "plant: expected the name of a family, as 'cart_pole', or one plant, as of systems.make or "
            f"systems.from_matrices, but found {type(plant).__name__}"
        )
    systems.check_plant(plant, one=True)
    return plant


def start(plant: Plant) -> Float[np.ndarray, " n"]:
    """An initial deviation that sets everything in motion: the first half of the states, to alternating sides."""
    half = np.arange(plant.n) < (plant.n + 1) // 2
    return np.where(half, 0.8 * np.resize([1.0, -0.7, 0.9], plant.n), 0.0) * np.asarray(plant.scales[0])


def settling_steps(poles: Poles) -> int:
    """Samples after which 0.4 % of the motion of a loop with these discrete poles is left, 60 … 4000."""
    return control.settling_steps(poles, times=1.0, within=4e-3, shortest=60, longest=4000, multiple=1)


def horizon(plant: Plant, num_steps: int | None, most: int = 4000) -> int:
    """The number of samples that was asked for, or until the plant's optimal loop has settled."""
    if num_steps is not None:
        return checks.whole("num_steps", num_steps)
    return min(settling_steps(poles_of(Problem.of(plant, linear=True))), most)


def poles_of(problem: Problem) -> Poles:
    """Poles of the sampled optimal loop; on the host."""
    return np.linalg.eigvals(np.asarray(problem.closed_loop()))


def time_constant(poles: Poles, dt: ArrayLike) -> Float[np.ndarray, "*batch"]:
    """Seconds in which the slowest mode of a sampled loop falls by e."""
    return control.settling_time(poles, dt, within=math.exp(-1))


def outcome(plant: Plant, run: Trajectory) -> verdict.Verdict:
    """Verdict on a run of one loop, by the rule of :mod:`lqrlab.simulation.verdict`."""
    sizes = verdict.size(np.asarray(run.xs, float), np.asarray(plant.scales[0]))
    return verdict.Verdict(int(verdict.of_sizes(jnp.asarray(sizes))))


# Ticks -----------------------------------------------------------------------------------------------------


def rk4_steps(A: ArrayLike, tick: float) -> int:
    """Runge-Kutta steps in a tick: the fastest mode of ẋ = Ax turns or decays by a quarter radian at most in each."""
    fastest = float(np.abs(np.linalg.eigvals(np.asarray(A))).max())
    return max(1, math.ceil(fastest * tick / 0.25))


def held(tick: control.Sampled, ticks: int) -> control.Sampled:
    """The sampled problem whose input is held for several ticks, from that of one; exact, on the host."""
    step, joint, size = _steps_ahead(tick, ticks), _joint(tick), tick.A.shape[-1]
    paid = sum(np.swapaxes(ahead, -1, -2) @ joint @ ahead for ahead in step[:-1])
    last = step[-1]
    return control.Sampled(
        last[..., :size, :size],  # type: ignore[arg-type]
        last[..., :size, size:],  # type: ignore[arg-type]
        paid[..., :size, :size],
        paid[..., size:, size:],
        paid[..., :size, size:],
    )


def _steps_ahead(tick: control.Sampled, ticks: int) -> list[Float[np.ndarray, "*batch n+m n+m"]]:
    """Maps of (x, u) to (x, u) after 0 … ticks ticks of the same u."""
    A, B = np.asarray(tick.A), np.asarray(tick.B)
    n, m = B.shape[-2:]
    below = np.broadcast_to(np.eye(m, n + m, n), (*B.shape[:-2], m, n + m))
    one = np.concatenate([np.concatenate([A, B], axis=-1), below], axis=-2)
    steps = [np.broadcast_to(np.eye(n + m), one.shape)]
    for _ in range(ticks):
        steps.append(one @ steps[-1])
    return steps


def _joint(tick: control.Sampled) -> Float[np.ndarray, "*batch n+m n+m"]:
    """The weight of (x, u)."""
    Q, R, N = (np.asarray(W) for W in (tick.Q, tick.R, tick.N))
    rows = [np.concatenate(row, axis=-1) for row in ((Q, N), (np.swapaxes(N, -1, -2), R))]
    return np.concatenate(rows, axis=-2)


def _late(
    tick: control.Sampled, sample: int, delay: int
) -> tuple[Float[np.ndarray, "wide wide"], Float[np.ndarray, "wide m"], Float[np.ndarray, "n wide"]]:
    """A sampled plant whose input acts some ticks late, and the state that an input finds when it begins to act.

    The state is extended by the inputs that are on their way, the newest first, as in :func:`control.delayed`.

    Args:
        tick: the plant, sampled at a tick.
        sample, delay: sample time and delay in ticks.

    Returns:
        A, B, and the map from the extended state to the plant's state after ``delay`` ticks.
    """
    A, B = np.asarray(tick.A), np.asarray(tick.B)
    (n, m), kept = B.shape, -(-delay // sample)
    size = n + m * kept
    rows = np.eye(size + m)  # of the state, the inputs on their way and the input of now
    inputs = [rows[size:], *np.split(rows[n:size], kept)] if kept else [rows[size:]]

    def ahead(ticks: int) -> Float[np.ndarray, "n wide+m"]:
        x = rows[:n]
        for j in range(ticks):
            x = A @ x + B @ inputs[(sample - 1 + delay - j) // sample]
        return x

    after = np.concatenate([ahead(sample), *inputs[:kept]])
    return after[:, :size], after[:, size:], ahead(delay)[:, :size]


# The designer's loop ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class LoopSetting:
    """One setting of the designer's sliders."""

    plant: Plant  # with the parameters chosen
    states: Float[np.ndarray, " n"]  # factors of the states' weights
    inputs: Float[np.ndarray, " m"]  # and of the inputs'
    ticks: int  # that the curves take
    tick: float  # [s]
    substeps: int  # Runge-Kutta steps in a tick
    sample: int = TICKS  # sample time in ticks
    delay: int = 0  # of the input, in ticks
    known: bool = True  # whether the gain is made for the delay
    limit: float = FREE  # of the inputs, in their scales
    size: float = 1.0  # of the initial state
    view: str = OVERVIEW  # which picture of the loop

    @classmethod
    def of(cls, plant: str | Plant, num_steps: int | None = None) -> "LoopSetting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        plant = one_plant(plant)
        ticks, tick = TICKS * horizon(plant, num_steps, most=400), float(plant.dt) / TICKS
        substeps = rk4_steps(plant.matrices()[0], tick)
        return cls(plant, np.ones(plant.n), np.ones(plant.m), ticks, tick, substeps)

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "m m"]]:
        """Q and R as the sliders make them."""
        Q, R = (np.asarray(W) for W in self.plant.weights())
        return Q * np.sqrt(np.outer(self.states, self.states)), R * np.sqrt(np.outer(self.inputs, self.inputs))

    @property
    def limits(self) -> Float[np.ndarray, " m"]:
        """Largest deviations of the inputs; inf for none."""
        return largest_inputs(self.plant, self.limit)

    @property
    def x0(self) -> Float[np.ndarray, " n"]:
        """Initial deviation."""
        return self.size * start(self.plant)


def largest_inputs(plant: Plant, limit: float) -> Float[np.ndarray, " m"]:
    """Limits of the inputs as deviations, inf for none; ``limit`` is in their scales."""
    return np.asarray(plant.scales[1]) * (limit if limit < FREE else np.inf)


def limit_words(limit: float) -> str:
    """A limit in a sentence."""
    return "no limits" if limit >= FREE else f"inputs limited to {limit:.2g} × scale"


@dataclasses.dataclass(frozen=True, eq=False)
class LoopDesign:
    """The optimum of the linear plant at a setting, and the loop as implemented."""

    A: Float[np.ndarray, "wide wide"]  # sampled plant, extended by the inputs on their way
    B: Float[np.ndarray, "wide m"]
    K: Float[np.ndarray, "m wide"]  # its gain
    poles: Poles  # of the loop as implemented
    optimal_poles: Poles  # of the optimum, without delay
    best: Trajectory  # of the optimum on the linear plant, at ticks, charged by the weights chosen
    built: Trajectory  # of the loop as implemented on the nonlinear plant, likewise
    cost: float  # the optimum's x0ᵀPx0
    in_plant_weights: float  # excess cost of the optimal gain in the plant's own weights, from x0, relative
    planned: Trajectory | None = None  # of MPC instead of the gain, where its limits bind and nothing is late
    least: float = math.nan  # the constrained optimum's cost of the linear plant; NaN where none was found


def design(setting: LoopSetting) -> LoopDesign:
    """Design for a setting and run both loops: the optimum of the linear plant, and the loop as implemented.

    Raises:
        ValueError: there is no optimum, in control terms.
    """
    s, x0 = setting, setting.x0
    # with the weights chosen, and with the plant's own
    weights = tuple(np.stack([a, np.asarray(b)]) for a, b in zip(s.weights, s.plant.weights()))
    twice = s.plant.broadcast_to((2,))
    problems = Problem.of(twice, dt=s.tick, weights=weights, substeps=s.substeps, optimum=False)  # type: ignore[arg-type]
    sampled = held(problems.sampled, s.sample)
    optimum = control.dlqr(*sampled)
    if not np.asarray(optimum.stabilizing)[0]:
        control.lqrd(*s.plant.matrices(), *s.weights, s.dt)  # says which mode is at fault
    (F, _), (best, _) = (np.asarray(a) for a in (optimum.closed_loop, optimum.K))
    P, own_P = np.asarray(optimum.P)
    tick, own = (control.Sampled(*(np.asarray(a)[i] for a in of)) for i, of in enumerate((problems.sampled, sampled)))
    A, B, ahead = _late(tick, s.sample, s.delay)
    K = best @ ahead if s.known else np.pad(best, [(0, 0), (0, len(A) - s.plant.n)])
    wide = np.pad(K, [(0, 0), (0, s.plant.n + LATE * s.plant.m - len(A))])
    K_wide, sample, delay, limits = map(jnp.asarray, (wide, s.sample, s.delay, s.limits))
    policy = simulation.DelayedPolicy(K_wide, sample, delay, limits, LATE)
    built = _rollout(problems[0], policy, jnp.asarray(x0), ticks=s.ticks)
    paid = scipy.linalg.solve_discrete_lyapunov(F.T, control.stage_weight(*own[2:], best))
    binds = bool(np.any(np.nanmax(np.abs(built.us), axis=0) >= s.limits * (1 - 1e-9)))
    planned = _planned(problems[0], control.Sampled(*(a[0] for a in sampled)), s) if binds and not s.delay else ()
    return LoopDesign(
        A,
        B,
        K,
        np.linalg.eigvals(A - B @ K),
        np.linalg.eigvals(F),
        _optimal_run(tick, best, s),
        jax.tree.map(np.asarray, built),
        float(x0 @ P @ x0),
        float(x0 @ paid @ x0 / (x0 @ own_P @ x0)) - 1,
        *planned,
    )


@pytree
@dataclasses.dataclass(frozen=True)
class _Held(simulation.Held):
    """A held policy whose sample time is an argument of the program: moving its slider compiles nothing."""

    every: Int[Array, ""]  # type: ignore[assignment]


def _planned(problem: Problem, sampled: control.Sampled, s: LoopSetting) -> tuple[Trajectory, float]:
    """MPC's loop on the nonlinear plant, and the constrained optimum's cost of the linear one."""
    A, B, Q, R, N = sampled
    design = control.mpc(A, B, Q, R, PLANNED, N=N, u_limits=(-s.limits, s.limits))
    policy = _Held(simulation.bind(design, problem), problem.m, jnp.asarray(s.sample))
    x0, longer = jnp.asarray(s.x0), dataclasses.replace(design, horizon=_LONG)
    run = _rollout(problem, policy, x0, ticks=s.ticks)
    return jax.tree.map(np.asarray, run), float(_least(longer, x0))


@jax.jit
def _least(design: control.MPC, x0: Array) -> Float[Array, ""]:
    """The cost of a plan that is the optimum over all time; NaN of one that is not."""
    plan, _ = design.plan(x0)
    return jnp.where(design.exact(plan), plan.cost, jnp.nan)


def _optimal_run(tick: control.Sampled, K: Float[np.ndarray, "m n"], s: LoopSetting) -> Trajectory:
    """The linear plant under a gain without delay and limits, at ticks."""
    ahead = np.stack(_steps_ahead(tick, s.sample)[:-1])
    samples, n = -(-s.ticks // s.sample), s.plant.n
    F = held(tick, s.sample)
    closed, x = np.asarray(F.A - F.B @ K), [s.x0]
    for _ in range(samples):
        x.append(closed @ x[-1])
    begins = np.stack(x)
    joint = np.concatenate([begins, -begins @ K.T], axis=-1)
    signals = np.einsum("jab,tb->tja", ahead, joint).reshape(-1, joint.shape[-1])[: s.ticks + 1]
    costs = np.einsum("ta,ab,tb->t", signals, _joint(tick), signals)[:-1]
    return Trajectory(s.tick * np.arange(s.ticks + 1), signals[:, :n], signals[:-1, n:], costs)  # type: ignore[arg-type]


@partial(jit_by_function, static_argnames="ticks")
def _rollout(problem: Problem, policy: simulation.Policy, x0: Array, *, ticks: int) -> Trajectory:
    """The loop tick by tick."""
    return simulation.rollout(problem, policy, x0, ticks)
