"""Responses of sampled linear loops: to an initial state and to a step of the set-point, with their figures."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import pytree
from lqrlab.compute.checks import whole
from lqrlab.control import checks
from lqrlab.control.servo import feedforward


def free_response(
    F: Array, x0: Array, num_steps: int, output: Callable[[Array], Array] = lambda x: x
) -> tuple[Array, Array]:
    """x[T] of x[t+1] = F x[t], and ``output(x[t])`` for t < T along a new first axis.

    Args:
        F: ``[..., n, n]``.
        x0: initial states as columns ``[..., n, k]``, leading axes as F's.
        num_steps: T.
        output: function of each state that is kept.
    """
    return jax.lax.scan(lambda x, _: (F @ x, output(x)), x0, None, length=num_steps)


@partial(jax.jit, static_argnames="num_steps")
def step_response(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, K: ArrayLike, r: ArrayLike, num_steps: int
) -> tuple[Float[Array, "*batch points m"], Float[Array, "*batch steps m"]]:
    """The loop u = Nu r − K(x − Nx r) from rest to the set-point y = Cx = r; batched, differentiable.

    Args:
        A, B: sampled plant ``[..., n, n]``, ``[..., n, m]``, as from :func:`c2d`.
        C: ``[..., m, n]``: as many outputs as inputs.
        K: ``[..., m, n]``.
        r: set-point ``[..., m]``.
        num_steps: T.

    Returns:
        ``(ys [..., T+1, m], us [..., T, m])``; not finite where no constant input holds y (see :func:`zeros`).
    """
    whole("num_steps", num_steps)
    A, B, C, K = checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "mn"), K=(K, "mn"))
    r = jnp.asarray(r, A.dtype)
    if r.shape[-1:] != C.shape[-2:-1]:
        raise ValueError(f"r: expected a set-point {C.shape[-2:-1]}, one an output, but found {r.shape}")
    Nx, Nu = feedforward(A, B, C, discrete=True)
    A, B, C, K, Nx, Nu, r = checks.together(A, B, C, K, Nx, Nu, r[..., None])
    last, errors = free_response(A - B @ K, -Nx @ r, num_steps)  # of x − Nx r
    us = (Nu @ r)[None] - K @ errors
    ys = r[None] + C @ jnp.concatenate([errors, last[None]])
    return jnp.moveaxis(ys[..., 0], 0, -2), jnp.moveaxis(us[..., 0], 0, -2)


@pytree
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """How outputs go to their set-points, read off at the samples; one number an output.

    Attributes:
        rise: from 10 % to 90 % [s].
        settling: time after which the output stays within the band [s]; infinite if it is outside at the end.
        overshoot: beyond the set-point, relative to it; ≥ 0.
        undershoot: the wrong way, relative to the set-point; ≥ 0.
        peak: largest absolute value.
    """

    rise: Float[Array, "*outputs"]
    settling: Float[Array, "*outputs"]
    overshoot: Float[Array, "*outputs"]
    undershoot: Float[Array, "*outputs"]
    peak: Float[Array, "*peaks"]


def step_info(ys: ArrayLike, dt: ArrayLike, r: ArrayLike, *, within: float = 0.02) -> StepInfo:
    """Rise and settling time, over- and undershoot of responses to a set-point; batched.

    Args:
        ys: outputs ``[..., T+1, p]``, from :func:`step_response` or measured; at rest in 0 before.
        dt: sample time [s], scalar or with the leading axes.
        r: set-points ``[..., p]``. Zero means an output that is to stay where it is: it has no such figures (NaN).
        within: half-width of the band, relative to the set-point.

    Returns:
        :class:`StepInfo`. The times are steps of a function, so their derivative is zero; to tune a loop by
        gradient see :func:`tune`. How long a loop takes before any response is known: :func:`settling_time`.

    >>> control.step_info([[0.0], [0.5], [1.0], [1.0]], 0.1, [1.0]).settling
    Array([0.2], dtype=float64)
    """
    ys, r = jnp.asarray(ys), jnp.asarray(r)
    ys = ys.astype(checks.floating(ys, r))
    if ys.ndim < 2:
        raise ValueError(f"ys: expected outputs [..., T+1, p], but found shape {ys.shape}")
    lead = jnp.broadcast_shapes(ys.shape[:-2] + ys.shape[-1:], r.shape, (*jnp.shape(dt), 1))
    goal = jnp.broadcast_to(jnp.where(r != 0, r, jnp.nan), lead)
    step = jnp.broadcast_to(checks.sample_time(dt, ys.dtype)[..., None], lead)
    done = jnp.moveaxis(jnp.broadcast_to(ys, (*lead[:-1], ys.shape[-2], lead[-1])), -2, 0) / goal[None]

    def first(reached: Array) -> Array:
        return jnp.where(reached.any(0), jnp.argmax(reached, axis=0), jnp.inf)

    outside = ~(jnp.abs(done - 1) <= within)
    last = done.shape[0] - jnp.argmax(outside[::-1], axis=0)  # one after the last outside
    steps = jnp.where(outside.any(0), jnp.where(last < done.shape[0], last, jnp.inf), 0)
    blank = jnp.where(jnp.isnan(goal), jnp.nan, 0.0)
    return StepInfo(
        (first(done >= 0.9) - first(done >= 0.1)) * step + blank,
        steps * step + blank,
        jnp.maximum(jnp.max(done, axis=0) - 1, 0),
        jnp.maximum(-jnp.min(done, axis=0), 0),
        jnp.max(jnp.abs(ys), axis=-2),
    )
