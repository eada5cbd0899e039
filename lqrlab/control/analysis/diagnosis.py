"""Whether, and how well, a plant can be controlled optimally: a diagnosis mode by mode, in words."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from lqrlab.control import checks
from lqrlab.control.analysis.controllability import controllability_distance
from lqrlab.control.analysis.eigenmodes import Mode, modes
from lqrlab.control.lyapunov import dlyap, lyap
from lqrlab.control.regulator import dlqr, lqr
from lqrlab.control.riccati import matrix_sign

_NO_REGULATOR, _DOUBTFUL, _HARMLESS, _GOOD = range(4)  # how bad a sentence is; the worst come first
Ranked = list[tuple[int, str]]


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
    checks.on_host("diagnose", A, B, Q, R, N)
    problem = [np.asarray(x, float) for x in checks.arguments(A, B, Q, R, N, weights=False)]
    if any(x.ndim != 2 for x in problem):
        raise ValueError(f"diagnose: expected one problem, but found leading axes {problem[0].shape[:-2]}")
    a, b, q, *_ = problem
    plant_modes = modes(a, dt)
    values = [m.pole if dt is None else np.exp(m.pole * dt) for m in plant_modes]
    controllable = np.array([controllability_distance(a, b, v) for v in values])
    detectable = np.array([controllability_distance(a.T, q.T, v) for v in values])
    scaling = _scaling(problem)
    residual, conditioning, ranked = _regulator(problem, continuous=dt is None, cross=N is not None)
    ranked = [
        *_modes_in_words(plant_modes, controllable, detectable, dt),
        *_scaling_in_words(scaling),
        *ranked,
    ]
    sentences = tuple(text for _, text in sorted(ranked, key=lambda pair: pair[0]))
    return Diagnosis(tuple(plant_modes), controllable, detectable, scaling, residual, conditioning, sentences)


def _modes_in_words(
    listed: list[Mode], controllable: np.ndarray, detectable: np.ndarray, dt: float | None
) -> Ranked:
    ranked: Ranked = []
    for mode, near, seen in zip(listed, controllable, detectable):
        size, growth = abs(mode.pole), mode.pole.real
        decays = growth <= -1e-9 * max(size, 1e-300) if dt is None else np.exp(growth * dt) <= 1 - 1e-9
        if near < 1e-12 and not decays:
            ranked.append((_NO_REGULATOR, f"The {mode} is not stabilizable: no input moves it."))
        elif near < 1e-12:
            ranked.append((_HARMLESS, f"The {mode} is moved by no input, but decays."))
        elif near < 1e-6:
            text = f"The {mode} is barely controllable: a relative change of {near:.1g} would make it uncontrollable."
            ranked.append((_DOUBTFUL, text))
        if seen < 1e-12 and abs(growth) < 1e-6 * max(size, 1e-6):
            text = f"The {mode} lies on the stability boundary and Q does not see it: it is not detectable."
            ranked.append((_NO_REGULATOR, text))
    return ranked


def _scaling(problem: list[np.ndarray]) -> np.ndarray:
    """Factors of the states that even out the Hamiltonian of the problem without its cross weight."""
    a, b, q, r, cross = problem
    inverse = np.linalg.pinv(r)
    blocks = a - b @ inverse @ cross.T, b @ inverse @ b.T, q - cross @ inverse @ cross.T
    return np.asarray(matrix_sign.scales(*(jnp.asarray(x)[:, :, None] for x in blocks)))[:, 0]


def _scaling_in_words(d: np.ndarray) -> Ranked:
    ratio = d.max() / d.min()
    if ratio <= 1e4:
        return []
    units = ", ".join(f"state {i} by {d[i]:.2g}" for i in np.argsort(np.abs(np.log(d)))[::-1][:4])
    return [(_DOUBTFUL, f"The scaling is bad by a factor of {ratio:.1g}: divide {units}.")]


def _regulator(problem: list[np.ndarray], *, continuous: bool, cross: bool) -> tuple[float, float, Ranked]:
    """Residual and conditioning of the design, and both in words."""
    a, b, q, r, n = problem
    try:
        design = (lqr if continuous else dlqr)(a, b, q, r, n if cross else None)
    except ValueError as error:
        return np.nan, np.nan, [(_NO_REGULATOR, f"There is no regulator: {error}.")]
    closed, P = np.asarray(design.closed_loop), np.asarray(design.P)
    # its norm is that of the inverse Lyapunov operator; not finite where the loop is too badly scaled for it
    widest = np.asarray((lyap if continuous else dlyap)(closed.T, np.eye(len(a))))
    norm = np.linalg.norm(widest, 2) if np.isfinite(widest).all() else np.inf
    conditioning = float(norm * np.linalg.norm(q) / max(float(np.linalg.norm(P)), 1e-300))
    residual = float(design.residual)
    ranked = [(_GOOD, f"The regulator exists; its equation holds to {residual:.1g}.")]
    if conditioning > 1e6:
        text = f"P is badly conditioned: relative errors of Q grow {conditioning:.1g}-fold."
        ranked.append((_DOUBTFUL, text))
    return residual, conditioning, ranked
