"""µ-synthesis: one controller that is good for a whole set of plants, by D–K iteration, on the host."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Complex, Float

from lqrlab.compute.checks import whole
from lqrlab.control import StateSpace
from lqrlab.control.analysis.system_norms import hinf_norm, stable
from lqrlab.control.state_space import response_at
from lqrlab.extensions.robust.generalized_plant import (
    System,
    UncertaintyBlock,
    beside,
    partitioned,
    sampled,
    series,
    uncertainty_structure,
)
from lqrlab.extensions.robust.hinf_synthesis import synthesis
from lqrlab.extensions.robust.structured_singular_value import mu

_FREQUENCIES = 80
_BEYOND = 30.0  # times the fastest and the slowest pole of a loop: how far frequencies go
_STARTS = 6
_DAMPING = 0.1, 10.0  # of a scaling's zeros and poles
_SMOOTH = 200.0  # exponent of the smooth bound on a peak
_SHARP = 4  # power of µ over its largest value that counts how near a scaling has to be


@dataclasses.dataclass(frozen=True)
class MuSynthesis:
    """A controller u = K y for every Δ of a structure with ‖Δ‖ < 1 / upper.

    Attributes:
        controller: K.
        upper: bound on µ of the closed loop at all frequencies, the norm of the scaled loop. Below 1 the loop is
            stable, and its performance block at most 1, for all Δ of norm below 1.
        lower: the largest lower bound of µ that was found at the frequencies.
        w, mu: frequencies [rad/s], and the upper bound of µ at each.
        rounds: bound after each controller, that of the H∞ controller first.
    """

    controller: StateSpace
    upper: float
    lower: float
    w: Float[np.ndarray, " w"]
    mu: Float[np.ndarray, " w"]
    rounds: tuple[float, ...]


def musyn(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    D: ArrayLike,
    nmeas: int,
    ncon: int,
    blocks: Any,
    dt: float | None = None,
    *,
    order: int = 3,
    rounds: int = 5,
) -> MuSynthesis:
    """Controller u = K y that makes the largest µ of the closed loop from w to z small, by D–K iteration.

    Each round designs an H∞ controller of the scaled plant D P D⁻¹, looks for the scalings that show the smallest µ of
    its loop, and fits transfer functions to them. The best of all rounds is returned. Errors as of :func:`hinfsyn`.

    Args:
        A, B, C, D, nmeas, ncon, dt: as for :func:`hinfsyn`.
        blocks: of Δ, from z to w, as for :func:`mu`; a performance from w to z is a full block. Real and repeated
            blocks are scaled as complex and full ones are, which is a bound on them.
        order: of each scaling; it adds to the controller's states.
        rounds: of design and scaling; a single block has no scalings, and one round.

    Source: S. Skogestad and I. Postlethwaite, Multivariable Feedback Control (2005), section 8.12.

    >>> P = [[-1.0]], [[0.5, 1.0, 1.0]], [[0.0], [1.0], [1.0]], [[0, 0, 1], [0, 0, 0], [0, 0.1, 0]]
    >>> d = robust.musyn(*P, nmeas=1, ncon=1, blocks=[1, 1])
    >>> bool(d.lower <= max(d.mu) <= d.upper <= d.rounds[0])
    True
    """
    given = partitioned("musyn", A, B, C, D, nmeas, ncon, dt)
    structure = uncertainty_structure(blocks, *given.D11.shape)
    whole("order", order, 0), whole("rounds", rounds)
    gain = given.off_minus_one()
    plant = given.fed_back(gain).continuous()
    scalings: list[Scaling] = [Scaling.one() for _ in structure]
    best: tuple[float, System, np.ndarray] | None = None
    bounds: list[float] = []
    logs: np.ndarray | None = None
    for number in range(rounds if len(structure) > 1 else 1):
        try:
            design = synthesis("musyn", plant.replaced(_around(plant.system, structure, scalings)))
        except ValueError:
            if not number:
                raise
            break  # the scaled plant is too far from what can be solved
        controller = design.controller.matrices
        loop = plant.closed(controller)
        if not stable(loop[0], None):
            break
        w = _frequencies(loop[0])
        if len(structure) > 1:
            logs = _fitted(response_at(*loop[:3], 1j * w) + loop[3], structure, w, order, logs)
        fitted = [*map(Scaling.of, () if logs is None else logs), Scaling.one()]
        bound = min(hinf_norm(*_around(loop, structure, s))[0] for s in (fitted, scalings))
        scalings = fitted
        bounds.append(bound)
        if best is None or bound < best[0]:
            best = bound, controller, w
    if best is None:
        raise ValueError(
            "musyn: the loop of the H∞ controller of this plant is too close to instability to be scaled; choose units "
            "nearer to one, or move the slowest modes of the weights away from the stability boundary"
        )
    bound, controller, w = best
    loop = plant.closed(controller)
    found = mu(response_at(*loop[:3], 1j * w) + loop[3], blocks)
    if given.dt is not None:
        controller, w = sampled(controller), 2 * np.arctan(w) / given.dt
    made = given.controller(controller, gain, *(np.ones(size) for size in gain.shape))
    lower = float(min(found.lower.max(), bound))
    return MuSynthesis(StateSpace(*made, given.dt), bound, lower, w, np.minimum(found.upper, bound), tuple(bounds))


# Scalings ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scaling:
    """d(s) = gain · n(s) / m(s), stable with a stable inverse: the coefficients of n and m, the first of each 1."""

    gain: float
    zeros: np.ndarray
    poles: np.ndarray

    @classmethod
    def one(cls) -> "Scaling":
        """That changes nothing."""
        return cls(1.0, np.ones(1), np.ones(1))

    @classmethod
    def of(cls, logs: np.ndarray) -> "Scaling":
        """Of the logarithms of its gain, and of n's and m's factors s² + 2 damping ω s + ω² and at most one s + ω."""
        return cls(float(np.exp(logs[0])), *(_polynomial(part) for part in np.split(np.exp(logs[1:]), 2)))

    def log(self, w: np.ndarray) -> np.ndarray:
        """Logarithm of its size at frequencies."""
        n, m = (np.log(np.abs(np.polyval(a, 1j * w))) for a in (self.zeros, self.poles))
        return np.log(self.gain) + n - m

    def inverse(self) -> "Scaling":
        """1 / d."""
        return Scaling(1 / self.gain, self.poles, self.zeros)

    def times(self, count: int) -> System:
        """Of so many signals, each scaled alike."""
        one = scipy.signal.tf2ss(self.gain * self.zeros, self.poles)
        if len(self.poles) == 1:  # SciPy gives it a state that does nothing
            one = np.zeros((0, 0)), np.zeros((0, 1)), np.zeros((1, 0)), one[3]
        return tuple(np.kron(np.eye(count), x) for x in one)  # type: ignore[return-value]


def _polynomial(factors: np.ndarray) -> np.ndarray:
    found = np.ones(1)
    for corner, damping in factors[: len(factors) // 2 * 2].reshape(-1, 2):
        found = np.polymul(found, [1.0, 2 * damping * corner, corner**2])
    return np.polymul(found, [1.0, *factors[len(factors) // 2 * 2 :]])


def _around(system: System, structure: Sequence[UncertaintyBlock], scalings: Sequence[Scaling]) -> System:
    """D M D⁻¹; inputs and outputs that Δ does not have are left as they are."""
    outer, rest = system[3].shape, (structure[-1].end[1], structure[-1].end[0])
    left = [s.times(b.end[1] - b.begin[1]) for s, b in zip(scalings, structure)]
    right = [s.inverse().times(b.size) for s, b in zip(scalings, structure)]
    one = Scaling.one()
    left.append(one.times(outer[0] - rest[0]))
    right.append(one.times(outer[1] - rest[1]))
    return series(beside(left), series(system, beside(right)))


def _frequencies(a: np.ndarray) -> np.ndarray:
    poles = np.linalg.eigvals(a)
    sizes = np.abs(poles)[np.abs(poles) > 1e-9 * np.abs(poles).max()]
    w = np.geomspace(sizes.min() / _BEYOND, sizes.max() * _BEYOND, _FREQUENCIES)
    return np.union1d(w, poles.imag[poles.imag > 0])  # a narrow peak lies between the others


def _fitted(
    M: Complex[np.ndarray, "f z w"],
    structure: Sequence[UncertaintyBlock],
    w: np.ndarray,
    order: int,
    before: np.ndarray | None,
) -> np.ndarray:
    """Logarithms of the scalings ``[blocks − 1, 1 + 2 order]`` whose largest D M D⁻¹ is small; from others, or anew.

    At each frequency the best D makes two singular values meet, so that a least-squares fit to it is wrong by as much
    as it misses; from there on it is the peak itself that is made smaller.
    """
    logs, sizes = np.zeros((len(w), len(structure) - 1)), np.zeros(len(w))
    for k, m in enumerate(M):
        one = scipy.optimize.minimize(_alone, logs[max(k - 1, 0)], (m, structure), jac=True, method="BFGS")
        logs[k], sizes[k] = one.x, np.exp(one.fun)
    ranges = np.array([np.log(w[[0, -1]]), np.log(_DAMPING)] * (order // 2) + [np.log(w[[0, -1]])] * (order % 2))
    ranges = np.concatenate([[(-50.0, 50.0)], ranges.reshape(-1, 2), ranges.reshape(-1, 2)])
    starts = [np.stack([_fit(column, (sizes / sizes.max()) ** _SHARP, w, ranges) for column in logs.T])]
    starts += [] if before is None else [before]
    found = [_lower_peak(start, M, structure, w, ranges) for start in starts]
    return min(found, key=lambda one: one.fun).x.reshape(starts[0].shape)


def _sizes(logs: np.ndarray, M: np.ndarray, structure: Sequence[UncertaintyBlock]) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the largest singular values of D M D⁻¹ ``[w]`` and their slopes, in those of D's entries."""
    d = np.exp(np.append(logs, np.zeros((len(logs), 1)), axis=1))
    rows = np.repeat(d, [b.end[1] - b.begin[1] for b in structure], axis=1)
    columns = np.repeat(d, [b.size for b in structure], axis=1)
    u, s, vh = np.linalg.svd(rows[:, :, None] * M / columns[:, None])
    left, right = np.abs(u[:, :, 0]) ** 2, np.abs(vh[:, 0]) ** 2
    slopes = [left[:, b.columns].sum(-1) - right[:, b.rows].sum(-1) for b in structure[:-1]]
    return np.log(s[:, 0] + 1e-300), np.stack(slopes, -1)


def _alone(logs: np.ndarray, m: np.ndarray, structure: Sequence[UncertaintyBlock]) -> tuple[float, np.ndarray]:
    """Of one matrix; convex."""
    size, slope = _sizes(logs[None], m[None], structure)
    return float(size[0]), slope[0]


def _lower_peak(
    start: np.ndarray, M: np.ndarray, structure: Sequence[UncertaintyBlock], w: np.ndarray, ranges: np.ndarray
) -> Any:
    """Scalings of a smaller peak over the frequencies, that is of a smaller smooth bound on it."""

    def peak(x: np.ndarray) -> tuple[float, np.ndarray]:
        x = x.reshape(start.shape)
        logs, jacobians = zip(*(_with_slope(row, w) for row in x))
        sizes, slopes = _sizes(np.stack(logs, -1), M, structure)
        most = sizes.max()
        share = np.exp(_SMOOTH * (sizes - most))
        value = most + np.log(share.sum()) / _SMOOTH
        share = share / share.sum()
        return float(value), np.concatenate([(share * slope) @ j for slope, j in zip(slopes.T, jacobians)])

    inside = np.clip(start, *ranges.T)
    bounds = np.tile(ranges, (len(start), 1))
    return scipy.optimize.minimize(peak, inside.ravel(), jac=True, bounds=bounds, method="L-BFGS-B")


def _with_slope(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithm of a scaling at frequencies, and its differences by its parameters ``[w, parameters]``."""
    here, step = Scaling.of(x).log(w), 1e-6
    return here, np.stack([(Scaling.of(x + step * e).log(w) - here) / step for e in np.eye(len(x))], -1)


def _fit(logs: np.ndarray, weight: np.ndarray, w: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """The transfer function of least squares in the logarithm."""
    rng = np.random.default_rng(0)

    def error(x: np.ndarray) -> np.ndarray:
        return weight * (Scaling.of(x).log(w) - logs)

    starts = [np.append(logs.mean(), rng.uniform(*ranges[1:].T)) for _ in range(_STARTS)]
    found = [scipy.optimize.least_squares(error, x, bounds=ranges.T, max_nfev=60) for x in starts]
    return min(found, key=lambda one: one.cost).x
