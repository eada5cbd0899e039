"""Certificates of a gain over a box of parameters, from both sides: stability, and how much worse it may become."""

import dataclasses

import numpy as np

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.control.state_space import response_at
from lqrlab.extensions.robust.structured_singular_value import mu
from lqrlab.extensions.robust.uncertain_loop import UncertainLoop, UncertainPlant
from lqrlab.systems import Plant

_FINER, _MOST = 1.02, 1e6  # factors of the gain: to which it is bounded, and up to which it is looked for
_PEAKS = 8  # loops of the largest gains whose frequencies are looked at


@dataclasses.dataclass(frozen=True)
class RobustStability:
    """Of a gain on one plant whose parameters are known to within a box.

    Attributes:
        mu: largest µ over the frequencies. Below 1 the loop is stable for all parameters in the box, as far as the
            grid of frequencies and the remainder of the linear expansion, which was sampled, can tell.
        frequency: where that is [rad/s].
        refuted: the least multiple of the box at which parameters were found that the gain does not stabilise, on
            the plant's own equations; inf if none was.
        parameters: these, by name.
        remainder: what the expansion lacks, relative to the effect of all parameters together.
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

    From within by µ of the sampled loop expanded in the parameters, :meth:`UncertainLoop.pulled_out`. From without,
    parameters are moved along random directions and to the corners of their box until the loop is unstable.

    Args:
        controller: what :func:`lqrlab.simulation.bind` makes a gain of: a gain, a design, a network of matrices.
        plant: one plant; or all that it may be, such as a log allows (``fit.uncertain(probability=0.95)``).
        spread: half-width of each parameter that varies, relative, 0 < spread < 1; cut to its range. Of a plant.
        num_frequencies: at which µ is computed.
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
    nominal, into, out, blocks, remainder = loop.pulled_out(np.random.default_rng(seed))
    closed, n = loop.closed(nominal), len(nominal)
    w = loop.frequencies(closed, num_frequencies)
    seen = out @ np.concatenate([np.eye(n), -loop.K])
    bound = mu(response_at(closed, into, seen, np.exp(1j * w)), blocks).upper
    refuted, parameters = _refuted(loop, np.random.default_rng(seed))
    peak = int(np.argmax(bound))
    at = float(w[peak]) / float(loop.plants.plant.dt)
    return RobustStability(float(bound[peak]), at, refuted, parameters, remainder)


def _refuted(loop: UncertainLoop, rng: np.random.Generator) -> tuple[float, dict[str, float]]:
    """The least multiple of the box at which a loop was found unstable, and the parameters there."""
    directions = loop.tried(rng)
    directions /= np.abs(directions).max(axis=1, keepdims=True)

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
        return np.inf, {}
    first = int(np.argmin(np.where(ends, high, np.inf)))
    return float(high[first]), loop.plants.parameters(high[first] * directions[first])


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
    weights at the plant's own parameters. The gain enters µ as one more full block (main loop theorem): the bound is
    the least gain γ, to within 2 %, at which µ with z/γ is below 1 at all frequencies.

    Source: K. Zhou, J. C. Doyle and K. Glover, Robust and Optimal Control (1996), chapter 11.

    >>> plant = systems.make("gantry_crane")
    >>> found = robust.worst_case_gain(simulation.Problem.of(plant).K, plant)
    >>> found.nominal < found.lower < found.upper < 2 * found.nominal
    True
    """
    seed = checks.whole("seed", seed, 0)
    loop = UncertainLoop.of(controller, plant, spread)
    nominal, into, out, blocks, _ = loop.pulled_out(np.random.default_rng(seed))
    n, m = len(nominal), len(loop.K)
    closed, root = loop.closed(nominal), _root(loop.stage)
    gains, peaks, moves = _found(loop, root, np.random.default_rng(seed))
    most = int(np.argmax(gains))
    # where loops of the box have their peaks, or the bound might be below what was found
    w = np.union1d(loop.frequencies(closed, num_frequencies), np.unique(peaks[np.isfinite(peaks)]))
    from_all = np.concatenate([into, nominal[:, n:]], axis=1)
    seen = np.concatenate([out @ np.concatenate([np.eye(n), -loop.K]), root])
    response = response_at(closed, from_all, seen, np.exp(1j * w))
    response[:, : len(out), -m:] += out[:, n:]  # the blocks see the disturbed input
    upper = _upper(response, blocks, (m, n), float(gains[most]), len(out))
    return WorstCaseGain(float(gains[0]), float(gains[most]), upper, loop.plants.parameters(moves[most]))


def _root(weight: np.ndarray) -> np.ndarray:
    """F with FᵀF = weight."""
    size, vectors = np.linalg.eigh((weight + weight.T) / 2)
    return np.sqrt(np.maximum(size, 0))[:, None] * vectors.T


def _found(
    loop: UncertainLoop, root: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gains of the loops that are tried, the nominal one first, and where [rad a sample]; inf of one not stable."""
    moves = np.concatenate([np.zeros((1, loop.plants.directions)), loop.tried(rng)])
    joint = loop.joint(moves)
    n = joint.shape[1]
    gains, peaks = np.full((2, len(moves)), np.inf)
    for i, (closed, B) in enumerate(zip(loop.closed(joint), joint[:, :, n:])):
        if np.abs(np.linalg.eigvals(closed)).max() < 1:
            gains[i], peaks[i] = control.hinf_norm(closed, B, root, np.zeros((n, B.shape[1])), dt=1.0)
    best = np.argsort(-gains, kind="stable")[:_PEAKS]
    return gains, np.where(np.isin(np.arange(len(gains)), best) | (np.arange(len(gains)) == 0), peaks, np.inf), moves


def _upper(response: np.ndarray, blocks: list, performance: tuple[int, int], gain: float, seen: int) -> float:
    """The least gain, to a factor of _FINER, at which µ is below 1 at all frequencies; inf beyond _MOST times."""
    if mu(response[:, :seen, : -performance[0]], blocks).upper.max() >= 1:
        return np.inf

    def larger(response: np.ndarray, gain: float) -> np.ndarray:
        """The frequencies at which the gain may be larger."""
        scaled = response.copy()
        scaled[:, seen:] /= gain
        return response[mu(scaled, [*blocks, performance]).upper >= 1]

    low, high, factor = gain, gain, _FINER
    while len(left := larger(response, high)):
        response = left  # µ falls as the gain grows: the others need no further look
        low, high, factor = high, high * factor, factor**1.5
        if high > _MOST * gain:
            return np.inf
    while high > low * _FINER:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if len(larger(response, middle)) else (low, middle)
    return high
