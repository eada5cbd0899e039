"""Controller of a synthesis, and the choice of how little a singular plant is regularised."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from jaxtyping import Complex, Float

from lqrlab.control import matrix_checks
from lqrlab.control.robust.generalized_plant import GeneralizedPlant, System

Levelled = TypeVar("Levelled")
REGULARISATIONS = 1e-2, 1e-3, 1e-4, 1e-5, 1e-6
GAIN = 3e-4
"""Relative fall of the norm that a ten times smaller regularisation has to promise to be tried."""


@dataclasses.dataclass(frozen=True)
class RobustController:
    """u = K y, with the sign of K as it is: K = C (sI − A)⁻¹ B + D, in z if discrete.

    Attributes:
        A, B, C, D: of K.
        gamma: norm from w to z that the synthesis guarantees.
        norm: that norm, measured on the closed loop of the plant as given; at most gamma.
        poles: of the closed loop [rad/s], or in z.
        regularisation: size of the outputs and disturbances that were added to a singular plant, relative to it; zero
            for a regular one.
        cost: by how much, relative, gamma would fall with a ten times smaller regularisation, or at most so; zero for a
            regular plant.
        remark: why the plant was regularised, and the condition that fails below gamma.
    """

    A: Float[np.ndarray, "k k"]
    B: Float[np.ndarray, "k nmeas"]
    C: Float[np.ndarray, "ncon k"]
    D: Float[np.ndarray, "ncon nmeas"]
    gamma: float
    norm: float
    poles: Complex[np.ndarray, " poles"]
    regularisation: float
    cost: float
    remark: str

    @property
    def system(self) -> System:
        """A, B, C, D."""
        return self.A, self.B, self.C, self.D


def in_even_units(system: System, u: np.ndarray, y: np.ndarray) -> System:
    """The controller u = K y of one in the units u and y, ũ = K̃ ỹ, with states of like size."""
    a, b, c, d = system
    b, c, d = b * y, u[:, None] * c, u[:, None] * d * y
    x = matrix_checks.even_units(a, b, c)
    return a * x / x[:, None], b / x[:, None], c * x, d


def regularisations(
    plant: GeneralizedPlant, solve: Callable[[GeneralizedPlant, float | None], tuple[float, Levelled] | None]
) -> Iterator[tuple[float, float, tuple[str, ...], float, Levelled]]:
    """Solutions of a plant, the best first; of a singular one, or one that cannot be solved, of regular ones near it.

    Args:
        plant: that is to be solved.
        solve: gives the norm of a regular plant and what has it; None where there is none, or none below a norm.

    Yields:
        The regularisation, what it costs, why it is needed, the norm, and what has it.
    """
    _, reasons = plant.regularised(0.0)
    found = None if reasons else solve(plant, None)
    if found:
        yield 0.0, 0.0, (), *found
    solved: list[tuple[float, Levelled]] = []
    for eps in REGULARISATIONS:
        regular, _ = plant.regularised(eps, everything=not reasons)
        found = solve(regular, solved[-1][0] * (1 - GAIN) if solved else None)
        if found is None and solved:
            break
        if found is not None:
            solved.append(found)
    if not solved:
        return
    levels = [level for level, _ in solved]
    falls = [high / low - 1 for high, low in itertools.pairwise(levels)]
    falls.append(GAIN if found is None else falls[-1] if falls else np.inf)
    first = len(REGULARISATIONS) - len(solved) if found is not None else 0
    for eps, cost, found in reversed(list(zip(REGULARISATIONS[first:], falls, solved))):
        yield eps, cost, reasons or ("the plant is nearly singular",), *found
