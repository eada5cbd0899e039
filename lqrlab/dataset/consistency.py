"""Checks that each trajectory of a linear plant without disturbances passes, computed again from the file."""

import jax
import numpy as np

from lqrlab.dataset import variant_table
from lqrlab.dataset.data_config import DataConfig

ROUNDING = 2e-6
"""Relative error that float32 in the file explains: some ten roundings."""

_ZERO = 1e-30
"""Scales: a state this small is zero; float32 ends at some 1e-38."""


def check(arrays: dict[str, np.ndarray], config: DataConfig) -> tuple[float, list[str]]:
    """Worst relative error of dynamics, cost and optimality, and in words the errors beyond rounding.

    With the sampled problem (A, B, Q, R, N), its Riccati solution P and gain K, completing the square gives
    for any inputs, with S = R + BᵀPB:

        Σ xᵀQx + 2xᵀNu + uᵀRu  +  x[T]ᵀ P x[T]  −  x[0]ᵀ P x[0]  =  Σ (u + Kx)ᵀ S (u + Kx)  ≥  0.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Control: Linear Quadratic Methods (1990), section 2.4.
    """
    of = arrays["trajectories/variant"]
    if not len(of):
        return 0.0, []
    columns = {name.removeprefix("variants/"): a for name, a in arrays.items() if name.startswith("variants/")}
    n, m = columns["B"].shape[1:]
    problem = jax.tree.map(np.asarray, variant_table.problem([columns]))
    units = problem.coordinates[of]
    K = problem.K[of, :m, :n]
    A, Q, P = (a[of, :n, :n] for a in (problem.A, problem.Q, problem.P))
    B, N, R = problem.B[of, :n, :m], problem.N[of, :n, :m], problem.R[of, :m, :m]
    S = R + B.swapaxes(1, 2) @ P @ B
    W = np.concatenate([np.concatenate([Q, N], 2), np.concatenate([N.swapaxes(1, 2), R], 2)], 1)
    x = units.scale_state(arrays["trajectories/states"])[..., :n]
    u = units.scale_input(arrays["trajectories/controls"])[..., :m]
    x0, cost = units.scale_state(arrays["trajectories/x0"])[..., :n], arrays["trajectories/cost"]
    before, after = x[:, :-1], x[:, 1:]

    step = np.abs(after - _times(A, before) - _times(B, u))
    step_size = _times(np.abs(A), np.abs(before)) + _times(np.abs(B), np.abs(u)) + np.abs(after)
    paid, paid_size = _form(W, np.concatenate([before, u], 2))
    begin, _ = _form(P, x0[:, None])
    end, end_size = _form(P, x[:, -1:])
    deviation = u + _times(K, before)
    extra, _ = _form(S, deviation)
    # u and −Kx are nearly equal where little was added: their difference is no more exact than they are
    uncertain = (_times(np.abs(S), np.abs(deviation)) * (np.abs(u) + _times(np.abs(K), np.abs(before)))).sum((1, 2))
    least = _ZERO**2
    size = cost + begin + end_size + extra + uncertain + least
    above = cost + end - begin
    errors = {
        "a state does not follow from the one before by x[t+1] = A x[t] + B u[t]": _worst(step, step_size),
        "x0 is not the first state": _worst(np.abs(x[:, 0] - x0), np.abs(x0)),
        "the cost is not that of the states and inputs": np.abs(paid - cost) / (paid_size + cost + least),
        "the cost is below the optimum x0ᵀP x0": np.maximum(-above, 0) / size,
        "the cost is above x0ᵀP x0 by more or less than its inputs make it": np.abs(above - extra) / size,
    }
    optimal = config.controller == "lqr" and not config.gain_error
    if optimal and not config.excitation and not config.sensor_noise and config.saturation is None:
        errors["the cost is not the optimum x0ᵀP x0, although nothing was added to the input"] = np.abs(above) / size
    problems = []
    for why, error in errors.items():
        bad = np.flatnonzero(~(error <= ROUNDING))
        if len(bad):
            which = f"trajectory {bad[0]}" + (f" and {len(bad) - 1} more" if len(bad) > 1 else "")
            problems.append(f"{which}: {why} (relative error {error[bad].max():.1e})")
    return float(max(np.max(error) for error in errors.values())), problems


def _times(M: np.ndarray, v: np.ndarray) -> np.ndarray:
    return v @ M.swapaxes(1, 2)


def _form(W: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ vᵀWv of each trajectory, and the sum of its terms' sizes."""
    return (_times(W, v) * v).sum((1, 2)), (_times(np.abs(W), np.abs(v)) * np.abs(v)).sum((1, 2))


def _worst(error: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Largest relative error of each trajectory; zero against zero is none."""
    return np.max(error / np.maximum(size, _ZERO), axis=tuple(range(1, error.ndim)))
