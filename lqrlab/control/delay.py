"""Input delay, exactly: the sampled-data problem with the inputs on their way as states, its optimum and its cost."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast
from lqrlab.compute.checks import number
from lqrlab.control import checks
from lqrlab.control.discretization import Sampled, sample_many
from lqrlab.control.regulator import LQR, dlqr, lqrd
from lqrlab.control.weights import cost_to_go


def delayed(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike,
    delay: float, N: ArrayLike | None = None,
) -> Sampled:  # fmt: skip
    """The sampled-data problem of a plant whose held input arrives ``delay`` sample times after it was computed.

    The state is extended by the inputs that are on their way, the newest first: z = (x[t], u[t−1], …, u[t−d−1])
    for d whole sample times and a rest (d inputs without a rest). The cost is ∫ xᵀQx + uᵀRu + 2xᵀNu dt with u the
    input that acts on the plant at the time.

    Args:
        A, B, Q, R, dt, N: the continuous problem and its sample time [s], as in :func:`lqrd`.
        delay: in sample times, ≥ 0, whole or not; the same for all members of a batch.

    Returns:
        :class:`Sampled` with n + m⌈delay⌉ states. Its R is zero from a delay of one sample time on: such an input is
        charged later, through the state, so :func:`dlqr` refuses it; :func:`lqrd_delayed` does not.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 2.3.
    """
    args, samples, rest = _arguments(A, B, Q, R, dt, delay, N)
    return _extended(args, samples, rest)


def _arguments(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike,
    delay: float, N: ArrayLike | None,
) -> tuple[tuple[Array, ...], int, float]:  # fmt: skip
    """The checked problem with its sample time, the delay's whole sample times and the rest."""
    delay = number("delay", delay, "a number of sample times ≥ 0, not traced", low=0)
    args = checks.arguments(A, B, Q, R, N)
    return (*args, checks.sample_time(dt, args[0].dtype)), math.floor(delay), delay - math.floor(delay)


def _part_of_a_sample(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array, rest: Array) -> Sampled:
    """A delay below one sample time: the state is (x, u[t−1])."""
    n, m = B.shape
    old, new = (sample_many(A, B, Q, R, N, share * dt) for share in (rest, 1 - rest))
    # at first the old input acts on x; where that ends the new one begins
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


def _extended(args: tuple[Array, ...], samples: int, rest: float) -> Sampled:
    return _extend(args, jnp.asarray(rest, args[0].dtype), samples=samples, broken=rest > 0)


@partial(jax.jit, static_argnames=("samples", "broken"))
def _extend(args: tuple[Array, ...], rest: Array, *, samples: int, broken: bool) -> Sampled:
    def one(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array, rest: Array) -> Sampled:
        p = _part_of_a_sample(A, B, Q, R, N, dt, rest) if broken else sample_many(A, B, Q, R, N, dt)
        n, m = B.shape
        if not samples:
            return p
        # the input of p is u[t − samples]; the older one in the state of p, if any, comes after that
        size, later = n + m * (samples + broken), slice(n + m * (samples - 1), n + m * samples)
        A, Q, N = (jnp.zeros(s, A.dtype) for s in ((size, size), (size, size), (size, m)))
        inner = jnp.concatenate([jnp.arange(n), jnp.arange(n + m * samples, size)])
        rows, columns = inner[:, None], inner[None]
        A = A.at[rows[:n], columns].set(p.A[:n]).at[:n, later].set(p.B[:n])
        A = A.at[n + m :, n : size - m].set(jnp.eye(size - n - m, dtype=A.dtype))  # all inputs move on by one
        Q = Q.at[rows, columns].set(p.Q).at[later, later].set(p.R)
        Q = Q.at[inner, later].set(p.N).at[later, inner].set(p.N.T)
        B = jnp.zeros((size, m), A.dtype).at[n : n + m].set(jnp.eye(m, dtype=A.dtype))
        return Sampled(A, B, Q, jnp.zeros((m, m), A.dtype), N)

    return broadcast(one, *zip((*args, rest), (2, 2, 2, 2, 2, 0, 0)))


def lqrd_delayed(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike,
    delay: float, N: ArrayLike | None = None,
) -> LQR:  # fmt: skip
    """The sampled-data optimum of a plant whose input arrives late, by a controller that knows the delay.

    Whole sample times are bridged by prediction, a rest by the one input that is still acting.

    Args:
        A, B, Q, R, dt, delay, N: as in :func:`delayed`.

    Returns:
        :class:`LQR` of the extended state: u[t] = −K (x[t], u[t−1], …); its P is the cost to go from it.
    """
    args, samples, rest = _arguments(A, B, Q, R, dt, delay, N)
    inner = dlqr(*_extended(args, 0, rest))
    if not samples:
        return inner
    problem = _extended(args, samples, rest)
    n, m = args[1].shape[-2:]
    P = jnp.zeros_like(problem.Q)
    ahead = jnp.broadcast_to(jnp.eye(problem.A.shape[-1], dtype=P.dtype), P.shape)
    for _ in range(samples):  # no decision of now can change what these steps cost
        P = P + ahead.mT @ problem.Q @ ahead
        ahead = problem.A @ ahead
    keep = jnp.concatenate([jnp.arange(n), jnp.arange(n + m * samples, P.shape[-1])])
    then = ahead[..., keep, :]
    K = inner.K @ then
    P = P + then.mT @ inner.P @ then
    return LQR(K, P, problem.A - problem.B @ K, inner.residual, inner.stabilizing)


def delay_cost(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike,
    delay: float, *, K: ArrayLike | None = None, aware: bool = False,
) -> Float[Array, "*batch"]:  # fmt: skip
    """How much more a loop costs because its input arrives late, averaged over initial directions.

    Args:
        A, B, Q, R, dt, delay: as in :func:`delayed`. Before the first input arrives, none acts.
        K: the gain on x[t] of a controller that ignores the delay ``[..., m, n]``; that of :func:`lqrd` if left out.
        aware: instead take the optimum that knows the delay, :func:`lqrd_delayed`.

    Returns:
        tr(P_late)/tr(P) − 1 ``[...]`` with P of :func:`lqrd`; infinite where the delay makes the loop unstable.
    """
    prompt = lqrd(A, B, Q, R, dt)
    n = jnp.shape(A)[-1]
    if aware:
        if K is not None:
            raise ValueError("K: the optimum that knows the delay has another gain; leave K or aware out")
        late = lqrd_delayed(A, B, Q, R, dt, delay).P
    else:
        problem = delayed(A, B, Q, R, dt, delay)
        gain = prompt.K if K is None else jnp.asarray(K)
        on_inputs = jnp.zeros((*gain.shape[:-1], problem.A.shape[-1] - n), gain.dtype)
        late = cost_to_go(problem, jnp.concatenate([gain, on_inputs], axis=-1))
    late, first = (jnp.trace(P[..., :n, :n], axis1=-2, axis2=-1) for P in (late, prompt.P))
    return jnp.where(jnp.isnan(late) & ~jnp.isnan(first), jnp.inf, late / first - 1)
