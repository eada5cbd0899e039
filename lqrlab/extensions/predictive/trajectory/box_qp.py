"""Small quadratic programs in a box."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lqrlab.compute import linalg


def box_qp(
    H: Float[Array, "m m"], g: Float[Array, " m"], low: Float[Array, " m"], high: Float[Array, " m"]
) -> tuple[Float[Array, " m"], Bool[Array, " m"]]:
    """Minimise ½ uᵀHu + gᵀu over low ≤ u ≤ high, for H > 0, by projected Newton steps.

    Returns:
        u, and which inputs are free (not held at a limit).

    Source: Y. Tassa, N. Mansard and E. Todorov, Control-limited differential dynamic programming, ICRA 2014,
    section IV-A.
    """

    def slope_and_free(u: Array) -> tuple[Array, Array]:
        slope = g + H @ u
        return slope, ~(((u <= low) & (slope > 0)) | ((u >= high) & (slope < 0)))

    def value(u: Array) -> Array:
        return u @ (H @ u) / 2 + g @ u

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, _, count = state
        slope, free = slope_and_free(u)
        newton = -solve_free(H, jnp.where(free, slope, 0.0), free)
        lengths = jnp.asarray(0.5 ** np.arange(8), u.dtype)
        tried = jax.vmap(lambda a: jnp.clip(u + a * newton, low, high))(lengths)
        values = jax.vmap(value)(tried)
        best = jnp.argmin(values)
        better = values[best] < value(u)
        return jnp.where(better, tried[best], u), better, count + 1

    start = jnp.clip(-solve_free(H, g, jnp.ones(g.shape, bool)), low, high)
    u, *_ = jax.lax.while_loop(lambda s: s[1] & (s[2] < 10 * g.size), step, (start, jnp.asarray(True), jnp.asarray(0)))
    return u, slope_and_free(u)[1]


def solve_free(H: Float[Array, "m m"], b: Float[Array, "m ..."], free: Bool[Array, " m"]) -> Float[Array, "m ..."]:
    """H⁻¹ b among the free inputs, zero elsewhere."""
    both = free[:, None] & free[None]
    keep = free.reshape(-1, *(1,) * (b.ndim - 1))
    return linalg.solve(jnp.where(both, H, jnp.eye(len(H), dtype=H.dtype)), jnp.where(keep, b, 0.0))
