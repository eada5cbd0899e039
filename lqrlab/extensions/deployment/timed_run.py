"""A loop in real time: the controller answers at each tick of a clock, and each late sample is on record."""

import dataclasses
import gc
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree

from lqrlab.compute import checks, jit_by_function
from lqrlab.extensions.deployment.c_loading import ExportedController
from lqrlab.extensions.deployment.devices import Device, SimulatedPlant, connect
from lqrlab.extensions.deployment.exported_step import interface
from lqrlab.simulation import Measured, Policy, Problem, Trajectory, bind, rollout
from lqrlab.simulation.memory_policies import Outputs, limits_of, measure
from lqrlab.simulation.noise import drawn
from lqrlab.systems import Plant, Signal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SPIN = 100_000  # ns before a tick in which time is asked for again and again: sleep is no more exact
_LEAD = 20_000_000  # ns before the first tick
_MOST = 10_000_000  # samples of a run, all of which are kept
_TIMES = {"period": "periods", "jitter": "lateness", "computation": "computation"}
Step = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class TimedRun:
    """A run of :func:`realtime`: its samples, and their times on the clock since the first tick was due.

    Attributes:
        dt: sample time [s].
        ticks: numbers of the ticks at which samples were taken; those that are missing were skipped.
        began: when a sample was begun [s].
        sent: when its input was out [s].
        ys, us: measurements and inputs, absolute, in SI units; NaN where a measurement did not arrive.
        arrived: whether it did.
        outputs, inputs: names and units of the two.
        trajectory: of a simulated plant, or of one whose states are measured: as :func:`lqrlab.simulation.rollout`
            gives it, at the ticks that were not skipped; else None.
        clock: ``"real"`` or ``"simulated"``.
        due: number of ticks that were due.
    """

    dt: float
    ticks: Int[np.ndarray, " T"]
    began: Float[np.ndarray, " T"]
    sent: Float[np.ndarray, " T"]
    ys: Float[np.ndarray, "T p"]
    us: Float[np.ndarray, "T m"]
    arrived: Bool[np.ndarray, " T"]
    outputs: tuple[Signal, ...]
    inputs: tuple[Signal, ...]
    trajectory: Trajectory | None
    clock: str
    due: int

    @property
    def periods(self) -> Float[np.ndarray, " periods"]:
        """From one sample to the next [s]."""
        return np.diff(self.began)

    @property
    def computation(self) -> Float[np.ndarray, " T"]:
        """From the beginning of a sample until its input was out [s]."""
        return self.sent - self.began

    @property
    def lateness(self) -> Float[np.ndarray, " T"]:
        """From when a sample was due until it was begun [s]: the jitter."""
        return self.began - self.ticks * self.dt

    @property
    def missed(self) -> Bool[np.ndarray, " T"]:
        """True for samples whose input was out only after the next tick was due."""
        return self.sent > (self.ticks + 1) * self.dt if self.clock == "real" else np.zeros(len(self.ticks), bool)

    @property
    def skipped(self) -> int:
        """Number of ticks at which no sample was taken."""
        return self.due - len(self.ticks)

    @property
    def misses(self) -> int:
        """Number of deadlines missed: inputs that were late, and ticks that were skipped."""
        return int(self.missed.sum()) + self.skipped

    @property
    def lost(self) -> int:
        """Number of measurements that did not arrive."""
        return int((~self.arrived).sum())

    def summary(self) -> dict[str, float]:
        """Counts, and median, 99th percentile and maximum of period, jitter and computation, in microseconds."""
        found: dict[str, float] = {name: getattr(self, name) for name in ("misses", "skipped", "lost")}
        found["samples"] = len(self.ticks)
        for name in _TIMES:
            values = getattr(self, _TIMES[name])
            for key, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                found[f"{name}_{key}_us"] = float(np.quantile(values, share)) * 1e6 if len(values) else 0.0
        return found

    def __str__(self) -> str:
        s = self.summary()
        lines = [
            f"{s['samples']:.0f} samples at {1 / self.dt:g} Hz, {self.clock} time: {s['misses']:.0f} deadlines missed "
            f"({s['skipped']:.0f} ticks skipped), {s['lost']:.0f} measurements missing"
        ]
        for name in _TIMES:
            values = ", ".join(f"{key} {s[f'{name}_{key}_us']:.0f}" for key in ("p50", "p99", "max"))
            lines.append(f"{name} [µs]: {values}")
        return "\n".join(lines)

    def columns(self) -> dict[str, np.ndarray]:
        """Time, inputs and measurements by headings with units: ``identification.read(run.columns(), inputs, …)``.

        Where ticks were skipped the time jumps, and a record ends there.
        """
        table = {"t": self.ticks * self.dt}
        for signals, values in ((self.inputs, self.us), (self.outputs, self.ys)):
            table |= {heading(s): a for s, a in zip(signals, values.T)}
        return table

    def figure(self) -> "Figure":
        """Histograms of period and computation, the deadline marked."""
        from lqrlab.workbench import plots

        figure, axes = plots.grid(2, 2, 2.4)
        for axis, name, values, at in (
            (axes[0], "period [µs]", self.periods, self.dt),
            (axes[1], "computation [µs]", self.computation, self.dt),
        ):
            axis.hist(values * 1e6, bins=60, log=True, color=plots.MAIN)
            axis.axvline(at * 1e6, color=plots.LINE, lw=0.8)
            axis.set(xlabel=name, ylabel="samples")
        figure.suptitle(f"{self.misses} of {self.due} deadlines missed", x=0.01, ha="left", fontsize=10)
        return figure


def realtime(
    controller: object,
    plant: object,
    *,
    rate: float | None = None,
    seconds: float,
    problem: Problem | Plant | None = None,
    x0: ArrayLike | None = None,
    key: PRNGKeyArray | None = None,
    clock: str = "real",
) -> TimedRun:
    """Run a controller against a clock: at each tick it measures, computes, and its input acts until the next one.

    Nothing here is *hard* real time: a sample may be late by milliseconds at any moment, and the run says which were.
    A tick that goes by while the loop is busy is skipped, the input held; a simulated plant moves on in it.

    Args:
        controller: whatever :func:`lqrlab.simulation.bind` takes, compiled before the first tick; or what
            :func:`load_c` gives, whose C code is called without JAX.
        plant: a plant or a problem, simulated here; or the thing itself, which needs ``problem``: an object with
            ``measure()`` and ``actuate(u)``, a function from the input since the tick before (None at first) to the
            measurement, as :class:`CoSimulation`, or an address (:func:`.devices.connect`). It measures what the
            controller sees, absolute and in SI units, and is given absolute inputs; at the end the equilibrium's.
        rate: ticks a second; that of the problem if left out.
        seconds: how long.
        problem: what the controller is bound to, where the plant is not one itself. Its excitation is added to the
            inputs, as in a rollout; its other noises are the plant's own affair.
        x0: initial deviation of a simulated plant ``[n]``; the equilibrium if left out.
        key: random key of a simulated plant's noises, and of the excitation.
        clock: ``"real"``; or ``"simulated"``: nothing waits. With a simulated plant that is ``rollout``, bit for bit.

    Raises:
        ValueError: another sample time than the controller's, or measurements of another length.
    """
    checks.choice("clock", clock, ("real", "simulated"))
    simulated = isinstance(plant, Plant | Problem)
    problem = _problem(plant if simulated else problem, rate)
    count = checks.number("seconds", seconds, "a time above 0 s", above=0) / float(problem.dt)
    if count > _MOST:
        raise ValueError(f"seconds: expected at most {_MOST} samples, but found {count:.3g}; run it in parts")
    num = max(round(count), 1)
    policy = bind(controller, problem)
    if simulated:
        start = np.zeros(problem.n) if x0 is None else np.asarray(checks.real("x0", x0), float)
        if start.shape != (problem.n,):
            raise ValueError(f"x0: expected shape ({problem.n},), one loop, but found {start.shape}")
        side = _Side(problem, policy)
        if clock == "simulated":
            return _recorded(side, rollout(problem, policy, start, num, key=key))
        return _run(SimulatedPlant(problem, start, key), side.step(controller), side, num, clock)
    side = _Side(problem, policy, absolute=True)
    step = side.step(controller, _excitation(problem, num, key))
    device = connect(plant, len(side.y_eq), float(problem.dt) if clock == "real" else 1.0)
    try:
        return _run(device, step, side, num, clock)
    finally:
        device.actuate(num, side.u_eq)
        device.close()


def _excitation(problem: Problem, num: int, key: PRNGKeyArray | None) -> np.ndarray:
    """Noise for the inputs of ``num`` samples, drawn before the loop."""
    if problem.noise.input is None:
        return np.zeros((num, problem.m))
    if key is None:
        raise ValueError("key: the problem's excitation needs a random key")
    return np.asarray(drawn(key, problem.noise.input, jnp.zeros((num, problem.m))))


def _problem(plant: Any, rate: float | None) -> Problem:
    wanted = "the plant of the controller, with its sample time and signals, as realtime(…, problem=plant)"
    checks.instance("problem", plant, Plant | Problem, wanted)  # type: ignore[arg-type]
    dt = None if rate is None else 1 / checks.number("rate", rate, "a number of ticks a second above 0", above=0)
    problem = plant if isinstance(plant, Problem) else Problem.of(plant, dt=dt, optimum=False)
    if problem.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch {problem.batch_shape}; take problem[i]")
    if dt is not None and abs(float(problem.dt) / dt - 1) > 1e-6:
        raise ValueError(
            f"rate: expected that of the problem, {1 / float(problem.dt):g} a second, but found {rate:g}: a controller "
            "is designed for one rate; make Problem.of(plant, dt=1 / rate) and design for it"
        )
    return problem


class _Side:
    """The controller's side of the loop: what it sees of its plant, and its answers, computed at once."""

    def __init__(self, problem: Problem, policy: Policy, absolute: bool = False) -> None:
        plant = problem.plant
        self.problem, self.absolute = problem, absolute
        inner, sensor, y_eq, self.u_eq = interface(policy, problem)
        if absolute:
            self.policy, self.sensor, self.y_eq = inner, sensor, y_eq
        else:  # a simulated plant's sensors are in its policy
            self.policy, self.sensor, self.y_eq = policy, None, interface(None, problem)[2]
        names = "x" if self.sensor is None else "y"
        self.inputs = _signals("u", problem.m) if plant is None else tuple(plant.inputs)
        named = () if plant is None else {"x": plant.states, "y": plant.outputs}[names]
        self.outputs = tuple(named) if len(named) == len(self.y_eq) else _signals(names, len(self.y_eq))

    def step(self, controller: object, excitation: Iterable[np.ndarray] = ()) -> Step:
        """From a measurement to an input, in the plant's own terms; warmed up. It is cut once excitation is added."""
        answer = self._in_c(controller) if isinstance(controller, ExportedController) else self._in_jax()
        if not self.absolute:
            return answer
        last, added, limits = self.u_eq, iter(excitation), list(map(np.asarray, limits_of(self.problem)))

        def absolute(y: np.ndarray) -> np.ndarray:
            nonlocal last
            u = np.clip(answer(y - self.y_eq) + next(added), *limits) + self.u_eq
            last = np.where(np.isfinite(u), u, last)  # what is not a number is never sent
            return last

        return absolute

    def _in_jax(self) -> Step:
        carry = jax.tree.map(jnp.asarray, self.policy.init(()))
        _answer(self.policy, carry, self.y_eq)  # compiled now, not at the first tick

        def step(y: np.ndarray) -> np.ndarray:
            nonlocal carry
            carry, u = _answer(self.policy, carry, y)
            return np.asarray(u)

        return step

    def _in_c(self, controller: ExportedController) -> Step:
        """Its C code, called without JAX; a simulated plant's sensors are JAX's."""
        memory, policy = controller.start(), self.policy
        sensor = policy.sensor if isinstance(policy, Measured) else None
        matrix = None if sensor is None or isinstance(sensor, Outputs) else np.asarray(sensor, float)

        def step(y: np.ndarray) -> np.ndarray:
            nonlocal memory
            seen = y if sensor is None else np.asarray(_shown(sensor, y)) if matrix is None else matrix @ y
            memory, u = controller.step(memory, seen + controller.y_eq)
            return u - controller.u_eq

        if sensor is not None and matrix is None:
            _shown(sensor, self.y_eq)  # compiled now

        return step


@jit_by_function
def _answer(policy: Policy, carry: PyTree, y: Array) -> tuple[PyTree, Array]:
    carry, u = policy(carry, y)
    return carry, u.astype(y.dtype)


_shown = jit_by_function(measure)


def heading(signal: Signal) -> str:
    """A signal's name and unit, as heads a column."""
    return f"{signal.name} [{signal.unit}]" if signal.unit else signal.name


def _signals(letter: str, count: int) -> tuple[Signal, ...]:
    return tuple(Signal(f"{letter}{i + 1}") for i in range(count))


def _wait(due: int) -> None:
    """Sleep until shortly before a time [ns], then watch the clock."""
    left = due - time.perf_counter_ns() - _SPIN
    if left > 0:
        time.sleep(left * 1e-9)
    while time.perf_counter_ns() < due:
        pass


def _run(device: Device, step: Step, side: _Side, num: int, clock: str) -> TimedRun:
    """The loop; what it writes is allocated before."""
    period, real = float(side.problem.dt) * 1e9, clock == "real"
    ticks, times = np.zeros(num, int), np.zeros((num, 2))
    ys, us = np.full((num + 1, len(side.y_eq)), np.nan), np.zeros((num, len(side.u_eq)))
    arrived = np.ones(num, bool)
    tick, count, tidied = 0, 0, gc.isenabled()
    gc.collect()
    gc.disable()
    start = time.perf_counter_ns() + (_LEAD if real else 0)
    try:
        while tick < num:
            if real:
                _wait(start + round(tick * period))
            began = time.perf_counter_ns()
            arrived[count] = _put(ys, count, device.measure(tick))
            us[count] = step(ys[count])
            device.actuate(tick, us[count])
            ticks[count], times[count] = tick, (began, time.perf_counter_ns())
            device.rest()
            count += 1
            gone = int((time.perf_counter_ns() - start) // period) if real else 0
            tick = max(tick + 1, gone)  # what went by while the loop was busy is skipped
        if real:
            _wait(start + round(num * period))
        _put(ys, count, device.measure(num))
    finally:
        if tidied:
            gc.enable()
    ticks, times = ticks[:count], (times[:count] - start) * 1e-9
    if not real:  # a sample takes what it takes, but begins when it is due
        times += (ticks * float(side.problem.dt) - times[:, 0])[:, None]
    ts = side.problem.dt * jnp.asarray([*ticks, num], float)
    timed = clock, ticks, times, num
    if isinstance(device, SimulatedPlant):
        return _recorded(side, device.trajectory(ts), *timed)
    ys, us = ys[: count + 1], us[:count]
    states = Trajectory(ts, *(jnp.asarray(a) for a in (ys - side.y_eq, us - side.u_eq)))
    return _recorded(side, states if side.sensor is None else None, *timed, (ys[:-1], us, arrived[:count]))


def _recorded(
    side: _Side,
    trajectory: Trajectory | None,
    clock: str = "simulated",
    ticks: np.ndarray | None = None,
    times: np.ndarray | None = None,
    due: int = 0,
    absolute: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> TimedRun:
    """The record; of a simulated plant what it measured and was given is in its trajectory."""
    if absolute is None:
        assert trajectory is not None
        seen = trajectory.xs[:-1] if trajectory.seen is None else trajectory.seen
        ys, us = np.asarray(seen, float) + side.y_eq, np.asarray(trajectory.us, float) + side.u_eq
        absolute = ys, us, np.ones(len(us), bool)
    dt = float(side.problem.dt)
    ticks = np.arange(len(absolute[0])) if ticks is None else ticks
    times = np.repeat(ticks[:, None] * dt, 2, 1) if times is None else times
    began, sent = times.T
    return TimedRun(dt, ticks, began, sent, *absolute, side.outputs, side.inputs, trajectory, clock, due or len(ticks))


def _put(ys: np.ndarray, row: int, y: np.ndarray | None) -> bool:
    """Write a measurement down, and say whether there is one; else it stays NaN."""
    if y is None:
        return False
    if y.shape != ys.shape[1:]:
        raise ValueError(
            f"plant: expected measurements of {ys.shape[1]} numbers, all the controller sees, not {y.shape}"
        )
    ys[row] = y
    return True
