"""A requirement on a loop: a norm from some disturbances to some outputs, and what it may be at most."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Float

from lqrlab.compute.checks import choice, number
from lqrlab.control.analysis.system_norms import hinf_norm
from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant, System

_NOTHING = 1e-12  # of a direct effect, relative, beside which an H2 norm is infinite


@dataclasses.dataclass(frozen=True)
class NormRequirement:
    """A norm of the closed loop, and its bound.

    Attributes:
        norm: ``"hinf"``, the largest gain, or ``"h2"``, the root mean square under unit white noise.
        at_most: what it is to be at most; norms are compared relative to it.
        outputs: numbers of the outputs z that it is of; all if left out.
        inputs: numbers of the disturbances w; all if left out.
        name: for the answer.

    >>> robust.NormRequirement("h2", 2.0, outputs=[0]).at_most
    2.0
    """

    norm: str = "hinf"
    at_most: float = 1.0
    outputs: Sequence[int] | None = None
    inputs: Sequence[int] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        choice("norm", self.norm, ("hinf", "h2"))
        number("at_most", self.at_most, "a number above 0", above=0)

    def of(self, plant: GeneralizedPlant) -> GeneralizedPlant:
        """The plant with these outputs and disturbances alone.

        Raises:
            ValueError: numbers of outputs or disturbances that the plant does not have.
        """
        rows = _chosen("outputs", self.outputs, len(plant.C1))
        columns = _chosen("inputs", self.inputs, plant.B1.shape[1])
        return dataclasses.replace(
            plant,
            B1=plant.B1[:, columns],
            C1=plant.C1[rows],
            D11=plant.D11[np.ix_(rows, columns)],
            D12=plant.D12[rows],
            D21=plant.D21[:, columns],
        )

    def value(self, loop: System, dt: float | None) -> float:
        """The norm of a stable loop, relative to its bound."""
        if self.norm == "hinf":
            return hinf_norm(*loop, dt)[0] / self.at_most
        return h2(loop, dt)[0] / self.at_most


def _chosen(name: str, given: Sequence[int] | None, count: int) -> list[int]:
    found = list(range(count)) if given is None else [int(i) for i in given]
    if not found or min(found) < 0 or max(found) >= count:
        raise ValueError(f"{name}: expected numbers from 0 to {count - 1}, at least one, but found {given!r}")
    return found


def h2(loop: System, dt: float | None) -> tuple[float, Float[np.ndarray, "n n"], Float[np.ndarray, "n n"]]:
    """The H2 norm of a stable loop, and its Gramians of the states reached and of the states seen.

    Infinite for a continuous loop with a direct effect.
    """
    a, b, c, d = loop
    if dt is None:
        reached = scipy.linalg.solve_continuous_lyapunov(a, -b @ b.T)
        seen = scipy.linalg.solve_continuous_lyapunov(a.T, -c.T @ c)
        square = np.trace(c @ reached @ c.T)
        direct = np.abs(d).max(initial=0.0)
        if direct > _NOTHING * max(np.abs(c).max(initial=0.0) * np.abs(b).max(initial=0.0), 1e-300):
            square = np.inf
    else:
        reached = scipy.linalg.solve_discrete_lyapunov(a, b @ b.T)
        seen = scipy.linalg.solve_discrete_lyapunov(a.T, c.T @ c)
        square = np.trace(c @ reached @ c.T) + np.sum(d**2)
    return float(np.sqrt(max(square, 0.0))), reached, seen
