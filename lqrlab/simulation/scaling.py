"""Problems in units, and at the size, that all plants share, and the part of them that a controller knows."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import pytree
from lqrlab.simulation.noise import Correlated, Noise
from lqrlab.systems import Coordinates, pad_matrix
from lqrlab.systems.coordinates import SHAPES, widened


@pytree
@dataclasses.dataclass(frozen=True)
class Told:
    """A view of a problem (or a batch) in scaled, padded coordinates, for networks and learning controllers.

    Attributes:
        coordinates: units of the signals that the controller is given, and with their masks how many there are.
        steps: how far state i moves in a sample time where it is the integral of state j, which is one unit: dt times
            j's unit over i's ``[*batch, 12, 12]``.
        noise, sensor_noise: standard deviations of the disturbance of the scaled state at each step, and of what is
            measured of it; root mean square over the states.
        limit: of the scaled inputs, ±, the least of them; what is asked for beyond it does not arrive.
        A, B: the sampled plant, zero in padding; None if only units are told.
        Q, R, N: weights of a step, zero in padding but for the diagonal of R; None if only units are told.
    """

    coordinates: Coordinates
    steps: Float[Array, "*batch n n"]
    noise: Float[Array, "*batch"]
    sensor_noise: Float[Array, "*batch"]
    limit: Float[Array, "*batch"]
    A: Float[Array, "*batch n n"] = None  # type: ignore[assignment]
    B: Float[Array, "*batch n m"] = None  # type: ignore[assignment]
    Q: Float[Array, "*batch n n"] = None  # type: ignore[assignment]
    R: Float[Array, "*batch m m"] = None  # type: ignore[assignment]
    N: Float[Array, "*batch n m"] = None  # type: ignore[assignment]

    @classmethod
    def units(
        cls,
        coordinates: Coordinates,
        dt: ArrayLike,
        *,
        noise: ArrayLike = 0.0,
        sensor_noise: ArrayLike = 0.0,
        limit: ArrayLike = np.inf,
        unit: Coordinates | None = None,
    ) -> Self:
        """Units, sample time dt [s], noise and limit alone, of the signals that the controller is given.

        ``unit`` are those of the plant's signals, where those that are given are scaled already.
        """
        scale = jnp.asarray((coordinates if unit is None else unit).scale_x, float)
        lead = scale.shape[:-1]
        dt = jnp.broadcast_to(jnp.asarray(dt, float), lead)
        steps = dt[..., None, None] * scale[..., None, :] / scale[..., :, None]
        sizes = (jnp.broadcast_to(jnp.asarray(a, float), lead) for a in (noise, sensor_noise, limit))
        return cls(coordinates, steps, *sizes)

    @property
    def state_mask(self) -> Float[Array, "*batch n"]:
        """1 where a state exists, 0 in padding."""
        return self.coordinates.state_mask

    @property
    def input_mask(self) -> Float[Array, "*batch m"]:
        """1 where an input exists, 0 in padding."""
        return self.coordinates.input_mask

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes."""
        return self.noise.shape

    def __getitem__(self, index: object) -> Self:
        """The view of some of the plants."""
        return jax.tree.map(lambda a: a[index], self)

    def astype(self, dtype: np.dtype) -> Self:
        """The same with all floating numbers of this type."""
        return jax.tree.map(lambda a: a.astype(dtype), self)


def scaled(problem: Any) -> Any:
    """A problem in units of its signals' scales, padded: what is added stands still and costs nothing."""
    units, changed = problem.coordinates, {}
    n, m = units.n_max, units.m_max
    for name, axes in SHAPES.items():
        if (a := getattr(problem, name)) is not None:
            changed[name] = units.zero_padding(units.scale(name, a), *axes)
    absent = problem.dt[..., None] * (1 - units.input_mask)  # dt times 1, as sampling the padded plant gives
    eye = jnp.broadcast_to(jnp.eye(m, dtype=absent.dtype), (*absent.shape, m))
    changed["R"] += (absent[..., None] * eye).astype(problem.R.dtype)
    if problem.limits is not None:
        changed["limits"] = problem.limits.scaled(problem.scale_x, problem.scale_u, n, m)
    scales = (problem.scale_x, n), (problem.scale_x, n), (problem.scale_u, m)
    changed["noise"] = Noise(*(_padded(a, *scale) for a, scale in zip(problem.noise, scales)))
    changed |= dict.fromkeys(("plant", "continuous", "x_eq", "u_eq"))
    return dataclasses.replace(problem, **changed, linear=True, substeps=1, in_scales=True)


def _padded(spread: Array | Correlated | None, scale: Array, size: int) -> Array | Correlated | None:
    """Noise in units of a scale, none in padding."""
    if isinstance(spread, Correlated):
        return Correlated(pad_matrix(spread.root / scale[..., :, None], size, size))
    return None if spread is None else widened(spread / scale, size, 0.0)
