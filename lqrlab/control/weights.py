"""Quadratic costs under a linear feedback: their stage weight and their cost to go."""

from collections.abc import Callable
from operator import attrgetter, matmul
from typing import TypeVar

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.control import matrix_checks
from lqrlab.control.discretization import Sampled
from lqrlab.control.lyapunov import dlyap

M = TypeVar("M", Array, np.ndarray)


def stage_weight(
    Q: M, R: M, N: M, K: M, *, mul: Callable[[M, M], M] = matmul, t: Callable[[M], M] = attrgetter("mT")
) -> M:
    """The weight on x of xᵀQx + uᵀRu + 2xᵀNu with u = −Kx: Q + KᵀRK − NK − KᵀNᵀ.

    Args:
        Q, R, N: weights ``[*batch, n, n]``, ``[*batch, m, m]``, ``[*batch, n, m]``, NumPy's or JAX's.
        K: gain ``[*batch, m, n]``.
        mul, t: product and transpose, for matrices whose batch is not in front.

    Returns:
        ``[*batch, n, n]``.
    """
    if mul is matmul:
        given = {name: matrix_checks.real(name, a) for name, a in zip("QRNK", (Q, R, N, K))}
        matrix_checks.shapes(given, {"Q": "nn", "R": "mm", "N": "nm", "K": "mn"})
        Q, R, N, K = given.values()  # type: ignore[assignment]
    NK = mul(N, K)
    return Q + mul(t(K), mul(R, K)) - NK - t(NK)


def cost_to_go(problem: Sampled, K: ArrayLike) -> Float[Array, "*batch n n"]:
    """P of the loop u[t] = −K x[t]: from x0 it costs x0ᵀP x0, whatever K; batched, differentiable.

    Args:
        problem: the sampled plant and its weights, as from :func:`discretize`.
        K: gain ``[..., m, n]``.

    Returns:
        The solution of P = FᵀPF + Q + KᵀRK − NK − KᵀNᵀ with F = A − BK; NaN where the loop is unstable.
    """
    if not (isinstance(problem, tuple | list) and len(problem) == 5):
        raise ValueError(f"problem: expected A, B, Q, R, N, as from discretize, but found {type(problem).__name__}")
    given = zip("ABQRNK", (*problem, K), ("nn", "nm", "nn", "mm", "nm", "mn"))
    A, B, Q, R, N, K = matrix_checks.matrices(**{name: (a, letters) for name, a, letters in given})
    return dlyap((A - B @ K).mT, stage_weight(Q, R, N, K))
