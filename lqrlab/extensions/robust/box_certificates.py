"""Certificates of a gain over a box of parameters, from both sides: stability, and how much worse it may become."""

import dataclasses
from typing import Any

import numpy as np

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.control.analysis.system_norms import stable
from lqrlab.extensions.robust.uncertain_loop import UncertainLoop, UncertainPlant
from lqrlab.systems import Plant

_FINER = 1.03, 1.1, 1.3, 2.0, 5.0, 50.0, 1e3  # times the largest gain that was found: bounds that are tried
_SHARE, _WHOLE = 0.9, 1.001  # of the multiple that is refuted, to be certified; at least, where it is above that
_BOXES, _LEAST, _WORK = 400, 12, 1e5  # boxes that a box is cut into, at most; times the number of its corners
_AT_ONCE = 0.83 ** np.arange(1, 24)  # shares of the multiple that is looked for, tried at once
_CORNERS, _ROUNDS = 10, 6  # directions that corners are made of, at most; turns of halving intervals of frequency
_SAFE, _BENT = 1.75, 0.9  # times the remainder that is sampled; how unevenly a parameter's range may be mapped
_SHAKEN = 1e-10  # of a loop, relative, what does not matter


@dataclasses.dataclass(frozen=True)
class RobustStability:
    """Robust stability of a gain on one plant over a box of parameters.

    Attributes:
        mu: one over the multiple of the box that is certified. Below 1 the loop is stable, as far as samples tell.
        frequency: of the loop where it is refuted [rad/s]; inf if it is not.
        refuted: the least multiple of the box in which an unstable plant was found, by its own equations; else inf.
        parameters: these, by name.
    """

    mu: float
    frequency: float
    refuted: float
    parameters: dict[str, float]

    @property
    def certified(self) -> bool:
        """True if µ < 1."""
        return self.mu < 1


def robust_stability(
    controller: object, plant: Plant | UncertainPlant, *, spread: float = 0.2, num_frequencies: int = 80, seed: int = 0
) -> RobustStability:
    """Upper and lower bounds on the parameter errors for which a gain stabilises a plant.

    From without, parameters are moved along random directions and to the corners of their box until the loop is
    unstable. From within, nearly as large a box is cut into parts until zero is excluded from the values of
    det(zI − A + BK), |z| = 1, over each: the hull of those at its corners, widened by what samples differ from affine.

    Args:
        controller: what :func:`lqrlab.simulation.bind` makes a gain of: a gain, a design, a network of matrices.
        plant: one plant; or all that it may be, such as a log allows (``fit.uncertain(probability=0.95)``).
        spread: half-width of each parameter that varies, relative, 0 < spread < 1; cut to its range. Of a plant.
        num_frequencies: at which values are looked at first; there are more where these are far apart.
        seed: of the directions.

    Raises:
        ValueError: a controller with a memory, a plant without parameters, a nominal loop that is not stable.

    Source: R. R. E. de Gaston and M. G. Safonov, IEEE Trans. Automatic Control 33 (1988).

    >>> plant = systems.make("gantry_crane")
    >>> found = robust.robust_stability(simulation.Problem.of(plant).K, plant)
    >>> found.certified, found.refuted > 1
    (True, True)
    """
    seed = checks.whole("seed", seed, 0)
    loop = UncertainLoop.of(controller, plant, spread)
    tried = loop.tried(np.random.default_rng(seed))
    refuted, move = _refuted(loop, tried, np.full(len(tried), loop.plants.beyond))
    while True:
        most = _SHARE * min(refuted, loop.plants.beyond)
        try:
            multiple = _covered(loop, max(most, _WHOLE) if refuted > _WHOLE else most, tried, num_frequencies)
            break
        except _Met as met:
            far = np.abs(met.args[0]).max(keepdims=True)
            refuted, move = _refuted(loop, met.args[0][None], far)
            refuted = min(refuted, float(far[0]))
    mu = 1 / multiple if multiple else np.inf
    if not np.isfinite(refuted):
        return RobustStability(mu, np.inf, refuted, {})
    values = np.linalg.eigvals(loop.closed(loop.joint(move[None]))[0])
    at = float(np.abs(np.angle(max(values, key=abs))) / loop.plants.plant.dt)
    return RobustStability(mu, at, refuted, loop.plants.parameters(move))


def _refuted(loop: UncertainLoop, tried: np.ndarray, far: np.ndarray) -> tuple[float, np.ndarray]:
    """The least multiple of the box, of those up to ``far`` along directions, at which a loop is unstable; there."""
    directions = tried / np.abs(tried).max(axis=1, keepdims=True)

    def unstable(at: np.ndarray) -> np.ndarray:
        return np.abs(np.linalg.eigvals(loop.closed(loop.joint(at[:, None] * directions)))).max(-1) >= 1

    low, high = np.zeros(len(directions)), far
    ends = unstable(high)
    for _ in range(24):
        middle = (low + high) / 2
        grows = unstable(middle)
        low, high = np.where(grows, low, middle), np.where(grows, middle, high)
    first = int(np.argmin(np.where(ends, high, np.inf)))
    return float(high[first]) if ends.any() else np.inf, high[first] * directions[first]


# Parts of the box ----------------------------------------------------------------------------------------------


class _Met(Exception):
    """A plant within the box is not as it is to be certified: its move."""


def _covered(loop: UncertainLoop, most: float, *how: Any) -> float:
    """The multiple of the box up to which boxes are certified that cover it."""
    one = np.ones(loop.plants.directions)
    budget = int(np.clip(_WORK / 2 ** min(len(one), _CORNERS), _LEAST, _BOXES))
    left, core = _halves(loop, (0 * one, most * one), *how), most
    if left:
        core = float(next((m for m in _AT_ONCE * most if not _halves(loop, (0 * one, m * one), *how)), 0.0))
    begins = [0.0] * len(left)
    while left and budget:
        first = left.pop(int(np.argmin(begins)))
        if np.add(np.abs(first[0]), first[1]).max() > core * (1 + 1e-9):
            left += _halves(loop, first, *how)
            budget -= 1
        begins = [float(np.maximum(np.abs(center) - half, 0).max()) for center, half in left]
    return max(core, min(begins, default=most))


def _halves(
    loop: UncertainLoop, box: Any, tried: np.ndarray, count: int, performance: Any = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The box |d − center| ≤ half in two, across the direction that matters most; none if all within is certified.

    No gain from the inputs' disturbances to the root of a weight is to be above 1, if that is given as performance.
    Directions beyond the most that corners are made of are added to what is lacking. Each direction is mapped unevenly,
    x → (x + λ)/(1 + λx), so that values at its ends and middle are affine in it: of what is divided by, they are so.
    """
    p, (least, most) = len(box[0]), loop.plants.ends
    low, high = np.maximum(box[0] - box[1], least), np.minimum(box[0] + box[1], most)
    center, half = (low + high) / 2, (high - low) / 2
    axes = np.concatenate([np.eye(p), -np.eye(p)])
    up, down = np.split(loop.closed(loop.joint(center + half * axes)), 2)
    major = np.argsort(-np.linalg.norm(up - down, axis=(1, 2)), kind="stable")[:_CORNERS]
    corners, minor = np.zeros((2 ** len(major), p)), np.setdiff1d(np.arange(p), major)
    corners[:, major] = 1.0 - 2.0 * (np.arange(len(corners))[:, None] >> np.arange(len(major)) & 1)
    inside = tried[len(tried) // 2 :].copy()
    inside[::2] = np.round(inside[::2])
    inside = np.concatenate([np.zeros((1, p)), axes, inside])
    values = _Values(loop, center + half * np.concatenate([inside, corners]), performance)
    w = loop.frequencies(values.poles, count)
    share: Any = None
    for _ in range(_ROUNDS):
        sampled, found = np.split(values.at(w), [len(inside)])
        up, down = np.split(sampled[1 : 2 * p + 1] - sampled[0], 2)
        if share is None:
            even, bent = up - down, up + down
            lean = -(even.conj() * bent).real.sum((1, 2)) / np.maximum((np.abs(even) ** 2).sum((1, 2)), 1e-300)
            lean = np.clip(lean, -_BENT, _BENT)
            even = (inside + lean) / (1 + lean * inside)
            share = np.prod((1 + even[:, None, major] * corners[:, major]) / 2, axis=-1)
        lacks = np.linalg.norm(sampled - np.tensordot(share, found, 1), axis=-1).max(0)
        rest = _SAFE * (lacks + np.linalg.norm(np.maximum(np.abs(up), np.abs(down)), axis=-1)[minor].sum(0))
        clear = values.clear(found) - rest
        if (clear <= 0).any():
            break
        between = values.clear(np.concatenate([found[:, 1:], found[:, :-1]])) - np.maximum(rest[1:], rest[:-1])
        if (between > 0).all():
            return []
        w = np.sort(np.append(w, ((w[1:] + w[:-1]) / 2)[between <= 0]))
    worst = int(np.argmin(clear))
    score = np.linalg.norm(up + down, axis=-1)[:, worst]
    for i in major:
        differ = found[corners[:, i] > 0, worst] - found[corners[:, i] < 0, worst]
        score[i] += np.linalg.norm(differ - (differ.mean(0) if performance is None else 0), axis=-1).max()
    move = 0.5 * half * (np.arange(p) == np.argmax(score))
    return [(center + side * move, half - move) for side in (-1, 1)]


class _Values:
    """Of P = det(zI − A + BK) of moved plants, relative to the first one's, and of the numerators N of a gain.

    They are divided by the determinant a bit outside the circle, as far as the nearest pole of all plants is inside:
    that is without zeros where the loop is stable, and evens out what only scales. Nearer, it hides narrow places.
    """

    def __init__(self, loop: UncertainLoop, moves: np.ndarray, performance: Any) -> None:
        joint = loop.joint(moves)
        closed, self.moves, self.performance = loop.closed(joint), moves, performance
        self.poles = np.linalg.eigvals(closed)
        size = np.abs(self.poles).max(1)
        if size.max() >= 1:
            raise _Met(moves[np.argmax(size)])
        if performance is not None:  # a little off where poles meet, or there would be too few vectors
            noise = np.random.default_rng(0).normal(size=closed.shape) * np.abs(closed).max()
            self.poles, vectors = np.linalg.eig(closed + _SHAKEN * noise)
            self.seen = performance @ vectors
            self.driven = np.linalg.solve(vectors, joint[:, :, len(closed[0]) :].astype(complex))

    def at(self, w: np.ndarray) -> np.ndarray:
        """``[plants, w, 1 + entries]``: the determinant, and the entries of the numerators."""
        z, poles = np.exp(1j * w), self.poles
        beside = z * (1 + np.abs(z[:, None, None] - poles).min((1, 2)))
        P = np.ones((len(poles), len(w)), complex)
        for pole in poles.T:
            P *= (z - pole[:, None]) * ((beside - pole[0]) / (z - pole[0])) / (beside - pole[:, None])
        if self.performance is None:
            return P[..., None]
        inner = self.driven[:, None] / (z[:, None] - poles[:, None])[..., None]
        N = P[..., None, None] * (self.seen[:, None] @ inner)
        return np.concatenate([P[..., None], N.reshape(*P.shape, -1)], -1)

    def clear(self, corners: np.ndarray) -> np.ndarray:
        """By how much all values of the hull of these are clear of zero: Re(P/g) > ‖N‖ at each corner, of one g."""
        P, size = corners[..., 0], np.zeros(corners.shape[:-1])
        if self.performance is not None:
            N = corners[..., 1:].reshape(*P.shape, self.seen.shape[1], self.driven.shape[2])
            size = np.sqrt(np.maximum(np.linalg.eigvalsh(N.conj().swapaxes(-1, -2) @ N)[..., -1], 0))
        over = (size - np.abs(P)).max(1)
        if over.max() >= 0:
            raise _Met(self.moves[np.argmax(over) - len(P)])
        wide = np.arccos(size / np.abs(P))
        low, high = (np.angle(P) - wide).max(0), (np.angle(P) + wide).min(0)
        return np.where(low < high, ((P * np.exp(-0.5j * (low + high))).real - size).min(0), -1.0)


# Worst case gain -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class WorstCaseGain:
    """Worst-case gain of a loop from input disturbances to the root of the stage cost, at the worst frequency.

    Attributes:
        nominal: at the plant's own parameters: the H∞ norm.
        lower: the largest that was found within the box, on the plant's own equations.
        upper: no parameters of the box have more, as far as frequencies and the sampled remainder can tell; inf where
            stability is not certified, or beyond a million times ``lower``.
        parameters: where ``lower`` was found.
    """

    nominal: float
    lower: float
    upper: float
    parameters: dict[str, float]


def worst_case_gain(
    controller: object, plant: Plant | UncertainPlant, *, spread: float = 0.2, num_frequencies: int = 80, seed: int = 0
) -> WorstCaseGain:
    """Bounds on the largest gain of a loop over all parameters within a box; arguments, errors as robust_stability's.

    From disturbances at the plant's inputs, in units of their scales, to z with zᵀz = xᵀQx + uᵀRu + 2xᵀNu, the sampled
    weights at the plant's own parameters. Some multiples of the largest gain found are tried as a bound, as there.

    >>> plant = systems.make("gantry_crane")
    >>> found = robust.worst_case_gain(simulation.Problem.of(plant).K, plant)
    >>> found.nominal < found.lower < found.upper < 2 * found.nominal
    True
    """
    seed = checks.whole("seed", seed, 0)
    loop = UncertainLoop.of(controller, plant, spread)
    size, vectors = np.linalg.eigh((loop.stage + loop.stage.T) / 2)
    root = np.sqrt(np.maximum(size, 0))[:, None] * vectors.T
    tried, factors = loop.tried(np.random.default_rng(seed)), list(_FINER)
    moves = np.concatenate([np.zeros((1, loop.plants.directions)), tried])
    gains = _gains(loop, root, moves)
    move, lower = moves[int(np.argmax(gains))], gains.max()
    while factors and np.isfinite(lower):
        try:
            if _covered(loop, 1.0, tried, num_frequencies, root / (factors[0] * lower)) >= 1:
                break
            del factors[0]
        except _Met as met:
            (more,) = _gains(loop, root, met.args[0][None])
            lower, move, factors = (more, met.args[0], factors) if more > lower else (lower, move, factors[1:])
    upper = factors[0] * lower if factors and np.isfinite(lower) else np.inf
    return WorstCaseGain(float(gains[0]), float(lower), float(upper), loop.plants.parameters(move))


def _gains(loop: UncertainLoop, root: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Of moved plants; inf of a loop that is not stable."""
    joint, gains = loop.joint(moves), np.full(len(moves), np.inf)
    closed, B = loop.closed(joint), joint[:, :, len(root) :]
    for i in np.flatnonzero([stable(a, 1.0) for a in closed]):
        gains[i], _ = control.hinf_norm(closed[i], B[i], root, np.zeros_like(B[i]), dt=1.0)
    return gains
