"""The LQR designer: weights, sample time, delay, limits and parameters of a plant, and what becomes of its loop."""

import dataclasses
import html
import math
from functools import partial
from typing import Any

import ipywidgets
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, simulation, systems
from lqrlab.systems import Plant
from lqrlab.workbench import animate, catalogue, live, svg
from lqrlab.workbench.stage import headless

_TICKS = 4  # that the plant's own sample time is divided into: the grid of sample times and delays
_LATE = 2  # sample times of delay at most
_FREE = 100.0  # limits from here on, in units of a large input, count as none
_WIDTH = 860.0
_BEST, _BUILT = "optimal", "as built"


def lqr_designer(plant: str | Plant, *, num_steps: int | None = None) -> Any:
    """A panel to design a plant's regulator: weights, sampling, delay, limits and parameters on sliders.

    Args:
        plant: a family of the catalogue, or one plant of your own.
        num_steps: sample times that the curves take; until the nominal loop has settled if left out.

    Returns:
        The :class:`Designer`, to be displayed by the cell; without a person the picture at its defaults.
    """
    plant = systems.make(plant) if isinstance(plant, str) else plant
    if headless():
        return picture(Setting.of(plant, num_steps))
    return Designer(plant, num_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One setting of the sliders.

    Attributes:
        plant, nominal: with the parameters chosen, and as declared.
        states, inputs: factors of the weights of each state ``[n]`` and input ``[m]``.
        sample: sample time in ticks, quarters of the plant's own.
        delay: of the input, in ticks.
        known: whether the gain is made for the delay.
        limit: of the inputs, in units of a large one.
        size: of the initial state.
        ticks: that the curves take.
        tick: one [s].
        substeps: Runge-Kutta steps in a tick.
    """

    plant: Plant
    nominal: Plant
    states: np.ndarray
    inputs: np.ndarray
    ticks: int
    tick: float
    substeps: int
    sample: int = _TICKS
    delay: int = 0
    known: bool = True
    limit: float = _FREE
    size: float = 1.0

    @classmethod
    def of(cls, plant: Plant, num_steps: int | None = None) -> "Setting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        if plant.batch_shape:
            raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
        (A, B), (Q, R), tick = plant.matrices(), plant.weights(), float(plant.dt) / _TICKS
        if num_steps is None:
            num_steps = min(catalogue.settling(np.asarray(control.lqrd(A, B, Q, R, plant.dt).poles)), 400)
        fastest = float(np.abs(np.linalg.eigvals(np.asarray(A))).max())
        substeps = max(1, math.ceil(fastest * tick / 0.25))
        ones = np.ones(plant.n), np.ones(plant.m)
        return cls(plant, plant, *ones, num_steps * _TICKS, tick, substeps)

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Array, Array]:
        """Q and R as the sliders make them."""
        Q, R = self.plant.weights()
        return Q * np.sqrt(np.outer(self.states, self.states)), R * np.sqrt(
            np.outer(self.inputs, self.inputs)
        )

    @property
    def limits(self) -> Array:
        """Largest deviations of the inputs ``[m]``; inf for none."""
        return jnp.asarray(self.plant.scales[1]) * (self.limit if self.limit < _FREE else jnp.inf)

    @property
    def x0(self) -> np.ndarray:
        """Initial deviation ``[n]``."""
        return self.size * catalogue.start(self.plant)

    @property
    def code(self) -> str:
        """What makes the same gain, to be copied into a cell."""
        changed = {
            name: float(value)
            for name, value in self.plant.parameters.items()
            if float(value) != float(getattr(self.nominal, name))
        }
        given = "".join(f", {name}={value:.6g}" for name, value in changed.items())
        own = (
            type(self.plant) is systems.family(self.plant.name)
            if self.plant.name in systems.names()
            else False
        )
        lines = [
            "from lqrlab import compute, control, simulation, systems",
            "",
            "compute.setup()",
            f'plant = systems.make("{self.plant.name}"{given})' if own else "plant = ...  # your own plant",
            "(A, B), (Q, R) = plant.matrices(), plant.weights()",
        ]
        for name, factors in (("Q", self.states), ("R", self.inputs)):
            if (factors != 1).any():
                numbers = ", ".join(f"{f:.6g}" for f in factors)
                lines += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
        if any("jnp." in line for line in lines):
            lines.insert(0, "import jax.numpy as jnp\n")
        late = f", {self.delay / self.sample:g}" if self.delay and self.known else ""
        lines.append(f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {self.dt:g}{late}).K")
        if late:
            lines.append("# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way")
        elif not self.delay:
            start = ", ".join(f"{x:g}" for x in self.x0)
            more = f", dt={self.dt:g}"
            if self.limit < _FREE:
                lines += ["u_eq = plant.equilibrium()[1]", f"limit = {self.limit:g} * plant.scales[1]"]
                more += ", limits=(u_eq - limit, u_eq + limit)"
            steps = self.ticks // self.sample
            lines += [
                f"x0 = [{start}]",
                f"run = simulation.rollout(plant, simulation.LinearPolicy(K), x0, {steps}{more})",
            ]
            if any(line.startswith("w = ") for line in lines):
                lines.append(
                    "# run.cost charges the plant's own weights; Q and R above are those K is optimal for"
                )
        return "\n".join(lines)


# What becomes of it ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """What follows from a setting.

    Attributes:
        optimum: the sampled-data LQR of the linear plant, without delay and limits; its x0ᵀPx0 is the optimum.
        K: gain on the state and the inputs on their way ``[m, n + m d]``.
        A, B: sampled plant that K is a gain of.
        poles: of the loop as built.
        best, built: what the two loops do, :class:`lqrlab.simulation.Trajectory` on the grid of ticks, the costs in
            the weights chosen.
        cost: x0ᵀPx0.
    """

    optimum: control.LQR
    K: np.ndarray
    A: np.ndarray
    B: np.ndarray
    poles: np.ndarray
    best: simulation.Trajectory
    built: simulation.Trajectory
    cost: float


def design(setting: Setting) -> Design:
    """Design for a setting and run both loops: the optimum of the linear plant, and the loop as it is built.

    Raises:
        ValueError: there is no optimum, in control terms.
    """
    s = setting
    (A, B), (Q, R) = s.plant.matrices(), s.weights
    optimum = control.lqrd(A, B, Q, R, s.dt)
    late = s.delay / s.sample
    if late:
        wide = control.delayed(A, B, Q, R, s.dt, late)
        a, b = np.asarray(wide.A), np.asarray(wide.B)
        K = np.asarray(control.lqrd_delayed(A, B, Q, R, s.dt, late).K if s.known else optimum.K)
    else:
        a, b = (np.asarray(M) for M in control.c2d(A, B, s.dt))
        K = np.asarray(optimum.K)
    K = np.pad(K, [(0, 0), (0, len(a) - K.shape[-1])])
    full = s.plant.n + _LATE * s.plant.m
    x0 = jnp.asarray(s.x0)

    def run(K: Any, delay: int, limit: Array, linear: bool) -> simulation.Trajectory:
        K = np.pad(np.asarray(K), [(0, 0), (0, full - K.shape[-1])])
        sizes = {"ticks": s.ticks, "substeps": s.substeps, "linear": linear}
        out = _loop(s.plant, Q, R, K, x0, s.tick, s.sample, delay, limit, **sizes)
        return simulation.Trajectory(s.tick * np.arange(s.ticks + 1), *out)  # type: ignore[arg-type]

    free = jnp.full(s.plant.m, jnp.inf)
    best, built = run(optimum.K, 0, free, True), run(K, s.delay, s.limits, False)
    best, built = jax.tree.map(np.asarray, (best, built))
    poles = np.linalg.eigvals(a - b @ K)
    return Design(optimum, K, a, b, poles, best, built, float(s.x0 @ np.asarray(optimum.P) @ s.x0))


@partial(jax.jit, static_argnames=("ticks", "substeps", "linear"))
def _loop(
    plant: Plant, Q: Array, R: Array, K: Array, x0: Array, tick: Array, sample: Array, delay: Array, limit: Array,
    *, ticks: int, substeps: int, linear: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """States, acting inputs and costs, tick by tick; an input is computed each ``sample`` and acts ``delay`` later."""
    world = simulation.env(plant, dt=tick, linear=linear, substeps=substeps)
    sampled = control.sample(*plant.matrices(), Q, R, tick) if linear else world.sampled
    world = dataclasses.replace(world, Q=Q, R=R, sampled=sampled, low=-limit, high=limit)

    def step(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        x, sent = state  # the inputs sent, the newest first
        z = jnp.concatenate([x, sent[:_LATE].ravel()])
        newer = jnp.concatenate([world.saturate(-K @ z)[None], sent[:-1]])
        sent = jnp.where(t % sample == 0, newer, sent)
        u = sent[t // sample - (t - delay) // sample]
        after, cost = world.step(x, u)
        return (after, sent), (after, u, cost)

    sent = jnp.zeros((_LATE + 1, plant.m), x0.dtype)
    _, (xs, us, costs) = jax.lax.scan(step, (x0, sent), jnp.arange(ticks))
    return jnp.concatenate([x0[None], xs]), us, costs


# In words and curves -----------------------------------------------------------------------------------------


def picture(setting: Setting) -> svg.Picture:
    """Responses, effort, what was paid, margins and poles as one drawing, with the words above it."""
    found = design(setting)
    stable = np.abs(found.poles).max() < 1
    margins = control.margins(found.A, found.B, found.K, setting.dt) if stable else []
    plant, until = setting.plant, setting.ticks * setting.tick
    runs = {_BEST: found.best, _BUILT: found.built}
    shown = [(label, svg.colour(label, k), svg.DASHES[k]) for k, label in enumerate(runs)]
    body = [svg.legend(2, 14, shown)]
    signals = [(s, "xs", i) for i, s in enumerate(plant.states)] + [
        (s, "us", i) for i, s in enumerate(plant.inputs)
    ]
    curves = {label: (run.ts, run.xs, run.us) for label, run in runs.items()}
    traces, bottom = animate.charts(signals, curves, until, (22, _WIDTH), columns=3, lead=1)
    body += [traces, _bill(found, (0, bottom + 6, 370, 200), until)]
    body.append(_nyquist(found, margins, setting.dt, (390, bottom + 6, 225, 200)))
    poles = {_BEST: np.asarray(found.optimum.poles), _BUILT: found.poles}
    body.append(pole_map((635, bottom + 6, 225, 200), poles))
    alt = (
        f"{plant.title}: states, inputs, cost so far, Nyquist curve and poles of the optimum on the linear model "
        f"and of the loop as built, sampled every {_quantity(setting.dt)}"
    )
    drawn = svg.picture("".join(body), _WIDTH + 8, bottom + 214, alt)
    return svg.Picture(drawn, alt, words(setting, found, margins))


def _bill(found: Design, at: tuple[float, float, float, float], until: float) -> str:
    """Cost so far of both loops; the optimum as a line across."""
    drawn = []
    for k, (label, run) in enumerate({_BEST: found.best, _BUILT: found.built}.items()):
        paid = np.concatenate([[0.0], np.cumsum(run.costs)])
        drawn.append((np.asarray(run.ts), paid, svg.colour(label, k), svg.DASHES[k]))
    drawn.append((np.array([0, until]), np.full(2, found.cost), 7, svg.DASHES[2]))
    return svg.chart(at, drawn, "cost so far; dotted: x0ᵀP x0, the least there is", "1", until, lead=1)[0]


def _weakest(margins: list[control.Margins]) -> int:
    """The input at which the loop bears least; the first where there are no margins."""
    return min(range(len(margins)), key=lambda i: margins[i].disk.alpha, default=0)


def _nyquist(
    found: Design, margins: list[control.Margins], dt: float, at: tuple[float, float, float, float]
) -> str:
    """The loop gain at the most sensitive input, the point −1, and how far the curve stays away from it."""
    i = _weakest(margins)
    w = np.pi / dt * np.append(np.geomspace(1e-4, 0.99, 299), 1.0)
    closed = np.asarray(control.sensitivity(found.A, found.B, found.K, w, dt))[:, i, i]
    with np.errstate(all="ignore"):
        L = 1 / closed - 1
    x0, x1, y0, y1 = svg.frame(at)
    wide, tall = 4.0, 4.0 * (y1 - y0) / (x1 - x0)
    L = L[np.isfinite(L)]
    far = 1e3 / np.maximum(np.abs(L), 1e3)  # what is far out leaves the picture in its direction
    x, y = (L.real * far + 3) / wide, 0.5 - L.imag * far / tall
    parts = [f'<path class="lq-axis" vector-effect="non-scaling-stroke" d="M0 .5H1M{3 / wide} 0V1"/>']
    rings = [(3 / wide, 1.0, "1.5 2.5")] + ([(2 / wide, margins[i].distance, "")] if margins else [])
    for centre, radius, dashes in rings:
        size = f'cx="{centre}" cy=".5" rx="{radius / wide:.4f}" ry="{radius / tall:.4f}" fill="none"'
        parts.append(
            f'<ellipse class="lq-axis" stroke-dasharray="{dashes}" vector-effect="non-scaling-stroke" {size}/>'
        )
    data = "M" + "L".join(f"{a:.4f} {b:.4f}" for a, b in zip(x, y))
    parts.append(f'<path class="lq-curve lq-c1" vector-effect="non-scaling-stroke" d="{data}"/>')
    cross = x0 + (x1 - x0) * 2 / wide, 0.5 * (y0 + y1)
    mark = f'<path class="lq-curve lq-c7" d="M{cross[0] - 4} {cross[1]}h8m-4 -4v8"/>'
    label = "Nyquist curve, Im L" + (f"; ring: {margins[i].distance:.2f} from −1" if margins else "")
    return svg.axes(at, (-3.0, 1.0, "Re L"), (-tall / 2, tall / 2, label), "".join(parts)) + mark


def pole_map(at: tuple[float, float, float, float], groups: dict[str, np.ndarray]) -> str:
    """Poles of sampled loops in the z-plane, one shape and colour a loop, with the unit circle."""
    every = np.concatenate([p[np.isfinite(p)] for p in groups.values()])
    x0, x1, y0, y1 = svg.frame(at)
    shape = (x1 - x0) / (y1 - y0)
    middle = 0.5 * (min(every.real.min(), 0.9) + max(every.real.max(), 1.0))
    tall = 2.3 * max(np.abs(every.imag).max(), np.abs(every.real - middle).max() / shape, 0.05)
    low, least = middle - 0.5 * tall * shape, -0.5 * tall
    circle = f'<ellipse class="lq-axis" vector-effect="non-scaling-stroke" cx="{-low / (tall * shape):.5f}" '
    circle += f'cy="0.5" rx="{1 / (tall * shape):.5f}" ry="{1 / tall:.5f}"/>'
    parts = [
        svg.axes(
            at,
            (low, low + tall * shape, "Re z"),
            (
                least,
                least + tall,
                "poles, Im z: " + ", ".join(f"{mark} {label}" for mark, label in zip("○×", groups)),
            ),
            circle,
        )
    ]
    for k, (label, poles) in enumerate(groups.items()):
        marks = []
        for z in poles[np.isfinite(poles)]:
            x = x0 + (x1 - x0) * (z.real - low) / (tall * shape)
            y = y1 - (y1 - y0) * (z.imag - least) / tall
            if k:
                marks.append(f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")
            else:
                marks.append(f"M{x - 5:.1f} {y:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0")
        parts.append(f'<path class="lq-curve lq-c{svg.colour(label, k)}" d="{"".join(marks)}"/>')
    return "".join(parts)


def words(setting: Setting, found: Design, margins: list[control.Margins]) -> str:
    """What there is to say of a design: its bill against the optimum, modes, effort and margins."""
    s, m = setting, setting.plant.m
    paid = float(np.sum(found.built.costs))
    end = found.built.xs[-1]
    scaled = np.abs(end / np.asarray(s.plant.scales[0])).max()
    lost = not np.isfinite(paid) or scaled > 3 * s.size
    bill = (
        "is <b>lost</b>"
        if lost
        else f"costs {paid:.4g}, <b>{_percent(paid / found.cost - 1)}</b> the optimum"
    )
    conditions = [f"sampled every {_quantity(s.dt)}"]
    if s.delay:
        aware = "which its gain knows" if s.known else "which its gain ignores"
        conditions.append(f"its input {s.delay / s.sample:g} samples late, {aware}")
    if s.limit < _FREE:
        conditions.append(f"inputs limited to {s.limit:.2g} × what counts as large")
    lines = [
        f"<b>Cost.</b> No controller of the linear plant pays less than {found.cost:.4g} from here. On the nonlinear "
        f"plant, {', '.join(conditions)}, this one {bill}."
    ]
    if (s.states != 1).any() or (s.inputs != 1).any():
        own = _own_weights(s)
        lines.append(
            f"In the plant's own weights the gain costs {_percent(own)} their optimum, without delay and limits."
        )
    size = float(np.abs(found.poles).max())
    if margins:
        lasts = -s.dt / math.log(size) if size > 0 else 0.0
        lines.append(f"<b>Poles.</b> Slowest mode |z| = {size:.4f}: time constant {_quantity(lasts)}.")
        worst = margins[_weakest(margins)]
        phase = "any phase" if math.isinf(worst.phase) else f"±{math.degrees(worst.phase):.0f}° of phase"
        at = "" if m == 1 else " at its most sensitive input"
        lines.append(
            f"<b>Margins.</b> Stable{at} for a gain ×{worst.gain_down:.2g} … ×{worst.gain_up:.3g}, or {phase}; "
            f"disk margin {worst.disk.alpha:.2f}, least |1 + L| = {worst.distance:.2f}."
        )
    else:
        why = "; the delay that it does not know is too long" if s.delay and not s.known else ""
        lines.append(f"<b>Poles.</b> The loop is <b>unstable</b>: |z| = {size:.4f}{why}. It has no margins.")
    peaks = np.nanmax(np.abs(found.built.us), axis=0)
    effort = ", ".join(f"{i.name.replace('_', ' ')} {p:.3g} {i.unit}" for i, p in zip(s.plant.inputs, peaks))
    lines.append(f"<b>Effort.</b> Largest {effort}.")
    return "<br>".join(lines)


def _own_weights(setting: Setting) -> float:
    """How much more the gain costs than the optimum of the plant's own weights, from the same start; linear."""
    s = setting
    (A, B), (Q, R) = s.plant.matrices(), s.plant.weights()
    own = control.sample(A, B, Q, R, s.dt)
    best = control.dlqr(*own).P
    K = control.lqrd(A, B, *s.weights, s.dt).K
    closed = own.A - own.B @ K
    stage = own.Q - own.N @ K - K.T @ own.N.T + K.T @ own.R @ K
    P = control.dlyap(closed.T, stage)
    return float(s.x0 @ P @ s.x0) / float(s.x0 @ best @ s.x0) - 1


def _percent(share: float) -> str:
    """``3.1 % above``, in as many digits as mean anything."""
    if not math.isfinite(share):
        return "infinitely far above"
    if abs(share) < 5e-5:
        return "exactly" if abs(share) < 1e-9 else "within 0.01 % of"
    return f"{100 * abs(share):.2g} % {'above' if share > 0 else 'below'}"


def _quantity(seconds: float) -> str:
    unit, size = next((u for u in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if seconds >= u[1]), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


# The panel ---------------------------------------------------------------------------------------------------


class Designer(ipywidgets.HBox):
    """The panel; its parts are attributes.

    Attributes:
        states, inputs: name → slider of log10 of the factor of its weight.
        sample, delay, known, limit, size: sample time, delay, whether it is known, limits, initial state.
        parameters: name → slider.
        picture, words, code: what came out.
        live: the work; ``live.wait()`` until it is done.
    """

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._default = Setting.of(systems.make(plant) if isinstance(plant, str) else plant, num_steps)
        plant = self._default.plant
        self.states, self.inputs = (
            {s.name: live.slider(s.name.replace("_", " "), 0.0, -3.0, 3.0) for s in signals}
            for signals in (plant.states, plant.inputs)
        )
        grid = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
        self.sample = ipywidgets.SelectionSlider(
            options=[(_quantity(k * self._default.tick), k) for k in grid],
            value=_TICKS, description="sample time", **live.WIDE,
        )  # fmt: skip
        self.delay = live.slider("delay [samples]", 0.0, 0.0, float(_LATE), step=0.25)
        self.known = ipywidgets.Checkbox(True, description="the gain knows the delay", indent=False)
        self.limit = ipywidgets.FloatLogSlider(
            _FREE,
            min=-1.5,
            max=2,
            step=0.05,
            description="limit, × large input",
            readout_format=".2g",
            **live.WIDE,
        )
        self.size = live.slider("initial state, ×", 1.0, 0.05, 3.0)
        self.parameters = live.parameter_sliders(plant)
        self.reset = live.button("back to the defaults")
        self.picture, self.words, self.code = (ipywidgets.HTML() for _ in range(3))
        self.live = live.Live(lambda setting, check: (picture(setting), setting.code), self._show)
        loop = [self.sample, self.delay, self.known, self.limit, self.size]
        note = ipywidgets.HTML("log10 of the factor of each weight")
        pages = {
            "weights": [note, *self.states.values(), *self.inputs.values()],
            "loop": loop,
            "parameters": list(self.parameters.values()),
        }
        tabs = ipywidgets.Tab([ipywidgets.VBox(page) for page in pages.values()], layout={"width": "27rem"})
        tabs.titles = tuple(pages)
        code = ipywidgets.Accordion([self.code], layout={"width": "27rem"})
        code.titles = ("copy as code",)
        left = ipywidgets.VBox([tabs, self.reset, code], layout={"flex": "0 0 28rem"})
        right = ipywidgets.VBox([self.live.bar, self.words, self.picture], layout={"flex": "1 1 auto"})
        super().__init__([left, right])
        self._controls = [*self.states.values(), *self.inputs.values(), *loop, *self.parameters.values()]
        self._start = [control.value for control in self._controls]
        self._quiet = False
        for control_ in self._controls:
            control_.observe(lambda _: self._ask(), names="value")
        self.reset.on_click(lambda _: self._reset())
        self._ask()

    @property
    def setting(self) -> Setting:
        """What the sliders say."""
        default, k = self._default, self.sample.value
        factors = (np.array([10.0**s.value for s in group.values()]) for group in (self.states, self.inputs))
        values = live.moved(self.parameters, default.plant)
        return dataclasses.replace(
            default,
            plant=live.altered(default.plant, values),
            states=next(factors),
            inputs=next(factors),
            sample=k,
            delay=round(self.delay.value * k),
            known=self.known.value,
            limit=self.limit.value,
            size=self.size.value,
        )

    def _ask(self) -> None:
        if not self._quiet:
            self.live.ask(self.setting)

    def _show(self, answer: tuple[svg.Picture, str]) -> None:
        drawn, code = answer
        self.picture.value, self.words.value = drawn.svg, drawn.words
        copied = html.escape(code)
        self.code.value = (
            '<button class="jupyter-button" onclick="navigator.clipboard.writeText('
            "this.nextElementSibling.textContent);this.textContent='copied'\">copy</button>"
            f'<pre style="user-select:all;white-space:pre-wrap;line-height:1.35">{copied}</pre>'
        )

    def _reset(self) -> None:
        self._quiet = True
        for control_, value in zip(self._controls, self._start):
            control_.value = value
        self._quiet = False
        self._ask()
