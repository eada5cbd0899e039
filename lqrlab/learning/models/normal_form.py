"""The regulator problem in coordinates of the state that its own costs choose, so that all problems look alike.

With weights Q, R, N of a step, the input v = R^½(u + R⁻¹Nᵀx) removes R and N: F = A − BR⁻¹Nᵀ, H = Q − NR⁻¹Nᵀ. What
the state then costs in the next steps without control, W = Σ FᵏᵀHFᵏ, is made the identity. Two problems that differ by
units, by any other coordinates of the state, or by a factor of the cost, become one up to a rotation, and the entries
of F are of order one however stiff the plant was.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import mul, t
from lqrlab.simulation import Told

_DOUBLINGS = 6
# of W, relative to its mean eigenvalue and to what inputs cost: a state without cost has no size of its own
_FLOOR = 1e-3
_FAINT = 1e-6  # a squared input matrix, below which inputs hardly matter


@pytree
@dataclasses.dataclass(frozen=True)
class NormalForm:
    """Problems x[t+1] = (I + D) x + B v with the cost Σ xᵀHx + vᵀv, zero in padding, and the way back.

    Attributes:
        D, B, H: ``[b, 12, 12]``, ``[b, 12, 6]``, ``[b, 12, 12]``.
        into: the new state is ``into`` times the old one ``[b, 12, 12]``.
        root, cross: u = ``root`` (v − ``cross`` x), with the old state x ``[b, 6, 6]``, ``[b, 6, 12]``.
    """

    D: Array
    B: Array
    H: Array
    into: Array
    root: Array
    cross: Array

    @classmethod
    def of(cls, d: Told) -> "NormalForm":
        """Of descriptions ``[b, …]``."""
        A, B, Q, R, N, live = (jnp.moveaxis(a, 0, -1) for a in (d.A, d.B, d.Q, d.R, d.N, d.state_mask))
        return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), _normal(A, B, Q, R, N, live))

    def gain(self, K: Array) -> Array:
        """The gain of u = −Kx from that of v = −Kx here, ``[b, 6, 12]``."""
        return self.root @ (K @ self.into + self.cross)


def _normal(A: Array, B: Array, Q: Array, R: Array, N: Array, live: Array) -> NormalForm:
    """:meth:`NormalForm.of` with the batch on the last axis."""
    one = batch_last.eye(len(A), A) * live[None]
    root = t(batch_last.inverse(batch_last.cholesky(R, 0.0)))
    B, cross = mul(B, root), mul(t(root), t(N))
    D = A - one - mul(B, cross)
    H = batch_last.symmetric(Q - mul(t(cross), cross))
    W = _cost_ahead(one + D, H)
    count = jnp.sum(live, axis=0)
    cost, effect = jnp.trace(W) / count, jnp.sum(B * B, axis=(0, 1)) / count
    least = _FLOOR * (cost + 1 / (effect + _FAINT))
    W = W + least[None, None] * one + batch_last.eye(len(A), A) * (1 - live)[None]
    into = t(batch_last.cholesky(W, least[None]))
    out = batch_last.inverse(into)
    D, B, H = mul(into, mul(D, out)), mul(into, B), mul(t(out), mul(H, out))
    return NormalForm(D, B, H, into * live[:, None] * live[None], root, cross)


def _cost_ahead(F: Array, H: Array) -> Array:
    """Σ FᵏᵀHFᵏ over the first steps, of a growing F as if it did not grow."""
    size = jnp.maximum(control.spectral_radius(jnp.moveaxis(F, -1, 0), squarings=10), 1.0)
    F = F / size[None, None]
    for _ in range(_DOUBLINGS):
        H, F = H + mul(t(F), mul(H, F)), mul(F, F)
    return batch_last.symmetric(H)
