"""Matrices with twice the digits, each the unevaluated sum of two; the batch on the last axis.

Sources: T. J. Dekker, A floating-point technique for extending the available precision, Numer. Math. 18 (1971);
T. Ogita, S. M. Rump and S. Oishi, Accurate sum and dot product, SIAM J. Sci. Comput. 26 (2005), algorithms 2.1 to 5.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab.compute.linalg.batch_last import t
from lqrlab.compute.linalg.dense import stored


class DoubleDouble(NamedTuple):
    """high + low, where low is about as small as the rounding of high; ``[rows, columns, width]`` each."""

    high: Array
    low: Array

    @classmethod
    def of(cls, a: Array) -> "DoubleDouble":
        """The pair of exact numbers."""
        return cls(a, jnp.zeros_like(a))

    def plus(self, other: "DoubleDouble") -> "DoubleDouble":
        """self + other."""
        total, error = _sum(self.high, other.high)
        return DoubleDouble(*_sum(total, error + (self.low + other.low)))

    def times(self, other: "DoubleDouble") -> "DoubleDouble":
        """self other, the product of matrices."""
        entries, rounding = _product(self.high[:, :, None], other.high[None])
        low = rounding + self.high[:, :, None] * other.low[None] + self.low[:, :, None] * other.high[None]

        def add(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            total, error = _sum(state[0], jax.lax.dynamic_index_in_dim(entries, k, 1, keepdims=False))
            return total, state[1] + error

        total, error = jax.lax.fori_loop(1, entries.shape[1], add, (entries[:, 0], jnp.sum(low, axis=1)))
        return DoubleDouble(*_sum(total, error))

    def transposed(self) -> "DoubleDouble":
        """selfᵀ."""
        return DoubleDouble(t(self.high), t(self.low))


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and what rounding lost, exactly."""
    total = a + b
    seen = total - a
    return total, (a - (total - seen)) + (b - seen)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a b rounded, entry by entry, and what rounding lost, exactly."""
    product = stored(a * b)  # else XLA would merge it, not rounded, into the sums that it goes into
    (a, a_low), (b, b_low) = _halves(a), _halves(b)
    return product, a_low * b_low - (((product - a * b) - a_low * b) - a * b_low)


def _halves(a: Array) -> tuple[Array, Array]:
    """a as a sum of two numbers with half of the digits each, whose products are exact."""
    kind, digits = (jnp.int64, 27) if a.dtype == jnp.float64 else (jnp.int32, 12)
    bits = jax.lax.bitcast_convert_type(a, kind)
    high = jax.lax.bitcast_convert_type(bits >> digits << digits, a.dtype)
    return high, a - high
