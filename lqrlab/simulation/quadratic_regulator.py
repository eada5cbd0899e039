"""The quadratic regulator of sampled matrices: its optimum, and what a run costs above it."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.simulation import sampling
from lqrlab.systems import Coordinates
from lqrlab.systems.plant import Arrays


@dataclasses.dataclass(frozen=True)
class QuadraticRegulator:
    """x[t+1] = A x[t] + B u[t] at the cost Σ xᵀQx + uᵀRu + 2xᵀNu, whose optimum is u = −Kx.

    What any input costs more than the optimal one is a square, and exactly so. With S = R + BᵀPB, along any run

        Σ (xᵀQx + uᵀRu + 2xᵀNu) + x[T]ᵀP x[T] − x[0]ᵀP x[0] = Σ (u + Kx)ᵀ S (u + Kx) ≥ 0,

    so nothing cancels, and a ratio to the optimum can be had in float32 near the optimum too.

    Attributes:
        coordinates: units of the signals, and which of them are padding.
        dt: sample time [s].
        A, B: the linearised plant under exact zero-order hold.
        Q, R, N: weights of a step, exact for the held input.
        K, P: optimal gain and cost to go; None where they have not been designed, NaN where there is no optimum.
        in_scales: whether signals are in units of their scales.

    Source: M. Fazel, R. Ge, S. Kakade, M. Mesbahi, Global convergence of policy gradient methods for the linear
    quadratic regulator, ICML 2018, lemma 10 (the cost-difference lemma).
    """

    coordinates: Coordinates
    dt: Float[Array, "*batch"]
    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n m"]
    Q: Float[Array, "*batch n n"]
    R: Float[Array, "*batch m m"]
    N: Float[Array, "*batch n m"]
    K: Float[Array, "*batch m n"] = None  # type: ignore[assignment]
    P: Float[Array, "*batch n n"] = None  # type: ignore[assignment]
    in_scales: bool = dataclasses.field(default=False, kw_only=True, metadata={"static": True})

    @property
    def n(self) -> int:
        """Number of states."""
        return self.B.shape[-2]

    @property
    def m(self) -> int:
        """Number of inputs."""
        return self.B.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes."""
        return self.B.shape[:-2]

    @property
    def has_optimum(self) -> Bool[Array, "*batch"]:
        """True for each plant that has a stabilizing optimum."""
        return jnp.all(jnp.isfinite(self.P), axis=(-1, -2))

    @property
    def sampled(self) -> control.Sampled:
        """Dynamics and weights of a step alone."""
        return control.Sampled(self.A, self.B, self.Q, self.R, self.N)

    @property
    def units(self) -> Coordinates:
        """Units that turn this problem's signals into scaled ones."""
        return self.coordinates.units if self.in_scales else self.coordinates

    @property
    def scale_x(self) -> Float[Arrays, "*batch n"]:
        """Units of the states, by which sizes of states are judged."""
        return self.units.scale_x[..., : self.n]

    @property
    def scale_u(self) -> Float[Arrays, "*batch m"]:
        """Units of the inputs."""
        return self.units.scale_u[..., : self.m]

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("one problem has no length; a batch has one")
        return self.batch_shape[0]

    def __bool__(self) -> bool:
        return True

    def astype(self, dtype: Any) -> Self:
        """The same with all floating numbers of this type."""
        return jax.tree.map(
            lambda a: jnp.asarray(a, dtype) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a, self
        )

    def solved(self, *, check: bool = True) -> Self:
        """The same with its optimum, designed if it is not there; refused where there is none, unless told not to."""
        problem = self
        if self.P is None:
            K, P = sampling.optimum(self.sampled)
            problem = dataclasses.replace(self, K=K, P=P)
        if check and not checks.traced(problem.P):
            good = np.isfinite(problem.P).all((-1, -2))
            if not good.all():
                raise ValueError(
                    f"plants: {int(np.sum(~good))} of {good.size} have no stabilizing optimum to compare with; "
                    "control.lqrd on one of them gives the reason"
                )
        return problem

    @property
    def S(self) -> Float[Array, "*batch m m"]:
        """R + BᵀPB, the cost of an error of the input."""
        return self.R + self.B.mT @ self.P @ self.B

    def closed_loop(self, K: ArrayLike | None = None) -> Float[Array, "*batch n n"]:
        """F = A − BK of a gain ``[*batch, m, n]``; of the optimal one if none is given."""
        return _closed_loop(self.A, self.B, self.K if K is None else checks.real("K", K))

    def stage_weight(self, K: Float[Array, "*#batch m n"] | None = None) -> Float[Array, "*batch n n"]:
        """The weight of one step seen from the state, u = −Kx."""
        return control.stage_weight(self.Q, self.R, self.N, self.K if K is None else K)

    def optimal_cost(self, x: ArrayLike) -> Float[Array, "*loops"]:
        """xᵀPx, the least that any controller can pay from x ``[*batch, *extra, n]`` on."""
        x = checks.floating("x", x)
        return quadratic(self.P.astype(x.dtype), x)

    def excess(self, xs: ArrayLike, us: ArrayLike) -> Float[Array, "*loops"]:
        """The cost of runs above the optimum, were the optimum to take over at their end; relative to it.

        Returns:
            (J − x[0]ᵀPx[0]) / x[0]ᵀPx[0] ≥ 0, of states and inputs ``[*batch, *extra, T, …]``.
        """
        xs, us = checks.floating("xs", xs), checks.floating("us", us)
        K, S = self.K.astype(xs.dtype), self.S.astype(xs.dtype)
        error = us + matvec(K, xs[..., :-1, :])
        paid = jnp.sum(error * matvec(S, error), axis=(-1, -2))
        least = self.optimal_cost(xs[..., 0, :])
        return paid / jnp.maximum(least, jnp.finfo(xs.dtype).tiny)


@jax.jit
def _closed_loop(A: Array, B: Array, K: Array) -> Array:
    return A - B @ K
