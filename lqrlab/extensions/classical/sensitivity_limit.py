"""Largest integral gain under a limit of the sensitivity: exact in the integral gain, searched in the other two."""

import numpy as np
import scipy  # its modules load when they are first used

from lqrlab.compute import checks
from lqrlab.extensions.classical.channels import Channel
from lqrlab.extensions.classical.pid_controller import parts
from lqrlab.extensions.classical.tuning_rules import Gains

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

    def first(self, inside: np.ndarray, along: np.ndarray) -> np.ndarray:
        """The least k ≥ 0 at which |1 + inside + k along| falls below 1/Ms, at each frequency; 0 where it is below."""
        before = 1 + inside
        a, h = np.abs(along) ** 2, (before.conj() * along).real
        c = np.abs(before) ** 2 - self.ms**-2
        with np.errstate(all="ignore"):
            root = (-h - np.sqrt(h**2 - a * c)) / a
            root = np.where(np.isfinite(root) & (root > 0), root, np.inf)
        return np.where(c < 0, 0.0, root)

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
        high = float(self.first(np.zeros_like(self.g), self.g).min())
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
        wide = self.w[near + 1] > self.w[near - 1] * (1 + 1e-5)  # closer than that are minima of the rounding
        closer = [np.linspace(self.w[i - 1], self.w[i + 1], 25) for i in near[wide]]
        self.set(np.unique(np.concatenate([self.w, *closer])))


def max_ki(channel: Channel, kind: str, filter_time: float | None, ms: float | None = None) -> tuple[Gains, float]:
    """The gains with the largest integral gain whose loop stays outside of the circle of radius 1/Ms about −1.

    The integral gain is exact for the other two, which are searched: at each frequency the circle excludes an interval
    of integral gains. A PID controller so tuned may have two peaks of the sensitivity (a "derivative cliff").

    Args:
        filter_time: of the derivative [s]; an eightieth of the ultimate period if left out. Returned with the gains.
        ms: limit of the sensitivity; 1.4 if left out.

    Source: K. J. Åström, H. Panagopoulos and T. Hägglund, Design of PI controllers based on non-convex optimization,
    Automatica 34 (1998); H. Panagopoulos, K. J. Åström and T. Hägglund, Design of PID controllers based on constrained
    optimisation, IEE Proc. Control Theory Appl. 149 (2002).
    """
    checks.choice("kind", kind, ("pi", "pid"), 'for rule="max_ki" one of')
    ms = 1.4 if ms is None else checks.number("ms", ms, "above 1", above=1.0)
    if channel.unstable:
        raise ValueError(
            "plant: expected a stable one, whose gains can grow from zero, but found a pole in the right half-plane; "
            'use rule="optimal"'
        )
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
    at = circle.w[np.argmin(np.abs(1 + size * circle.g))]
    kds = np.linspace(0.0, _MORE * size / at, 25)
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
