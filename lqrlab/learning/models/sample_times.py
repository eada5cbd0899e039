"""One network, asked at several sample times: a plant that is slow at one of them is quick at another.

If inputs are held for 2ᵏ samples, the plant is another one, and so is what a step costs; the optimum of that problem
costs a little more than that of the plant. What a network takes for its cost to go is a regulator's that a plant can
have. From there the gain for held inputs follows, which may be used at each sample, and by one step of policy
improvement one for the plant's own sample time. Which of these gains is the best is no guess: each is asked what its
own loop costs.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab.compute.linalg import batch_last, symmetric
from lqrlab.control.lyapunov import smith, stage_weight
from lqrlab.simulation import Told

_DOUBLINGS = (0, 1, 2, 4, 6, 8, 10)
"""Of the plant's sample time: 1, 2, 4, 16, 64, 256 and 1024 times that."""
_AGAIN = tuple(b - a > 1 for a, b in zip(_DOUBLINGS, (*_DOUBLINGS[1:], 12)))


def held(d: Told) -> Told:
    """The problem ``[b, …]`` with its inputs held for two samples."""
    A, B, Q, R, N = d.A, d.B, d.Q, d.R, d.N
    cross, paid = N + A.mT @ (Q @ B + N), N.mT @ B
    R, Q = 2 * R + B.mT @ Q @ B + paid + paid.mT, symmetric(Q + A.mT @ Q @ A)
    return dataclasses.replace(d, A=A @ A, B=A @ B + B, Q=Q, R=symmetric(R), N=cross)


def best_gain(cost_of: Callable[[Told], Array], d: Told, exact: Told) -> Array:
    """The gain ``[b, 6, 12]`` of the least cost: the network is asked at sample times from 1 to 1024 of the plant's.

    Args:
        cost_of: what a network takes for the cost to go of a problem ``[b, 12, 12]``.
        d, exact: problems as the network sees them, and the same in the type in which its loops are judged.
    """

    still, judged = jax.lax.stop_gradient((d, exact))  # which answer is the best has no slope

    def ask(problem: Told, again: Array) -> tuple[Told, Array]:
        longer = held(problem)
        longer = jax.tree.map(lambda a, b: jnp.where(again, a, b), held(longer), longer)
        P = jax.lax.stop_gradient(cost_of(problem))
        gains = [_improved(at, P).astype(judged.A.dtype) for at in (still, problem)]
        return longer, jnp.stack([_cost(judged, K) for K in gains])

    _, costs = jax.lax.scan(ask, still, jnp.array(_AGAIN))
    best = jnp.argmin(costs.reshape(-1, costs.shape[-1]), axis=0)  # the plant's own sample time, where none is stable
    doublings = jnp.array(_DOUBLINGS)[best // 2]
    P = cost_of(_held_for(d, doublings))
    return _improved(_held_for(d, jnp.where(best % 2 == 1, doublings, 0)), P)


def _held_for(d: Told, doublings: Array) -> Told:
    """Problems ``[b, …]`` whose inputs are held for 2 ** ``doublings`` samples ``[b]``."""

    def hold(problem: Told, k: Array) -> tuple[Told, None]:
        def where(a: Array, b: Array) -> Array:
            return jnp.where((k < doublings).reshape(-1, *(1,) * (a.ndim - 1)), a, b)

        # what is not held is not looked at: powers of a growing A overflow, and so would their slopes
        return jax.tree.map(where, held(jax.tree.map(where, problem, d)), problem), None

    return jax.lax.scan(hold, d, jnp.arange(_DOUBLINGS[-1]))[0]


def _improved(d: Told, P: Array) -> Array:
    """The gain that is optimal if the next state costs P."""
    S = jnp.moveaxis(d.R + d.B.mT @ P @ d.B, 0, -1)
    return jnp.moveaxis(batch_last.inverse(S), -1, 0) @ (d.B.mT @ P @ d.A + d.N.mT)


def _cost(d: Told, K: Array) -> Array:
    """Of loops ``[b]``, from all directions alike; infinite where one is not stable."""
    weight = stage_weight(d.Q, d.R, d.N, K)
    closed, weight = (jnp.moveaxis(a, 0, -1) for a in ((d.A - d.B @ K).mT, weight))
    P, stable = smith(closed, weight, float(jnp.finfo(closed.dtype).eps) ** 0.5 / 4)
    cost = jnp.trace(batch_last.symmetric(P))
    return jnp.where(stable & jnp.isfinite(cost), cost, jnp.inf)
