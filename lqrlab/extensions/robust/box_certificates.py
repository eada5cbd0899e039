"""Certificates of a gain over a box of parameters, from both sides: stability, and how much worse it may become."""

import dataclasses
from typing import Any, Self

import numpy as np

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.control.state_space import response_at
from lqrlab.extensions.robust.structured_singular_value import below_one
from lqrlab.extensions.robust.uncertain_loop import Blocks, PulledOut, UncertainLoop, UncertainPlant
from lqrlab.systems import Plant

_FINER, _MOST = 1.02, 1e6  # factors of the gain: to which it is bounded, and up to which it is looked for
_PEAKS = 8  # loops of the largest gains whose frequencies are looked at
_SHARE, _WHOLE = (
    0.88,
    1.001,
)  # of the multiple that is refuted: up to which certificates are looked for; at least, above it
_NEAR = 1.1  # times the largest gain found: the bound that is tried in parts of the box, before each has its own
_BOXES, _LEAST, _WORK = 400, 12, 4e5  # boxes that a box is cut into, at most; times the cube of the blocks' size
_LEVELS, _SMALLER, _HALVINGS = 7, 0.55, 3  # of the multiple that is certified at once
_LONG = 60  # turns for it


@dataclasses.dataclass(frozen=True)
class RobustStability:
    """Of a gain on one plant whose parameters are known to within a box.

    Attributes:
        mu: one over the multiple of the box that is certified, inf if none is. Below 1 the loop is stable for all
            parameters in the box, as far as the grids of frequencies and the remainders of the linear expansions,
            which were sampled, can tell.
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
    unstable. From within, nearly as large a box is cut into parts until µ of the sampled loop, expanded in the
    parameters of each part (:meth:`UncertainLoop.pulled_out`), is below 1; or until there are too many parts, and what
    is certified then counts.

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
    box = _Box.of(loop, num_frequencies, tried)
    most = _SHARE * min(refuted, loop.plants.beyond)
    multiple, _ = _covered(box, max(most, _WHOLE) if refuted > _WHOLE else most)
    with np.errstate(divide="ignore"):
        return RobustStability(float(1 / np.float64(multiple)), at, refuted, parameters, box.parts().lost)


@dataclasses.dataclass(frozen=True)
class _Box:
    """A box of parameters of a loop: all with |d − center| ≤ half.

    Attributes:
        count, tried: number of frequencies; points within [−1, 1] at which the expansion is checked.
        peaks: more frequencies [rad a sample].
        root: of the weight whose gain from the inputs' disturbances is to be below ``gain``; None for stability alone.
    """

    loop: UncertainLoop
    center: np.ndarray
    half: np.ndarray
    count: int
    tried: np.ndarray
    peaks: np.ndarray
    root: np.ndarray | None = None
    gain: float = np.inf

    @classmethod
    def of(cls, loop: UncertainLoop, count: int, tried: np.ndarray, peaks: Any = (), **more: Any) -> Self:
        """The box of all that the plant may be."""
        one = np.ones(loop.plants.directions)
        return cls(loop, 0 * one, one, count, tried, np.array(peaks, float), **more)

    def parts(self) -> PulledOut:
        """What differs within the box."""
        return self.loop.pulled_out(self.tried, self.center, self.half)

    @property
    def near(self) -> float:
        """The multiple of the whole box at which this one begins."""
        return float(np.maximum(np.abs(self.center) - self.half, 0).max())

    def response(self) -> tuple[np.ndarray, Blocks, np.ndarray] | None:
        """At the frequencies what the blocks see of what they do, the gain's as the last; blocks; whose they are.

        None if the loop at the centre is not stable.
        """
        nominal, into, out, blocks, owners, _ = self.parts()
        closed, n = self.loop.closed(nominal), len(nominal)
        if not np.abs(np.linalg.eigvals(closed)).max() < 1:
            return None
        z = np.exp(1j * np.union1d(self.loop.frequencies(closed, self.count), self.peaks))
        seen = out @ np.concatenate([np.eye(n), -self.loop.K])
        if self.root is None:
            return response_at(closed, into, seen, z), blocks, owners
        response = response_at(closed, np.hstack([into, nominal[:, n:]]), np.vstack([seen, self.root]), z)
        response[:, : len(out), into.shape[1] :] += out[:, n:]  # the blocks see the disturbed input
        response[:, len(out) :] /= self.gain
        return response, [*blocks, (nominal.shape[1] - n, n)], owners

    def holds(self) -> bool:
        """True if all within is certified; a direction of several ranks is one repeated block, which takes longer."""
        if (found := self.response()) is None:
            return False
        response, blocks, owners = found
        repeated: Blocks = [(-int(count), 0) for count in np.bincount(owners) if count]
        return below_one(response, blocks) or below_one(response, [*repeated, *blocks[len(owners) :]], _LONG)

    def halves(self) -> "list[_Box] | None":
        """None if all within is certified; else the box in two, across the direction that matters most."""
        found, across = self.response(), self.half
        if found is not None:
            response, blocks, owners = found
            if below_one(response, blocks):
                return None
            each = np.arange(len(owners))
            across = np.bincount(owners, np.abs(response[:, each, each]).max(0), len(self.half))
        move = 0.5 * self.half * (np.arange(len(self.half)) == np.argmax(across))
        half = self.half - move
        return [dataclasses.replace(self, center=self.center + side * move, half=half) for side in (-1, 1)]


def _covered(box: _Box, most: float) -> tuple[float, list[_Box]]:
    """The multiple of the box up to which boxes are certified that cover it, and those that are left to look at."""
    budget = int(np.clip(_WORK / len(box.parts().out) ** 3, _LEAST, _BOXES))
    core, fails = 0.0, most
    if box.root is None:
        for multiple in sorted([*most * _SMALLER ** np.arange(_LEVELS), min(most, _WHOLE)], reverse=True):
            if dataclasses.replace(box, half=multiple * box.half).holds():
                core = multiple
                break
            fails = multiple
        for _ in range(_HALVINGS if core < most else 0):
            middle = (core + fails) / 2
            held = dataclasses.replace(box, half=middle * box.half).holds()
            core, fails = (middle, fails) if held else (core, middle)
    left = [dataclasses.replace(box, half=most * box.half)] if core < most else []
    while left and budget:
        left.sort(key=lambda one: -one.near)
        first = left.pop()
        if (np.abs(first.center) + first.half).max() > core * (1 + 1e-9):
            left += first.halves() or []
            budget -= 1
    return max(core, min((one.near for one in left), default=most)), left


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
    at = np.abs(np.angle(values[np.argmax(np.abs(values))])) / float(loop.plants.plant.dt)
    return float(high[first]), loop.plants.parameters(move), float(at)


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
    where µ with z/γ is below 1 at all frequencies. The box is cut into parts until that is so at 1.1 times the largest
    gain that was found, or there are too many; of those left the least γ counts, to within 2 %.

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
    upper = np.inf
    if np.isfinite(gains[most]):
        # where loops of the box have their peaks, or the bound might be below what was found
        peaks = np.unique(peaks[np.isfinite(peaks)])
        upper = _NEAR * float(gains[most])
        box = _Box.of(loop, num_frequencies, tried, peaks, root=root, gain=upper)
        for one in _covered(box, 1.0)[1]:
            upper = _upper(one, upper)
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


def _upper(box: _Box, gain: float) -> float:
    """The least gain ≥ ``gain``, to a factor of _FINER, with µ below 1 in the box; inf beyond _MOST times that."""

    def held(gain: float) -> bool:
        return dataclasses.replace(box, gain=gain).halves() is None

    low, high, factor = gain, gain, _FINER
    while not held(high):
        low, high, factor = high, high * factor, factor**1.5
        if not high <= _MOST * gain:
            return np.inf
    while high > low * _FINER:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if held(middle) else (middle, high)
    return high
