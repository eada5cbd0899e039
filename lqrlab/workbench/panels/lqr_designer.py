"""The designer: kind of controller, weights, sampling, delay, limits and parameters of a plant, and its loop."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np

import lqrlab
from lqrlab import control
from lqrlab.compute.array_files import write_arrays
from lqrlab.simulation import Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, loop_design, loop_picture
from lqrlab.workbench.figures.loop_controllers import KINDS, ControllerChoice, integral_weight
from lqrlab.workbench.figures.loop_design import LoopDesign, LoopSetting, design
from lqrlab.workbench.figures.loop_picture import picture, sheet
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.controls import ClickPlane, button
from lqrlab.workbench.panels.live_panel import Check, Live
from lqrlab.workbench.panels.panel import Panel, literal

_MOST, _ANY = 3, 4.0  # designs that are pinned; overshoot from which on it is not specified
_TAKES = "The search takes about 2 s; 10 s if specifications exclude each other."
_SPECIFIED = ("settling", "overshoot", "effort", "margin")
_CHOSEN = ("integral", "disturbance", "sensor")
_ROW = {"flex": "1 1 100%", "margin": "-5px 2px"}  # of words, which change: sliders beside them keep their length
_NEAR = 0.08  # of the width of the map, within which a pole is taken hold of


def lqr_designer(
    plant: str | Plant, *, num_steps: int | None = None, values: Mapping[str, Any] | None = None
) -> "Designer | Picture":
    """A panel to design a plant's regulator: LQR, poles that are typed or dragged, integral action, or LQG.

    Weights, sampling, delay, limits, load and parameters are on sliders; up to three designs are pinned. The plant is
    a family or one of your own; curves take ``num_steps`` sample times, or until the nominal loop has settled.
    ``values`` is what its controls begin at, as *copy as code* writes it. Without a person it is the picture.
    """
    return Designer(plant, num_steps).at(values)


class Designer(Panel[LoopSetting, Picture]):
    """The panel; its controls are attributes, ``states``, ``inputs`` and ``parameters`` by name."""

    canvas = ClickPlane
    moving = ("inputs", "sample", "delay", "limit")
    does = "designs the regulator anew for each weight, sample time, delay, limit, specification and parameter"
    first = "about 2 s, or 1 s where its programs were compiled before"

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._default = default = LoopSetting.of(plant, num_steps)
        self.states, self.inputs = (
            {s.name: controls.factor_slider(f"{matrix}: {s.name.replace('_', ' ')} ×") for s in signals}
            for matrix, signals in zip("QR", (default.plant.states, default.plant.inputs))
        )
        self.entries = ipywidgets.HTML(layout=_ROW)
        times = [(charts.duration(k * default.tick), k) for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
        self.sample = ipywidgets.SelectionSlider(
            options=times, value=loop_design.TICKS, description="sample time", **controls.WIDE
        )
        self.delay = controls.slider("delay [samples]", 0.0, 0.0, float(loop_design.LATE), step=0.25)
        self.known = controls.checkbox("the design knows the delay")
        self.limit = controls.limit_slider(loop_design.FREE, "input limit", default.plant)
        self.size = controls.slider("initial state, ×", 1.0, 0.05, 3.0)
        self.view = ipywidgets.Dropdown(options=loop_design.VIEWS, description="picture", **controls.WIDE)
        unit, scale = loop_design.input_unit(default.plant)
        self.load = controls.slider(f"disturbance [{unit}]", 0.0, -scale, scale)
        self.parameters = controls.parameter_sliders(default.plant)
        self._controller(default.plant)
        pages = {
            "weights": [*self.states.values(), *self.inputs.values(), self.entries],
            "controller": [self.kind, *itertools.chain(*self._settings.values())],
            "loop": [*(self.sample, self.delay, self.known, self.limit, self.size, self.load, self.view)],
            "specifications": self._specified(default.ticks * default.tick),
            "parameters": list(self.parameters.values()),
        }
        self._written: set[Path] = set()
        self._far, self._paired = 0.0, None  # type: float, bool | None
        super().__init__(
            [controls.tabs(pages)],
            tools=self.pinning(self._named, lambda: _MOST),
            call=("lqr_designer", {"plant": plant, "num_steps": num_steps}),
        )
        names = ["states", "inputs", "sample", "delay", "known", "limit", "size", "load", "view", "parameters", "kind"]
        names += ["poles", "integral", "measured", "disturbance", "sensor", "held", *_SPECIFIED]
        self.track(**{name: getattr(self, name) for name in names})
        self.picture.observe(self._guarded(self._taken), names="start")
        self.picture.observe(self._guarded(self._dragged), names="point")
        self.kind.observe(lambda _: self._reveal(), names="value")
        self._reveal()
        self.ask()

    def _controller(self, plant: Plant) -> None:
        """The controls of a kind of controller, and of its settings."""
        usual, outputs = ControllerChoice(), [o.name.replace("_", " ") for o in plant.outputs]
        self.kind = ipywidgets.Dropdown(options=KINDS, description="controller", **controls.WIDE)
        self.poles = ipywidgets.Text(
            lqrlab.tuning.figures.faster_poles(plant), description="poles [rad/s]", continuous_update=False,
            placeholder="−2, −1±1j", **controls.WIDE,
        )  # fmt: skip
        numbered = [(name, i) for i, name in enumerate(outputs)]
        self.held = ipywidgets.Dropdown(options=numbered, description="output held", **controls.WIDE)
        self.integral = controls.factor_slider("integral weight ×")
        self.measured = {o.name: controls.checkbox(f"measures {name}") for o, name in zip(plant.outputs, outputs)}
        self.disturbance, self.sensor = (
            controls.log_slider(label, value, -4, 1, step=0.05, readout_format=".2g")
            for label, value in (("disturbance, scale/√s", usual.disturbance), ("sensor noise, × scale", usual.sensor))
        )
        self._settings: dict[str, list[ipywidgets.Widget]] = {
            "pole placement": [self.poles, ipywidgets.HTML("Type them, Enter; or drag × in the map of poles.")],
            "integral action": [ipywidgets.Box([self.held], layout=controls.WIDE["layout"]), self.integral],
            "LQG": [*self.measured.values(), self.disturbance, self.sensor],
        }

    def _specified(self, longest: float) -> list[ipywidgets.Widget]:
        """The controls of the specifications of a step, and a button that looks for weights which meet them."""
        self.settling = controls.slider("settled after [s]", float(f"{0.3 * longest:.2g}"), longest / 200, longest)
        self.overshoot = controls.slider("overshoot, at most", 0.1, 0.0, _ANY)
        self.effort = controls.limit_slider(loop_design.FREE, "inputs at most", self._default.plant)
        self.margin = controls.slider("disk margin, at least", 0.0, 0.0, 2.0)
        self.found, self.search = controls.Said(_TAKES, layout=_ROW), Live(self._search, self._find)
        self.find = button("find weights", self._guarded(lambda: self.search.ask(self._question())))
        asked = self.held, self.settling, self.overshoot, self.effort, self.margin
        return [*asked, self.find, self.search.bar, self.found]

    def _reveal(self) -> None:
        """Show the settings of the kind that is chosen alone."""
        for kind, settings in self._settings.items():
            for one in settings:
                one.layout.display = None if kind == self.kind.value else "none"

    def _question(self) -> LoopSetting:
        def at(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name).value for name in names}

        states, inputs = (np.array([s.value for s in group.values()]) for group in (self.states, self.inputs))
        measured = tuple(i for i, box in enumerate(self.measured.values()) if box.value)
        plant = controls.changed(self._default.plant, self.parameters)
        effort = controls.limit_of(self.effort.value, plant)
        specifications = lqrlab.tuning.StepSpecs(
            self.settling.value,
            self.overshoot.value if self.overshoot.value < _ANY else None,
            tuple(map(float, loop_design.largest_inputs(plant, effort))) if effort < loop_design.FREE else None,
            self.margin.value or None,
        )
        dt, placed = self.sample.value * self._default.tick, self.kind.value == "pole placement"
        poles = lqrlab.tuning.figures.read_poles(self.poles.value, plant, dt) if placed else ()
        question = dataclasses.replace(
            self._default,
            plant=plant,
            states=states,
            inputs=inputs,
            delay=round(self.delay.value * self.sample.value),
            specifications=specifications,
            controller=ControllerChoice(measured=measured, poles=poles, **at("kind", "held", *_CHOSEN)),
            limit=controls.limit_of(self.limit.value, plant),
            load=self.load.value / loop_design.input_unit(plant)[1],
            far=self._far,
            **at("sample", "known", "size", "view"),
        )
        self.entries.value = loop_picture.weight_words(question)
        return question

    def _compute(self, question: LoopSetting, check: Check) -> Picture:
        return picture(question, design(question), dict(self.pinned))

    def ask(self) -> None:
        """As all panels; the map of poles is then as large as they need, but not while one of them is dragged."""
        self._far = self._far if self._quiet else 0.0
        super().ask()

    def draw(self, picture: Picture) -> None:
        """Put a picture into the panel, and the plane in which poles are dragged over it."""
        super().draw(picture)
        self.picture.frame = list(getattr(picture, "frame", loop_picture.LoopPicture.frame))

    def _taken(self) -> None:
        """Take hold of the pole that is nearest to the click, with its conjugate."""
        axes, self._paired = self._drawn.plane, None  # type: ignore[attr-defined]
        at, others = self.picture.at(axes, "start"), list(self._question().controller.poles)
        near = min(others, key=lambda pole: abs(pole - at))
        for pole in {near, near.conjugate()}:
            others.remove(pole)
        self._far, self._others = axes.y[1], others
        self._paired = bool(near.imag) if abs(near - at) < _NEAR * (axes.x[1] - axes.x[0]) else None

    def _dragged(self) -> None:
        """Move the pole that is held; a real one stays real, a pair a pair, all stable."""
        if self._paired is None:
            return
        s, least = self.picture.at(self._drawn.plane), 0.01 * self._far  # type: ignore[attr-defined]
        moved = complex(min(s.real, -least), max(abs(s.imag), least) if self._paired else 0.0)
        with self.quietly():
            self.poles.value = lqrlab.tuning.figures.written_poles([*self._others, moved])
        super().ask()

    def _search(self, question: LoopSetting, check: Check) -> tuple[Any, ...]:
        """Weights with which the LQR meets the specifications, or comes nearest."""
        begin = time.monotonic()

        def report(start: int, starts: int) -> None:
            check()
            self.found.say(f"looking for weights: start {start + 1} of {starts}, {time.monotonic() - begin:.1f} s")

        return lqrlab.tuning.figures.found_weights(question, report)

    def _find(self, answer: tuple[Any, ...]) -> None:
        """Move the weights to those found."""
        states, inputs, said = answer
        with self.quietly():
            for group, factors in ((self.states, states), (self.inputs, inputs)):
                for slider, factor in zip(group.values(), factors):
                    slider.value = float(factor)
            self.kind.value, self.view.value, self.found.value = KINDS[0], loop_design.STEP, said
        self.ask()

    def _named(self) -> tuple[str, tuple[LoopSetting, LoopDesign]]:
        """The design as it stands, with its kind if that is not the usual one."""
        setting = self._question()
        kind = "" if setting.controller.kind == KINDS[0] else f" ({setting.controller.kind})"
        return kind, (setting, design(setting))

    def _codes(self, question: LoopSetting) -> list[str]:
        return [regulator(question), *super()._codes(question)]

    def _writers(self) -> dict[str, Callable[[Path], Path]]:
        return {"design sheet": self._write_sheet, "for MATLAB": self._write_mat} | super()._writers()

    def _place(self, path: Path, ending: str) -> Path:
        """The path that a file goes to; one that this panel did not write stays."""
        path = path.with_suffix(ending)
        if path.exists() and path not in self._written:
            raise ValueError(f"{path}: is there already; choose another name, or move it away")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written.add(path)
        return path

    def _write_sheet(self, path: Path) -> Path:
        """The design on a page to mail or to print."""
        s, path = self._question(), self._place(path, ".html")
        return sheet(s, design(s), path.stem, regulator(s)).save(path)

    def _write_mat(self, path: Path) -> Path:
        """A ``.mat`` file for MATLAB and SciPy: the continuous plant ``A`` … ``C``, the sampled ``Ad`` … ``Nd``, ``K``.

        ``Ak`` … ``Dk`` are the whole controller, from the plant's state to its input; all without delay.
        """
        s, path = self._question(), self._place(path, ".mat")
        found, plant = design(s), (*s.plant.matrices(), *s.weights, s.plant.output_matrix())
        named = {"dt": s.dt, "K": found.undelayed.K} | dict(zip("ABQRC", plant))
        named |= {f"{name}d": value for name, value in zip("ABQRN", found.sampled)}
        named |= {f"{name}k": value for name, value in zip("ABCD", found.undelayed.controller.matrices)}
        return write_arrays(path, {name: np.asarray(value) for name, value in named.items()})

    def _exported(self, question: LoopSetting) -> tuple[object, Problem]:
        s, u_eq = question, question.plant.equilibrium()[1]
        if s.delay and s.known:
            raise ValueError(
                f"export: expected a loop without delay, but found one of {s.delay / s.sample:g} samples: its policy "
                "delays the input itself, which your actuator does already"
            )
        problem = Problem.of(s.plant, dt=s.dt, limits=(u_eq - s.limits, u_eq + s.limits), optimum=False)
        return design(dataclasses.replace(s, delay=0)).loop.design, problem


# Its code ---------------------------------------------------------------------------------------------------


def regulator(s: LoopSetting) -> str:
    """Code that makes the designer's gain, and runs its loop where it has no delay."""
    weights = []
    for name, factors in (("Q", s.states), ("R", s.inputs)):
        if (factors != 1).any():
            numbers = ", ".join(f"{f:.6g}" for f in factors)
            weights += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
    lines = [
        *(["import jax.numpy as jnp", ""] if weights or s.controller.kind in KINDS[1::2] else []),
        "from lqrlab import compute, control, simulation, systems",
        "",
        "compute.setup()",
        f"plant = {literal(s.plant) or '...  # your own plant'}",
        "(A, B), (Q, R) = plant.matrices(), plant.weights()",
        *weights,
    ]
    if s.controller.kind != KINDS[0]:
        more = ["# the delay is not in this code"] if s.delay else []
        return "\n".join([*lines, *_designed(s), *more, *_run(s, "design")])
    late = f", {s.delay / s.sample:g}" if s.delay and s.known else ""
    lines.append(f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {s.dt:g}{late}).K")
    note = ["# run.cost charges the plant's own weights; Q and R above are those K is optimal for"] if weights else []
    if late:
        return "\n".join([*lines, "# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way"])
    return "\n".join(lines if s.delay else [*lines, *_run(s, "simulation.LinearPolicy(K)"), *note])


def _designed(s: LoopSetting) -> list[str]:
    """Lines that make the controller of a kind."""
    c, sampled = s.controller, f"A, B, Q, R, N = control.discretize(A, B, Q, R, {s.dt:g})"
    rows, optimum = "plant.output_matrix()", control.lqrd(*s.plant.matrices(), *s.weights, s.dt)
    match c.kind:
        case "pole placement":
            poles = [z if z.imag else z.real for z in c.poles]
            return [sampled, f"design = control.place(A, B, jnp.exp({s.dt:g} * jnp.array({poles})))"]
        case "integral action":
            weight = integral_weight(c, s.plant, optimum, s.dt)
            C = f"C = {rows}[{c.held}:{c.held + 1}]"
            return [sampled, C, f"design = control.lqi(A, B, C, Q, R, [[{weight:.10g}]], N, discrete=True)"]
    at = f"jnp.array({list(c.measured)})"
    scales = [s.plant.outputs[i].scale for i in c.measured]
    return [
        sampled,
        f"C = {rows}[{at}]",
        f"W = jnp.diag(({c.disturbance:.10g} * plant.scales[0]) ** 2) * {s.dt:g}",
        f"V = jnp.diag(({c.sensor:.10g} * jnp.array({scales})) ** 2)",
        "design = control.lqg(A, B, C, Q, R, W, V, N, discrete=True)",
    ]


def _run(s: LoopSetting, controller: str) -> list[str]:
    lines, more = [f"x0 = [{', '.join(f'{x:g}' for x in s.x0)}]"], f", dt={s.dt:g}"
    if s.limit < loop_design.FREE:
        lines = ["u_eq = plant.equilibrium()[1]", f"limit = {s.limit:g} * plant.scales[1]", *lines]
        more += ", limits=(u_eq - limit, u_eq + limit)"
    call = f"simulation.rollout(plant, {controller}, x0, {s.ticks // s.sample}{more})"
    return [*lines, f"run = {call}"]
