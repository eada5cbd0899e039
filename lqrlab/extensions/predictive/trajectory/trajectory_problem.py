"""One trajectory optimisation problem: the plant, its cost over a step, and both expanded about a point."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lqrlab.compute.calculus import rk4


class TrajectoryProblem(NamedTuple):
    """Minimise ∫ eᵀQe + vᵀRv dt + e(T)ᵀQf e(T) for ẋ = f(x, u), u held for dt at a time, low ≤ u ≤ high.

    e = x − x_goal and v = u − u_goal. State and cost are integrated together by Runge-Kutta 4.
    """

    f: Callable[[Array, Array], Array]
    substeps: int
    Q: Float[Array, "n n"]
    R: Float[Array, "m m"]
    Qf: Float[Array, "n n"]
    x_goal: Float[Array, " n"]
    u_goal: Float[Array, " m"]
    low: Float[Array, " m"]
    high: Float[Array, " m"]
    dt: Float[Array, ""]

    def step(self, x: Float[Array, " n"], u: Float[Array, " m"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The next state, and the cost of the step."""

        def rates(y: tuple[Array, Array]) -> tuple[Array, Array]:
            e = y[0] - self.x_goal
            return self.f(y[0], u).astype(x.dtype), e @ self.Q @ e

        h, v = self.dt / self.substeps, u - self.u_goal
        after, cost = rk4(rates, (x, jnp.zeros((), x.dtype)), (h, h), self.substeps)
        return after, cost + self.dt * (v @ self.R @ v)

    def final(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        """Terminal cost."""
        e = x - self.x_goal
        return e @ self.Qf @ e

    def expand(
        self, x: Float[Array, " n"], u: Float[Array, " m"]
    ) -> tuple[Float[Array, "n n"], Float[Array, "n m"], Float[Array, " n+m"], Float[Array, "n+m n+m"]]:
        """A, B of a step, gradient and Gauss-Newton Hessian of its cost in z = (x, u).

        The sensitivity S = ∂x/∂z of the state within the step obeys Ṡ = (∂f/∂x) S + (∂f/∂u) [0 I], and gradient
        and Hessian are the integrals of 2 SᵀQe and 2 SᵀQS. Runge-Kutta 4 on all of them together gives the exact
        derivatives of :meth:`step`, because its stages commute with differentiation.
        """
        n, m = x.size, u.size
        z = jnp.eye(n + m, dtype=x.dtype)
        du = z[n:]

        def rates(y: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            x, S, _, _ = y
            slope, push = jax.linearize(lambda x, u: self.f(x, u).astype(x.dtype), x, u)
            weighted = 2 * S.T @ self.Q
            return slope, jax.vmap(push, 1, 1)(S, du), weighted @ (x - self.x_goal), weighted @ S

        h = self.dt / self.substeps
        start = x, z[:n], jnp.zeros(n + m, x.dtype), jnp.zeros_like(z)
        _, S, gradient, hessian = rk4(rates, start, (h, h, h, h), self.substeps)
        gradient = gradient.at[n:].add(2 * self.dt * (self.R @ (u - self.u_goal)))
        hessian = hessian.at[n:, n:].add(2 * self.dt * self.R)
        return S[:, :n], S[:, n:], gradient, hessian
