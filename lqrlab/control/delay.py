"""What it costs that an input acts late, and the best that can be done about it: exact, by a wider state."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import broadcast
from lqrlab.control import checks
from lqrlab.control.discretization import Sampled, sample_many
from lqrlab.control.lyapunov import dlyap
from lqrlab.control.regulator import LQR, dlqr, lqrd
from lqrlab.control.riccati import equations
from lqrlab.control.weights import stage_weight


def delayed(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    dt: ArrayLike,
    delay: float,
    N: ArrayLike | None = None,
) -> Sampled:
    """The sampled-data problem of a plant whose held input arrives ``delay`` sample times after it was computed.

    The state is widened by the inputs that are on their way, the newest first: z = (x[t], u[t−1], …, u[t−d−1])
    for d whole sample times and a rest (d inputs without a rest). What is charged is what the plant sees: the
    cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt of the input that acts at the time.

    Args:
        A, B, Q, R, dt, N: the continuous problem and its sample time [s], as in :func:`lqrd`.
        delay: in sample times, ≥ 0, whole or not; the same for all members of a batch.

    Returns:
        :class:`Sampled` with n + m⌈delay⌉ states. Its R is zero from a delay of one sample time on: such an input is
        charged later, through the state, so :func:`dlqr` refuses it; :func:`lqrd_delayed` does not.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 2.3.
    """
    args, step, whole, rest = _arguments(A, B, Q, R, dt, delay, N)
    return _delayed(*args, step, whole=whole, rest=rest)


def _arguments(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: float, N: ArrayLike | None
) -> tuple[tuple[Array, ...], Array, int, float]:
    """The checked problem, its sample time, whole sample times of delay and the rest."""
    if checks.traced(delay) or not (math.isfinite(delay) and delay >= 0):
        raise ValueError(f"delay: expected a number of sample times ≥ 0, not traced, but found {delay}")
    args = checks.arguments(A, B, Q, R, N)
    whole = math.floor(delay)
    return args, checks.sample_time(dt, args[0].dtype), whole, float(delay) - whole


def _one(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array, rest: Array) -> Sampled:
    """A delay below one sample time: the state is (x, u[t−1])."""
    n, m = B.shape
    old, new = (sample_many(A, B, Q, R, N, share * dt) for share in (rest, 1 - rest))
    # over the first stretch the old input acts on x; its end is the start of the second
    end = jnp.concatenate([old.A, old.B], axis=1)
    first = jnp.block([[old.Q, old.N], [old.N.T, old.R]])
    below = jnp.zeros((m, n + m), A.dtype)
    return Sampled(
        jnp.concatenate([new.A @ end, below]),
        jnp.concatenate([new.B, jnp.eye(m, dtype=A.dtype)]),
        first + end.T @ new.Q @ end,
        new.R,
        end.T @ new.N,
    )


def _delayed(*args: Array, whole: int, rest: float) -> Sampled:
    return _widened(*args, jnp.asarray(rest, args[0].dtype), whole=whole, broken=rest > 0)


@partial(jax.jit, static_argnames=("whole", "broken"))
def _widened(*args: Array, whole: int, broken: bool) -> Sampled:
    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array, rest: Array) -> Sampled:
        p = _one(A, B, Q, R, N, dt, rest) if broken else sample_many(A, B, Q, R, N, dt)
        n, m = B.shape
        if not whole:
            return p
        # what _one calls its input is u[t − whole], what it calls the older one comes after that
        wide, later = n + m * (whole + broken), slice(n + m * (whole - 1), n + m * whole)
        A, Q, N = (jnp.zeros(s, A.dtype) for s in ((wide, wide), (wide, wide), (wide, m)))
        inner = jnp.concatenate([jnp.arange(n), jnp.arange(n + m * whole, wide)])
        to_x, of = inner[:n, None], inner[None]
        A = A.at[to_x, of].set(p.A[:n]).at[:n, later].set(p.B[:n])
        A = A.at[n + m :, n : wide - m].set(jnp.eye(wide - n - m, dtype=A.dtype))  # all move on by one
        Q = Q.at[inner[:, None], of].set(p.Q).at[later, later].set(p.R)
        Q = Q.at[inner, later].set(p.N).at[later, inner].set(p.N.T)
        B = jnp.zeros((wide, m), A.dtype).at[n : n + m].set(jnp.eye(m, dtype=A.dtype))
        return Sampled(A, B, Q, jnp.zeros((m, m), A.dtype), N)

    return broadcast(one, *zip(args, (2, 2, 2, 2, 2, 0, 0)))


def lqrd_delayed(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    dt: ArrayLike,
    delay: float,
    N: ArrayLike | None = None,
) -> LQR:
    """The sampled-data optimum of a plant whose input arrives late, by a controller that knows it.

    Whole sample times are bridged by prediction, a rest by the one input that is still acting.

    Args:
        A, B, Q, R, dt, delay, N: as in :func:`delayed`.

    Returns:
        :class:`LQR` of the wider state: u[t] = −K (x[t], u[t−1], …); its P is the cost to go from there.
    """
    args, step, whole, rest = _arguments(A, B, Q, R, dt, delay, N)
    inner = dlqr(*_delayed(*args, step, whole=0, rest=rest))
    if not whole:
        return inner
    wide = _delayed(*args, step, whole=whole, rest=rest)
    n, m = args[1].shape[-2:]
    t = partial(jnp.swapaxes, axis1=-1, axis2=-2)
    P = jnp.zeros_like(wide.Q)
    ahead = jnp.broadcast_to(jnp.eye(wide.A.shape[-1], dtype=P.dtype), P.shape)
    for _ in range(whole):  # nothing that is decided now can change what these steps cost
        P = P + t(ahead) @ wide.Q @ ahead
        ahead = wide.A @ ahead
    keep = jnp.concatenate([jnp.arange(n), jnp.arange(n + m * whole, P.shape[-1])])
    then = ahead[..., keep, :]
    K = inner.K @ then
    return LQR(K, P + t(then) @ inner.P @ then, wide.A - wide.B @ K, inner.residual, inner.stabilizing)


def delay_cost(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    dt: ArrayLike,
    delay: float,
    *,
    K: ArrayLike | None = None,
    aware: bool = False,
) -> Array:
    """How much more a loop costs because its input arrives late, from initial states of every direction.

    Args:
        A, B, Q, R, dt, delay: as in :func:`delayed`. Before the first input arrives, none acts.
        K: the gain on x[t] that goes on as if there were no delay ``[..., m, n]``; that of :func:`lqrd` if left out.
        aware: instead take the optimum that knows the delay, :func:`lqrd_delayed`.

    Returns:
        tr(P_late)/tr(P) − 1 ``[...]`` with P of :func:`lqrd`; infinite where the delay makes the loop unstable.
    """
    prompt = lqrd(A, B, Q, R, dt)
    n = jnp.shape(A)[-1]
    if aware:
        if K is not None:
            raise ValueError(
                "K: the optimum that knows the delay has a gain of its own; leave K or aware out"
            )
        late = lqrd_delayed(A, B, Q, R, dt, delay).P
    else:
        wide = delayed(A, B, Q, R, dt, delay)
        gain = prompt.K if K is None else jnp.asarray(K)
        gain, a, b, q, r, cross = equations.together(gain, *wide)
        gain = jnp.concatenate([gain, jnp.zeros((*gain.shape[:-1], a.shape[-1] - n), gain.dtype)], axis=-1)
        late = dlyap(jnp.swapaxes(a - b @ gain, -1, -2), stage_weight(q, r, cross, gain))
    late, first = (jnp.trace(P[..., :n, :n], axis1=-2, axis2=-1) for P in (late, prompt.P))
    return jnp.where(jnp.isnan(late) & ~jnp.isnan(first), jnp.inf, late / first - 1)
