"""A plant that is not quite known: all plants that it may be."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lqrlab.compute import checks
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
    """

    plant: Plant
    names: tuple[str, ...]
    moved: Callable[[Float[np.ndarray, "k d"]], Plant]
    directions: int
    beyond: float

    @classmethod
    def of(cls, plant: Plant, spread: float) -> "UncertainPlant":
        """Each parameter that varies known to ±``spread``, relative, 0 < spread ≤ 0.95, each for itself, cut to its
        range.

        Raises:
            ValueError: a plant without parameters that vary, a batch of plants.

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

        return cls(plant, names, moved, len(names), _MOST / spread)

    def parameters(self, move: Float[np.ndarray, " d"]) -> dict[str, float]:
        """Names and values of the parameters of one of the plants."""
        (there,) = self.moved(move[None])
        return {name: float(getattr(there, name)) for name in self.names}
