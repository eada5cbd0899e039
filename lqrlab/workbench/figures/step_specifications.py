"""Specifications of a designer's loop whose set-point steps, the step itself, and weights that meet them."""

import dataclasses
import html
import importlib
import itertools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lqrlab import control
from lqrlab.systems import Plant
from lqrlab.workbench.figures.loop_controllers import SampledLoop

_SINGULAR = 1e10  # condition of the equations of rest from which on they have no answer
_FREE = (4.0, 100.0)  # overshoot and effort from which on they are not specified


def tuning() -> Any:
    """The extension whose specifications these are, found by its name when they are asked for."""
    return importlib.import_module("lqrlab.tuning")


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
        """Those that are specified, as ``tuning.StepSpecs``."""
        scales = tuple(float(a) for a in self.effort * np.asarray(plant.scales[1]))
        return tuning().StepSpecs(
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
    tuned = tuning().tune(A, B, np.asarray(plant.output_matrix())[rows], Q, R, dt, specs.given(plant), r=r)
    states, inputs = (
        np.divide(np.diagonal(new), np.diagonal(old), out=np.ones(len(old)), where=np.diagonal(old) > 0)
        for new, old in ((np.asarray(tuned.Q), np.asarray(Q)), (np.asarray(tuned.R), np.asarray(R)))
    )
    return states, inputs, "<br>".join(map(html.escape, tuned.sentences))
