"""Specifications that no controller at all can meet: steady inputs, sequences of inputs, right half-plane zeros."""

import numpy as np
import scipy.optimize

from lqrlab.control.analysis.frequency import zeros
from lqrlab.control.tuning.experiment import StepExperiment
from lqrlab.control.tuning.specifications import StepSpecs


def impossible(step: StepExperiment, specs: StepSpecs) -> list[str]:
    """The limits of the plant that no controller can overcome, in words; an empty list if none is known.

    Source of the zero's bound: G. C. Goodwin, S. F. Graebe and M. E. Salgado, Control System Design (2001),
    section 4.6.
    """
    sentences = []
    held, limit = step.holding_input, specs.limits(len(step.r))
    if np.any(np.abs(held) > limit):
        i = int(np.argmax(np.abs(held) / limit))
        sentences.append(
            f"Holding the set-point takes {abs(held[i]):.3g} of input {i} permanently, above its limit of "
            f"{limit[i]:.3g}: no controller can; ask for a smaller step or a stronger actuator."
        )
    elif specs.settling is not None and specs.effort is not None:
        need = least_effort(step, specs)
        if need > 1 + 1e-6:
            sentences.append(
                f"No controller, linear or not, settles in {specs.settling:.3g} s within the input's limit: even the "
                f"best sequence of inputs needs {need:.3g} times as much."
            )
    if len(step.r) == 1 and specs.settling is not None:
        slow = [
            z.real for z in zeros(step.A, step.B, step.C) if z.real > 1e-9 and abs(z.imag) < 1e-9 * abs(z)
        ]
        if slow:
            # a response y that settles has ∫ exp(−zt) y dt = 0 for each zero z in the right half-plane
            wrong = (1 - specs.within) / np.expm1(min(slow) * specs.settling)
            sentences.append(
                f"The plant has a zero at +{min(slow):.3g} rad/s: whatever settles in {specs.settling:.3g} s first "
                f"goes at least {100 * wrong:.3g} % of the step the wrong way."
            )
    return sentences


def least_effort(step: StepExperiment, specs: StepSpecs) -> float:
    """The least max |u|/limit of any inputs whose outputs settle in time.

    A linear program over the inputs u[0], …, u[T−1] and s ≥ |u|/limit: minimise s such that the outputs are in
    their band from the settling time on and overshoot no more than specified. A longer horizon T could only need
    more, so the result is a lower bound.
    """
    late = specs.first_settled(step.dt)
    T, m = min(late + max(late // 2, 5), 240), len(step.r)
    moved = np.flatnonzero(step.r)
    size = np.abs(step.r[moved])
    ys = _input_to_output(step, T)[:, moved] * np.sign(step.r[moved])[None, :, None]
    settled = np.arange(1, T + 1) >= late
    over = np.where(settled, specs.within, np.inf)
    if specs.overshoot is not None:
        over = np.minimum(over, specs.overshoot)
    bounded = np.isfinite(over)
    inputs = np.eye(T * m)
    rows = [ys[bounded].reshape(-1, T * m), -ys[settled].reshape(-1, T * m), inputs, -inputs]
    highest, lowest = size[None] * (1 + over[bounded, None]), -size[None] * (1 - specs.within)
    bounds = [highest.ravel(), np.tile(lowest[0], settled.sum()), np.zeros(2 * T * m)]
    s = np.zeros(sum(map(len, rows)))
    s[-2 * T * m :] = -np.tile(specs.limits(m), 2 * T)
    answer = scipy.optimize.linprog(
        np.append(np.zeros(T * m), 1.0),
        np.column_stack([np.concatenate(rows), s]),
        np.concatenate(bounds),
        bounds=[(None, None)] * (T * m) + [(0, None)],
        method="highs",
    )
    return float(answer.fun) if answer.status == 0 else (np.inf if answer.status == 2 else np.nan)


def _input_to_output(step: StepExperiment, T: int) -> np.ndarray:
    """The map from inputs u[0], …, u[T−1] to outputs y[1], …, y[T] from rest: ``[T, m, T m]``, block Toeplitz."""
    A, x, C = (np.asarray(a) for a in (*step.plant, step.C))
    m = len(step.r)
    G = np.zeros((T, m, T, m))
    for lag in range(T):
        G[np.arange(lag, T), :, np.arange(T - lag)] = C @ x
        x = A @ x
    return G.reshape(T, m, T * m)
