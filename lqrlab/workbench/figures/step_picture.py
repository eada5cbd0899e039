"""The picture of a step of the set-point, with the regions that its specifications forbid and handles to drag."""

import html

import numpy as np

from lqrlab import control
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.step_specifications import Specifications, StepResponse, tuning
from lqrlab.workbench.figures.svg import Picture, Stroke

WIDTH, HEIGHT = 720.0, 330.0
"""Of the picture [px]."""
_TALL = 190.0  # of the output's chart


def words(step: StepResponse, specs: Specifications, plant: Plant, margins: list[control.Margins]) -> str:
    """Each specification and what the loop reaches."""
    given = specs.given(plant)
    info = tuning().step_info(step.y[:, None], float(step.ts[1]), np.ones(1), within=given.within)
    reached = {
        "settling": float(info.settling[0]),
        "overshoot": float(info.overshoot[0]),
        "effort": float(np.abs(step.us).max() / specs.effort),
        "margin": min((m.disk.alpha for m in margins), default=0.0),
    }
    said = (given.sentence(name, reached[name]) for name in given.names)
    return "<br>".join(
        html.escape(one) if given.met(n, reached[n]) else f"<b>{html.escape(one)}</b>"
        for n, one in zip(given.names, said)
    )


def axes(specs: Specifications, step: StepResponse, plant: Plant) -> tuple[Axes, Axes]:
    """Planes of the output and of the inputs."""
    limited = specs.given(plant).effort is not None
    until = float(step.ts[-1])
    top = min(max(float(np.nanmax(step.y)), 1 + min(specs.overshoot, 1.0)) + 0.25, 3.0)
    most = float(np.abs(step.us).max())
    most = 1.2 * max(most, specs.effort if limited else 0.0, 1e-9)
    return (
        Axes((0.0, 0.0, WIDTH, _TALL), (0.0, until), (-0.25, top)),
        Axes((0.0, _TALL, WIDTH, HEIGHT - _TALL), (0.0, until), (-most, most)),
    )


def handles(specs: Specifications, planes: tuple[Axes, Axes]) -> dict[str, tuple[float, float]]:
    """The points at which each specification is taken hold of [px]."""
    above, below = planes
    until = above.x[1]
    found = {"settling": (min(specs.settling, until), 1.0), "overshoot": (until / 8, 1 + min(specs.overshoot, 9.0))}
    placed = {name: above.place(*at) for name, at in found.items()}
    placed["effort"] = below.place(until / 8, min(specs.effort, below.y[1]))
    return {name: (float(x), float(y)) for name, (x, y) in placed.items()}


def dragged(name: str, x: float, y: float, planes: tuple[Axes, Axes]) -> float:
    """The value of a specification whose handle is brought to a place [px]."""
    plane = planes[name == "effort"]
    left, right, top, bottom = plane.edges
    if name == "settling":
        return plane.x[0] + (x - left) / (right - left) * (plane.x[1] - plane.x[0])
    value = plane.y[0] + (bottom - y) / (bottom - top) * (plane.y[1] - plane.y[0])
    return value - 1 if name == "overshoot" else abs(value)


def picture(
    step: StepResponse, specs: Specifications, plant: Plant, held: int, margins: list[control.Margins]
) -> Picture:
    """Output and inputs after the step, the forbidden regions shaded and their edges marked where they are dragged."""
    above, below = planes = axes(specs, step, plant)
    given, until, look = specs.given(plant), above.x[1], Stroke(0)
    within, body = given.within, above.cross(0.0, 1.0)
    if given.overshoot is not None:
        body += above.region((0.0, until), (1 + specs.overshoot, above.y[1]))
    if specs.settling < until:
        body += above.region((specs.settling, until), (above.y[0], 1 - within))
        body += above.region(
            (specs.settling, until),
            (1 + within, above.y[1] if given.overshoot is None else 1 + max(specs.overshoot, within)),
        )
    body += above.curve(step.ts, step.y, look)
    inputs = below.cross(0.0, 0.0)
    if given.effort is not None:
        inputs += below.region((0.0, until), (specs.effort, below.y[1]))
        inputs += below.region((0.0, until), (below.y[0], -specs.effort))
    for i, u in enumerate(step.us.T):
        inputs += below.curve(step.ts, u, Stroke(i % len(svg.CURVES)), steps=True)
    name = plant.outputs[held].name.replace("_", " ")
    alt = f"{plant.title}: {name} and inputs after a step of its set-point, with the regions that are forbidden"
    drawn = above.frame("", f"{name} over its set-point", body)
    drawn += below.frame("time [s]", "inputs, × scale", inputs)
    free = {"overshoot": given.overshoot is None, "effort": given.effort is None}
    for handle, (x, y) in handles(specs, planes).items():
        if not free.get(handle):
            drawn += svg.element(
                "path", {"class": "lq-curve lq-c1", "d": f"M{svg.px(x)} {svg.px(y)}{charts.MARKS['○']}"}
            )
    return Picture(svg.document(drawn, WIDTH, HEIGHT, alt), alt, words(step, specs, plant, margins))
