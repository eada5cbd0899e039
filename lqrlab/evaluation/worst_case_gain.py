"""The most that a loop may become worse within the doubt about its plant: bounded from both sides."""

import dataclasses

import numpy as np

from lqrlab import control
from lqrlab.evaluation.uncertain_loop import UncertainLoop, uncertain
from lqrlab.systems import Plant, UncertainPlant

_FINER = 1.02  # factor between the gains that are tried, at least
_ROUNDS = 100


@dataclasses.dataclass(frozen=True)
class WorstCaseGain:
    """Of a loop from disturbances of the inputs to the root of the stage cost, rms over rms at the worst frequency.

    Attributes:
        nominal: at the plant's own parameters: the H∞ norm.
        lower: the largest that was found within the box, on the plant's own equations.
        upper: no parameters of the box have more, as far as frequencies and the sampled remainder can tell; inf where
            stability is not certified.
        parameters: where ``lower`` was found.
    """

    nominal: float
    lower: float
    upper: float
    parameters: dict[str, float]


def worst_case_gain(
    controller: object, plant: Plant | UncertainPlant, *, spread: float = 0.2, num_frequencies: int = 80, seed: int = 0
) -> WorstCaseGain:
    """Bounds on the largest gain of a loop over all parameters within a box.

    From disturbances at the plant's inputs, in units of their scales, to z with zᵀz = xᵀQx + uᵀRu + 2xᵀNu, the sampled
    weights at the plant's own parameters. The gain enters µ as one more full block (main loop theorem): the bound is
    the least gain γ, to within 2 %, at which µ with z/γ is below 1 at all frequencies.

    Args:
        controller, plant, spread, num_frequencies, seed: as of :func:`robust_stability`.

    Raises:
        ValueError: a controller with a memory, a plant without parameters, a nominal loop that is not stable.

    Source: K. Zhou, J. C. Doyle and K. Glover, Robust and Optimal Control (1996), chapter 11; A. Packard and J. Doyle,
    The complex structured singular value, Automatica 29 (1993).

    >>> plant = systems.make("gantry_crane")
    >>> found = evaluation.worst_case_gain(simulation.Problem.of(plant).K, plant)
    >>> found.nominal < found.lower < found.upper < 2 * found.nominal
    True
    """
    loop = UncertainLoop.of(controller, uncertain(plant, spread))
    nominal, into, out, blocks, _ = loop.pulled_out(np.random.default_rng(seed))
    n, m = len(nominal), len(loop.K)
    closed, root = loop.closed(nominal), _root(loop.stage)
    w = loop.frequencies(closed, num_frequencies)
    from_all = np.concatenate([into, nominal[:, n:]], axis=1)
    seen = np.concatenate([out @ np.concatenate([np.eye(n), -loop.K]), root])
    response = seen @ np.linalg.solve(np.exp(1j * w)[:, None, None] * np.eye(n) - closed, from_all)
    response[:, : len(out), -m:] += out[:, n:]  # the blocks see the disturbed input
    gains, moves = _found(loop, root, np.random.default_rng(seed))
    most = int(np.argmax(gains))
    upper = _upper(response, blocks, (m, n), float(gains[0]), len(out))
    return WorstCaseGain(float(gains[0]), float(gains[most]), upper, loop.plants.parameters(moves[most]))


def _root(weight: np.ndarray) -> np.ndarray:
    """F with FᵀF = weight."""
    size, vectors = np.linalg.eigh((weight + weight.T) / 2)
    return np.sqrt(np.maximum(size, 0))[:, None] * vectors.T


def _found(loop: UncertainLoop, root: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Gains of the loops that are tried, the nominal one first; inf of one that is not stable."""
    moves = np.concatenate([np.zeros((1, loop.plants.directions)), loop.tried(rng)])
    joint = loop.joint(moves)
    n = joint.shape[1]
    gains = np.full(len(moves), np.inf)
    for i, (closed, B) in enumerate(zip(loop.closed(joint), joint[:, :, n:])):
        if np.abs(np.linalg.eigvals(closed)).max() < 1:
            gains[i] = control.hinf_norm(closed, B, root, np.zeros((n, B.shape[1])), dt=1.0)[0]
    return gains, moves


def _upper(response: np.ndarray, blocks: list, performance: tuple[int, int], gain: float, seen: int) -> float:
    """The least gain, of those tried, at which µ is below 1 at all frequencies."""
    if control.mu(response[:, :seen, : -performance[0]], blocks).upper.max() >= 1:
        return np.inf
    for _ in range(_ROUNDS):
        scaled = response.copy()
        scaled[:, seen:] /= gain
        bound = control.mu(scaled, [*blocks, performance]).upper
        response = response[bound >= 1]  # µ falls as the gain grows: the others need no further look
        if not len(response):
            return gain
        gain *= max(_FINER, float(bound.max()))
    return np.inf
