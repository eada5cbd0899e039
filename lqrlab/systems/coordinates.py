"""Scaled, padded coordinates: the only place where states, inputs, gains and costs change units or size.

x̃ = x / scale_x and ũ = u / scale_u make each signal of order one; with Bryson's weights Q and R are the identity
in them. Plants of all sizes share one shape: entries beyond a plant's n states and m inputs are padding.
All functions take NumPy and JAX arrays: NumPy arrays stay NumPy arrays, on the host.
"""

import dataclasses
from types import ModuleType
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lqrlab.compute import as_jax, linalg, pytree
from lqrlab.compute.checks import instance, number, real, traced, whole
from lqrlab.systems.custom import Linear
from lqrlab.systems.plant import Arrays, Plant

N_MAX, M_MAX = 12, 6
"""States and inputs that plants of different families are padded to."""

Letter = Literal["x", "u"]
SHAPES: dict[str, tuple[Letter, Letter]] = {
    "A": ("x", "x"),
    "B": ("x", "u"),
    "Q": ("x", "x"),
    "R": ("u", "u"),
    "N": ("x", "u"),
    "K": ("u", "x"),
    "P": ("x", "x"),
}
"""Signals that the rows and columns of a problem's matrices stand for."""
_MAPS = "ABK"  # they map columns to rows, the others weigh both

T = TypeVar("T", Array, np.ndarray)


@pytree
@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Units of a plant's signals (or of a batch of plants), padded to one size: (12, 6) unless asked for another.

    Attributes:
        scale_x, scale_u: what one unit is, in SI units ``[*batch, 12]``, ``[*batch, 6]``; one in padding.
        state_mask, input_mask: 1 where a state or input exists, 0 in padding; shapes as the scales.

    >>> coordinates = systems.Coordinates.of(systems.make("pendulum"))
    >>> coordinates.state_mask[:3].tolist(), coordinates.scale_state(jnp.array([0.3, 0.0])).shape
    ([1.0, 1.0, 0.0], (12,))
    """

    scale_x: Float[Arrays, "*batch n_max"]
    scale_u: Float[Arrays, "*batch m_max"]
    state_mask: Float[Arrays, "*batch n_max"]
    input_mask: Float[Arrays, "*batch m_max"]

    @classmethod
    def of(cls, plant: Plant, *, larger: bool = False) -> "Coordinates":
        """The coordinates of a plant or a batch, from the scales of its signals.

        Args:
            plant: one or a batch.
            larger: a plant that does not fit has coordinates of its own size, instead of an error.
        """
        lead, sizes = plant.batch_shape, {}
        if larger:
            sizes = {"n_max": max(plant.n, N_MAX), "m_max": max(plant.m, M_MAX)}
        else:
            check_size(plant.n, plant.m, plant)
        given = plant.scales
        host = not traced(*given, jnp.zeros(()))  # where nothing is compiled for each size
        scales = [np.asarray(s) if host else s for s in given]
        full = (_namespace(s).broadcast_to(s, (*lead, s.shape[-1])) for s in scales)
        found = cls.from_scales(*full, **sizes)
        stays = all(isinstance(s, np.ndarray) for s in given)
        return found if stays or not host else jax.tree.map(as_jax, found)

    @classmethod
    def from_scales(
        cls, scale_x: Float[T, "*batch n"], scale_u: Float[T, "*batch m"], *, n_max: int = N_MAX, m_max: int = M_MAX
    ) -> "Coordinates":
        """The coordinates with scales ``[*batch, n]``, ``[*batch, m]`` in the plant's dimensions.

        Raises:
            ValueError: more states or inputs than the padded size.
        """
        real("scale_x", scale_x), real("scale_u", scale_u)
        check_size(scale_x.shape[-1], scale_u.shape[-1], n_max=n_max, m_max=m_max)
        both = ((scale_x, n_max), (scale_u, m_max))
        masks = (widened(_namespace(s).ones_like(s), size, 0.0) for s, size in both)
        return cls(*(widened(s, size, 1.0) for s, size in both), *masks)  # type: ignore[arg-type]

    def __getitem__(self, index: object) -> "Coordinates":
        """The coordinates of some members of the batch."""
        return jax.tree.map(lambda a: a[index], self)

    def widened(self, n_max: int, m_max: int) -> "Coordinates":
        """The same with more padding."""
        x, u = widened(self.scale_x, n_max, 1.0), widened(self.scale_u, m_max, 1.0)
        return Coordinates(x, u, widened(self.state_mask, n_max, 0.0), widened(self.input_mask, m_max, 0.0))

    @property
    def n_max(self) -> int:
        """States, with padding."""
        return self.scale_x.shape[-1]

    @property
    def m_max(self) -> int:
        """Inputs, with padding."""
        return self.scale_u.shape[-1]

    @property
    def units(self) -> "Coordinates":
        """Coordinates in which these scales are one: of signals that are scaled already."""
        x, u = (_namespace(s).ones_like(s) for s in (self.scale_x, self.scale_u))
        return Coordinates(x, u, self.state_mask, self.input_mask)

    # Signals: the axes of the batch lead those of x and u, further ones may follow them.

    def scale_state(self, x: Float[T, "*batch_extra n"]) -> Float[T, "*batch_extra n_max"]:
        """x ``[*batch, *extra, n]`` in SI units → x̃ ``[*batch, *extra, 12]``, zero in padding."""
        return widened(x / _per_vector(self.scale_x, x), self.n_max, 0.0)

    def scale_input(self, u: Float[T, "*batch_extra m"]) -> Float[T, "*batch_extra m_max"]:
        """u ``[*batch, *extra, m]`` in SI units → ũ ``[*batch, *extra, 6]``, zero in padding."""
        return widened(u / _per_vector(self.scale_u, u), self.m_max, 0.0)

    def unscale_input(self, u: Float[T, "*batch_extra m_max"], m: int) -> Float[T, "*batch_extra m"]:
        """ũ ``[*batch, *extra, 6]`` → u ``[*batch, *extra, m]`` in SI units."""
        return u[..., :m] * _per_vector(self.scale_u, u[..., :m])

    # Matrices, one for each member of the batch.

    def scale(self, name: str, a: Float[T, "*batch k l"]) -> Float[T, "*batch k_max l_max"]:
        """A matrix A, B, Q, R, N, K or P of a problem in SI units in these coordinates, zero in padding."""
        scales, sizes = {"x": self.scale_x, "u": self.scale_u}, {"x": self.n_max, "u": self.m_max}
        rows, columns = SHAPES[name]
        across, up = _columns(scales[columns], a), _rows(scales[rows], a)
        scaled = a * across / up if name in _MAPS else a * across * up
        return pad_matrix(scaled, sizes[rows], sizes[columns])

    def unscale(self, name: str, a: Float[T, "*batch k_max l_max"], n: int, m: int) -> Float[T, "*batch k l"]:
        """The way back from :meth:`scale`, without padding."""
        scales, sizes = {"x": self.scale_x, "u": self.scale_u}, {"x": n, "u": m}
        rows, columns = SHAPES[name]
        a = a[..., : sizes[rows], : sizes[columns]]
        up, across = _rows(scales[rows], a), _columns(scales[columns], a)
        return a * up / across if name in _MAPS else a / up / across

    def zero_padding(self, matrix: Float[T, "*batch k l"], rows: Letter, columns: Letter) -> Float[T, "*batch k l"]:
        """A padded matrix with zeros in its padding; ``rows`` and ``columns`` say which signals they stand for."""
        masks = {"x": self.state_mask, "u": self.input_mask}
        return matrix * _rows(masks[rows], matrix) * _columns(masks[columns], matrix)


def pad(plant: Linear, n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Widen a linear plant to n states and m inputs without changing its behaviour or its costs.

    Added states decay on their own (A = −I), cost nothing and feel no input; added inputs do nothing and cost
    one. The gain is the old one with zeros around it. An output matrix is dropped: the states are measured.

    Raises:
        ValueError: the plant is larger than that.

    >>> systems.pad(systems.linearise(systems.make("pendulum"))).n
    12
    """
    instance("plant", plant, Linear, "a linear plant, as systems.linearise makes of any")
    check_size(plant.n, plant.m, n_max=whole("n", n), m_max=whole("m", m))
    A, B = pad_matrix(plant.A, n, n, -1.0), pad_matrix(plant.B, n, m)
    return Linear(A=A, B=B, Q=pad_matrix(plant.Q, n, n), R=pad_matrix(plant.R, m, m, 1.0), dt=plant.dt)


def pad_matrix(
    a: Float[T, "*batch k l"], rows: int, columns: int, diagonal: float = 0.0
) -> Float[T, "*batch rows columns"]:
    """A matrix ``[..., k, l]`` widened to ``[..., rows, columns]``; ``diagonal`` in the added diagonal entries."""
    a = real("a", a)  # type: ignore[assignment]
    if a.ndim < 2:
        raise ValueError(f"a: expected a matrix [..., k, l], but found shape {a.shape}")
    k, l = a.shape[-2:]
    rows, columns = whole("rows", rows, k), whole("columns", columns, l)
    number("diagonal", diagonal)
    wide = _namespace(a).pad(a, [(0, 0)] * (a.ndim - 2) + [(0, rows - k), (0, columns - l)])
    if not diagonal or k == rows:
        return wide
    added = diagonal * np.eye(rows, columns, dtype=a.dtype) * (np.arange(rows) >= k)[:, None]
    return wide + added.reshape((1,) * (a.ndim - 2) + added.shape)


def _namespace(a: Array | np.ndarray) -> ModuleType:
    """The library that an array belongs to: ``numpy`` or ``jax.numpy``."""
    return np if isinstance(a, np.ndarray) else jnp


def _matching(scale: Arrays, a: T) -> T:
    """A scale or mask as NumPy's for an array of NumPy's real numbers, so that the array stays one."""
    real("a", a)
    host = isinstance(a, np.ndarray) and not traced(scale)
    return np.asarray(scale) if host else scale  # type: ignore[return-value]


def _rows(scale: Arrays, M: T) -> T:
    return _matching(scale, M)[..., : M.shape[-2], None]


def _columns(scale: Arrays, M: T) -> T:
    return _matching(scale, M)[..., None, : M.shape[-1]]


def widened(a: T, size: int, fill: float) -> T:
    """Vectors ``[..., k]`` with ``fill`` in padding ``[..., size]``."""
    return _namespace(a).pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])], constant_values=fill)


def _per_vector(scale: Arrays, a: T) -> T:
    """A scale ``[*batch, 12]`` for each vector of a ``[*batch, *extra, k]``."""
    return linalg.expand_batch(_matching(scale, a)[..., : a.shape[-1]], a.ndim)


def check_size(n: int, m: int, plant: Plant | None = None, *, n_max: int = N_MAX, m_max: int = M_MAX) -> None:
    """Raise ValueError for plants with more states or inputs than data sets and learners support."""
    if n > n_max or m > m_max:
        what, why = getattr(plant, "name", "a plant"), ""
        if (n_max, m_max) == (N_MAX, M_MAX):
            hint = getattr(plant, "smaller", Plant.smaller)
            why = f", the most that data sets and networks of other kinds than matrix take; {hint}"
        raise ValueError(f"pad: {what} with {n} states and {m} inputs does not fit into {n_max} and {m_max}{why}")
