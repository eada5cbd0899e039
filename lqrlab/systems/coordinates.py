"""Scaled, padded coordinates: the only place where states, inputs, gains and costs change units or size.

x̃ = x / scale_x and ũ = u / scale_u make every signal of order one; with Bryson's weights Q and R are the identity
in them. Plants of all sizes share one shape: what is beyond a plant's own n states and m inputs is padding.
Everything here works on NumPy and on JAX arrays alike and stays where its argument is.
"""

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute import pytree
from lqrlab.systems.custom import Linear
from lqrlab.systems.plant import Plant

N_MAX, M_MAX = 12, 6
"""States and inputs that plants of different families are padded to."""


@pytree
@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Units of a plant's signals (or of a batch of plants), padded to (12, 6).

    Attributes:
        scale_x, scale_u: what one unit is, in SI units ``[*batch, 12]``, ``[*batch, 6]``; one in padding.
        state_mask, input_mask: 1 where a state or input exists, 0 in padding; shapes as the scales.
    """

    scale_x: Array
    scale_u: Array
    state_mask: Array
    input_mask: Array

    @classmethod
    def of(cls, plant: Plant) -> Self:
        """The coordinates of a plant or a batch, from the scales of its signals."""
        lead = plant.batch_shape
        return cls.from_scales(*(jnp.broadcast_to(s, (*lead, s.shape[-1])) for s in plant.scales))

    @classmethod
    def from_scales(cls, scale_x: Any, scale_u: Any) -> Self:
        """Of scales ``[*batch, n]``, ``[*batch, m]`` in a plant's own dimension."""
        _must_fit(scale_x.shape[-1], scale_u.shape[-1])
        xp = home(scale_x)
        return cls(
            _widened(scale_x, N_MAX, 1.0),
            _widened(scale_u, M_MAX, 1.0),
            _widened(xp.ones_like(scale_x), N_MAX, 0.0),
            _widened(xp.ones_like(scale_u), M_MAX, 0.0),
        )

    # Signals: the axes of the batch lead those of x and u, further ones may follow them.

    def scale_state(self, x: Any) -> Any:
        """x ``[*batch, *extra, n]`` in SI units → x̃ ``[*batch, *extra, 12]``, zero in padding."""
        return _widened(x / _beside(self.scale_x, x), N_MAX, 0.0)

    def unscale_state(self, x: Any, n: int) -> Any:
        """x̃ ``[*batch, *extra, 12]`` → x ``[*batch, *extra, n]`` in SI units."""
        return x[..., :n] * _beside(self.scale_x, x[..., :n])

    def scale_input(self, u: Any) -> Any:
        """u ``[*batch, *extra, m]`` in SI units → ũ ``[*batch, *extra, 6]``, zero in padding."""
        return _widened(u / _beside(self.scale_u, u), M_MAX, 0.0)

    def unscale_input(self, u: Any, m: int) -> Any:
        """ũ ``[*batch, *extra, 6]`` → u ``[*batch, *extra, m]`` in SI units."""
        return u[..., :m] * _beside(self.scale_u, u[..., :m])

    # Matrices, one for each member of the batch.

    def scale_gain(self, K: Any) -> Any:
        """K ``[*batch, m, n]`` of u = −Kx → K̃ ``[*batch, 6, 12]`` of ũ = −K̃x̃."""
        return pad_matrix(K * _columns(self.scale_x, K) / _rows(self.scale_u, K), M_MAX, N_MAX)

    def unscale_gain(self, K: Any, n: int, m: int) -> Any:
        """K̃ ``[*batch, 6, 12]`` → K ``[*batch, m, n]``."""
        K = K[..., :m, :n]
        return K * _rows(self.scale_u, K) / _columns(self.scale_x, K)

    def scale_cost(self, P: Any) -> Any:
        """P ``[*batch, n, n]`` of the cost xᵀPx → P̃ ``[*batch, 12, 12]`` of x̃ᵀP̃x̃, zero in padding."""
        return pad_matrix(P * _columns(self.scale_x, P) * _rows(self.scale_x, P), N_MAX, N_MAX)

    def unscale_cost(self, P: Any, n: int) -> Any:
        """P̃ ``[*batch, 12, 12]`` → P ``[*batch, n, n]``."""
        P = P[..., :n, :n]
        return P / _rows(self.scale_x, P) / _columns(self.scale_x, P)

    def scale_plant(self, plant: Linear) -> Linear:
        """A linear plant in these coordinates, padded: the same costs, the same time; see :func:`pad`."""
        A, B, Q, R = plant.A, plant.B, plant.Q, plant.R
        x, u = self.scale_x, self.scale_u
        return pad(
            Linear(
                A=A * _columns(x, A) / _rows(x, A),
                B=B * _columns(u, B) / _rows(x, B),
                Q=Q * _columns(x, Q) * _rows(x, Q),
                R=R * _columns(u, R) * _rows(u, R),
                dt=plant.dt,
            )
        )

    def zero_padding(self, matrix: Any, rows: str, columns: str) -> Any:
        """A padded matrix with zeros in its padding; ``rows`` and ``columns`` are ``"x"`` or ``"u"``."""
        masks = {"x": self.state_mask, "u": self.input_mask}
        return matrix * masks[rows][..., :, None] * masks[columns][..., None, :]


def pad(plant: Linear, n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Widen a linear plant to n states and m inputs without changing what it does or costs.

    Added states decay on their own (A = −I), cost nothing and feel no input; added inputs do nothing and cost
    one. The gain is the old one with zeros around it.

    Raises:
        ValueError: the plant is larger than that.
    """
    _must_fit(plant.n, plant.m, n, m)
    return Linear(
        A=pad_matrix(plant.A, n, n, -1.0),
        B=pad_matrix(plant.B, n, m),
        Q=pad_matrix(plant.Q, n, n),
        R=pad_matrix(plant.R, m, m, 1.0),
        dt=plant.dt,
    )


def pad_matrix(a: Any, rows: int, columns: int, diagonal: float = 0.0) -> Any:
    """A matrix ``[..., k, l]`` widened to ``[..., rows, columns]``; ``diagonal`` in the added diagonal entries."""
    k, l = a.shape[-2:]
    wide = home(a).pad(a, [(0, 0)] * (a.ndim - 2) + [(0, rows - k), (0, columns - l)])
    if not diagonal or k == rows:
        return wide
    added = np.diag(diagonal * (np.arange(rows) >= k)).astype(a.dtype)
    return wide + added.reshape((1,) * (a.ndim - 2) + added.shape)


def home(a: Any) -> Any:
    """The library that an array belongs to: ``numpy`` or ``jax.numpy``."""
    return np if isinstance(a, np.ndarray) else jnp


def _rows(scale: Any, M: Any) -> Any:
    return scale[..., : M.shape[-2], None]


def _columns(scale: Any, M: Any) -> Any:
    return scale[..., None, : M.shape[-1]]


def _widened(a: Any, size: int, fill: float) -> Any:
    return home(a).pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])], constant_values=fill)


def _beside(scale: Any, a: Any) -> Any:
    """A scale ``[*batch, 12]`` for each vector of a ``[*batch, *extra, k]``."""
    scale = scale[..., : a.shape[-1]]
    return scale.reshape(*scale.shape[:-1], *(1,) * (a.ndim - scale.ndim), scale.shape[-1])


def _must_fit(n: int, m: int, n_max: int = N_MAX, m_max: int = M_MAX) -> None:
    if n > n_max or m > m_max:
        raise ValueError(f"pad: a plant with {n} states and {m} inputs does not fit into {n_max} and {m_max}")
