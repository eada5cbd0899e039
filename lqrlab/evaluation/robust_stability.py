"""Does one gain stabilise a plant for all its parameters: certified from within, refuted from without."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.simulation import LinearPolicy, Problem, bind
from lqrlab.systems import Plant, check_plant, parameter_fields

_TRIED = 256  # directions of the parameters that are tried, corners of the box first
_KEPT = 0.02  # share of a parameter's effect below which a further direction of it counts as unknown instead
_SLOW = 1e-4  # rad a sample, the lowest frequency but zero
_MOST = 0.95  # share of its value that a parameter may lose


@dataclasses.dataclass(frozen=True)
class RobustStability:
    """Of a gain on one plant whose parameters are known to ±spread, each for itself.

    Attributes:
        spread: the half-width, relative.
        mu: largest µ over the frequencies. Below 1 the loop is stable for all parameters within the spread, as far as
            the grid of frequencies and the remainder of the linear expansion, which was sampled, can tell.
        frequency: where that is [rad/s].
        refuted: the least multiple of the spread at which parameters were found that the gain does not stabilise, on
            the plant's own equations; inf if none was.
        parameters: these, by name.
        remainder: what the expansion lacks, relative to the effect of all parameters together.
    """

    spread: float
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
    controller: object, plant: Plant, *, spread: float = 0.2, num_frequencies: int = 80, seed: int = 0
) -> RobustStability:
    """Bounds, from both sides, on how far a plant's parameters may be from their values before a gain loses it.

    The sampled matrices are expanded in the parameters, [A B] + Σ δᵢ Mᵢ, by central differences over the whole
    spread; each δᵢ is a real block, as often repeated as Mᵢ has rank, and what the expansion lacks is a full block. µ
    of the loop's response then tells. From without, parameters are moved along random directions and to the corners of
    their box until the loop of the plant's own linearisation is unstable.

    Args:
        controller: what :func:`lqrlab.simulation.bind` makes a gain of: a gain, a design, a network of matrices.
        plant: one plant.
        spread: half-width of each parameter that varies, relative, 0 < spread < 1; cut to its range.
        num_frequencies: at which µ is computed.
        seed: of the directions.

    Raises:
        ValueError: a controller with a memory, a plant without parameters, a nominal loop that is not stable.

    Source: S. Skogestad and I. Postlethwaite, Multivariable Feedback Control (2005), sections 8.2 and 8.7; M. Steinbuch
    et al., European Control Conference 1991 (real blocks from an expansion of state-space matrices).

    >>> plant = systems.make("gantry_crane")
    >>> found = evaluation.robust_stability(simulation.Problem.of(plant).K, plant)
    >>> found.certified, found.refuted > 1
    (True, True)
    """
    check_plant(plant, one=True)
    checks.number("spread", spread, "a relative half-width above 0 and below 1", above=0, below=1)
    problem = Problem.of(plant, linear=True)
    policy = bind(controller, problem)
    if not isinstance(policy, LinearPolicy):
        raise ValueError(f"controller: expected one that is a gain on {plant.name}, but found {type(policy).__name__}")
    box = _Box.of(plant, spread, np.asarray(policy.K), problem)
    response, blocks, w, remainder = box.response(num_frequencies, np.random.default_rng(seed))
    bound = control.mu(response, blocks).upper
    refuted, parameters = box.refuted(np.random.default_rng(seed))
    peak = int(np.argmax(bound))
    at = float(w[peak]) / float(plant.dt)
    return RobustStability(spread, float(bound[peak]), at, refuted, parameters, remainder)


@dataclasses.dataclass(frozen=True)
class _Box:
    """The parameters that vary, and the loop of a gain in units of the signals' scales."""

    plant: Plant
    spread: float
    names: tuple[str, ...]
    K: Float[np.ndarray, "m n"]
    units: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, plant: Plant, spread: float, K: np.ndarray, problem: Problem) -> "_Box":
        names = tuple(name for name, field in parameter_fields(type(plant)).items() if field.metadata["vary"])
        if not names:
            raise ValueError(f"plant: expected one with parameters that vary, but {plant.name} has none")
        x, u = np.asarray(problem.scale_x), np.asarray(problem.scale_u)
        box = cls(plant, spread, names, K * x / u[:, None], (x, u))
        (nominal,) = box.joint(np.zeros((1, len(names))))
        size = np.abs(np.linalg.eigvals(box.closed(nominal))).max()
        if size >= 1:
            raise ValueError(f"controller: expected a gain that stabilises {plant.name} itself, but |z| = {size:.4f}")
        return box

    def moved(self, moves: Float[np.ndarray, "k p"]) -> Plant:
        """The plants whose parameters are moved by so many spreads."""
        fields, values = parameter_fields(type(self.plant)), {}
        for name, move in zip(self.names, moves.T):
            at = float(getattr(self.plant, name)) * (1 + np.maximum(self.spread * move, -_MOST))
            values[name] = jnp.asarray(np.clip(at, fields[name].metadata["low"], fields[name].metadata["high"]))
        many = self.plant.broadcast_to((len(moves),))
        return dataclasses.replace(many, **values)  # type: ignore[type-var]

    def joint(self, moves: Float[np.ndarray, "k p"]) -> Float[np.ndarray, "k n q"]:
        """[A B] of these plants, sampled, in the signals' scales."""
        (A, B), (x, u) = self.moved(moves).matrices(), self.units
        a, b = (np.asarray(m) for m in control.c2d(A, B, self.plant.dt))
        shape = (len(moves), *a.shape[-2:]), (len(moves), *b.shape[-2:])
        a, b = np.broadcast_to(a, shape[0]), np.broadcast_to(b, shape[1])
        return np.concatenate([a * x / x[:, None], b * u / x[:, None]], axis=-1)

    def closed(self, joint: Float[np.ndarray, "*k n q"]) -> Float[np.ndarray, "*k n n"]:
        """A − BK."""
        n = joint.shape[-2]
        return joint[..., :n] - joint[..., n:] @ self.K

    def response(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, list, np.ndarray, float]:
        """M(z) from what all blocks add to what they see, the blocks, the frequencies [rad a sample], the remainder."""
        p, n = len(self.names), len(self.K[0])
        ends = self.joint(np.concatenate([np.eye(p), -np.eye(p), np.zeros((1, p))]))
        effects, nominal = (ends[:p] - ends[p:-1]) / 2, ends[-1]
        into, out, blocks = [], [], []
        kept = np.zeros_like(effects)
        for i, effect in enumerate(effects):
            left, size, right = np.linalg.svd(effect, full_matrices=False)
            rank = int(np.sum(size > _KEPT * max(size[0], 1e-300))) if size[0] > 1e-12 else 0
            if rank:
                into.append(left[:, :rank] * np.sqrt(size[:rank]))
                out.append(np.sqrt(size[:rank, None]) * right[:rank])
                kept[i] = into[-1] @ out[-1]
                blocks.append((-rank, 0))
        inside = rng.uniform(-1, 1, (_TRIED, p))
        inside[: _TRIED // 2] = np.sign(inside[: _TRIED // 2])
        lacks = self.joint(inside) - nominal - np.tensordot(inside, kept, 1)
        before, behind, most = _cover(lacks)
        whole = np.linalg.norm(np.tensordot(inside, kept, 1), axis=(-2, -1)).max()
        into.append(most * before)
        out.append(behind)
        blocks.append((n, nominal.shape[1]))
        loop, C = self.closed(nominal), np.concatenate(out) @ np.concatenate([np.eye(n), -self.K])
        w = np.concatenate([[0.0], np.geomspace(_SLOW, np.pi, count - 1), np.abs(np.angle(np.linalg.eigvals(loop)))])
        w = np.unique(w)
        inverse = np.linalg.inv(np.exp(1j * w)[:, None, None] * np.eye(n) - loop)
        lost = np.linalg.norm(lacks, axis=(-2, -1)).max() / max(whole, 1e-300)
        return C @ inverse @ np.concatenate(into, axis=1), blocks, w, float(lost)

    def refuted(self, rng: np.random.Generator) -> tuple[float, dict[str, float]]:
        """The least multiple of the spread at which a loop was found unstable, and the parameters there."""
        directions = rng.uniform(-1, 1, (_TRIED, len(self.names)))
        directions[: _TRIED // 2] = np.sign(directions[: _TRIED // 2])
        directions /= np.abs(directions).max(axis=1, keepdims=True)

        def unstable(at: np.ndarray) -> np.ndarray:
            loops = self.closed(self.joint(at[:, None] * directions))
            grows = np.abs(np.linalg.eigvals(np.nan_to_num(loops))).max(-1)
            return ~np.isfinite(loops).all((-1, -2)) | (grows >= 1)

        low, high = np.zeros(_TRIED), np.full(_TRIED, _MOST / self.spread)
        ends = unstable(high)
        for _ in range(24):
            middle = (low + high) / 2
            grows = unstable(middle)
            low, high = np.where(grows, low, middle), np.where(grows, middle, high)
        if not ends.any():
            return np.inf, {}
        first = int(np.argmin(np.where(ends, high, np.inf)))
        (there,) = self.moved(high[first] * directions[first : first + 1])
        return float(high[first]), {name: float(getattr(there, name)) for name in self.names}


def _cover(lacks: Float[np.ndarray, "k n q"]) -> tuple[np.ndarray, np.ndarray, float]:
    """L, W and the least c with each matrix c L Δ W, ‖Δ‖ ≤ 1: as large as they are in each direction."""
    roots = []
    for square in (np.einsum("kij,klj->il", lacks, lacks), np.einsum("kji,kjl->il", lacks, lacks)):
        size, vectors = np.linalg.eigh(square)
        size = np.sqrt(np.maximum(size, 1e-6 * max(size[-1], 1e-300)))
        roots.append(vectors * np.sqrt(size) @ vectors.T)
    before, behind = roots
    inside = np.linalg.solve(before, lacks) @ np.linalg.inv(behind)
    return before, behind, float(np.linalg.norm(inside, 2, axis=(-2, -1)).max())
