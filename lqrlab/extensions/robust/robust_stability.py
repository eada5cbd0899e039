"""Does one gain stabilise a plant for all its parameters: certified from within, refuted from without."""

import dataclasses

import numpy as np

from lqrlab.compute import checks
from lqrlab.extensions.robust.structured_singular_value import mu
from lqrlab.extensions.robust.uncertain_loop import UncertainLoop, uncertain
from lqrlab.extensions.robust.uncertain_plant import UncertainPlant
from lqrlab.systems import Plant


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
    loop = UncertainLoop.of(controller, uncertain(plant, spread))
    nominal, into, out, blocks, remainder = loop.pulled_out(np.random.default_rng(seed))
    closed, n = loop.closed(nominal), len(nominal)
    w = loop.frequencies(closed, num_frequencies)
    inverse = np.linalg.inv(np.exp(1j * w)[:, None, None] * np.eye(n) - closed)
    bound = mu(out @ np.concatenate([np.eye(n), -loop.K]) @ inverse @ into, blocks).upper
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
