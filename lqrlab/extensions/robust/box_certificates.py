"""Certificates of a gain over a box of parameters, from both sides: stability, and how much worse it may become."""

import dataclasses
from typing import Any

import numpy as np

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.control.state_space import response_at
from lqrlab.extensions.robust.structured_singular_value import below_one
from lqrlab.extensions.robust.uncertain_loop import UncertainLoop, UncertainPlant
from lqrlab.systems import Plant

_FINER = 1.03, 1.1, 1.3, 2.0, 5.0, 50.0, 1e3  # times the largest gain that was found: bounds that are tried
_PEAKS = 8  # loops of the largest gains whose frequencies are looked at
_SHARE, _WHOLE = 0.88, 1.001  # of the multiple that is refuted, to be certified; at least, where it is above that
_BOXES, _LEAST, _WORK = 400, 12, 4e5  # boxes that a box is cut into, at most; times the cube of the blocks' size
_AT_ONCE, _LONG = 0.83 ** np.arange(24), 60  # shares of the multiple that is looked for, tried at once; turns for it


@dataclasses.dataclass(frozen=True)
class RobustStability:
    """Of a gain on one plant whose parameters are known to within a box.

    Attributes:
        mu: one over the multiple of the box that is certified. Below 1 the loop is stable for all parameters in the
            box, as far as grids of frequencies and the sampled remainders of linear expansions can tell.
        frequency: of the loop where it is refuted [rad/s]; inf if it is not.
        refuted: the least multiple of the box at which parameters were found that the gain does not stabilise, on
            the plant's own equations; inf if none was.
        parameters: these, by name.
        remainder: what one expansion lacks over the whole box, relative to the effect of all parameters together.
    """

    mu: float
    frequency: float
    refuted: float
    parameters: dict[str, float]
    remainder: float

    @property
    def certified(self) -> bool:
        """True if µ < 1."""
        return self.mu < 1


def robust_stability(
    controller: object, plant: Plant | UncertainPlant, *, spread: float = 0.2, num_frequencies: int = 80, seed: int = 0
) -> RobustStability:
    """Bounds, from both sides, on how far a plant's parameters may be from their values before a gain loses it.

    From without, parameters are moved along random directions and to the corners of their box until the loop is
    unstable. From within, nearly as large a box is cut into parts, at most some hundred, until µ of the sampled loop,
    expanded in the parameters of each part (:meth:`UncertainLoop.pulled_out`), is below 1.

    Args:
        controller: what :func:`lqrlab.simulation.bind` makes a gain of: a gain, a design, a network of matrices.
        plant: one plant; or all that it may be, such as a log allows (``fit.uncertain(probability=0.95)``).
        spread: half-width of each parameter that varies, relative, 0 < spread < 1; cut to its range. Of a plant.
        num_frequencies: at which µ of each part is bounded.
        seed: of the directions.

    Raises:
        ValueError: a controller with a memory, a plant without parameters, a nominal loop that is not stable.

    Source: S. Skogestad and I. Postlethwaite, Multivariable Feedback Control (2005), sections 8.2 and 8.7.

    >>> plant = systems.make("gantry_crane")
    >>> found = robust.robust_stability(simulation.Problem.of(plant).K, plant)
    >>> found.certified, found.refuted > 1
    (True, True)
    """
    seed = checks.whole("seed", seed, 0)
    loop = UncertainLoop.of(controller, plant, spread)
    tried = loop.tried(np.random.default_rng(seed))
    refuted, parameters, at = _refuted(loop, tried)
    most = _SHARE * min(refuted, loop.plants.beyond)
    multiple = _covered(loop, max(most, _WHOLE) if refuted > _WHOLE else most, tried, num_frequencies)
    *_, lost = loop.pulled_out(tried, np.zeros(tried.shape[1]), np.ones(tried.shape[1]))
    return RobustStability(1 / multiple if multiple else np.inf, at, refuted, parameters, lost)


def _halves(
    loop: UncertainLoop, box: Any, tried: np.ndarray, count: int, performance: Any = None, *, long: bool = False
) -> list[Any]:
    """The box |d − center| ≤ half in two, across the direction that matters most; none if all within is certified.

    Performance is the root of a weight and the gain from the inputs' disturbances to it, and more frequencies.
    ``long``: with a repeated block for a direction of several ranks, which takes longer and is true more often.
    """
    nominal, into, out, blocks, owners, _ = loop.pulled_out(tried, *box)
    closed, n, (center, half) = loop.closed(nominal), len(nominal), box
    across = half
    if np.abs(np.linalg.eigvals(closed)).max() < 1:
        w, seen = loop.frequencies(closed, count), out @ np.concatenate([np.eye(n), -loop.K])
        if performance is None:
            response = response_at(closed, into, seen, np.exp(1j * w))
        else:
            root, gain, peaks = performance
            into, z = np.hstack([into, nominal[:, n:]]), np.exp(1j * np.union1d(w, peaks))
            response = response_at(closed, into, np.vstack([seen, root / gain]), z)
            response[:, : len(out), -len(loop.K) :] += out[:, n:]  # the blocks see the disturbed input
            blocks = [*blocks, (len(loop.K), n)]
        repeated = [(-int(k), 0) for k in np.bincount(owners) if k] + blocks[len(owners) :]
        if below_one(response, blocks) or (long and below_one(response, repeated, _LONG)):
            return []
        across = np.bincount(owners, np.abs(np.diagonal(response, 0, 1, 2)).max(0)[: len(owners)], len(half))
    move = 0.5 * half * (np.arange(len(half)) == np.argmax(across))
    return [(center + side * move, half - move) for side in (-1, 1)]


def _covered(loop: UncertainLoop, most: float, tried: np.ndarray, *how: Any) -> float:
    """The multiple of the box up to which boxes are certified that cover it."""
    one = np.ones(loop.plants.directions)
    budget = int(np.clip(_WORK / len(loop.pulled_out(tried, 0 * one, one)[2]) ** 3, _LEAST, _BOXES))
    at_once = (m for m in _AT_ONCE * most if not _halves(loop, (0 * one, m * one), tried, *how, long=True))
    core = float(next(at_once, 0.0))
    left = [(0 * one, most * one)] if core < most else []
    begins = [0.0] * len(left)
    while left and budget:
        first = left.pop(int(np.argmin(begins)))
        if np.add(np.abs(first[0]), first[1]).max() > core * (1 + 1e-9):
            left += _halves(loop, first, tried, *how)
            budget -= 1
        begins = [float(np.maximum(np.abs(center) - half, 0).max()) for center, half in left]
    return max(core, min(begins, default=most))


def _refuted(loop: UncertainLoop, tried: np.ndarray) -> tuple[float, dict[str, float], float]:
    """The least multiple of the box at which a loop was found unstable, the parameters there, and its frequency."""
    directions = tried / np.abs(tried).max(axis=1, keepdims=True)

    def unstable(at: np.ndarray) -> np.ndarray:
        loops = loop.closed(loop.joint(at[:, None] * directions))
        grows = np.abs(np.linalg.eigvals(np.nan_to_num(loops))).max(-1)
        return ~np.isfinite(loops).all((-1, -2)) | (grows >= 1)

    low, high = np.zeros(len(directions)), np.full(len(directions), loop.plants.beyond)
    ends = unstable(high)
    for _ in range(24):
        middle = (low + high) / 2
        grows = unstable(middle)
        low, high = np.where(grows, low, middle), np.where(grows, middle, high)
    if not ends.any():
        return np.inf, {}, np.inf
    first = int(np.argmin(np.where(ends, high, np.inf)))
    move = high[first] * directions[first]
    values = np.linalg.eigvals(np.nan_to_num(loop.closed(loop.joint(move[None]))[0]))
    at = float(np.abs(np.angle(max(values, key=abs))) / loop.plants.plant.dt)
    return float(high[first]), loop.plants.parameters(move), at


# Worst case gain -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class WorstCaseGain:
    """Of a loop from disturbances of the inputs to the root of the stage cost, rms over rms at the worst frequency.

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
    weights at the plant's own parameters. The gain enters µ as one more full block (main loop theorem): γ is a bound
    where µ with z/γ is below 1 in all parts of the box; some multiples of the largest gain found are tried.

    Source: K. Zhou, J. C. Doyle and K. Glover, Robust and Optimal Control (1996), chapter 11.

    >>> plant = systems.make("gantry_crane")
    >>> found = robust.worst_case_gain(simulation.Problem.of(plant).K, plant)
    >>> found.nominal < found.lower < found.upper < 2 * found.nominal
    True
    """
    seed = checks.whole("seed", seed, 0)
    loop = UncertainLoop.of(controller, plant, spread)
    tried, root = loop.tried(np.random.default_rng(seed)), _root(loop.stage)
    gains, peaks, moves = _found(loop, root, tried)
    most = int(np.argmax(gains))
    # where loops of the box have their peaks, or the bound might be below what was found
    peaks = np.unique(peaks[np.isfinite(peaks)])
    bounds = (factor * float(gains[most]) for factor in (_FINER if np.isfinite(gains[most]) else ()))
    upper = next((b for b in bounds if _covered(loop, 1.0, tried, num_frequencies, (root, b, peaks)) >= 1), np.inf)
    return WorstCaseGain(float(gains[0]), float(gains[most]), upper, loop.plants.parameters(moves[most]))


def _root(weight: np.ndarray) -> np.ndarray:
    """F with FᵀF = weight."""
    size, vectors = np.linalg.eigh((weight + weight.T) / 2)
    return np.sqrt(np.maximum(size, 0))[:, None] * vectors.T


def _found(loop: UncertainLoop, root: np.ndarray, tried: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gains of the loops that are tried, the nominal one first, and where [rad a sample]; inf of one not stable."""
    moves = np.concatenate([np.zeros((1, loop.plants.directions)), tried])
    joint = loop.joint(moves)
    n = joint.shape[1]
    gains, peaks = np.full((2, len(moves)), np.inf)
    for i, (closed, B) in enumerate(zip(loop.closed(joint), joint[:, :, n:])):
        if np.abs(np.linalg.eigvals(closed)).max() < 1:
            gains[i], peaks[i] = control.hinf_norm(closed, B, root, np.zeros((n, B.shape[1])), dt=1.0)
    best = np.argsort(-gains, kind="stable")[:_PEAKS]
    return gains, np.where(np.isin(np.arange(len(gains)), best) | (np.arange(len(gains)) == 0), peaks, np.inf), moves
