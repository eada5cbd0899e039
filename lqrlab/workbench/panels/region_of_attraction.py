"""The region-of-attraction map: from which states of a plane a nonlinear plant comes back, policy beside policy."""

import base64
import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets
import numpy as np
from PIL import Image

from lqrlab import control, evaluation
from lqrlab.evaluation import Attraction
from lqrlab.systems import Plant
from lqrlab.workbench.figures import svg
from lqrlab.workbench.panels import baselines, live_panel
from lqrlab.workbench.runs.session import headless

_FREE = 100.0  # limits from here on, in units of a large input, count as none
_SIDE = 290.0  # of a map [px]


def attraction_map(
    plant: str | Plant,
    policies: Mapping[str, Any] | None = None,
    *,
    plane: Sequence[str] | None = None,
    span: float = 4.0,
    limit: float = 1.0,
    num: int = 100_000,
    num_steps: int = 500,
) -> Any:
    """A panel that shows from where the nonlinear plant comes back under its LQR and under others.

    Args:
        plant: a family of the catalogue, or one plant of your own.
        policies: label → policy, network, checkpoints folder or function plant → policy, beside the plant's own LQR.
        plane: names of the two states that are varied; the others start at the equilibrium.
        span: how far the map reaches, in scales of its states.
        limit: of the inputs, in units of what counts as large; 100 or more for none.
        num: rollouts a picture, shared out among the policies.
        num_steps: samples after which a loop that is neither back nor lost counts as undecided.

    Returns:
        The :class:`AttractionMap`, to be displayed by the cell; without a person the picture.
    """
    setting = Setting.of(plant, policies, plane, span=span, limit=limit, num=num, num_steps=num_steps)
    return picture(setting) if headless() else AttractionMap(setting)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One setting of the sliders; see :func:`attraction_map`.

    Attributes:
        across, up: numbers of the two states.
    """

    plant: Plant
    policies: dict[str, Any]
    across: int
    up: int
    span: float
    limit: float
    num: int
    num_steps: int

    @classmethod
    def of(
        cls,
        plant: str | Plant,
        policies: Mapping[str, Any] | None,
        plane: Sequence[str] | None,
        *,
        span: float,
        limit: float,
        num: int,
        num_steps: int,
    ) -> "Setting":
        """Checked; the plane is that of :func:`telling` if left out."""
        plant = live_panel.one_plant(plant)
        across, up = telling(plant)
        names = [s.name for s in plant.states]
        if plane is not None:
            chosen = [plane] if isinstance(plane, str) else list(plane)
            if len(chosen) != 2 or chosen[0] == chosen[1] or not set(chosen) <= set(names):
                found = ", ".join(map(str, chosen)) or "none"
                raise ValueError(f"plane: expected two of {', '.join(names)}, but found {found}")
            across, up = (names.index(name) for name in chosen)
        if not isinstance(policies, Mapping | None):
            raise ValueError(f"policies: expected {{label: policy}}, but found {type(policies).__name__}")
        if "optimal" in (policies or {}):
            raise ValueError("policies: expected other labels than 'optimal', which is the LQR's own")
        given = {"optimal": baselines.optimal} | dict(policies or {})
        sizes = live_panel.above_zero("span", span), live_panel.above_zero("limit", limit)
        counts = live_panel.whole("num", num), live_panel.whole("num_steps", num_steps)
        return cls(plant, given, across, up, *sizes, *counts)

    @property
    def limits(self) -> tuple[Any, Any] | None:
        """Of the actuators, absolute; None for none."""
        if self.limit >= _FREE:
            return None
        u_eq, size = self.plant.equilibrium()[1], self.limit * self.plant.scales[1]
        return u_eq - size, u_eq + size

    @property
    def reach(self) -> tuple[float, float]:
        """Half-widths of the map in its states' units."""
        scales = np.asarray(self.plant.scales[0])
        return self.span * float(scales[self.across]), self.span * float(scales[self.up])

    def starts(self) -> np.ndarray:
        """Initial deviations ``[side, side, n]``, rows from below, in the middles of the picture's squares."""
        side = max(int(math.sqrt(self.num / len(self.policies))), 2)
        middles = (np.arange(side) + 0.5) / side * 2 - 1
        x0 = np.zeros((side, side, self.plant.n), np.float32)
        x0[..., self.across] = self.reach[0] * middles
        x0[..., self.up] = self.reach[1] * middles[:, None]
        return x0


def telling(plant: Plant) -> tuple[int, int]:
    """Two states worth looking at: of coordinates and of rates the one that the least stable mode moves most."""
    if plant.n < 2:
        raise ValueError(
            f"plant: expected two states or more to make a plane of, but {plant.name} has {plant.n}"
        )
    poles, modes = np.linalg.eig(np.asarray(plant.matrices()[0]))
    size = np.abs(modes[:, int(np.argmax(poles.real))]) / np.asarray(plant.scales[0])
    half = (plant.n + 1) // 2
    return int(np.argmax(size[:half])), half + int(np.argmax(size[half:]))


def maps(setting: Setting, check: Callable[[], None] = lambda: None) -> dict[str, Attraction]:
    """The fate of every start of the plane under each policy."""
    x0, found = setting.starts(), {}
    options: dict[str, Any] = {"num_steps": setting.num_steps, "limits": setting.limits, "check": check}
    for label, policy in setting.policies.items():
        try:
            bound = baselines.bind(policy, setting.plant)
            found[label] = evaluation.attraction(setting.plant, bound, x0, **options)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error
    return found


# In words and colours ----------------------------------------------------------------------------------------


def picture(setting: Setting, check: Callable[[], None] = lambda: None) -> svg.Picture:
    """The maps side by side, and with two of them where they differ."""
    found = maps(setting, check)
    plant = setting.plant
    wide, tall = setting.reach
    across, up = plant.states[setting.across], plant.states[setting.up]
    drawn = {
        label: _image(_shaded(svg.LIGHT[svg.colour(label, k)], a))
        for k, (label, a) in enumerate(found.items())
    }
    titles = {label: f"{label}: {100 * a.share:.1f} % come back" for label, a in found.items()}
    if len(found) == 2:
        drawn["differ"] = _image(_differing(found))
        titles["differ"] = "where only one comes back, in its colour"
    body = []
    for k, (label, image) in enumerate(drawn.items()):
        left = k * (_SIDE + 10)
        inner = image + (_ellipse(setting) if label == "optimal" else "")
        body.append(svg.text(left + 2, 14, titles[label], look="lq-b"))
        body.append(
            svg.axes((left, 20, _SIDE, _SIDE), (-wide, wide, across.label), (-tall, tall, up.label), inner)
        )
    alt = (
        f"{plant.title}: starts in the plane of {across.name} and {up.name} from which it comes back; "
        + "; ".join(titles[label] for label in found)
    )
    width = len(drawn) * (_SIDE + 10)
    return svg.Picture(svg.picture("".join(body), width, _SIDE + 26, alt), alt, _words(setting, found))


def _image(rgba: np.ndarray) -> str:
    """Pixels ``[rows from below, columns, 4]`` that fill the plane of :func:`svg.axes`."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rgba[::-1])).save(buffer, "PNG")
    data = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    size = {"width": 1, "height": 1, "preserveAspectRatio": "none", "style": "image-rendering:pixelated"}
    return svg.element("image", size | {"href": data})


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def _shaded(colour: str, found: Attraction) -> np.ndarray:
    """In its colour what comes back, the stronger the sooner; grey what has not decided; nothing where it is lost."""
    rgba = np.zeros((*found.converged.shape, 4), np.uint8)
    rgba[found.converged, :3] = _rgb(colour)
    latest = max(float(found.seconds[found.converged].max(initial=0.0)), 1e-9)
    rgba[found.converged, 3] = (255 * (1 - 0.6 * found.seconds[found.converged] / latest)).astype(np.uint8)
    rgba[~found.converged & ~found.diverged] = (128, 128, 128, 110)
    return rgba


def _differing(found: Mapping[str, Attraction]) -> np.ndarray:
    (first, a), (second, b) = found.items()
    rgba = np.zeros((*a.converged.shape, 4), np.uint8)
    rgba[a.converged & b.converged] = (128, 128, 128, 60)
    rgba[a.converged & ~b.converged] = (*_rgb(svg.LIGHT[svg.colour(first, 0)]), 255)
    rgba[b.converged & ~a.converged] = (*_rgb(svg.LIGHT[svg.colour(second, 1)]), 255)
    return rgba


def _ellipse(setting: Setting) -> str:
    """Where the linear loop never meets its limits: x'Px at most what :func:`control.unsaturated_level` says."""
    if setting.limits is None:
        return ""
    plant = setting.plant
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    level = float(control.unsaturated_level(design.K, design.P, setting.limit * plant.scales[1]))
    chosen = np.array([setting.across, setting.up])
    P = np.asarray(design.P)[np.ix_(chosen, chosen)] / level
    angle = np.linspace(0, 2 * np.pi, 121)
    points = np.linalg.solve(np.linalg.cholesky(P).T, np.stack([np.cos(angle), np.sin(angle)]))
    x, y = (0.5 + 0.5 * p / reach for p, reach in zip(points, setting.reach))
    data = "M" + "L".join(f"{a:.4f} {1 - b:.4f}" for a, b in zip(x, y))
    return (
        f'<path class="lq-axis" style="stroke:var(--q-text)" vector-effect="non-scaling-stroke" d="{data}"/>'
    )


def _words(setting: Setting, found: Mapping[str, Attraction]) -> str:
    plant, starts = setting.plant, next(iter(found.values())).converged.size
    limits = (
        "no limits"
        if setting.limits is None
        else f"inputs limited to {setting.limit:.2g} × what counts as large"
    )
    shares = "; ".join(f"<b>{label}</b> {100 * a.share:.1f} %" for label, a in found.items())
    undecided = sum(int((~a.converged & ~a.diverged).sum()) for a in found.values())
    lines = [
        f"{plant.name}, nonlinear, {limits}: {starts * len(found):,} rollouts. "
        f"Of {starts:,} starts come back: {shares}."
    ]
    if len(found) == 2:
        (a, x), (b, y) = found.items()
        only = [100 * float(np.mean(p.converged & ~q.converged)) for p, q in ((x, y), (y, x))]
        lines.append(
            f"From {only[0]:.2g} % of them only <i>{a}</i> comes back, from {only[1]:.2g} % only <i>{b}</i>."
        )
    if undecided:
        lines.append(f"{undecided:,} rollouts had not decided after {setting.num_steps} samples (grey).")
    if setting.limits is not None:
        lines.append(
            "Inside the ellipse the linear loop never meets its limits. The stronger the colour, the sooner."
        )
    return "<br>".join(lines)


# The panel ---------------------------------------------------------------------------------------------------


class AttractionMap(ipywidgets.HBox):
    """The panel; its parts are attributes.

    Attributes:
        across, up: the two states.
        span, limit: sliders.
        parameters: name → slider.
        picture, words: what came out.
        live: the work; ``live.wait()`` until it is done, ``live.stop`` to stop it.
    """

    def __init__(self, setting: Setting) -> None:
        self._default, plant = setting, setting.plant
        choices = [(s.label, i) for i, s in enumerate(plant.states)]
        quiet = {"continuous_update": False}
        self.across, self.up = (
            ipywidgets.Dropdown(options=choices, value=value, description=name, **live_panel.WIDE)
            for name, value in (("across", setting.across), ("up", setting.up))
        )
        self.span = live_panel.slider("reach, × scale", setting.span, 0.5, 20.0, **quiet)
        self.limit = ipywidgets.FloatLogSlider(
            min(setting.limit, _FREE), min=-1.5, max=2, step=0.05, description="limit, × large input",
            readout_format=".2g", continuous_update=False, **live_panel.WIDE,
        )  # fmt: skip
        self.parameters = live_panel.parameter_sliders(plant, **quiet)
        self.picture, self.words = ipywidgets.HTML(), ipywidgets.HTML()
        self.live = live_panel.Live(picture, self._show, settle=0.3)
        tabs = ipywidgets.Tab(
            [
                ipywidgets.VBox([self.across, self.up, self.span, self.limit]),
                ipywidgets.VBox(list(self.parameters.values())),
            ],
            layout={"width": "27rem"},
        )
        tabs.titles = ("map", "parameters")
        right = ipywidgets.VBox([self.live.bar, self.words, self.picture], layout={"flex": "1 1 auto"})
        super().__init__([ipywidgets.VBox([tabs], layout={"flex": "0 0 28rem"}), right])
        for control_ in (self.across, self.up, self.span, self.limit, *self.parameters.values()):
            control_.observe(lambda _: self._ask(), names="value")
        self._ask()

    @property
    def setting(self) -> Setting:
        """What the sliders say."""
        plant = live_panel.altered(
            self._default.plant, live_panel.moved(self.parameters, self._default.plant)
        )
        numbers = {
            "across": self.across.value,
            "up": self.up.value,
            "span": self.span.value,
            "limit": self.limit.value,
        }
        return dataclasses.replace(self._default, plant=plant, **numbers)

    def _ask(self) -> None:
        if self.across.value == self.up.value:
            self.live.say("choose two different states")
        else:
            self.live.ask(self.setting)

    def _show(self, drawn: svg.Picture) -> None:
        self.picture.value, self.words.value = drawn.svg, drawn.words
