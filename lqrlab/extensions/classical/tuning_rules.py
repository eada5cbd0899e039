"""Tuning rules: gains of a PID controller by formulas from books, and the largest integral gain under a limit of Ms."""

import math
from typing import NamedTuple

import numpy as np
import scipy  # its modules load when they are first used

from lqrlab.compute import checks
from lqrlab.extensions.classical.channels import Channel
from lqrlab.extensions.classical.pid_controller import parts
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
    if model.prompt:
        raise ValueError(
            f'plant: rule="{rule}" is for processes with dead time, and this one has none, so its gain is unbounded; '
            'give delay= (half a sample time where the loop is sampled), or use rule="simc" with tau_c'
        )
    if not integrating and math.isinf(model.time_constant):
        raise ValueError(f'plant: rule="{rule}" is for plants that come to rest, but found an integrator; use "simc"')
    return model.slope, model.time_constant, model.delay


def simc(model: ProcessModel, kind: str = "pid", tau_c: float | None = None) -> Gains:
    """Skogestad's rule: a set-point response of one lag τc and the dead time.

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
    if tau_c is None and model.prompt:
        raise ValueError("tau_c: expected the time constant of the closed loop [s], for the model has no dead time")
    late = (model.delay if tau_c is None else tau_c) + model.delay
    if late <= 0:
        raise ValueError(f"tau_c: expected more than minus the dead time, {-model.delay:.3g} s, but found {tau_c}")
    K, Ti, Td = 1 / (model.slope * late), min(model.time_constant, 4 * late), model.second
    if math.isinf(Td):
        K, Ti, Td = 1 / (model.gain * 4 * late**2), 4 * late, 4 * late
    return Gains(K * (1 + Td / Ti), K / Ti, K * Td)  # those of the series form K (1 + 1/(Ti s)) (1 + Td s)


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

    Source: J. G. Ziegler and N. B. Nichols, Trans. ASME 64 (1942), as in Åström and Hägglund (2006), table 6.1.
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
    """Cohen and Coon's rule: quarter-amplitude decay.

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


_GAINS, _ZOOMS, _ROUNDS = 61, 6, 12
_INSIDE = 1e-5  # relative: on the edge of a cliff any further frequency would leave nothing
_MORE = 8  # times the gain of the P controller, and of the D controller, that are looked at


class _Circle:
    """The loops of a channel whose distance from −1 is at least 1/Ms at each frequency, seen in the three gains."""

    def __init__(self, channel: Channel, ms: float, filter_time: float) -> None:
        self.channel, self.ms, self.filter_time = channel, ms, filter_time
        self.sign = channel.sign()
        self.integrators = sum(p == 0 for p in channel.transfer()[2])
        self.set(channel.frequencies())

    def set(self, w: np.ndarray) -> None:
        """Look at these frequencies [rad/s]."""
        self.w = w
        self.g = self.sign * self.channel.response(w)
        self.integral, self.derivative = parts(w, self.filter_time, self.channel.dt)

    def ki(self, kp: np.ndarray, kd: float) -> np.ndarray:
        """The largest integral gain for each proportional one ``[k]``; 0 where the loop without it is not stable.

        At each frequency the circle excludes an interval of integral gains. Below the gain at which the loop passes
        −1 the largest that no interval excludes is looked for, from there downwards.
        """
        before, along = 1 + (kp[:, None] + kd * self.derivative[None]) * self.g[None], (self.g * self.integral)[None]
        turned = np.unwrap(np.angle(before), axis=1)
        stable = np.abs(turned[:, -1] - turned[:, 0] - np.pi / 2 * self.integrators) < np.pi / 4
        a, h = np.abs(along) ** 2, (before.conj() * along).real
        root = np.sqrt(np.maximum(h**2 - a * (np.abs(before) ** 2 - self.ms**-2), 0.0))
        low, high = (-h - root) / a, (-h + root) / a
        x = self.lost(-before / along)
        for _ in range(200):
            lower = np.where((low < x[:, None]) & (x[:, None] < high), low, x[:, None]).min(axis=1)
            if (lower == x).all():
                break
            x = lower
        return np.where(stable, np.maximum(x, 0.0), 0.0)

    def lost(self, q: np.ndarray) -> np.ndarray:
        """The least positive gain at which the loop passes −1, where q ``[k, w]`` is real."""
        re, im = q.real, q.imag
        crossed = im[:, :-1] * im[:, 1:] < 0
        with np.errstate(all="ignore"):
            at = re[:, :-1] - im[:, :-1] * np.diff(re, axis=1) / np.diff(im, axis=1)
        at = np.where(crossed & (at > 0), at, np.inf).min(axis=1)
        end = re[:, -1] if self.channel.dt is not None else np.full(len(re), np.inf)  # a sampled loop is real there
        return np.minimum(at, np.where(end > 0, end, np.inf))

    def best(self, kd: float, zooms: int = _ZOOMS) -> tuple[float, float]:
        """The proportional gain with the largest integral gain, and that one."""
        square, re = np.abs(self.g) ** 2, self.g.real
        with np.errstate(all="ignore"):  # the least k at which |1 + kg| falls below 1/Ms
            reached = (-re - np.sqrt(re**2 - square * (1 - self.ms**-2))) / square
        high = float(reached[reached > 0].min(initial=np.inf))
        if not np.isfinite(high):
            raise ValueError(
                f"plant: its loop keeps Ms ≤ {self.ms:g} at any gain, so none is the largest; give its dead time with "
                "delay=, or its sample time with dt="
            )
        low, high, best = 0.0, high if kd == 0 else _MORE * high, (0.0, 0.0)
        for _ in range(zooms):
            kp = np.linspace(low, high, _GAINS)
            ki = self.ki(kp, kd)
            i = int(np.argmax(ki))
            best = max(best, (float(ki[i]), float(kp[i])))
            low, high = float(kp[max(i - 1, 0)]), float(kp[min(i + 1, _GAINS - 1)])
        return best[1], best[0]

    def distance(self, kp: float, ki: float, kd: float) -> np.ndarray:
        """|1 + L| at each frequency."""
        return np.abs(1 + (kp + ki * self.integral + kd * self.derivative) * self.g)

    def refine(self, kp: float, ki: float, kd: float) -> None:
        """Look closer at the frequencies at which the loop touches its circle, or nearly."""
        apart = self.distance(kp, ki, kd)
        inner = apart[1:-1]
        near = 1 + np.flatnonzero((inner <= apart[:-2]) & (inner <= apart[2:]) & (inner <= 1.1 / self.ms))
        deep = np.maximum(apart[near - 1], apart[near + 1]) > apart[near] * (1 + 1e-8)  # or it may be one of rounding
        closer = [np.linspace(self.w[i - 1], self.w[i + 1], 25) for i in near[deep]]
        self.set(np.unique(np.concatenate([self.w, *closer])))


def max_ki(channel: Channel, kind: str, filter_time: float | None, ms: float | None = None) -> tuple[Gains, float]:
    """The gains with the largest integral gain whose loop stays outside of the circle of radius 1/Ms about −1.

    The integral gain is exact for the other two, which are searched. A PID controller so tuned may have two peaks of
    the sensitivity (a "derivative cliff").

    Args:
        filter_time: of the derivative [s]; an eightieth of the ultimate period if left out. Returned with the gains.
        ms: limit of the sensitivity; 1.4 if left out.

    Source: K. J. Åström, H. Panagopoulos and T. Hägglund, Automatica 34 (1998) [PI]; H. Panagopoulos, K. J. Åström and
    T. Hägglund, IEE Proc. Control Theory Appl. 149 (2002) [PID].
    """
    checks.choice("kind", kind, ("pi", "pid"), 'for rule="max_ki" one of')
    ms = 1.4 if ms is None else checks.number("ms", ms, "above 1", above=1.0)
    channel.refuse_unstable("whose gains can grow from zero")
    if filter_time is None:
        filter_time = channel.ultimate()[1] / 80 if kind == "pid" else 0.0
    circle = _Circle(channel, ms * (1 - _INSIDE), filter_time)
    kd = _derivative(circle) if kind == "pid" else 0.0
    kp, ki = circle.best(kd)
    for i in range(_ROUNDS):
        circle.refine(kp, ki, kd)
        if circle.distance(kp, ki, kd).min() >= 1 / ms and i >= 3:
            break
        if kind == "pid" and i < 3:
            kd = _near(circle, 0.98 * kd, 1.02 * kd)
        kp, ki = circle.best(kd)
    if not ki > 0:
        raise ValueError(f"ms: no integral gain keeps Ms ≤ {ms:g} on this plant; expected a larger limit")
    return Gains(circle.sign * kp, circle.sign * ki, circle.sign * kd), filter_time


def _derivative(circle: _Circle) -> float:
    """The derivative gain with the largest integral gain."""
    size = circle.best(0.0)[0] + 1e-300
    kds = np.linspace(0.0, _MORE * size / circle.w[np.argmin(np.abs(1 + size * circle.g))], 25)
    i = int(np.argmax([circle.best(kd, 2)[1] for kd in kds]))
    return _near(circle, kds[max(i - 1, 0)], kds[min(i + 1, len(kds) - 1)])


def _near(circle: _Circle, low: float, high: float) -> float:
    """The best derivative gain between two."""
    if not high > low:
        return low
    return float(
        scipy.optimize.minimize_scalar(
            lambda kd: -circle.best(kd, 4)[1], bounds=(low, high), method="bounded", options={"xatol": 1e-5 * high}
        ).x
    )
