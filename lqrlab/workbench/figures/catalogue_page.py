"""The catalogue as a page: of each family its drawing in motion, responses, modes, equations and parameters."""

import dataclasses
import html
import importlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lqrlab import systems
from lqrlab.simulation import LinearPolicy, Problem, Trajectory, rollout
from lqrlab.systems import Plant
from lqrlab.workbench.figures import animation, keyframes, loop_design, svg
from lqrlab.workbench.figures.plant_card import Card, card, html_table, phrase
from lqrlab.workbench.figures.safe_html import mathml
from lqrlab.workbench.figures.svg import HtmlPage

__all__ = ["Card", "Demonstration", "HtmlPage", "card", "demonstrations", "page"]
_WIDTH = 720.0


def page(names: Sequence[str] | None = None, *, unfolded: bool = False) -> HtmlPage:
    """The catalogue page: families by field, each a small picture and a line that unfolds to all about it.

    It moves the linear models that the gains are designed for, all in one go. ``unfolded`` shows everything at once and
    moves the nonlinear plants, which takes about a second a family to compile.
    """
    chosen, fields, contents = tuple(names or systems.names()), dict[str, list[str]](), dict[str, list[str]]()
    plants = [systems.make(name) for name in chosen]
    for plant, shown in zip(plants, demonstrations(plants)):
        field = html.escape(_field(plant))
        fields.setdefault(field, []).append(_entry(plant, shown, unfolded=unfolded))
        link = f'<a href="#{_anchor(plant.name)}">{_spaced(plant.name)}</a>'
        contents.setdefault(field, []).append(link)
    listed = "".join(f"<dt>{field}</dt><dd>{', '.join(links)}</dd>" for field, links in contents.items())
    top = f'<dl class="lq-contents">{listed}</dl>' if len(chosen) > 6 else ""
    body = "".join(
        f'<h3 class="lq-field">{field}</h3><div class="lq-group">{"".join(entries)}</div>'
        for field, entries in fields.items()
    )
    head = f"<style>{svg.STYLE}{animation.PLAYING}{svg.stylesheet('catalogue_page.css')}</style>"
    title = "Catalogue of plants" if len(chosen) > 1 else chosen[0].replace("_", " ").capitalize()
    markup = f'<div class="lq-catalogue">{head}{top}{body}</div>'
    return HtmlPage(markup, f"catalogue of {', '.join(chosen)}", title)


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """Runs of one plant's linear model for the page."""

    A: Float[np.ndarray, "n n"]  # of the plant, linearised
    K: Float[np.ndarray, "m n"]  # gain of the sampled optimum
    optimal: Trajectory  # from an initial state
    free: Trajectory  # from the same one, without control


def demonstrations(plants: Sequence[Plant]) -> list[Demonstration]:
    """The runs of each plant at its defaults: one design and two rollouts for all, padded to the largest."""
    problem = Problem.of(plants)
    assert problem.continuous is not None
    A, B, gains = (np.asarray(a) for a in (problem.A, problem.B, problem.K))
    n, closed = A.shape[-1], A - B @ gains
    steps = [loop_design.settling_steps(np.linalg.eigvals(F[: p.n, : p.n])) for F, p in zip(closed, plants)]
    x0 = np.array([np.pad(loop_design.start(p), (0, n - p.n)) for p in plants])
    runs = [jax.tree.map(np.asarray, rollout(problem, share * gains, x0, max(steps))) for share in (1.0, 0.0)]
    return [
        Demonstration(
            np.asarray(problem.continuous.A)[i, : p.n, : p.n],
            gains[i, : p.m, : p.n],
            *(Trajectory(r.ts[i, : t + 1], r.xs[i, : t + 1, : p.n], r.us[i, :t, : p.m], r.costs[i, :t]) for r in runs),
        )
        for i, (p, t) in enumerate(zip(plants, steps))
    ]


def _field(plant: Plant) -> str:
    """The field that the module of a family says it holds."""
    module = type(plant).__module__
    if not module.startswith(systems.catalogue.__name__ + "."):
        return "Plants of your own"
    return (importlib.import_module(module).__doc__ or module).strip().splitlines()[0].split(". ")[0].rstrip(".")


def _anchor(name: str) -> str:
    return html.escape("plant-" + name.replace("_", "-"))


def _spaced(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _tile(plant: Plant) -> str:
    """A small still picture."""
    (drawn,) = keyframes.poses(plant, loop_design.start(plant)[None], np.zeros((1, plant.m)))
    drawn = tuple(s for s in drawn if not isinstance(s, systems.drawing.Text))
    width, height = 92.0, 60.0
    shapes = keyframes.still(drawn, systems.drawing.bounds(drawn), width, height)
    alt = f"Drawing of {plant.name.replace('_', ' ')}"
    return svg.document(f'<g class="lq-small">{shapes}</g>', width, height, alt, bare=True)


def _entry(plant: Plant, shown: Demonstration, *, unfolded: bool) -> str:
    """All of one family, folded."""
    about, run = card(plant, A=shown.A), shown.optimal
    if unfolded:
        run = rollout(plant, LinearPolicy(jnp.asarray(shown.K)), jnp.asarray(loop_design.start(plant)), len(run.us))
    film = animation.animation(
        plant,
        {"optimal": run},
        curves={"no control": shown.free},
        signals=[s.name for s in (*plant.states, *plant.inputs)],
        width=_WIDTH,
        title="From an initial state" + (", nonlinear plant" if unfolded else ""),
    )
    facts = about.facts | {"modes of the open loop": "; ".join(about.modes)}
    parts = [
        f'<div id="{_anchor(plant.name)}"></div><p>{html.escape(about.title)}.</p>',
        *(f'<p class="lq-fact"><b>{label}</b> {html.escape(words)}</p>' for label, words in facts.items()),
        film.drawing.replace(svg.STYLE, "", 1).replace(animation.PLAYING, "", 1),
        *(f'<div class="lq-formula">{mathml(line, display=True)}</div>' for line in about.equations),
        *(html_table(caption, table) for caption, table in about.tables.items()),
    ]
    line = f"<b>{_spaced(about.name)}</b><br>{html.escape(phrase(about.title))}<br>"
    small = f"<small>{about.size}; {html.escape(about.modes[0])}</small>"
    summary = f"<summary>{_tile(plant)}<span>{line}{small}</span></summary>"
    return f'<details class="lq-plant"{" open" * unfolded}>{summary}{"".join(parts)}</details>'
