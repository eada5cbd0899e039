"""The weight of a quadratic cost under a linear feedback."""

import operator
from collections.abc import Callable
from typing import Any


def _transpose(a: Any) -> Any:
    return a.swapaxes(-1, -2)


def stage_weight(
    Q: Any, R: Any, N: Any, K: Any, *, mul: Callable = operator.matmul, t: Callable = _transpose
) -> Any:
    """The weight on x of xᵀQx + uᵀRu + 2xᵀNu with u = −Kx: Q + KᵀRK − NK − KᵀNᵀ.

    Args:
        Q, R, N: weights ``[*batch, n, n]``, ``[*batch, m, m]``, ``[*batch, n, m]``, NumPy's or JAX's.
        K: gain ``[*batch, m, n]``.
        mul, t: product and transpose, for matrices whose batch is not in front.

    Returns:
        ``[*batch, n, n]``.
    """
    NK = mul(N, K)
    return Q + mul(t(K), mul(R, K)) - NK - t(NK)
