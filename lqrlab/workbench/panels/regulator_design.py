"""A sampled regulator as the designer's sliders describe it: its gain, its loop as built, both drawn and in words."""

import dataclasses
import html
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import control, simulation, systems
from lqrlab.compute import jit_by_function
from lqrlab.simulation import Trajectory
from lqrlab.simulation.problem import SampledProblem
from lqrlab.simulation.verdict import Verdict
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, demonstration, svg
from lqrlab.workbench.figures.charts import Axes, Rectangle
from lqrlab.workbench.figures.demonstration import Poles
from lqrlab.workbench.figures.svg import DASHES, Stroke
from lqrlab.workbench.panels import controls, loop_views

TICKS = 4  # that the plant's sample time is divided into: the grid of sample times and delays
LATE = 2  # sample times of delay at most
_WIDTH = 860.0  # of the card [px]


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One setting of the sliders."""

    plant: Plant  # with the parameters chosen
    nominal: Plant  # as declared
    states: Float[np.ndarray, " n"]  # factors of the states' weights
    inputs: Float[np.ndarray, " m"]  # and of the inputs'
    ticks: int  # that the curves take
    tick: float  # [s]
    substeps: int  # Runge-Kutta steps in a tick
    sample: int = TICKS  # sample time in ticks
    delay: int = 0  # of the input, in ticks
    known: bool = True  # whether the gain is made for the delay
    limit: float = controls.FREE  # of the inputs, in units of a large one
    size: float = 1.0  # of the initial state
    view: str = loop_views.OVERVIEW  # which picture of the loop

    @classmethod
    def of(cls, plant: str | Plant, num_steps: int | None = None) -> "Setting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        plant = controls.one_plant(plant)
        ticks, tick = TICKS * demonstration.horizon(plant, num_steps, most=400), float(plant.dt) / TICKS
        fastest = float(np.abs(np.linalg.eigvals(np.asarray(plant.matrices()[0]))).max())
        substeps = max(1, math.ceil(fastest * tick / 0.25))
        return cls(plant, plant, np.ones(plant.n), np.ones(plant.m), ticks, tick, substeps)

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Array, Array]:
        """Q and R as the sliders make them."""
        Q, R = self.plant.weights()
        roots = [np.sqrt(factors) for factors in (self.states, self.inputs)]
        return tuple(W * np.outer(r, r) for W, r in zip((Q, R), roots))  # type: ignore[return-value]

    @property
    def limits(self) -> Float[Array, " m"]:
        """Largest deviations of the inputs; inf for none."""
        return controls.largest_inputs(self.plant, self.limit)

    @property
    def x0(self) -> Float[np.ndarray, " n"]:
        """Initial deviation."""
        return self.size * demonstration.start(self.plant)

    @property
    def code(self) -> str:
        """What makes the same gain, to be copied into a cell."""
        weights = []
        for name, factors in (("Q", self.states), ("R", self.inputs)):
            if (factors != 1).any():
                numbers = ", ".join(f"{f:.6g}" for f in factors)
                weights += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
        late = f", {self.delay / self.sample:g}" if self.delay and self.known else ""
        note = "# run.cost charges the plant's own weights; Q and R above are those K is optimal for"
        if late:
            run = ["# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way"]
        else:
            run = [] if self.delay else [*self._run_code, *([note] if weights else [])]
        lines = [
            *(["import jax.numpy as jnp", ""] if weights else []),
            "from lqrlab import compute, control, simulation, systems",
            "",
            "compute.setup()",
            f"plant = {self._plant_code}",
            "(A, B), (Q, R) = plant.matrices(), plant.weights()",
            *weights,
            f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {self.dt:g}{late}).K",
            *run,
        ]
        return "\n".join(lines)

    @property
    def _plant_code(self) -> str:
        name, values = self.plant.name, self.plant.parameters
        if name not in systems.names() or type(self.plant) is not systems.family(name):
            return "...  # your own plant"
        changed = (k for k, v in values.items() if float(v) != float(getattr(self.nominal, k)))
        return f'systems.make("{name}"{"".join(f", {k}={float(values[k]):.6g}" for k in changed)})'

    @property
    def _run_code(self) -> list[str]:
        lines, more = [f"x0 = [{', '.join(f'{x:g}' for x in self.x0)}]"], f", dt={self.dt:g}"
        if self.limit < controls.FREE:
            lines = ["u_eq = plant.equilibrium()[1]", f"limit = {self.limit:g} * plant.scales[1]", *lines]
            more += ", limits=(u_eq - limit, u_eq + limit)"
        call = f"simulation.rollout(plant, simulation.LinearPolicy(K), x0, {self.ticks // self.sample}{more})"
        return [*lines, f"run = {call}"]


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """What follows from a setting: the optimum of the linear plant, and the loop as it is built."""

    optimum: control.LQR  # of the sampled-data problem, without delay and limits
    K: Float[np.ndarray, "m wide"]  # gain on the state and the inputs on their way
    A: Float[np.ndarray, "wide wide"]  # sampled plant that K is a gain of
    B: Float[np.ndarray, "wide m"]
    poles: Poles  # of the loop as built
    best: Trajectory  # of the optimum, on the grid of ticks, charged by the weights chosen
    built: Trajectory
    cost: float  # the optimum's x0ᵀPx0


def design(setting: Setting) -> Design:
    """Design for a setting and run both loops: the optimum of the linear plant, and the loop as it is built.

    Raises:
        ValueError: there is no optimum, in control terms.
    """
    s = setting
    (A, B), (Q, R), late = s.plant.matrices(), s.weights, s.delay / s.sample
    optimum = control.lqrd(A, B, Q, R, s.dt)
    a, b = (np.asarray(M) for M in control.delayed(A, B, Q, R, s.dt, late)[:2])
    K = np.asarray(control.lqrd_delayed(A, B, Q, R, s.dt, late).K if late and s.known else optimum.K)
    K = np.pad(K, [(0, 0), (0, len(a) - K.shape[-1])])

    def run(K: Float[np.ndarray, "m _"], delay: int, limit: Float[Array, " m"], linear: bool) -> Trajectory:
        K = np.pad(K, [(0, 0), (0, s.plant.n + LATE * s.plant.m - K.shape[-1])])
        times = jnp.asarray(s.sample), jnp.asarray(delay)
        policy = simulation.DelayedPolicy(jnp.asarray(K), *times, limit, LATE)
        sizes = {"ticks": s.ticks, "substeps": s.substeps, "linear": linear}
        return jax.tree.map(np.asarray, _rollout(s.plant, Q, R, policy, s.x0, s.tick, **sizes))

    best = run(np.asarray(optimum.K), 0, jnp.full(s.plant.m, jnp.inf), True)
    built = run(K, s.delay, s.limits, False)
    cost = float(s.x0 @ np.asarray(optimum.P) @ s.x0)
    return Design(optimum, K, a, b, np.linalg.eigvals(a - b @ K), best, built, cost)


@partial(jit_by_function, static_argnames=("ticks", "substeps", "linear"))
def _rollout(
    plant: Plant, Q: Array, R: Array, policy: simulation.Policy, x0: Array, tick: Array,
    *, ticks: int, substeps: int, linear: bool,
) -> Trajectory:  # fmt: skip
    """The loop tick by tick, charged by Q and R instead of the plant's weights; one program from plant to costs."""
    world = simulation.env(plant, dt=tick, linear=linear, substeps=substeps)
    sampled = control.discretize(*plant.matrices(), Q, R, tick)
    return simulation.rollout(dataclasses.replace(world, Q=Q, R=R, sampled=sampled), policy, x0, ticks)


def picture(setting: Setting) -> svg.Picture:
    """Responses, effort, cost so far, margins and poles as one drawing, with the words above it."""
    result = design(setting)
    stable = np.abs(result.poles).max() < 1
    margins = control.margins(result.A, result.B, result.K, setting.dt) if stable else []
    plant = setting.plant
    if setting.view != loop_views.OVERVIEW:
        alt = f"{plant.title}: {setting.view} of the loop, sampled every {charts.duration(setting.dt)}"
        return svg.Picture(loop_views.drawn(setting, result, alt), alt, words(setting, result, margins))
    runs = {"optimal": result.best, "as built": result.built}
    signals, at = charts.channels(plant), (0, 0, _WIDTH)
    traces, bottom = charts.responses(signals, runs, at, columns=3, lead=1, named=True)
    poles = {"optimal": np.asarray(result.optimum.poles), "as built": result.poles}
    body = traces + _cost_so_far(result, (0, bottom + 6, 370, 200))
    body += _nyquist(result, margins, setting.dt, (390, bottom + 6, 225, 200))
    body += charts.pole_map((635, bottom + 6, 225, 200), poles)
    alt = (
        f"{plant.title}: states, inputs, cost so far, Nyquist curve and poles of the optimum on the linear model "
        f"and of the loop as built, sampled every {charts.duration(setting.dt)}"
    )
    drawing = svg.document(body, _WIDTH + 8, bottom + 214, alt)
    return svg.Picture(drawing, alt, words(setting, result, margins))


def _cost_so_far(result: Design, at: Rectangle) -> str:
    """Cost so far of both loops; the optimum as a line across."""
    runs, looks, ts = (
        (result.best, result.built),
        svg.strokes(("optimal", "as built")).values(),
        result.best.ts,
    )
    curves = [(ts, np.concatenate([[0.0], np.cumsum(run.costs)]), look) for run, look in zip(runs, looks)]
    curves.append((ts[[0, -1]], np.full(2, result.cost), Stroke(7, DASHES[2])))
    title = "cost so far; dotted: x0ᵀP x0, the least there is"
    return charts.over_time(at, curves, title, "1", float(ts[-1]), lead=1)[0]


def _weakest(margins: list[control.Margins]) -> int:
    """The input with the smallest disk margin; the first where there are no margins."""
    return min(range(len(margins)), key=lambda i: margins[i].disk.alpha, default=0)


def _nyquist(result: Design, margins: list[control.Margins], dt: float, at: Rectangle) -> str:
    """The loop gain at the most sensitive input, the point −1, and how far the curve stays away from it."""
    i = _weakest(margins)
    w = np.pi / dt * np.append(np.geomspace(1e-4, 0.99, 299), 1.0)
    closed = np.asarray(control.sensitivity(result.A, result.B, result.K, w, dt))[:, i, i]
    with np.errstate(all="ignore"):
        L = 1 / closed - 1
    L = L[np.isfinite(L)]
    tall = 4.0 / Axes(at, (0, 1), (0, 1)).aspect
    axes = Axes(at, (-3.0, 1.0), (-tall / 2, tall / 2))
    body = axes.cross(0.0, 0.0) + axes.circle(0.0, 0.0, 1.0, DASHES[2])
    label = "Nyquist curve, Im L"
    if margins:
        body += axes.circle(-1.0, 0.0, margins[i].modulus_margin)
        label += f"; ring: {margins[i].modulus_margin:.2f} from −1"
    body += axes.curve(L.real, L.imag, Stroke(1))
    mark = axes.marks(np.array([-1.0]), np.array([0.0]), "+", Stroke(7))
    return axes.frame("Re L", label, body) + mark


def words(s: Setting, result: Design, margins: list[control.Margins]) -> str:
    """What there is to say of a design: its cost against the optimum, modes, margins and effort."""
    lines = [_cost_words(s, result)]
    if (s.states != 1).any() or (s.inputs != 1).any():
        excess = _percent(_excess_in_plant_weights(s, result.optimum.K))
        lines.append(f"In the plant's weights the gain costs {excess} the optimum, without delay and limits.")
    size = float(np.abs(result.poles).max())
    if margins:
        lasts = charts.duration(demonstration.time_constant(result.poles, s.dt))
        lines.append(f"<b>Poles.</b> Slowest mode |z| = {size:.4f}: time constant {lasts}.")
        worst = margins[_weakest(margins)]
        phase = "any phase" if math.isinf(worst.phase) else f"±{math.degrees(worst.phase):.0f}° of phase"
        at = "" if s.plant.m == 1 else " at its most sensitive input"
        lines.append(
            f"<b>Margins.</b> Stable{at} for a gain ×{worst.gain_down:.2g} … ×{worst.gain_up:.3g}, or {phase}; "
            f"disk margin {worst.disk.alpha:.2f}, least |1 + L| = {worst.modulus_margin:.2f}."
        )
    else:
        why = "; the delay that its gain ignores is too long" if s.delay and not s.known else ""
        lines.append(f"<b>Poles.</b> The loop is <b>unstable</b>: |z| = {size:.4f}{why}. It has no margins.")
    peaks = np.nanmax(np.abs(result.built.us), axis=0)
    effort = ", ".join(f"{i.name.replace('_', ' ')} {p:.3g} {i.unit}" for i, p in zip(s.plant.inputs, peaks))
    return "<br>".join([*lines, f"<b>Effort.</b> Largest {html.escape(effort)}."])


def _cost_words(s: Setting, result: Design) -> str:
    paid = float(np.sum(result.built.costs))
    cost = f"costs {paid:.4g}, <b>{_percent(paid / result.cost - 1)}</b> the optimum"
    match demonstration.outcome(s.plant, result.built):
        case Verdict.DIVERGED:
            cost = "<b>diverges</b>"
        case Verdict.BOUNDED:
            cost += " so far; it stays <b>bounded</b>, but does not converge"
    conditions = [f"sampled every {charts.duration(s.dt)}"]
    if s.delay:
        aware = "which its gain knows" if s.known else "which its gain ignores"
        conditions.append(f"its input {s.delay / s.sample:g} samples late, {aware}")
    if s.limit < controls.FREE:
        conditions.append(controls.limit_words(s.limit))
    return (
        f"<b>Cost.</b> No controller of the linear plant pays less than {result.cost:.4g} from here. On the nonlinear "
        f"plant, {', '.join(conditions)}, this one {cost}."
    )


def _excess_in_plant_weights(s: Setting, K: Float[Array, "m n"]) -> float:
    """How much more the gain costs than the optimum of the plant's own weights, from the same start; linear."""
    problem, _ = SampledProblem.of(control.discretize(*s.plant.matrices(), *s.plant.weights(), s.dt))
    P = control.dlyap(problem.closed_loop(K).T, problem.stage_weight(K))
    return float(s.x0 @ P @ s.x0 / problem.optimal_cost(jnp.asarray(s.x0))) - 1


def _percent(share: float) -> str:
    """``3.1 % above``, in as many digits as mean anything."""
    if not math.isfinite(share):
        return "infinitely far above"
    if abs(share) < 5e-5:
        return "exactly" if abs(share) < 1e-9 else "within 0.01 % of"
    return f"{100 * abs(share):.2g} % {'above' if share > 0 else 'below'}"
