"""The sampled-data regulator problem with its optimum: what a loop costs, and the least that it can cost."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.compute.linalg import matvec, quadratic


@pytree
@dataclasses.dataclass(frozen=True)
class SampledProblem:
    """x[t+1] = A x[t] + B u[t] with the cost Σ xᵀQx + uᵀRu + 2xᵀNu, its optimal gain K and cost to go P.

    What any input costs more than the optimal one is a square, and exactly so. With S = R + BᵀPB, along any run

        Σ (xᵀQx + uᵀRu + 2xᵀNu) + x[T]ᵀP x[T] − x[0]ᵀP x[0] = Σ (u + Kx)ᵀ S (u + Kx) ≥ 0,

    so nothing cancels, and a ratio to the optimum can be had in float32 near the optimum too.

    Attributes:
        A, B: dynamics.
        Q, R, N: weights of a step.
        K: optimal gain, u = −Kx.
        P: optimal cost to go; of a padded plant zero in padding.

    Source: M. Fazel, R. Ge, S. Kakade, M. Mesbahi, Global convergence of policy gradient methods for the linear
    quadratic regulator, ICML 2018, lemma 10 (the cost-difference lemma).

    >>> problem, stabilizing = simulation.SampledProblem.of(control.discretize([[1.0]], [[1.0]], [[1.0]], [[1.0]], 0.1))
    >>> bool(abs(problem.closed_loop()[0, 0]) < 1), bool(stabilizing)
    (True, True)
    """

    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n m"]
    Q: Float[Array, "*batch n n"]
    R: Float[Array, "*batch m m"]
    N: Float[Array, "*batch n m"]
    K: Float[Array, "*batch m n"]
    P: Float[Array, "*batch n n"]

    @classmethod
    def of(cls, sampled: control.Sampled) -> tuple[Self, Bool[Array, "*batch"]]:
        """The problem of sampled plants, and whether each has a stabilizing optimum."""
        design = control.dlqr(*sampled)
        return cls(*sampled, K=design.K, P=design.P), design.stabilizing

    @classmethod
    def to_compare(cls, sampled: control.Sampled, whose: str = "") -> Self:
        """The problem of sampled plants; a ``ValueError`` if one has no optimum to compare anything with."""
        problem, stabilizing = cls.of(sampled)
        if not bool(jnp.all(stabilizing)):
            raise ValueError(
                f"plants: {int(jnp.sum(~stabilizing))} of {stabilizing.size}{whose} have no stabilizing optimum to "
                "compare with; control.lqrd on one of them says why"
            )
        return problem

    def __getitem__(self, index: object) -> Self:
        """The problems of some members of the batch."""
        return jax.tree.map(lambda a: a[index], self)

    @property
    def sampled(self) -> control.Sampled:
        """Dynamics and weights alone."""
        return control.Sampled(self.A, self.B, self.Q, self.R, self.N)

    @property
    def S(self) -> Float[Array, "*batch m m"]:
        """R + BᵀPB, the cost of an error of the input."""
        return self.R + jnp.swapaxes(self.B, -1, -2) @ self.P @ self.B

    def closed_loop(self, K: Float[Array, "*#batch m n"] | None = None) -> Float[Array, "*batch n n"]:
        """F = A − BK; of the optimal gain if none is given."""
        return self.A - self.B @ (self.K if K is None else K)

    def stage_weight(self, K: Float[Array, "*#batch m n"] | None = None) -> Float[Array, "*batch n n"]:
        """The weight of one step seen from the state, u = −Kx."""
        return control.stage_weight(self.Q, self.R, self.N, self.K if K is None else K)

    def optimal_cost(self, x: Float[Array, "*loops n"]) -> Float[Array, "*loops"]:
        """xᵀPx, the least that any controller can pay from x ``[*batch, *extra, n]`` on."""
        return quadratic(self.P.astype(x.dtype), x)

    def excess(
        self, xs: Float[Array, "*loops samples n"], us: Float[Array, "*loops T m"]
    ) -> Float[Array, "*loops"]:
        """The cost of runs above the optimum, were the optimum to take over at their end; relative to it.

        Returns:
            (J − x[0]ᵀPx[0]) / x[0]ᵀPx[0] ≥ 0, of states and inputs ``[*batch, *extra, T, …]``.
        """
        K, S = self.K.astype(xs.dtype), self.S.astype(xs.dtype)
        error = us + matvec(K, xs[..., :-1, :])
        paid = jnp.sum(error * matvec(S, error), axis=(-1, -2))
        least = self.optimal_cost(xs[..., 0, :])
        return paid / jnp.maximum(least, jnp.finfo(xs.dtype).tiny)
