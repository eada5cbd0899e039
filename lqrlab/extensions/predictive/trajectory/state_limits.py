"""Limits on the states of a trajectory, as an augmented Lagrangian: a penalty whose multipliers learn to hold them."""

from typing import NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

GROWTH = 10.0
"""Of the stiffness, from one search to the next, of states that do not come within their limits fast enough."""


class StateLimits(NamedTuple):
    """Augmented Lagrangian of low ≤ x ≤ high: Σ max(0, λ + μc)² / 2μ, with c = low − x and x − high.

    Without multipliers and stiffness, as at first, nothing is added.

    Attributes:
        low, high: infinite where there is none.
        multipliers: λ ≥ 0, of the lower and of the upper limits.
        stiffness: μ.
        unit: by how much each state moved in the trajectory that was best without limits: tolerances are relative.

    Source: T. A. Howell, B. E. Jackson and Z. Manchester, ALTRO: a fast solver for constrained trajectory
    optimization, IROS 2019, equations 6 to 9; when μ grows and what has converged, as in E. G. Birgin and
    J. M. Martínez, Practical Augmented Lagrangian Methods for Constrained Optimization (2014), algorithm 4.1.
    """

    low: Float[Array, " n"]
    high: Float[Array, " n"]
    multipliers: Float[Array, "2 points n"]
    stiffness: Float[Array, " n"]
    unit: Float[Array, " n"]

    def excess(self, xs: Float[Array, "points n"]) -> Float[Array, "2 points n"]:
        """c, above 0 where a limit is violated; −1 where there is none."""
        c = jnp.stack([self.low[None] - xs, xs - self.high[None]])
        return jnp.where(jnp.isfinite(c) | jnp.isnan(c), c, -1.0)

    def _force(self, xs: Array) -> Array:
        return jnp.maximum(self.multipliers + self.stiffness[None, None] * self.excess(xs), 0.0)

    def _divisor(self) -> Array:
        return jnp.where(self.stiffness > 0, self.stiffness, 1.0)[None, None]

    def cost(self, xs: Float[Array, "points n"]) -> Float[Array, ""]:
        """The term added to the cost of a trajectory."""
        return jnp.sum(self._force(xs) ** 2 / (2 * self._divisor()))

    def expand(self, xs: Float[Array, "points n"]) -> tuple[Float[Array, "points n"], Float[Array, "points n n"]]:
        """Gradient and Gauss-Newton Hessian of that in the states."""
        force = self._force(xs)
        curvature = jnp.sum(jnp.where(force > 0, self.stiffness[None, None], 0.0), axis=0)
        return force[1] - force[0], curvature[:, :, None] * jnp.eye(len(self.low), dtype=xs.dtype)[None]

    def gap(self, xs: Float[Array, "points n"]) -> Float[Array, " n"]:
        """By how much each state violates its limits, or a multiplier pushes where there is room."""
        return jnp.max(jnp.abs(jnp.maximum(self.excess(xs), -self.multipliers / self._divisor())), axis=(0, 1))

    def held(self, gap: Float[Array, " n"], tolerance: float) -> Bool[Array, ""]:
        """True if gaps are within the tolerance, relative to the states' motion; zero without stiffness."""
        return jnp.all(gap <= jnp.where(self.stiffness > 0, tolerance * self.unit, 0.0))

    def tightened(self, xs: Float[Array, "points n"], cost: Float[Array, ""], before: Float[Array, " n"]) -> Self:
        """With the multipliers that the best trajectory for the present ones tells of.

        The stiffness grows where :meth:`gap` has not fallen to a quarter of what it was ``before``. It begins so that
        leaving a limit by a tenth of how far the state moves costs as much as ten average steps.
        """
        moved = jnp.ptp(xs, axis=0)
        unit = jnp.where(self.stiffness > 0, self.unit, jnp.where(moved > 0, moved, 1.0))
        stiffer = jnp.where(self.gap(xs) > before / 4, GROWTH * self.stiffness, self.stiffness)
        begun = 2000 * cost / ((len(xs) - 1) * unit**2)
        return self._replace(
            multipliers=self._force(xs), stiffness=jnp.where(self.stiffness > 0, stiffer, begun), unit=unit
        )
