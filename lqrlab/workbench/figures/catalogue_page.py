"""The catalogue to read: of each family its drawing in motion, responses, modes in words, equations, parameters.

The words of one plant are gathered in a :class:`Card`, which the terminal prints and the page sets.
"""

import dataclasses
import html
import importlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from lqrlab import control, systems
from lqrlab.simulation import LinearPolicy, Trajectory, rollout
from lqrlab.systems import Plant
from lqrlab.workbench.figures import animation, keyframes, svg
from lqrlab.workbench.figures.formulas import mathml

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
_SETTLED = 4e-3  # of an amplitude: what is left of it is no longer seen
_WIDTH = 720.0


@dataclasses.dataclass(frozen=True)
class Card:
    """What there is to say of one plant.

    Attributes:
        name, title: of its family.
        facts: label → words: size, sample time, source, limits of the model.
        modes: the open loop's modes in words, the least stable first.
        equations: of motion, as LaTeX; none for a plant without a family.
        tables: caption → head and rows: parameters, states and inputs.
    """

    name: str
    title: str
    facts: dict[str, str]
    modes: list[str]
    equations: list[str]
    tables: dict[str, Table]


def card(plant: Plant, *, equations: bool = True) -> Card:
    """Gather what there is to say of a plant; ``equations=False`` saves the tenth of a second that they take."""
    unit, size = svg.duration_unit(float(plant.dt))
    sampled = f"sampled every {float(plant.dt) / size:g} {unit}"
    facts = {
        "size": f"{_count(plant.n, 'state')}, {_count(plant.m, 'input')}, {sampled}",
        "source": plant.source,
        "limits": plant.limits,
    }
    parameters = [
        (
            name,
            f"{float(np.asarray(getattr(plant, name))):.6g}",
            f.metadata["unit"],
            f"{f.metadata['low']:g} … {f.metadata['high']:g}"
            + ("" if f.metadata["vary"] else ", not varied"),
            f.metadata["about"],
        )
        for name, f in systems.parameter_fields(type(plant)).items()
    ]
    signals = [
        (s.name, s.unit, f"{s.scale:.4g}", f"{_tidy(value, s.scale):.5g}", kind)
        for kind, of, at in zip(("state", "input"), (plant.states, plant.inputs), plant.equilibrium())
        for s, value in zip(of, np.asarray(at, float))
    ]
    tables: dict[str, Table] = {"Parameters": (("name", "value", "unit", "range", "what it is"), parameters)}
    tables["States and inputs"] = (("name", "unit", "large is", "equilibrium", "kind"), signals)
    try:
        lines = systems.equations(plant) if equations else []
    except ValueError:  # matrices or a function of one's own: there is no text to read
        lines = []
    return Card(
        name=plant.name,
        title=plant.title,
        facts={label: words for label, words in facts.items() if words},
        modes=[mode.sentence for mode in systems.open_loop_modes(plant)],
        equations=lines,
        tables={caption: table for caption, table in tables.items() if table[1]},
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _tidy(value: float, scale: float) -> float:
    return 0.0 if abs(value) < 1e-12 * scale else float(value)


@dataclasses.dataclass(frozen=True)
class Page:
    """The catalogue as HTML that needs no script and no other file; the last expression of a cell shows it."""

    html: str
    names: tuple[str, ...]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict]:
        return {"text/html": self.html, "text/plain": f"catalogue of {', '.join(self.names)}"}, {}

    def save(self, path: str | Path) -> Path:
        """Write it to a file of its own."""
        path = Path(path)
        head = '<!DOCTYPE html><html lang="en-GB"><meta charset="utf-8"><title>Catalogue of plants</title>'
        own = (
            "<style>:root{color-scheme:light dark;background:Canvas;color:CanvasText}"
            "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}</style>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
        )
        title = "Catalogue of plants" if len(self.names) > 1 else self.names[0].replace("_", " ").capitalize()
        body = re.sub(r"<(/?)h3\b", r"<\1h2", self.html)  # in a notebook it stands under a heading
        path.write_text(f"{head}{own}<main><h1>{title}</h1>{body}</main></html>", encoding="utf-8")
        return path


def page(names: Sequence[str] | None = None, *, linear: bool = True, unfolded: bool = False) -> Page:
    """The catalogue page: families by field, each a small picture and a line, behind which is all about it.

    Args:
        names: of families; all if left out.
        linear: move the linear models that the gains are designed for, all in one go (a second when compiled); else
            the nonlinear plants, which takes about a second a family to compile.
        unfolded: show everything at once.
    """
    chosen = tuple(names or systems.names())
    plants = [systems.make(name) for name in chosen]
    loops = _loops(plants)
    fields: dict[str, list[int]] = {}
    for i, plant in enumerate(plants):
        fields.setdefault(_field(plant), []).append(i)
    contents, body = [], []
    for field, members in fields.items():
        links = ", ".join(f'<a href="#{_anchor(chosen[i])}">{_spaced(chosen[i])}</a>' for i in members)
        contents.append(f"<dt>{html.escape(field)}</dt><dd>{links}</dd>")
        entries = (_entry(plants[i], loops[i], linear, unfolded=unfolded) for i in members)
        body.append(
            f'<h3 class="lq-field">{html.escape(field)}</h3><div class="lq-group">{"".join(entries)}</div>'
        )
    head = f"<style>{svg.STYLE}{animation.PLAYING}{_STYLE}</style>"
    top = f'<dl class="lq-contents">{"".join(contents)}</dl>' if len(chosen) > 6 else ""
    return Page(f'<div class="lq-catalogue">{head}{top}{"".join(body)}</div>', chosen)


# The loops that are shown ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Loop:
    A: np.ndarray  # sampled
    B: np.ndarray
    K: np.ndarray
    num_steps: int


def _loops(plants: Sequence[Plant]) -> list[_Loop]:
    """The sampled optimum of each plant at its defaults: one design for all, padded to the largest."""
    n, m = max(p.n for p in plants), max(p.m for p in plants)
    stacked = systems.stack(plants, n, m)
    gains = np.asarray(control.lqrd(stacked.A, stacked.B, stacked.Q, stacked.R, stacked.dt).K)
    loops = []
    for i, plant in enumerate(plants):
        size, K = plant.n, gains[i, : plant.m, : plant.n]
        joint = np.zeros((size + plant.m,) * 2)
        joint[:size] = float(plant.dt) * np.hstack(
            [np.asarray(stacked.A)[i, :size, :size], np.asarray(stacked.B)[i, :size, : plant.m]]
        )
        held = scipy.linalg.expm(joint)
        A, B = held[:size, :size], held[:size, size:]
        loops.append(_Loop(A, B, K, settling(np.linalg.eigvals(A - B @ K))))
    return loops


def settling(poles: np.ndarray) -> int:
    """Samples after which nothing more is to be seen of a loop with these discrete poles."""
    slowest = float(np.abs(poles).max())
    steps = math.log(_SETTLED) / math.log(min(max(slowest, 1e-9), 1 - 1e-6))
    return int(np.clip(math.ceil(steps), 60, 4000))


def start(plant: Plant) -> np.ndarray:
    """An initial deviation that sets everything in motion: the first half of the states, to alternating sides."""
    half = np.arange(plant.n) < (plant.n + 1) // 2
    return np.where(half, 0.8 * np.resize([1.0, -0.7, 0.9], plant.n), 0.0) * np.asarray(plant.scales[0])


def _linear(plant: Plant, loop: _Loop, x0: np.ndarray, *, closed: bool, push: float = 0.0) -> Trajectory:
    """A run of the sampled linear model; ``push`` is held on the first input, in units of its scale."""
    added = np.zeros(plant.m)
    added[0] = push * float(plant.scales[1][0])
    xs, us = np.zeros((loop.num_steps + 1, plant.n)), np.zeros((loop.num_steps, plant.m))
    xs[0] = x0
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(loop.num_steps):
            us[t] = added - (loop.K @ xs[t] if closed else 0.0)
            xs[t + 1] = loop.A @ xs[t] + loop.B @ us[t]
    return Trajectory(float(plant.dt) * np.arange(loop.num_steps + 1), xs, us, np.zeros(loop.num_steps))  # type: ignore[arg-type]


# HTML --------------------------------------------------------------------------------------------------------


def _field(plant: Plant) -> str:
    """What the module of a family says it holds."""
    module = type(plant).__module__
    if not module.startswith(systems.catalogue.__name__ + "."):
        return "Plants of your own"
    words = (importlib.import_module(module).__doc__ or module).strip().splitlines()[0]
    return words.split(". ")[0].rstrip(".")


def _anchor(name: str) -> str:
    return "plant-" + name.replace("_", "-")


def _short(title: str) -> str:
    """The first phrase of a title."""
    for mark in (";", ":", ","):
        title = title.split(mark)[0]
    return title


def _spaced(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _tile(plant: Plant) -> str:
    """A small still picture."""
    x_eq, u_eq = (np.asarray(a, float) for a in plant.equilibrium())
    drawn = animation.plain_plant(plant).draw(x_eq + start(plant), u_eq)
    drawn = tuple(s for s in drawn if not isinstance(s, systems.drawing.Text))
    left, right, bottom, top = systems.drawing.bounds(drawn)
    width, height = 92.0, 60.0
    scale = min((width - 8) / (right - left), (height - 8) / (top - bottom))
    corner = (0.5 * (left + right) - 0.5 * width / scale, 0.5 * (bottom + top) + 0.5 * height / scale)
    shapes = keyframes.shapes(keyframes.Film(np.zeros(1), 1.0), [drawn], scale, corner)
    alt = f"Drawing of {plant.name.replace('_', ' ')}"
    return svg.picture(f'<g class="lq-small">{shapes}</g>', width, height, alt, bare=True)


def _entry(plant: Plant, loop: _Loop, linear: bool, *, unfolded: bool) -> str:
    """All of one family, folded."""
    about = card(plant)
    x0 = start(plant)
    free = _linear(plant, loop, x0, closed=False)
    if linear:
        run = _linear(plant, loop, x0, closed=True)
    else:
        run = rollout(plant, LinearPolicy(jnp.asarray(loop.K)), jnp.asarray(x0), loop.num_steps)
        run = jax.tree.map(np.asarray, run)
    signals = [s.name for s in (*plant.states, *plant.inputs)]
    film = animation.animation(
        plant, {"optimal": run}, curves={"no control": free}, signals=signals, width=_WIDTH,
        title="From an initial state" + ("" if linear else ", nonlinear plant"),
    )  # fmt: skip
    moving = film.html.replace(svg.STYLE, "", 1).replace(animation.PLAYING, "", 1)
    parts = [
        f'<div id="{_anchor(plant.name)}"></div>',
        f"<p>{html.escape(about.title)}.</p>",
        "".join(
            f'<p class="lq-fact"><b>{label}</b> {html.escape(words)}</p>'
            for label, words in about.facts.items()
        ),
        '<p class="lq-fact"><b>modes of the open loop</b> ' + html.escape("; ".join(about.modes)) + "</p>",
        moving,
        _step(plant, loop),
        "".join(f'<div class="lq-formula">{mathml(line, display=True)}</div>' for line in about.equations),
        "".join(_table(caption, table) for caption, table in about.tables.items()),
    ]
    words = f"{_count(plant.n, 'state')}, {_count(plant.m, 'input')}; {about.modes[0]}"
    line = f"<b>{_spaced(about.name)}</b><br>{html.escape(_short(about.title))}<br><small>{words}</small>"
    shown = " open" if unfolded else ""
    summary = f"<summary>{_tile(plant)}<span>{line}</span></summary>"
    return f'<details class="lq-plant"{shown}>{summary}{"".join(parts)}</details>'


def _step(plant: Plant, loop: _Loop) -> str:
    """Responses of all states to a constant push on the first input."""
    zero = np.zeros(plant.n)
    runs = {
        "optimal": _linear(plant, loop, zero, closed=True, push=1.0),
        "no control": _linear(plant, loop, zero, closed=False, push=1.0),
    }
    pushed = plant.inputs[0]
    size = f"{pushed.scale:g} {pushed.unit}".removesuffix(" 1")
    title = f"After a step of {size} on {pushed.name.replace('_', ' ')}"
    labels = [(label, svg.colour(label, k), svg.DASHES[k]) for k, label in enumerate(runs)]
    head = svg.text(2, 16, title, look="lq-b") + svg.legend(2, 34, labels)
    until = float(runs["optimal"].ts[-1])
    traces, bottom = animation.charts(
        [(s, "xs", i) for i, s in enumerate(plant.states)],
        {label: (run.ts, run.xs, run.us) for label, run in runs.items()},
        until, (40.0, _WIDTH), lead=1,
    )  # fmt: skip
    at_rest = runs["optimal"].xs[-1]
    far = int(np.argmax(np.abs(at_rest) / np.asarray(plant.scales[0])))
    s = plant.states[far]
    alt = f"{title}: under control {s.name.replace('_', ' ')} settles {at_rest[far]:.2g} {s.unit} away"
    return svg.picture(head + traces, _WIDTH, bottom, alt, bare=True)


def _table(caption: str, table: Table) -> str:
    head, rows = table
    cells = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


_STYLE = (
    ".lq-contents{font:.8rem/1.5 system-ui,sans-serif;margin:.4rem 0 1rem}"
    ".lq-contents dt{font-weight:600;margin-top:.35rem}.lq-contents dd{margin:0}"
    ".lq-catalogue .lq-small *{stroke-width:1.2}.lq-catalogue .lq-field{font-size:1rem;margin:1.3rem 0 .4rem}"
    ".lq-group{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(21rem,100%),1fr));gap:.3rem .8rem}"
    ".lq-plant{border:1px solid color-mix(in srgb,currentColor 18%,transparent);border-radius:6px;padding:.4rem .6rem}"
    ".lq-plant[open]{grid-column:1/-1;padding-bottom:1.2rem}.lq-plant>summary{cursor:pointer;display:flex;gap:.7rem}"
    ".lq-plant>summary>span{font:.82rem/1.4 system-ui,sans-serif}.lq-plant>summary>svg{flex:none}"
    ".lq-plant p{margin:.4rem 0;max-width:46rem}.lq-fact{font-size:.88rem}.lq-fact b{font-weight:600}"
    ".lq-formula{overflow:auto hidden;padding:.2rem 0}.lq-plant table{font-size:.8rem;margin:.6rem 0}"
    ".lq-plant td,.lq-plant th{text-align:left;white-space:normal}"
)
