"""A policy in its own closed loop, in scaled coordinates: what it costs, exactly and differentiably.

A loss on the optimum's trajectories does not see what the loop does with an error. This one does. What a policy
pays above the optimum is a sum over its *own* trajectory (see :class:`lqrlab.dataset.Problem`),

    J − x0ᵀP x0 = Σ (u + Kx)ᵀ S (u + Kx),

so there is nothing to cancel, and a ratio to the optimal cost can be had in float32 near the optimum too.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab import control
from lqrlab.dataset import Problem
from lqrlab.systems import M_MAX, N_MAX

_SQUARINGS = 10
_NEARLY = 1 - 1e-4


def _t(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)


def radius(A: Array) -> Array:
    """An upper bound on the spectral radius ``[...]``, ‖A^1024‖^(1/1024): within 1 % or so of it.

    Source: I. Gelfand, Normierte Ringe, Mat. Sbornik 9 (1941).
    """

    def square(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        A, log, weight = state
        size = jnp.sqrt(jnp.sum(A * A, axis=(-1, -2)) + jnp.finfo(A.dtype).tiny)
        A = A / size[..., None, None]
        return (A @ A, log + weight * jnp.log(size), weight / 2), None

    start = (A, jnp.zeros(A.shape[:-2], A.dtype), jnp.ones((), A.dtype))
    (A, log, weight), _ = jax.lax.scan(square, start, length=_SQUARINGS)
    return jnp.exp(log + weight * jnp.log(jnp.sqrt(jnp.sum(A * A, axis=(-1, -2)) + jnp.finfo(A.dtype).tiny)))


def gain_excess(gain: Array, problem: Problem) -> tuple[Array, Array]:
    """What gains cost above the optimum, as a share of it, over all directions of x0 alike: J/J* − 1.

    J is the trace of the Lyapunov equation's solution, so the horizon is infinite and the value exact. Where a
    loop is not stable, its cost is infinite and has no gradient; there costs are discounted just so much that
    they are finite (by less than what the loop grows by), and the gradient is that of the discounted cost, which
    leads to less growth.

    Args:
        gain: ``[b, 6, 12]``, u = −Kx, scaled.
        problem: ``[b, …]``.

    Returns:
        Excess ``[b]`` and whether the loop is stable ``[b]``.

    Source: J. Perdomo, J. Umenberger, M. Simchowitz, Stabilizing dynamical systems via policy gradient methods,
    NeurIPS 2021 (the discount).
    """
    gain = gain.astype(problem.A.dtype)
    state_mask, input_mask = (
        jnp.max(jnp.abs(problem.P), axis=-1) > 0,
        jnp.max(jnp.abs(problem.B), axis=-2) > 0,
    )
    gain = jnp.where(input_mask[..., :, None] & state_mask[..., None, :], gain, 0.0)
    error, closed = gain - problem.K, problem.A - problem.B @ gain
    size = jax.lax.stop_gradient(radius(closed))
    discount = jnp.where(size < _NEARLY, 1.0, 0.99 / size)
    X = control.dlyap(_t(closed) * discount[..., None, None], _t(error) @ problem.S @ error)
    return _trace(X) / _trace(problem.P), size < _NEARLY


def _trace(a: Array) -> Array:
    return jnp.trace(a, axis1=-2, axis2=-1)


def roll(
    answer: Callable[[Array, Array, Array], Array],
    window: int,
    problem: Problem,
    x0: Array,
    num_steps: int,
    noise: Array | None = None,
) -> tuple[Array, Array]:
    """Run a controller that looks at windows on its plants, from an empty history.

    Args:
        answer: ``(x [b, W, 12], u [b, W, 6], time_mask [b, W]) -> u [b, 6]``.
        window: W.
        problem: the plants ``[b, …]``.
        x0: scaled initial states ``[b, 12]``.
        num_steps: T.
        noise: added to the input at each step ``[T, b, 6]``.

    Returns:
        States ``[b, T+1, 12]`` and inputs ``[b, T, 6]``, as they reached the plant.
    """
    b = x0.shape[0]
    empty = tuple(jnp.zeros((b, window, *k), x0.dtype) for k in ((N_MAX,), (M_MAX,), ()))
    A, B = problem.A.astype(x0.dtype), problem.B.astype(x0.dtype)

    def step(state: tuple, push: Array | None) -> tuple[tuple, tuple[Array, Array]]:
        x, before, seen = state
        new = (x, before, jnp.ones(b, x.dtype))
        seen = tuple(jnp.concatenate([old[:, 1:], a[:, None]], axis=1) for old, a in zip(seen, new))
        u = answer(*seen)
        u = u if push is None else u + push
        after = (A @ x[..., None] + B @ u[..., None])[..., 0]
        return (after, u, seen), (after, u)

    start = (x0, jnp.zeros((b, M_MAX), x0.dtype), empty)
    _, (later, inputs) = jax.lax.scan(step, start, noise, length=num_steps)
    return jnp.concatenate([x0[:, None], jnp.moveaxis(later, 0, 1)], axis=1), jnp.moveaxis(inputs, 0, 1)


def answering(model: Any, context: Any) -> Callable[[Array, Array, Array], Array]:
    """A network's answer to windows of the plants that ``context`` is of, as :func:`roll` takes it."""
    return lambda x, u, time_mask: model(x, u, time_mask, context, last=True)[:, 0]


def excess(problem: Problem, xs: Array, us: Array) -> Array:
    """What loops cost above the optimum as a share of it ``[b]``, were the optimum to take over at the end.

    Args:
        problem: ``[b, …]``.
        xs, us: from :func:`roll`.
    """
    K, S, P = (a.astype(xs.dtype) for a in (problem.K, problem.S, problem.P))
    error = us + jnp.einsum("bij,btj->bti", K, xs[:, :-1])
    x0 = xs[:, 0]
    least = jnp.einsum("bi,bij,bj->b", x0, P, x0)
    return jnp.einsum("bti,bij,btj->b", error, S, error) / jnp.maximum(least, jnp.finfo(xs.dtype).tiny)


def remaining(problem: Problem, xs: Array) -> Array:
    """Optimal cost to go at the end over that at the start ``[b]``: above 1 a loop has grown."""
    P = problem.P.astype(xs.dtype)
    first, last = (jnp.einsum("bi,bij,bj->b", x, P, x) for x in (xs[:, 0], xs[:, -1]))
    return last / jnp.maximum(first, jnp.finfo(xs.dtype).tiny)


def closed_loop(model: Any, context: Any, problem: Problem, x0: Array, horizon: int) -> tuple[Array, Array]:
    """Excess cost ``[b]`` and whether each loop comes back ``[b]``: exact for linear gains, else by a rollout.

    Args:
        x0, horizon: of the rollout; not looked at where the model is linear.
    """
    if model.linear:
        gain = context.gain.reshape(-1, M_MAX, N_MAX)
        return gain_excess(gain, problem)
    xs, us = roll(answering(model, context), model.config.window, problem, x0, horizon)
    return excess(problem, xs, us), remaining(problem, xs) < 1


def efficiency(model: Any, context: Any, problem: Problem, x0: Array, horizon: int) -> tuple[Array, Array]:
    """J*/J, 1 at the optimum and 0 where a loop does not come back ``[b]``; and whether it does ``[b]``."""
    more, back = closed_loop(model, context, problem, x0, horizon)
    back = back & jnp.isfinite(more)
    return jnp.where(back, 1 / (1 + jnp.where(back, more, 0.0)), 0.0), back
