"""A step of the set-point in the designer's loop: response, picture with its specifications, weights that meet them."""

import html
import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float

from lqrlab import control
from lqrlab.extensions.tuning.step import StepSpecs, step_info
from lqrlab.extensions.tuning.tuner import Report, tune
from lqrlab.simulation import Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures import svg
from lqrlab.workbench.figures.charts import Axes, Rectangle
from lqrlab.workbench.figures.loop_controllers import SampledLoop
from lqrlab.workbench.figures.loop_design import LoopDesign, LoopSetting, input_unit
from lqrlab.workbench.figures.svg import Picture, Stroke

_SINGULAR = 1e10  # condition of the equations of rest from which on they have no answer
_NUMBER = r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
_POLE = re.compile(rf"(?=.)(?P<real>[+-]?{_NUMBER})?((?P<sign>[±+-])(?P<imag>{_NUMBER})?[ij])?")
_WIDTH, _HEIGHT, _TALL = 720.0, 330.0, 190.0  # of the picture, and the height of the output's chart in it [px]


class StepResponse(NamedTuple):
    """Times [s], the held output over its set-point, and the inputs in their scales."""

    ts: Float[np.ndarray, " t"]
    y: Float[np.ndarray, " t"]
    us: Float[np.ndarray, "t m"]


def read_poles(words: str, plant: Plant, dt: float) -> tuple[complex, ...]:
    """Poles [rad/s] from text as ``−2, −1±1j``; or a ``ValueError`` that says what no gain can place."""
    poles: list[complex] = []
    for part in filter(None, re.split("[,;]", re.sub(r"\s", "", words.replace("−", "-")))):
        if not (found := _POLE.fullmatch(part.replace("+/-", "±").replace("+-", "±"))):
            raise ValueError(f"poles: expected numbers as −2, pairs as −1±1j, but found {part!r}")
        real, sign, size = found["real"] or 0, found["sign"], float(found["imag"] or 1) if found["sign"] else 0.0
        poles += [complex(float(real), side * size) for side in {"±": (1, -1), "-": (-1,)}.get(sign, (1,))]
    for s in poles:
        if s.imag and poles.count(s) != poles.count(s.conjugate()):
            raise ValueError(f"poles: {_pole(s)} has no conjugate: a real gain places pairs; write {_pole(s, '±')}")
        if (same := poles.count(s)) > plant.m:
            raise ValueError(f"poles: {_pole(s)} appears {same} times; only {plant.m} can be equal, one for each input")
        if s.real >= 0:
            raise ValueError(f"poles: {_pole(s)} rad/s is not stable; its real part has to be negative")
        if abs(s.imag) >= math.pi / dt:
            raise ValueError(
                f"poles: {_pole(s)} oscillates faster than samples show, at most {math.pi / dt:.3g} rad/s; choose a "
                "slower pole, or a shorter sample time"
            )
    if len(poles) != plant.n:
        raise ValueError(f"poles: expected {plant.n}, one for each state of {plant.name}, but found {len(poles)}")
    return tuple(poles)


def _pole(s: complex, sign: str = "") -> str:
    pair = f"{sign or '-+'[s.imag > 0]}{abs(s.imag):.4g}j" if s.imag else ""
    return f"{s.real:.4g}{pair}".replace("-", "−")


def written_poles(poles: Iterable[complex]) -> str:
    """Poles as :func:`read_poles` reads them, pairs together, the fastest first."""
    return ", ".join(_pole(s, "±") for s in sorted(poles, key=lambda s: s.real) if s.imag >= 0)


def rates(z: Complex[np.ndarray, " n"], dt: float) -> Complex[np.ndarray, " n"]:
    """Poles s = log(z)/dt [rad/s] of sampled ones; one that no continuous loop has, z ≤ 0, by its decay alone."""
    s = np.log(np.where(np.abs(z) > 1e-9, z, 1e-9).astype(complex)) / dt
    return np.where(np.abs(z.imag) > 1e-9 * np.abs(z), s, s.real)


def placed_poles(at: Rectangle, s: LoopSetting, result: LoopDesign) -> tuple[str, Axes]:
    """Poles that are placed [rad/s], next to the LQR's; those of the loop as well where it ignores a delay."""
    groups = {"linear LQR": rates(result.optimal_poles, s.dt), "placed": np.array(s.controller.poles)}
    wide = 1.8 * Axes(at, (0, 1), (0, 1)).aspect
    shown = np.concatenate([*groups.values()])
    far = s.far or 1.15 * float(np.maximum(np.abs(shown.imag), np.abs(shown.real) / wide).max())
    axes = Axes(at, (-wide * far, wide * far / 9), (-far, far))
    if s.delay and not s.known:
        groups["implemented"] = rates(result.poles, s.dt)
    marks = [
        axes.marks(poles.real, poles.imag, mark, Stroke(stroke.colour))
        for mark, poles, stroke in zip("○×+", groups.values(), svg.strokes(groups).values())
    ]
    title = "poles, Im s [rad/s]: " + ", ".join(f"{mark} {name}" for mark, name in zip("○×+", groups))
    return axes.frame("Re s [rad/s]", title, axes.cross(0.0, 0.0) + "".join(marks)), axes


def pole_words(s: LoopSetting, result: LoopDesign) -> str:
    """Poles that are placed, and those of the LQR."""
    optimal = written_poles(rates(result.optimal_poles, s.dt))
    return f"Placed at {written_poles(s.controller.poles)} rad/s, the LQR's at {optimal}. "


def faster_poles(plant: Plant) -> str:
    """The poles of a plant's LQR, half as fast again but for those that the LQR leaves where they were."""
    problem, dt = Problem.of(plant, linear=True), float(plant.dt)
    z = np.linalg.eigvals(np.asarray(problem.closed_loop())).astype(complex)
    stays = np.abs(z[:, None] - np.linalg.eigvals(np.asarray(problem.A))).min(axis=1) < 1e-6
    s = rates(z, dt) * np.where(stays, 1.0, 1.5)
    return written_poles(s.real + 1j * np.clip(s.imag, -3 / dt, 3 / dt))


def stepping_outputs(plant: Plant, sampled: control.Sampled, held: int) -> list[int]:
    """As many outputs as inputs, the held one first, that constant inputs hold most easily, in the signals' scales."""
    C, (x, u) = np.asarray(plant.output_matrix()), (np.asarray(a) for a in plant.scales)
    if len(C) < plant.m:
        raise ValueError(
            f"specifications: expected as many outputs as inputs, {plant.m}, but {plant.name} has {len(C)}"
        )
    y = np.array([o.scale for o in plant.outputs])
    still = np.hstack([(np.asarray(sampled.A) - np.eye(plant.n)) * x, np.asarray(sampled.B) * u]) / x[:, None]
    others = [i for i in range(len(C)) if i != held]

    def hard(rows: list[int]) -> float:
        return float(np.linalg.cond(np.vstack([still, np.pad(C[rows] * x / y[rows, None], ((0, 0), (0, plant.m)))])))

    best = min([[held, *more] for more in itertools.combinations(others, plant.m - 1)], key=hard)
    if not hard(best) < _SINGULAR:
        raise ValueError(f"specifications: no constant input holds {plant.outputs[held].name}: choose another output")
    return best


def response(s: LoopSetting, result: LoopDesign) -> StepResponse:
    """The linear loop, without limits, whose held output steps to its scale; an integral only learns the set-point."""
    plant, loop, held, sampled = s.plant, result.loop, s.controller.held, result.sampled
    rows = stepping_outputs(plant, sampled, held)
    C, r = np.asarray(plant.output_matrix())[rows], np.eye(len(rows))[0] * plant.outputs[held].scale
    Nx, Nu = (np.asarray(a) for a in control.feedforward(sampled.A, sampled.B, C, discrete=True))
    x, u = Nx @ r, Nu @ r
    away, count = -_rest(loop, x, u), max(round(s.ticks / s.sample), 2)
    y, us = np.empty(count + 1), np.empty((count + 1, plant.m))
    for t in range(count + 1):
        y[t], us[t] = C[0] @ (away[: plant.n] + x), u - loop.K @ away
        away = loop.closed @ away
    return StepResponse(s.dt * np.arange(count + 1), y / r[0], us / np.asarray(plant.scales[1]))


def _rest(loop: SampledLoop, x: Float[np.ndarray, " n"], u: Float[np.ndarray, " m"]) -> Float[np.ndarray, " s"]:
    """The state of the loop when the plant rests at x under u: its sum brings u about, its estimate is right."""
    plant = np.concatenate([x, np.tile(u, (len(loop.plant[0]) - len(x)) // len(u))])
    if not isinstance(loop.design, control.Integral):
        return np.concatenate([plant, plant[: len(loop.controller.A)]])
    return np.append(plant, np.linalg.lstsq(loop.K[:, -1:], -(u + loop.K[:, :-1] @ plant), rcond=None)[0])


def _words(step: StepResponse, specs: StepSpecs, effort: float, margins: list[control.Margins]) -> str:
    """Each specification and what the loop reaches."""
    info = step_info(step.y[:, None], float(step.ts[1]), np.ones(1), within=specs.within)
    reached = {
        "settling": float(info.settling[0]),
        "overshoot": float(info.overshoot[0]),
        "effort": float(np.abs(step.us).max() / effort),
        "margin": min((m.disk.alpha for m in margins), default=0.0),
    }
    said = {name: html.escape(specs.sentence(name, reached[name], float(step.ts[-1]))) for name in specs.names}
    return "<br>".join(line if specs.met(name, reached[name]) else f"<b>{line}</b>" for name, line in said.items())


def picture(s: LoopSetting, result: LoopDesign) -> Picture:
    """Output and inputs after the step, the regions that the specifications forbid shaded."""
    step, plant, specs = response(s, result), s.plant, s.specifications
    assert specs is not None, "a picture of specifications needs some"
    effort = float((specs.limits(plant.m) / np.asarray(plant.scales[1])).min())
    until, within, over = float(step.ts[-1]), specs.within, specs.overshoot
    unit, scale = input_unit(plant)
    effort, us = effort * scale, step.us * scale
    most = max(float(np.abs(us).max()), 1e-9, effort if np.isfinite(effort) else 0.0) * 1.2
    top = min(max(float(np.nanmax(step.y)), 2.0 if over is None else 1 + min(over, 1.0)) + 0.25, 3.0)
    low = max(min(float(np.nanmin(step.y)), 0.0) - 0.25, -3.0)
    above = Axes((0.0, 0.0, _WIDTH, _TALL), (0.0, until), (low, top))
    below = Axes((0.0, _TALL, _WIDTH, _HEIGHT - _TALL), (0.0, until), (-most, most))
    body, inputs, high = above.cross(0.0, 1.0), below.cross(0.0, 0.0), top
    if over is not None:
        body += above.region((0.0, until), (1 + over, top))
        high = 1 + max(over, within)
    if specs.settling is not None and specs.settling < until:
        body += above.region((specs.settling, until), (above.y[0], 1 - within))
        body += above.region((specs.settling, until), (1 + within, high))
    body += above.curve(step.ts, step.y, Stroke(0))
    if np.isfinite(effort):
        inputs += below.region((0.0, until), (effort, most))
        inputs += below.region((0.0, until), (-most, -effort))
    for i, u in enumerate(us.T):
        inputs += below.curve(step.ts, u, Stroke(i % len(svg.CURVES)), steps=True)
    name = plant.outputs[s.controller.held].name.replace("_", " ")
    alt = f"{plant.title}: {name} and inputs after a step of its set-point, with the regions that are forbidden"
    drawn = above.frame("", f"{name} over its set-point", body) + below.frame("time [s]", f"inputs [{unit}]", inputs)
    file = svg.document(drawn, _WIDTH, _HEIGHT, alt)
    return Picture(file, alt, _words(step, specs, effort / scale, result.loop.margins))


def found_weights(
    s: LoopSetting, report: Report = lambda start, starts: None
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"], str]:
    """Factors of the plant's weights with which the LQR comes nearest to the specifications; what it reaches."""
    plant, held = s.plant, s.controller.held
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    rows = stepping_outputs(plant, control.discretize(A, B, Q, R, s.dt), held)
    r = np.eye(plant.m)[0] * plant.outputs[held].scale
    tuned = tune(A, B, np.asarray(plant.output_matrix())[rows], Q, R, s.dt, s.specifications, r=r, report=report)
    states, inputs = (
        np.divide(np.diagonal(new), np.diagonal(old), out=np.ones(len(old)), where=np.diagonal(old) > 0)
        for new, old in ((np.asarray(tuned.Q), np.asarray(Q)), (np.asarray(tuned.R), np.asarray(R)))
    )
    return states, inputs, "<br>".join(map(html.escape, tuned.sentences))
