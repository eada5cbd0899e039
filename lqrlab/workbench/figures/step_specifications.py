"""A step of the set-point in the designer's loop: specifications, response, picture, and weights that meet them."""

import dataclasses
import html
import itertools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

import lqrlab
from lqrlab import control
from lqrlab.systems import Plant
from lqrlab.workbench.figures import svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.loop_controllers import SampledLoop
from lqrlab.workbench.figures.svg import Picture, Stroke

_SINGULAR = 1e10  # condition of the equations of rest from which on they have no answer
_FREE = (4.0, 100.0)  # overshoot and effort from which on they are not specified
_WIDTH, _HEIGHT, _TALL = 720.0, 330.0, 190.0  # of the picture, and the height of the output's chart in it [px]


@dataclasses.dataclass(frozen=True)
class Specifications:
    """Specifications of a step as large as the output's scale.

    Attributes:
        settling: time after which the output stays within 2 % [s].
        overshoot: at most so much beyond the set-point, relative to it.
        effort: at most so much of each input, in its scale.
        margin: least symmetric disk margin; 0 for none.
    """

    settling: float = 1.0
    overshoot: float = 0.1
    effort: float = _FREE[1]
    margin: float = 0.0

    def given(self, plant: Plant) -> Any:
        """Those that are specified."""
        scales = tuple(float(a) for a in self.effort * np.asarray(plant.scales[1]))
        return lqrlab.tuning.StepSpecs(
            self.settling,
            self.overshoot if self.overshoot < _FREE[0] else None,
            scales if self.effort < _FREE[1] else None,
            self.margin or None,
        )


class StepResponse(NamedTuple):
    """Times [s], the held output over its set-point, and the inputs in their scales."""

    ts: Float[np.ndarray, " t"]
    y: Float[np.ndarray, " t"]
    us: Float[np.ndarray, "t m"]


def stepping_outputs(plant: Plant, sampled: control.Sampled, held: int) -> list[int]:
    """As many outputs as inputs, the held one first, that constant inputs hold most easily, in the signals' scales.

    Raises:
        ValueError: there are not as many, or no constant inputs hold any such set.
    """
    C, (x, u) = np.asarray(plant.output_matrix()), (np.asarray(a) for a in plant.scales)
    if len(C) < plant.m:
        raise ValueError(
            f"specifications: expected as many outputs as inputs, {plant.m}, but {plant.name} has {len(C)}"
        )
    y = np.array([o.scale for o in plant.outputs])
    still = np.hstack([(np.asarray(sampled.A) - np.eye(plant.n)) * x, np.asarray(sampled.B) * u]) / x[:, None]
    others = [i for i in range(len(C)) if i != held]

    def hard(rows: list[int]) -> float:
        outputs = np.pad(C[rows] * x / y[rows, None], ((0, 0), (0, plant.m)))
        return float(np.linalg.cond(np.vstack([still, outputs])))

    sets = [[held, *more] for more in itertools.combinations(others, plant.m - 1)]
    best = min(sets, key=hard)
    if not hard(best) < _SINGULAR:
        raise ValueError(
            f"specifications: no constant input holds {plant.outputs[held].name}: choose an output that can stand still"
        )
    return best


def response(
    loop: SampledLoop, plant: Plant, sampled: control.Sampled, held: int, dt: float, seconds: float
) -> StepResponse:
    """The linear loop whose held output steps to its scale, the other stepping outputs stay: without limits.

    The controller is told where the plant is to rest and the input that holds it there; integral action only learns
    the set-point, and finds them.

    Raises:
        ValueError: no constant input holds the output there.
    """
    rows = stepping_outputs(plant, sampled, held)
    C, r = np.asarray(plant.output_matrix())[rows], np.eye(len(rows))[0] * plant.outputs[held].scale
    Nx, Nu = (np.asarray(a) for a in control.feedforward(sampled.A, sampled.B, C, discrete=True))
    u = Nu @ r
    away, count = -loop.rest(Nx @ r, u), max(round(seconds / dt), 2)
    y, us = np.empty(count + 1), np.empty((count + 1, plant.m))
    c = C[0]
    for t in range(count + 1):
        y[t], us[t] = c @ (away[: plant.n] + Nx @ r), u - loop.K @ away
        away = loop.closed @ away
    return StepResponse(dt * np.arange(count + 1), y / r[0], us / np.asarray(plant.scales[1]))


def words(step: StepResponse, specs: Specifications, plant: Plant, margins: list[control.Margins]) -> str:
    """Each specification and what the loop reaches."""
    given = specs.given(plant)
    info = lqrlab.tuning.step_info(step.y[:, None], float(step.ts[1]), np.ones(1), within=given.within)
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


def picture(
    step: StepResponse, specs: Specifications, plant: Plant, held: int, margins: list[control.Margins]
) -> Picture:
    """Output and inputs after the step, the regions that the specifications forbid shaded."""
    given, until = specs.given(plant), float(step.ts[-1])
    within, most = given.within, max(float(np.abs(step.us).max()), 1e-9)
    most = 1.2 * (most if given.effort is None else max(most, specs.effort))
    top = min(max(float(np.nanmax(step.y)), 1 + min(specs.overshoot, 1.0)) + 0.25, 3.0)
    above = Axes((0.0, 0.0, _WIDTH, _TALL), (0.0, until), (-0.25, top))
    below = Axes((0.0, _TALL, _WIDTH, _HEIGHT - _TALL), (0.0, until), (-most, most))
    body, inputs, high = above.cross(0.0, 1.0), below.cross(0.0, 0.0), top
    if given.overshoot is not None:
        body += above.region((0.0, until), (1 + specs.overshoot, top))
        high = 1 + max(specs.overshoot, within)
    if specs.settling < until:
        body += above.region((specs.settling, until), (above.y[0], 1 - within))
        body += above.region((specs.settling, until), (1 + within, high))
    body += above.curve(step.ts, step.y, Stroke(0))
    if given.effort is not None:
        inputs += below.region((0.0, until), (specs.effort, most))
        inputs += below.region((0.0, until), (-most, -specs.effort))
    for i, u in enumerate(step.us.T):
        inputs += below.curve(step.ts, u, Stroke(i % len(svg.CURVES)), steps=True)
    name = plant.outputs[held].name.replace("_", " ")
    alt = f"{plant.title}: {name} and inputs after a step of its set-point, with the regions that are forbidden"
    drawn = above.frame("", f"{name} over its set-point", body) + below.frame("time [s]", "inputs, × scale", inputs)
    return Picture(svg.document(drawn, _WIDTH, _HEIGHT, alt), alt, words(step, specs, plant, margins))


def found_weights(
    plant: Plant, specs: Specifications, held: int, dt: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"], str]:
    """Factors of the plant's weights with which the LQR meets the specifications, and what was reached in words.

    Raises:
        ValueError: see :func:`lqrlab.tuning.tune`.
    """
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    rows = stepping_outputs(plant, control.discretize(A, B, Q, R, dt), held)
    r = np.eye(plant.m)[0] * plant.outputs[held].scale
    tuned = lqrlab.tuning.tune(A, B, np.asarray(plant.output_matrix())[rows], Q, R, dt, specs.given(plant), r=r)
    states, inputs = (
        np.divide(np.diagonal(new), np.diagonal(old), out=np.ones(len(old)), where=np.diagonal(old) > 0)
        for new, old in ((np.asarray(tuned.Q), np.asarray(Q)), (np.asarray(tuned.R), np.asarray(R)))
    )
    return states, inputs, "<br>".join(map(html.escape, tuned.sentences))
