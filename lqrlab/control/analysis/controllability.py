"""Controllability and observability matrices and Gramians."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.control import checks
from lqrlab.control.lyapunov import dlyap, lyap


def ctrb(A: ArrayLike, B: ArrayLike) -> Float[Array, "*batch n nm"]:
    """[B, AB, …, Aⁿ⁻¹B] ``[..., n, n m]``. Its numerical rank misleads; :func:`diagnose` asks mode by mode.

    >>> control.ctrb([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]]).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    A, B = checks.matrices(A=(A, "nn"), B=(B, "nm"))
    columns = [B]
    for _ in range(A.shape[-1] - 1):
        columns.append(A @ columns[-1])
    return jnp.concatenate(columns, axis=-1)


def obsv(A: ArrayLike, C: ArrayLike) -> Float[Array, "*batch np n"]:
    """[C; CA; …; CAⁿ⁻¹] ``[..., n p, n]``.

    >>> control.obsv([[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0]]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    A, C = checks.matrices(A=(A, "nn"), C=(C, "pn"))
    return jnp.swapaxes(ctrb(jnp.swapaxes(A, -1, -2), jnp.swapaxes(C, -1, -2)), -1, -2)


def gram(A: ArrayLike, B: ArrayLike, *, discrete: bool = False) -> Float[Array, "*batch n n"]:
    """Controllability Gramian ∫ eᴬᵗBBᵀeᴬᵀᵗ dt (Σ AᵏBBᵀAᵀᵏ if ``discrete``) of a stable A; batched, differentiable.

    Its inverse is the least energy that reaches a state. The observability Gramian is ``gram(A.T, C.T)``.

    Args:
        A: ``[..., n, n]``, stable.
        B: ``[..., n, m]``.

    Returns:
        ``[..., n, n]``; NaN where A is unstable.

    >>> control.gram([[-0.5]], [[2.0]])
    Array([[4.]], dtype=float64)
    """
    A, B = checks.matrices(A=(A, "nn"), B=(B, "nm"))
    return (dlyap if discrete else lyap)(A, B @ jnp.swapaxes(B, -1, -2))
