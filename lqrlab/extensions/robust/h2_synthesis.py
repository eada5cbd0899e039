"""H2 synthesis: the controller that makes the mean square of z under white noise w least."""

import dataclasses

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike

from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant, System, partitioned
from lqrlab.extensions.robust.hinf_synthesis import stable_subspace
from lqrlab.extensions.robust.model_reduction import gramian_root
from lqrlab.extensions.robust.synthesis_result import Synthesis, best_controller

_SMALL = 1e-9  # a direct term from w to z that is rounding, relative


def h2syn(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike, nmeas: int, ncon: int, dt: float | None = None
) -> Synthesis:
    """H2 controller u = K y of a plant from [w; u] to [z; y]: least root mean square of z under white noise w.

    Arguments, regularisation and errors as of :func:`hinfsyn`; w has unit intensity, or unit covariance if discrete. A
    continuous plant with white noise in z that no controller cancels is refused. A discrete plant is solved by its two
    discrete Riccati equations; its controller uses the measurement of the same instant. ``norm`` is the H2 norm.

    Source: K. Zhou, J. C. Doyle and K. Glover, Robust and Optimal Control (1996), theorem 14.7; T. Chen and B. Francis,
    Optimal Sampled-Data Control Systems (1995), chapter 6.

    >>> plant = [[0.0]], [[1.0, 0.0, 1.0]], [[1.0], [0.0], [1.0]], [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    >>> round(robust.h2syn(*plant, 1, 1).norm**2, 9)  # X = Y = 1: the cost BᵀXB + FYFᵀ
    2.0
    """
    plant = partitioned("h2syn", A, B, C, D, nmeas, ncon, dt)
    even, *units = plant.even()
    with np.errstate(all="ignore"):
        gain = even.off_minus_one() if plant.dt is not None else _cancelling(even)
        rest = even.fed_back(gain)
        rest = rest if plant.dt is not None else dataclasses.replace(rest, D11=0 * rest.D11)

        def solve(regular: GeneralizedPlant, below: float | None) -> tuple[float, System] | None:
            found = _continuous(regular) if plant.dt is None else _discrete(regular.discrete(plant.dt))
            return None if found is None or (below is not None and found[0] >= below) else found

        best = best_controller(
            plant,
            rest.continuous(),
            solve,
            lambda optimum, made: [(optimum, even.controller(made, gain, *units))],
            lambda loop: _norm(loop, plant.dt),
            lambda optimum, made: f"the Riccati equations promise {optimum:.4g}",
        )
    if best is None:
        raise ValueError(
            "h2syn: no controller with a stable loop was found: a Riccati equation has no stabilizing solution in "
            "floating point; check for an unstable mode that is almost uncontrollable or undetectable, and for units "
            "far from one"
        )
    return best


def _cancelling(plant: GeneralizedPlant) -> np.ndarray:
    """A gain from y to u with which no white noise of w reaches z directly."""
    gain = -np.linalg.pinv(plant.D12, rcond=_SMALL) @ plant.D11 @ np.linalg.pinv(plant.D21, rcond=_SMALL)
    left = plant.D11 + plant.D12 @ gain @ plant.D21
    if np.abs(left).max() > _SMALL * np.abs(plant.D11).max():
        i, j = np.unravel_index(np.argmax(np.abs(left)), left.shape)
        raise ValueError(
            f"D: expected no white noise that reaches z directly, but input {j} enters output {i} with "
            f"{plant.D11[i, j]:.3g} (D11) and no controller cancels it: the H2 norm is infinite; filter that noise or "
            "output, or give dt"
        )
    return gain


def _continuous(p: GeneralizedPlant) -> tuple[float, System] | None:
    """The optimal norm and controller of a regular continuous plant without D11 and D22."""
    nmeas, ncon = p.D22.shape
    control = stable_subspace(p.A, p.B2, p.C1, p.D12, np.zeros(ncon))
    filtering = stable_subspace(p.A.T, p.C2.T, p.B1.T, p.D21.T, np.zeros(nmeas))
    if control is None or filtering is None:
        return None
    (X, F), (Y, dual) = control.solution(), filtering.solution()
    L = dual.T
    square = np.trace(p.B1.T @ X @ p.B1) + np.trace((p.D12 @ F) @ Y @ (p.D12 @ F).T)
    return float(max(square, 0.0)) ** 0.5, (p.A + p.B2 @ F + L @ p.C2, -L, F, np.zeros((ncon, nmeas)))


def _discrete(p: GeneralizedPlant) -> tuple[float, System] | None:
    """The optimal norm and controller of a discrete plant without D22.

    By completing the square, z costs |V½(u − Fx − F0 w)|² more than it must: u is the estimate of Fx + F0 w from the
    measurements until now, x̂ the prediction of x from those before.
    """
    try:
        X = scipy.linalg.solve_discrete_are(p.A, p.B2, p.C1.T @ p.C1, p.D12.T @ p.D12, s=p.C1.T @ p.D12)
        Y = scipy.linalg.solve_discrete_are(p.A.T, p.C2.T, p.B1 @ p.B1.T, p.D21 @ p.D21.T, s=p.B1 @ p.D21.T)
        V = p.D12.T @ p.D12 + p.B2.T @ X @ p.B2
        S = p.D21 @ p.D21.T + p.C2 @ Y @ p.C2.T
        F = -np.linalg.solve(V, p.B2.T @ X @ p.A + p.D12.T @ p.C1)
        F0 = -np.linalg.solve(V, p.B2.T @ X @ p.B1 + p.D12.T @ p.D11)
        predicted = np.linalg.solve(S, p.C2 @ Y @ p.A.T + p.D21 @ p.B1.T).T
        now = np.linalg.solve(S, p.C2 @ Y @ F.T + p.D21 @ F0.T).T
    except (np.linalg.LinAlgError, ValueError):
        return None
    unknown = F @ Y @ F.T + F0 @ F0.T - now @ S @ now.T  # covariance of the error of u
    known = p.B1.T @ X @ p.B1 + p.D11.T @ p.D11 - F0.T @ V @ F0
    square = np.trace(known) + np.trace(V @ unknown)
    gain = p.B2 @ now + predicted
    made = p.A + p.B2 @ F - gain @ p.C2, gain, F - now @ p.C2, now
    return (float(max(square, 0.0)) ** 0.5, made) if np.isfinite(square) else None


def _norm(system: System, dt: float | None) -> float:
    """H2 norm of a stable system, on the host and from a root of its Gramian; D counts in discrete time only."""
    a, b, c, d = system
    root = gramian_root(a, b, dt)
    return float(np.hypot(np.linalg.norm(c @ root), 0.0 if dt is None else np.linalg.norm(d)))
