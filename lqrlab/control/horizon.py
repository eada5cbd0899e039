"""Finite-horizon regulators, step by step backwards."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import whole
from lqrlab.control import checks
from lqrlab.control.weights import stage_weight


@pytree
@dataclasses.dataclass(frozen=True)
class TimeVaryingLQR:
    """Gains ``K [..., T, m, n]`` and costs to go ``P [..., T+1, n, n]`` of a finite horizon T."""

    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch T+1 n n"]

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P))


@partial(jax.jit, static_argnames="num_steps")
def _solve(args: tuple[Array, ...], num_steps: int) -> TimeVaryingLQR:
    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
        def back(P: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
            K = linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)
            closed = A - B @ K
            before = linalg.symmetric(closed.T @ P @ closed + stage_weight(Q, R, N, K))
            return before, (K, before)

        _, (K, P) = jax.lax.scan(back, Qf, None, length=num_steps, reverse=True)
        return TimeVaryingLQR(K, jnp.concatenate([P, Qf[None]]))

    return broadcast(one, *((a, 2) for a in args))


def finite_horizon(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, num_steps: int,
    Qf: ArrayLike | None = None, N: ArrayLike | None = None,
) -> TimeVaryingLQR:  # fmt: skip
    """Minimise x[T]ᵀQf x[T] + Σ_{t<T} xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t].

    Args:
        A, B, Q, R, N: as in :func:`dlqr`.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; Q if left out.

    Returns:
        :class:`TimeVaryingLQR`: u[t] = −K[t] x[t].

    Raises:
        ValueError: bad arguments.

    Source: Anderson and Moore (1990), eqs. (2.4-2)-(2.4-4).

    >>> control.finite_horizon([[1.0]], [[1.0]], [[0.0]], [[1.0]], 2, Qf=[[1.0]]).K[:, 0, 0].tolist()
    [0.3333333333333333, 0.5]
    """
    whole("num_steps", num_steps)
    args = checks.arguments(A, B, Q, R, N)
    Q = args[2]
    terminal = Q if Qf is None else jnp.asarray(checks.real("Qf", Qf), Q.dtype)
    if terminal.shape[-2:] != Q.shape[-2:]:
        raise ValueError(f"Qf: expected shape {Q.shape[-2:]}, Q's, but found {terminal.shape[-2:]}")
    checks.weight("Qf", terminal)
    return _solve((*args, terminal), num_steps)
