"""A plant that is not quite known, and the loop of a gain on it."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.simulation import LinearPolicy, Problem, bind
from lqrlab.systems.plant import Plant, check_plant, parameter_fields

_MOST = 0.95  # share of its value that a parameter may lose


@dataclasses.dataclass(frozen=True, eq=False)
class UncertainPlant:
    """The plants ``moved(d)`` for all d with every |dᵢ| ≤ 1.

    Attributes:
        plant: at d = 0.
        names: of the parameters that differ.
        moved: from d ``[k, directions]`` to a batch of k plants, also beyond ±1.
        directions: how many there are.
        beyond: the multiple of ±1 up to which it is worth to look further.
        ends: the least and the largest of each of d that make a difference: beyond them a parameter's range ends.
    """

    plant: Plant
    names: tuple[str, ...]
    moved: Callable[[Float[np.ndarray, "k d"]], Plant]
    directions: int
    beyond: float
    ends: tuple[Float[np.ndarray, " d"] | float, Float[np.ndarray, " d"] | float] = (-np.inf, np.inf)

    @classmethod
    def of(cls, plant: Plant, spread: float) -> "UncertainPlant":
        """Each parameter that varies known to ±``spread``, relative, 0 < spread ≤ 0.95, each for itself, cut to its
        range.

        >>> uncertain = robust.UncertainPlant.of(systems.make("cart_pole"), spread=0.1)
        >>> uncertain.moved(np.ones((1, uncertain.directions))).pole_length[0] / uncertain.plant.pole_length
        Array(1.1, dtype=float64)
        """
        check_plant(plant, one=True)
        spread = checks.number("spread", spread, "a relative half-width above 0 and below 1", above=0, below=1)
        if spread > _MOST:
            raise ValueError(
                f"spread: expected at most {_MOST}, the share that a parameter may lose, but found {spread:g}"
            )
        fields = parameter_fields(type(plant))
        names = tuple(name for name, field in fields.items() if field.metadata["vary"])
        if not names:
            raise ValueError(f"plant: expected one with parameters that vary, but {plant.name} has none")

        def moved(moves: Float[np.ndarray, "k d"]) -> Plant:
            values = {}
            for name, move in zip(names, moves.T):
                at = float(getattr(plant, name)) * (1 + np.maximum(spread * move, -_MOST))
                values[name] = jnp.asarray(np.clip(at, fields[name].metadata["low"], fields[name].metadata["high"]))
            return dataclasses.replace(plant.broadcast_to((len(moves),)), **values)  # type: ignore[type-var]

        values = np.array([float(getattr(plant, name)) for name in names])
        ranges = np.array([[fields[name].metadata[end] for name in names] for end in ("low", "high")], float)
        ends = np.divide(ranges, values, out=np.full_like(ranges, [[-np.inf], [np.inf]]), where=values != 0)
        least, most = np.sort((ends - 1) / spread, axis=0)
        return cls(plant, names, moved, len(names), _MOST / spread, (least, most))

    def parameters(self, move: Float[np.ndarray, " d"]) -> dict[str, float]:
        """Names and values of the parameters of one of the plants."""
        (there,) = self.moved(move[None])
        return {name: float(getattr(there, name)) for name in self.names}


_TRIED = 256  # directions of the parameters that are tried, corners of the box first
_SLOW, _MODES = 1e-4, 60  # rad a sample, the lowest frequency but zero; of how many members modes are looked at


@dataclasses.dataclass(frozen=True, eq=False)
class UncertainLoop:
    """A gain on an uncertain plant, sampled, in units of the signals' scales.

    Attributes:
        plants: that the plant may be.
        K: u = −Kx, in these units.
        scales: of states and inputs.
        stage: Q − KᵀNᵀ − NK + KᵀRK of a sample at the nominal parameters, in these units.
    """

    plants: UncertainPlant
    K: Float[np.ndarray, "m n"]
    scales: tuple[np.ndarray, np.ndarray]
    stage: Float[np.ndarray, "n n"]

    @classmethod
    def of(cls, controller: object, plant: Plant | UncertainPlant, spread: float) -> "UncertainLoop":
        """The loop of what is a gain on the nominal plant and stabilises it, else a ValueError.

        A plant has its parameters known to ±spread, unless it comes as an uncertain one.
        """
        plants = plant if isinstance(plant, UncertainPlant) else UncertainPlant.of(plant, spread)
        problem = Problem.of(plants.plant, linear=True)
        wanted = f"one that is a gain on {plants.plant.name}"
        policy = checks.instance("controller", bind(controller, problem), LinearPolicy, wanted)
        x, u = np.asarray(problem.scale_x), np.asarray(problem.scale_u)
        stage = np.asarray(problem.stage_weight(policy.K)) * x * x[:, None]
        loop = cls(plants, np.asarray(policy.K) * x / u[:, None], (x, u), stage)
        (nominal,) = loop.joint(np.zeros((1, plants.directions)))
        size = np.abs(np.linalg.eigvals(loop.closed(nominal))).max()
        if size >= 1:
            raise ValueError(
                f"controller: expected a gain that stabilises {plants.plant.name} itself, but |z| = {size:.4f}"
            )
        return loop

    def joint(self, moves: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k n q"]:
        """[A B] of moved plants."""
        (A, B), (x, u) = self.plants.moved(moves).matrices(), self.scales
        a, b = (np.asarray(m) for m in control.c2d(A, B, self.plants.plant.dt))
        shape = (len(moves), *a.shape[-2:]), (len(moves), *b.shape[-2:])
        a, b = np.broadcast_to(a, shape[0]), np.broadcast_to(b, shape[1])
        return np.concatenate([a * x / x[:, None], b * u / x[:, None]], axis=-1)

    def closed(self, joint: Float[np.ndarray, "*k n q"]) -> Float[np.ndarray, "*k n n"]:
        """A − BK; large where it is not finite."""
        n = joint.shape[-2]
        return np.nan_to_num(joint[..., :n] - joint[..., n:] @ self.K, nan=1e9, posinf=1e9, neginf=-1e9)

    def tried(self, rng: np.random.Generator) -> Float[np.ndarray, "k d"]:
        """Corners of the box, all if these are few, and points within it."""
        p = self.plants.directions
        inside = rng.uniform(-1, 1, (_TRIED, p))
        inside[: _TRIED // 2] = np.sign(inside[: _TRIED // 2])
        if 2**p <= _TRIED // 2:
            inside[: 2**p] = 1.0 - 2.0 * (np.arange(2**p)[:, None] >> np.arange(p) & 1)
        return inside

    def frequencies(self, poles: np.ndarray, count: int) -> Float[np.ndarray, " f"]:
        """Of a grid up to half the sampling frequency, of the first loop's poles and others' slowest [rad a sample]."""
        count = checks.whole("num_frequencies", count, 2)
        slowest = np.abs(np.angle(poles[np.arange(len(poles)), np.abs(poles).argmax(1)]))
        others = np.quantile(slowest, np.linspace(0, 1, _MODES), method="nearest")
        return np.unique(
            np.concatenate([[0.0], np.geomspace(_SLOW, np.pi, count - 1), np.abs(np.angle(poles[0])), others])
        )
