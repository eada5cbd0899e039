"""Which mode keeps a plant from being stabilized: the test of Popov, Belevitch and Hautus.

Source: M. L. J. Hautus, Controllability and observability conditions of linear autonomous systems, Indagationes
Mathematicae 72 (1969).
"""

import numpy as np

from lqrlab.control.analysis.eigenmodes import dominant_states


def controllability_distance(A: np.ndarray, B: np.ndarray, value: complex) -> float:
    """σₙ([A − λI, B]) / σ₁: zero where no input moves the mode at λ.

    It is the size of the smallest change of [A, B], relative to it, that makes λ an uncontrollable mode. That to
    an undetectable one is the same of Aᵀ and Cᵀ.
    """
    sizes = np.linalg.svd(np.hstack([A - value * np.eye(len(A)), B]), compute_uv=False)
    return float(sizes[-1] / max(sizes[0], 1e-300))


def why_not(A: np.ndarray, B: np.ndarray, Q: np.ndarray, *, continuous: bool) -> str:
    """Why one problem has no stabilizing optimum: the mode at fault, and what could be done."""
    values, vectors = np.linalg.eig(A)
    margin = values.real if continuous else np.abs(values) - 1
    size = max(float(np.linalg.norm(A, 2)), 1e-300)

    def name(value: complex) -> str:
        where = f"{value.real:+.3g}" + (f" ± {abs(value.imag):.3g}j" if abs(value.imag) > 1e-9 * size else "")
        return f"mode at {where}{' rad/s' if continuous else ' (discrete)'}"

    for i in np.argsort(-margin):
        if margin[i] < -1e-9 * size:
            break
        if controllability_distance(A, B, values[i]) < 1e-9:
            states = ", ".join(map(str, dominant_states(vectors[:, i])))
            return (
                f"{name(values[i])} is not stabilizable: no input moves it (it is dominated by state {states}); "
                "give the plant an input that reaches it, or leave the mode out"
            )
    for i in np.argsort(np.abs(margin)):
        if abs(margin[i]) > 1e-6 * size:
            break
        if controllability_distance(A.T, Q.T, values[i]) < 1e-9:
            return (
                f"{name(values[i])} lies on the stability boundary and Q does not see it (not detectable): the "
                "optimum leaves it alone and the loop is not stable; give the states it moves some weight"
            )
    return (
        "no stabilizing solution was found although every unstable mode can be reached: the problem is close to "
        "one that has none, or badly scaled; rescale states and inputs to deviations of order one"
    )
