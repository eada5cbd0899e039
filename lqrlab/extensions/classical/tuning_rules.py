"""Tuning rules: gains of a PID controller from a process model or the ultimate gain, by formulas from books."""

import math
from typing import NamedTuple

from lqrlab.compute import checks
from lqrlab.extensions.classical.process_models import ProcessModel

KINDS = ("pid", "pi", "pd", "p")


class Gains(NamedTuple):
    """u = kp (b r − y) + ki ∫ (r − y) + kd d/dt (c r − y), the derivative filtered.

    Attributes:
        kp, ki, kd: of the proportional, integral and derivative part.
        b: the set-point's weight in the proportional part.
    """

    kp: float
    ki: float = 0.0
    kd: float = 0.0
    b: float = 1.0

    @classmethod
    def ideal(cls, K: float, Ti: float = math.inf, Td: float = 0.0, b: float = 1.0) -> "Gains":
        """Those of K (1 + 1/(Ti s) + Td s)."""
        return cls(K, K / Ti, K * Td, b)


def _check(rule: str, kind: str, kinds: tuple[str, ...], model: ProcessModel) -> None:
    checks.choice("kind", kind, kinds, f'for rule="{rule}" one of')
    checks.instance("model", model, ProcessModel, "a process model, classical.ProcessModel")


def _dead_time(rule: str, model: ProcessModel, *, integrating: bool = True) -> tuple[float, float, float]:
    """Slope, time constant and dead time of the model of one lag, for a rule that divides by the dead time."""
    model = model.first_order
    if not model.delay:
        raise ValueError(
            f'plant: rule="{rule}" is for processes with dead time, and this one has none, so its gain is unbounded; '
            'give delay= (half a sample time where the loop is sampled), or use rule="simc" with tau_c'
        )
    if not integrating and math.isinf(model.time_constant):
        raise ValueError(f'plant: rule="{rule}" is for plants that come to rest, but found an integrator; use "simc"')
    return model.slope, model.time_constant, model.delay


def simc(model: ProcessModel, kind: str = "pid", tau_c: float | None = None) -> Gains:
    """Skogestad's rule: the loop that a set-point passes with one lag τc and the dead time.

    Args:
        model: of one lag for PI, two for PID.
        kind: "pi" or "pid".
        tau_c: desired time constant of the closed loop [s] > −delay; the dead time if left out.

    Source: S. Skogestad, Simple analytic rules for model reduction and PID controller tuning, J. Process Control 13
    (2003), table 1 and eq. (22) to (24) and (36), whose series form is made an ideal one.
    """
    _check("simc", kind, ("pi", "pid"), model)
    if tau_c is not None:
        checks.number("tau_c", tau_c)
    model = model.first_order if kind == "pi" else model
    if tau_c is None and not model.delay:
        raise ValueError("tau_c: expected the time constant of the closed loop [s], for the model has no dead time")
    late = (model.delay if tau_c is None else tau_c) + model.delay
    if late <= 0:
        raise ValueError(f"tau_c: expected more than minus the dead time, {-model.delay:.3g} s, but found {tau_c}")
    if math.isinf(model.second):
        return _of_series(1 / (model.gain * 4 * late**2), 4 * late, 4 * late)
    Ti = min(model.time_constant, 4 * late)
    return _of_series(1 / (model.slope * late), Ti, model.second)


def _of_series(K: float, Ti: float, Td: float) -> Gains:
    """K (1 + 1/(Ti s)) (1 + Td s)."""
    return Gains(K * (1 + Td / Ti), K / Ti, K * Td)


def amigo(model: ProcessModel, kind: str = "pid") -> Gains:
    """Åström and Hägglund's approximate rule for largest integral gain with M = 1.4.

    Source: K. J. Åström and T. Hägglund, Advanced PID Control (2006), section 7.4 (PI) and 7.5 (PID); Revisiting the
    Ziegler-Nichols step response method for PID control, J. Process Control 14 (2004).
    """
    _check("amigo", kind, ("pi", "pid"), model)
    slope, T, L = _dead_time("amigo", model)
    if kind == "pi":
        if math.isinf(T):
            return Gains.ideal(0.35 / (slope * L), 13.4 * L)
        K = (0.15 * L / T + 0.35 - L * T / (L + T) ** 2) / (slope * L)
        return Gains.ideal(K, 0.35 * L + 13 * L * T**2 / (T**2 + 12 * L * T + 7 * L**2), b=0.0 if T > L else 1.0)
    if math.isinf(T):
        return Gains.ideal(0.45 / (slope * L), 8 * L, 0.5 * L, b=0.0)
    K = (0.2 * L / T + 0.45) / (slope * L)
    Ti = L * (0.4 * L + 0.8 * T) / (L + 0.1 * T)
    return Gains.ideal(K, Ti, 0.5 * L * T / (0.3 * L + T), b=0.0 if T >= L else 1.0)


def ziegler_nichols(model: ProcessModel, kind: str = "pid") -> Gains:
    """Ziegler and Nichols' step response method: K = 1.2 / (slope L), Ti = 2 L, Td = L / 2.

    Source: J. G. Ziegler and N. B. Nichols, Optimum settings for automatic controllers, Trans. ASME 64 (1942), as in
    Åström and Hägglund (2006), table 6.1.
    """
    _check("ziegler_nichols", kind, ("p", "pi", "pid"), model)
    slope, _, L = _dead_time("ziegler_nichols", model)
    K, Ti, Td = {"p": (1.0, math.inf, 0.0), "pi": (0.9, 3 * L, 0.0), "pid": (1.2, 2 * L, L / 2)}[kind]
    return Gains.ideal(K / (slope * L), Ti, Td)


def ziegler_nichols_ultimate(gain: float, period: float, kind: str) -> Gains:
    """Ziegler and Nichols' frequency response method: K = 0.6 Ku, Ti = Tu / 2, Td = Tu / 8.

    Source: as :func:`ziegler_nichols`; PI as in the paper, 0.45 Ku and Tu / 1.2.
    """
    checks.choice("kind", kind, ("p", "pi", "pid"), 'for rule="ziegler_nichols" one of')
    K, Ti, Td = {"p": (0.5, math.inf, 0.0), "pi": (0.45, 1 / 1.2, 0.0), "pid": (0.6, 0.5, 0.125)}[kind]
    return Gains.ideal(K * gain, Ti * period, Td * period)


def cohen_coon(model: ProcessModel, kind: str = "pid") -> Gains:
    """Cohen and Coon's rule: a quarter of each oscillation is left after the next.

    Source: G. H. Cohen and G. A. Coon, Theoretical consideration of retarded control, Trans. ASME 75 (1953), as in
    D. E. Seborg, T. F. Edgar and D. A. Mellichamp, Process Dynamics and Control, 2nd ed. (2004), table 12.2.
    """
    _check("cohen_coon", kind, ("p", "pi", "pid"), model)
    slope, T, L = _dead_time("cohen_coon", model, integrating=False)
    q = L / T
    if kind == "p":
        return Gains.ideal((1 + q / 3) / (slope * L))
    if kind == "pi":
        return Gains.ideal((0.9 + q / 12) / (slope * L), L * (30 + 3 * q) / (9 + 20 * q))
    return Gains.ideal((4 / 3 + q / 4) / (slope * L), L * (32 + 6 * q) / (13 + 8 * q), 4 * L / (11 + 2 * q))
