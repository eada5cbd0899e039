"""Diagnosis of a plant mode by mode, in words: can it be controlled optimally, and how well?"""

import dataclasses

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Float

from lqrlab.control import matrix_checks
from lqrlab.control.analysis.controllability import controllability_distance
from lqrlab.control.analysis.eigenmodes import Mode, modes
from lqrlab.control.regulator import dlqr, lqr


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The answer of :func:`diagnose`; prints as sentences.

    Attributes:
        modes: of the plant.
        scaling: factors that the states should be divided by to even out A, B, Q, R.
        residual: of the Riccati equation, relative; NaN if there is no design.
        sentences: all of it in words, the worst first.
    """

    modes: tuple[Mode, ...]
    scaling: Float[np.ndarray, " n"]
    residual: float
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def diagnose(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None, dt: float | None = None
) -> Diagnosis:
    """Say whether, and how well, a plant can be controlled optimally: mode by mode, in words.

    Args:
        A, B, Q, R, N: one problem as in :func:`lqr`, or as in :func:`dlqr` if ``dt`` [s] is given.

    Raises:
        ValueError: wrong shapes, numbers that are not finite.

    >>> "not stabilizable" in str(control.diagnose([[1.0]], [[0.0]], [[1.0]], [[1.0]]))
    True
    """
    problem = [np.asarray(x, float) for x in matrix_checks.one_problem("diagnose", A, B, Q, R, N, weights=False)]
    a, b = problem[:2]
    plant_modes = modes(a, dt)
    values = [m.pole if dt is None else np.exp(m.pole * dt) for m in plant_modes]
    controllable = np.array([controllability_distance(a, b, v) for v in values])
    scaling = _scaling(problem)
    remarks = _remarks(plant_modes, controllable, scaling)
    try:
        residual = float((lqr if dt is None else dlqr)(A, B, Q, R, N).residual)
        remarks.append(f"The regulator exists; its equation holds to {residual:.1g}.")
    except ValueError as error:
        residual = np.nan
        remarks.insert(0, f"There is no regulator: {error}.")
    return Diagnosis(tuple(plant_modes), scaling, residual, tuple(remarks))


def _remarks(plant_modes: list[Mode], controllable: np.ndarray, scaling: np.ndarray) -> list[str]:
    """Modes that the inputs hardly move or do not move, and bad scaling, in words."""
    remarks = []
    for mode, near in zip(plant_modes, controllable):
        if near < 1e-12:
            decays = mode.pole.real < -1e-9 * mode.frequency
            remarks.append(f"The {mode} is moved by no input{', but decays' if decays else ''}.")
        elif near < 1e-6:
            text = f"The {mode} is barely controllable: a relative change of {near:.1g} would make it uncontrollable."
            remarks.append(text)
    ratio = scaling.max() / scaling.min()
    if ratio > 1e4:
        worst = np.argsort(np.abs(np.log(scaling)))[::-1][:4]
        units = ", ".join(f"state {i} by {scaling[i]:.2g}" for i in worst)
        remarks.append(f"The scaling is bad by a factor of {ratio:.1g}: divide {units}.")
    return remarks


def _scaling(problem: list[np.ndarray]) -> np.ndarray:
    """Factors of the states that even out the Hamiltonian of the problem without its cross weight."""
    a, b, q, r, cross = problem
    inverse = np.linalg.pinv(r)
    F, G, H = a - b @ inverse @ cross.T, b @ inverse @ b.T, q - cross @ inverse @ cross.T
    sizes = np.abs(np.block([[F, -G], [-H, -F.T]]))
    np.fill_diagonal(sizes, 0.0)  # no scaling changes it
    _, (both, _) = scipy.linalg.matrix_balance(sizes, permute=False, separate=True)
    n = len(a)
    return 2.0 ** np.round(np.log2(both[:n] / both[n:]) / 2)  # of x and of Px, which has the inverse units
