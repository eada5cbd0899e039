"""Process models, of one or two lags and a dead time: from a transfer function, a step, or any record."""

import dataclasses
import math
from typing import Self

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike

from lqrlab.compute import checks
from lqrlab.extensions.classical.channels import Channel, real_lags

_STEPS = 4000  # of a step experiment
NEGLIGIBLE = 1e-9  # a dead time this much shorter than the lags is none
_INTEGRATES = 100  # times the record: a lag that is longer is an integrator in it
_EXACT = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
_TOLD = 0.1  # of a sample: a dead time that is shorter is none in a record


@dataclasses.dataclass(frozen=True)
class ProcessModel:
    """G(s) = gain · exp(−delay s) / ((time_constant s + 1)(second s + 1)), the model that tuning rules start from.

    Attributes:
        gain: of output over input; with an infinite time constant the slope of the output, with two its curvature.
        time_constant, second: the larger one [s], ≥ 0 or infinite, and the smaller one.
        delay: dead time [s], ≥ 0.

    >>> classical.pid(classical.ProcessModel(1.0, 10.0, delay=1.0), "simc", kind="pi").kp
    Array(5., dtype=float64)
    """

    gain: float
    time_constant: float
    delay: float = 0.0
    second: float = 0.0

    def __post_init__(self) -> None:
        if not checks.number("gain", self.gain):
            raise ValueError("gain: expected a number other than zero, but found 0: the output does not react")
        lag = checks.number("time_constant", self.time_constant, "a time ≥ 0 s, or inf", low=0, finite=False)
        checks.number("delay", self.delay, "a dead time ≥ 0 s", low=0)
        checks.number("second", self.second, "a time from 0 s to time_constant", low=0, high=lag, finite=False)
        if not lag:
            raise ValueError("time_constant: expected a lag above 0 s, but found 0: a gain and a dead time are no lag")

    @property
    def slope(self) -> float:
        """Gain over time constant: how fast the output begins to move for a unit of input."""
        return self.gain if math.isinf(self.time_constant) else self.gain / self.time_constant

    @property
    def first_order(self) -> "ProcessModel":
        """The model with one lag: half of the second one is added to the first, and half to the dead time."""
        if math.isinf(self.second):
            raise ValueError("plant: expected at most one integrator, but found two, which no model of one lag has")
        half = self.second / 2
        return ProcessModel(self.gain, self.time_constant + half, self.delay + half)

    @property
    def prompt(self) -> bool:
        """True if there is no dead time, or one that is rounding beside the lag: its inverse is no gain."""
        return bool(self.delay * abs(self.slope / self.gain) <= NEGLIGIBLE)

    def channel(self, dt: float | None = None) -> Channel:
        """The model as a state space with dead time."""
        rows = [(0.0, 1.0) if math.isinf(t) else (-1 / t, 1 / t) for t in (self.time_constant, self.second) if t > 0]
        a, b = np.transpose(rows)
        A, C = np.diag(a) + np.diag(b[:-1], 1), self.gain * np.eye(1, len(a))
        return Channel(A, b[-1] * np.eye(len(a))[:, -1:], C, self.delay, dt)

    @classmethod
    def of_record(cls, u: ArrayLike, y: ArrayLike, dt: float) -> Self:
        """The model of one lag whose output is nearest to a record of a step, a relay or any other experiment.

        A dead time that the record does not tell from none (below a tenth of a sample, or of a fit that is no worse
        without it than noise makes it) is 0; :func:`lqrlab.classical.pid` with the sample time counts half of that.

        Args:
            u: inputs ``[T]`` as deviations from where the process rested before, each held for dt.
            y: outputs ``[T]`` or ``[T + 1]``, the first one measured when the first input begins; their rest is fitted.
            dt: sample time [s].
        """
        u, y = (np.asarray(checks.real(name, a, finite=True), float) for name, a in (("u", u), ("y", y)))
        dt = checks.number("dt", dt, "a sample time above 0 s", above=0)
        if u.ndim != 1 or y.ndim != 1 or len(u) < 8 or len(y) - len(u) not in (0, 1):
            raise ValueError(f"u, y: expected two columns of at least 8 samples, but found {u.shape} and {y.shape}")
        if not u.any() or np.ptp(y) == 0:
            raise ValueError("u, y: expected an input and an output that move, but found constant ones")
        size_u, size_y = float(np.abs(u).max()), float(np.ptp(y))  # the search ends by the size of its numbers
        K, T, L = _nearest(u / size_u, (y - y[0]) / size_y)
        K *= size_y / size_u
        return cls(K, T * dt, L * dt) if _INTEGRATES * len(u) > T else cls(K / (T * dt), math.inf, L * dt)


def half_rule(channel: Channel, order: int) -> ProcessModel:
    """The model of one or two lags by Skogestad's half rule, with half a sample time as dead time.

    Source: S. Skogestad, Simple analytic rules for model reduction and PID tuning, J. Process Control 13 (2003).
    """
    k, found, poles = channel.transfer()
    lags, leads = real_lags(poles, "poles"), real_lags(found, "zeros")
    if (lags < 0).any():
        raise ValueError(
            f"plant: expected no pole in the right half-plane, but found {-1 / lags.min():.3g} rad/s, for which "
            'there is no model of lags; use rule="optimal"'
        )
    gain = k * np.prod([-z.real for z in found]) / np.prod([-p.real for p in poles if p])
    inverse, late = -leads[leads < 0].sum(), channel.lateness
    guess = late
    for _ in range(50):  # what a lead becomes depends on the dead time, to which the lags add
        model = _reduced(float(gain), lags, leads[leads > 0], late + inverse, guess, order)
        if model.delay == guess:
            break
        guess = model.delay
    return model


def _reduced(gain: float, lags: np.ndarray, leads: np.ndarray, late: float, guess: float, order: int) -> ProcessModel:
    """Lags without the leads, each taken together with the next larger lag; then the half rule."""
    rest = sorted(lags, reverse=True)
    for T in sorted(leads, reverse=True):
        larger = [t for t in rest if t >= T]
        lag = min(larger) if larger else max(rest)
        rest.remove(lag)
        if not larger:  # rules T1, T1a, T1b
            gain *= T / lag if lag >= guess else T / guess if guess <= T else 1.0
        elif 5 * guess <= T:  # T2
            gain *= T if math.isinf(lag) else T / lag
        else:  # T3
            near = min(lag, 5 * guess)
            gain *= near if math.isinf(lag) else near / lag
            rest.append(near - T)
        rest.sort(reverse=True)
    rest = [t for t in rest if t > 0]
    lags_kept, half = rest[:order], rest[order] / 2 if len(rest) > order else 0.0
    if math.isinf(half):
        raise ValueError('plant: expected fewer integrators, but found one more than lags in the model; kind="pid"')
    if not lags_kept:
        raise ValueError('plant: expected a lag, but its leads cancel all; use rule="optimal"')
    lags_kept[-1] += half
    second = lags_kept[1] if len(lags_kept) > 1 else 0.0
    first, second = max(lags_kept[0], second), min(lags_kept[0], second)
    return ProcessModel(gain, first, float(late + half + sum(rest[order + 1 :])), second)


def of_step(channel: Channel) -> ProcessModel:
    """The model of one lag with the steepest tangent's dead time, and 63 % of the step where the plant has it.

    Of an integrating plant: the slope at the end, and the dead time of that tangent.

    Source: K. J. Åström and T. Hägglund, Advanced PID Control (2006), section 2.7.
    """
    channel.refuse_unstable("for a step experiment")
    _, _, poles = channel.transfer()
    integrators = sum(p == 0 for p in poles)
    slow = min((abs(p.real) for p in poles if p.real < -1e-9 * abs(p)), default=1.0)
    if integrators > 1 or any(p and abs(p.real) <= 1e-9 * abs(p) for p in poles):
        raise ValueError(
            "plant: expected a step response that settles or rises steadily, but found two integrators or an "
            'undamped oscillation; use rule="optimal"'
        )
    ts, y, rate = _stepped(channel, 40 / slow)
    if integrators:
        return ProcessModel(float(rate[-1]), math.inf, float(max(ts[-1] - y[-1] / rate[-1], 0)) + channel.lateness)
    final = -(channel.c @ np.linalg.lstsq(channel.A, channel.b, rcond=None)[0]).item()
    y, rate = y / final, rate / final
    short = np.flatnonzero(y > 0.95)[0] if (y > 0.95).any() else len(ts) - 1
    ts, y, rate = _stepped(channel, max(2.0 * ts[short], 1e-3 / slow))
    y, rate = y / final, rate / final
    i = int(np.argmax(rate))
    late = max(ts[i] - y[i] / rate[i], 0.0)
    reached = 1 - math.exp(-1)
    j = int(np.argmax(y >= reached))
    at = np.interp(reached, y[j - 1 : j + 1], ts[j - 1 : j + 1])
    return ProcessModel(float(final), float(at - late), float(late) + channel.lateness)


def _stepped(channel: Channel, horizon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, output and its slope after a unit step without dead time, exactly."""
    ts, one = np.linspace(0, horizon, _STEPS + 1), np.ones(_STEPS + 1)
    plant = channel.A, channel.b, channel.c, np.zeros((1, 1))
    _, y, xs = scipy.signal.lsim(plant, one, ts, interp=False)
    slopes = xs.reshape(len(ts), -1) @ channel.A.T + channel.b[:, 0]
    return ts, y, slopes @ channel.c[0]


def _nearest(u: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Gain and the two times, in samples, of the least squares; gain and rest are linear, the times searched."""
    u = np.append(u, np.zeros(len(y) - len(u)))
    horizon = float(len(u))

    def fit(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        T, late = math.exp(min(logs[0], 100.0)), abs(logs[1])
        whole = min(int(late), len(u))
        part = late - whole
        old = np.concatenate([np.zeros(whole + 1), u])[: len(u)]  # acts in the first part of a sample, then the next
        new = np.concatenate([np.zeros(whole), u])[: len(u)]
        a, e = math.exp(-1 / T), math.exp(-(1 - part) / T)
        moved = scipy.signal.lfilter([1.0], [1.0, -a], (e - a) * old + (1 - e) * new)
        columns = np.stack([np.concatenate([[0.0], moved[:-1]]), np.ones(len(u))], axis=1)
        best = np.linalg.lstsq(columns, y, rcond=None)[0]
        return best, columns @ best - y

    def error(logs: np.ndarray) -> np.ndarray:
        return fit(logs)[1]

    starts = [
        (math.log(T), late)
        for T in np.geomspace(1.0, 3 * horizon, 12)
        for late in np.concatenate([[0.0], np.geomspace(0.5, horizon / 2, 10)])
    ]
    starts = sorted(starts, key=lambda s: float(np.sum(error(np.array(s)) ** 2)))[:4]
    scale = [1.0, horizon / 100]
    found = [scipy.optimize.least_squares(error, s, x_scale=scale, **_EXACT) for s in starts]
    best = min(found, key=lambda f: f.cost)
    none = scipy.optimize.least_squares(lambda lag: error(np.append(lag, 0.0)), best.x[:1], **_EXACT)
    free = abs(best.x[1]) >= _TOLD and none.cost > (1 + 9 / len(u)) * best.cost  # three standard errors
    at = best.x if free else np.append(none.x, 0.0)
    return float(fit(at)[0][0]), math.exp(at[0]), abs(float(at[1]))
