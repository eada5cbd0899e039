"""Responses of sampled linear loops to a step of the set-point, with their figures."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, pytree
from lqrlab.compute.checks import number, whole
from lqrlab.control import matrix_checks
from lqrlab.control.servo import feedforward


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
    A, B, C, K = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "mn"), K=(K, "mn"))
    r = jnp.asarray(matrix_checks.real("r", r), A.dtype)
    if r.shape[-1:] != C.shape[-2:-1]:
        raise ValueError(f"r: expected a set-point {C.shape[-2:-1]}, one an output, but found {r.shape}")
    return _run(A, B, C, K, r, num_steps)


@partial(jax.jit, static_argnames="num_steps")
def _run(A: Array, B: Array, C: Array, K: Array, r: Array, num_steps: int) -> tuple[Array, Array]:
    def one(A: Array, B: Array, C: Array, K: Array, r: Array) -> tuple[Array, Array]:
        Nx, Nu = feedforward(A, B, C, discrete=True)
        closed = A - B @ K
        last, errors = jax.lax.scan(lambda e, _: (closed @ e, e), -Nx @ r, None, length=num_steps)  # x − Nx r
        ys = r[None] + jnp.concatenate([errors, last[None]]) @ C.T
        return ys, (Nu @ r)[None] - errors @ K.T

    return broadcast(one, (A, 2), (B, 2), (C, 2), (K, 2), (r, 1))


@pytree
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """Step response of outputs in numbers, read off at the samples; one number an output.

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
    peak: Float[Array, "*outputs"]


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

    >>> tuning.step_info([[0.0], [0.5], [1.0], [1.0]], 0.1, [1.0]).settling
    Array([0.2], dtype=float64)
    """
    ys, r = jnp.asarray(matrix_checks.real("ys", ys)), jnp.asarray(matrix_checks.real("r", r))
    ys, r = (a.astype(matrix_checks.floating(ys, r)) for a in (ys, r))
    number("within", within, "a share of the set-point above 0 and below 1", above=0, below=1)
    if ys.ndim < 2 or not ys.size:
        raise ValueError(f"ys: expected outputs [..., T+1, p], but found shape {ys.shape}")

    def one(y: Array, dt: Array, r: Array) -> StepInfo:
        done = y / jnp.where(r != 0, r, jnp.nan)
        outside = ~(jnp.abs(done - 1) <= within)
        last = y.size - jnp.argmax(outside[::-1]).astype(y.dtype)  # one after the last outside
        settled = jnp.where(outside.any(), jnp.where(last < y.size, last, jnp.inf), 0)
        reached = [
            jnp.where((done >= share).any(), jnp.argmax(done >= share).astype(y.dtype), jnp.inf) for share in (0.1, 0.9)
        ]
        return StepInfo(
            (reached[1] - reached[0]) * dt,
            jnp.where(r != 0, settled * dt, jnp.nan),
            jnp.maximum(jnp.max(done) - 1, 0),
            jnp.maximum(-jnp.min(done), 0),
            jnp.max(jnp.abs(y)),
        )

    return broadcast(one, (ys.mT, 1), (matrix_checks.sample_time(dt, ys.dtype, ys)[..., None], 0), (r, 0))
