"""Results of a synthesis, and the choice of how little a singular plant is regularised for it."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from jaxtyping import Complex

from lqrlab.control import StateSpace
from lqrlab.control.analysis.system_norms import stable
from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant, System

Solved = TypeVar("Solved")
REGULARISATIONS = 1e-2, 1e-3, 1e-4, 1e-5, 1e-6
GAIN = 3e-4  # relative fall of the norm that a ten times smaller regularisation has to promise to be tried
_EXCEEDS = 1e-4  # by how much a measured norm may be above its level, relative, so that no larger one is tried
_NEAR = 1.001  # times the optimum: near enough, so that no other regularisation is tried
_DIGITS = 1e-12  # of a controller, relative, that must not matter
_ROUNDING, _ZERO = 1e-7, 1e-2  # of a norm, relative to the plant's entries
_TIGHT = 0.99  # of a norm that a regularisation may be behind, relative
_DOUBT = 1e-5, 1e-2  # of a norm, relative, by which gamma is larger: at least and at most


@dataclasses.dataclass(frozen=True)
class Synthesis:
    """A controller u = K y (K includes its sign), and the certificate of its loop.

    Attributes:
        controller: K.
        gamma: bound on the norm from w to z.
        norm: that norm, measured on the closed loop of the plant as given; at most gamma.
        poles: of the closed loop [rad/s], or in z.
        regularisation: relative size of the outputs and disturbances added to a singular plant; zero for a regular one.
        cost: by how much, relative, the optimum would fall with a ten times smaller regularisation, or at most so.
        remark: why the plant was regularised, and the condition that fails below the optimum.
    """

    controller: StateSpace
    gamma: float
    norm: float
    poles: Complex[np.ndarray, " poles"]
    regularisation: float
    cost: float
    remark: str


def best_controller(
    plant: GeneralizedPlant,
    continuous: GeneralizedPlant,
    solve: Callable[[GeneralizedPlant, float | None], tuple[float, Solved] | None],
    controllers: Callable[[float, Solved], Iterable[tuple[float, System]]],
    measure: Callable[[System], float],
    limit: Callable[[float, Solved], str],
) -> Synthesis | None:
    """The controller whose loop with a plant has the least norm; None if no loop is stable.

    Solved is a continuous plant with the same gains: for the optimum of a regular one and what has it, or None where
    there is none below a norm. Of that ``controllers`` come with the norm each is to have, the best first.
    """
    best: Synthesis | None = None
    through = np.linalg.norm(plant.C1) * np.linalg.norm(plant.B1) / (np.linalg.norm(plant.A) or 1.0)
    size = float(through + np.linalg.norm(plant.D11))
    for eps, cost, reasons, optimum, solved in _regularised(continuous, solve, _ZERO * size):
        for level, controller in controllers(optimum, solved):
            try:
                rng = np.random.default_rng(0)  # last digits changed: a loop that this destabilises is rejected
                a, b, c, d = (x * (1 + _DIGITS * rng.normal(size=x.shape)) for x in controller)
                loop, near = plant.closed(controller), plant.closed((a, b, c, d))
                norm = measure(near) if all(stable(a, plant.dt) for a, *_ in (loop, near)) else np.inf
                better = norm < (best.norm if best else np.inf)
                norms = norm, measure(loop) if better else norm
            except (np.linalg.LinAlgError, ValueError):  # singular, or not finite
                continue
            if better:
                norm = max(norms)
                above, differ = max(norm / max(level, 1e-300) - 1, 0.0), norm / max(min(norms), 1e-300) - 1
                doubt = min(_DOUBT[0] + above + 3 * differ, _DOUBT[1])
                added = f"outputs and disturbances of relative size {eps:g} were added, which costs about {cost:.1g}; "
                remark = (f"{'; '.join(reasons)}: {added}" if eps else "") + limit(optimum, solved)
                poles = np.linalg.eigvals(loop[0]).astype(complex)
                gamma = norm * (1 + doubt) + _ROUNDING * size  # what is not zero but for rounding
                gamma = max(gamma, level) if eps and norm < _TIGHT * level else gamma
                best = Synthesis(StateSpace(*controller, plant.dt), gamma, norm, poles, eps, cost, remark)
            if norm <= level * (1 + _EXCEEDS):
                break
        if best and best.norm <= optimum * _NEAR:
            break
    return best


def _regularised(
    plant: GeneralizedPlant,
    solve: Callable[[GeneralizedPlant, float | None], tuple[float, Solved] | None],
    small: float,
) -> Iterator[tuple[float, float, tuple[str, ...], float, Solved]]:
    """Solutions of a plant, the best first; of a singular one, or one that cannot be solved, of regular ones near it.

    Yields:
        The regularisation, what it costs, why it is needed, the norm, and what has it.
    """
    _, reasons = plant.regularised(0.0)
    found = None if reasons else solve(plant, None)
    if found:
        yield 0.0, 0.0, (), *found
    for everything in (False, True) if reasons else (True,):
        solved: list[tuple[float, tuple[float, Solved]]] = []
        for eps in REGULARISATIONS:
            if len(solved) > 2 and solved[-1][1][0] < min(solved[-2][1][0] / 2, small):
                break  # the optimum is zero
            regular, _ = plant.regularised(eps, everything=everything)
            found = solve(regular, solved[-1][1][0] * (1 - GAIN) if solved else None)
            if found is None and solved:
                break
            solved += [] if found is None else [(eps, found)]
        levels = [max(level, 1e-300) for _, (level, _) in solved]
        falls = [high / low - 1 for high, low in itertools.pairwise(levels)]
        falls.append(GAIN if found is None and solved else (falls or [np.inf])[-1])
        for (eps, found), cost in reversed(list(zip(solved, falls))):
            yield eps, cost, reasons or ("the plant is nearly singular",), *found
