"""Whether, and how well, a plant can be controlled optimally: a diagnosis mode by mode, in words."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from lqrlab.control import checks
from lqrlab.control.analysis.controllability import controllability_distance
from lqrlab.control.analysis.eigenmodes import Mode, modes
from lqrlab.control.lyapunov import dlyap, lyap
from lqrlab.control.regulator import LQR, dlqr, lqr
from lqrlab.control.riccati import matrix_sign


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The answer of :func:`diagnose`; prints as sentences.

    Attributes:
        modes: of the plant.
        controllability_distance: of each mode, to an uncontrollable one: σₙ([A − λI, B]), relative to [A, B].
        detectability_distance: the same for detection through Q: σₙ([A − λI; Q]).
        scaling: factors that the states should be divided by to even out A, B, Q, R.
        residual: of the Riccati equation, relative; NaN if there is no design.
        conditioning: how much a relative error of Q is magnified in P; NaN if there is no design.
        sentences: all of it in words, the worst first.
    """

    modes: tuple[Mode, ...]
    controllability_distance: Float[np.ndarray, " modes"]
    detectability_distance: Float[np.ndarray, " modes"]
    scaling: Float[np.ndarray, " n"]
    residual: float
    conditioning: float
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def diagnose(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None, dt: float | None = None
) -> Diagnosis:  # fmt: skip
    """Say whether, and how well, a plant can be controlled optimally: mode by mode, in words.

    Args:
        A, B, Q, R, N: one problem as in :func:`lqr`, or as in :func:`dlqr` if ``dt`` [s] is given.

    Raises:
        ValueError: wrong shapes, numbers that are not finite.
    """
    problem = [np.asarray(x, float) for x in checks.one_problem("diagnose", A, B, Q, R, N, weights=False)]
    a, b, q, *_ = problem
    plant_modes = modes(a, dt)
    values = [m.pole if dt is None else np.exp(m.pole * dt) for m in plant_modes]
    controllable = np.array([controllability_distance(a, b, v) for v in values])
    detectable = np.array([controllability_distance(a.T, q.T, v) for v in values])
    scaling = _scaling(problem)
    residual = conditioning = np.nan
    remarks = _remarks(plant_modes, controllable, scaling)
    try:
        design = (lqr if dt is None else dlqr)(A, B, Q, R, N)
    except ValueError as error:
        remarks.insert(0, f"There is no regulator: {error}.")
    else:
        residual, conditioning = float(design.residual), _conditioning(design, q, continuous=dt is None)
        if conditioning > 1e6:
            remarks.append(f"P is badly conditioned: relative errors of Q grow {conditioning:.1g}-fold.")
        remarks.append(f"The regulator exists; its equation holds to {residual:.1g}.")
    return Diagnosis(
        tuple(plant_modes), controllable, detectable, scaling, residual, conditioning, tuple(remarks)
    )


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
    blocks = a - b @ inverse @ cross.T, b @ inverse @ b.T, q - cross @ inverse @ cross.T
    return np.asarray(matrix_sign.scales(*(jnp.asarray(x)[:, :, None] for x in blocks)))[:, 0]


def _conditioning(design: LQR, Q: np.ndarray, *, continuous: bool) -> float:
    """‖inverse Lyapunov operator‖ ‖Q‖ / ‖P‖; infinite where the loop is too badly scaled for the operator."""
    widest = np.asarray((lyap if continuous else dlyap)(design.closed_loop.T, np.eye(len(Q))))
    norm = np.linalg.norm(widest, 2) if np.isfinite(widest).all() else np.inf
    return float(norm * np.linalg.norm(Q) / max(float(np.linalg.norm(design.P)), 1e-300))
