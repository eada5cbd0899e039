"""Input delay, exactly: the sampled-data problem with the inputs on their way as states, its optimum and its cost."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute.checks import flag, number
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import Sampled, compiled, sample_many
from lqrlab.control.regulator import LQR, dlqr, lqrd
from lqrlab.control.weights import cost_to_go

LONGEST = 500
"""Sample times that an input may be on its way: each adds states, and a program that is compiled."""


def delayed(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: float, N: ArrayLike | None = None
) -> Sampled:
    """The sampled-data problem of a plant whose held input arrives ``delay`` sample times after it was computed.

    The state is extended by the inputs that are on their way, the newest first: z = (x[t], u[t−1], …, u[t−d−1])
    for d whole sample times and a rest (d inputs without a rest). The cost is ∫ xᵀQx + uᵀRu + 2xᵀNu dt with u the
    input that acts on the plant at the time.

    Args:
        A, B, Q, R, dt, N: the continuous problem and its sample time [s], as in :func:`lqrd`.
        delay: in sample times, 0 … :data:`LONGEST`, whole or not; the same for all members of a batch.

    Returns:
        :class:`Sampled` with n + m⌈delay⌉ states. Its R is zero from a delay of one sample time on: such an input is
        charged later, through the state, so :func:`dlqr` warns of it; :func:`lqrd_delayed` does not.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 2.3.
    """
    problem, samples = _within_a_sample(A, B, Q, R, dt, delay, N)
    for _ in range(samples):
        problem = _one_sample_later(problem, jnp.shape(A)[-1])
    return problem


def _within_a_sample(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: float, N: ArrayLike | None
) -> tuple[Sampled, int]:
    """The checked, sampled problem with what its delay has beyond whole sample times, and how many these are."""
    words = f"a number of sample times in [0, {LONGEST}], not traced"
    delay = number("delay", delay, words, low=0, high=LONGEST)
    matrices = matrix_checks.arguments(A, B, Q, R, N)
    dtype = matrices[0].dtype
    args, rest = (*matrices, matrix_checks.sample_time(dt, dtype, *matrices)), jnp.asarray(delay % 1, dtype)
    return _divided(args, rest) if delay % 1 else compiled(*args), math.floor(delay)


@jax.jit
def _divided(args: tuple[Array, ...], rest: Array) -> Sampled:
    """A delay of the share ``rest`` of a sample time: the state is (x, u[t−1])."""
    *problem, dt = args
    old, new = (sample_many(*problem, share * dt) for share in (rest, 1 - rest))
    # at first the old input acts on x; where that ends the new one begins
    end = jnp.concatenate([old.A, old.B], axis=-1)
    one = jnp.broadcast_to(jnp.eye(new.R.shape[-1], dtype=rest.dtype), new.R.shape)
    B = jnp.concatenate([new.B, one], axis=-2)
    return Sampled(_zeros_below(new.A @ end, B), B, _joint(old) + end.mT @ new.Q @ end, new.R, end.mT @ new.N)


def _joint(p: Sampled) -> Array:
    """The weight of state and input."""
    rows = jnp.concatenate([p.Q, p.N], axis=-1), jnp.concatenate([p.N.mT, p.R], axis=-1)
    return jnp.concatenate(rows, axis=-2)


def _zeros_below(a: Array, like: Array) -> Array:
    """a with as many rows as ``like``."""
    return jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, like.shape[-2] - a.shape[-2]), (0, 0)])


def _order(p: Sampled, n: int) -> np.ndarray:
    """Indices of (x, v, w) in (x, w, v): x has n entries, w are inputs in the state of p, v is its input."""
    size, m = p.B.shape[-2:]
    return np.r_[:n, size : size + m, n:size]


@partial(jax.jit, static_argnames="n")
def _one_sample_later(p: Sampled, n: int) -> Sampled:
    """The problem whose input arrives one sample time later: the input on its way becomes a state after x."""
    order, (size, m) = _order(p, n), p.B.shape[-2:]
    B = jnp.broadcast_to(jnp.eye(size + m, m, -n, dtype=p.B.dtype), (*p.B.shape[:-2], size + m, m))
    A, Q = _zeros_below(jnp.concatenate([p.A, p.B], axis=-1), B), _joint(p)
    A, Q = (a[..., order, :][..., order] for a in (A, Q))
    return Sampled(A, B, Q, jnp.zeros_like(p.R), jnp.zeros_like(B))


def lqrd_delayed(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: float, N: ArrayLike | None = None
) -> LQR:
    """The sampled-data optimum of a plant whose input arrives late, by a controller that knows the delay.

    Whole sample times are bridged by prediction, a rest by the one input that is still acting.

    Args:
        A, B, Q, R, dt, delay, N: as in :func:`delayed`.

    Returns:
        :class:`LQR` of the extended state: u[t] = −K (x[t], u[t−1], …); its P is the cost to go from it.
    """
    (problem, samples), n = _within_a_sample(A, B, Q, R, dt, delay, N), jnp.shape(A)[-1]
    design = dlqr(*problem)
    K, P = design.K, design.P
    for _ in range(samples):  # no input of now changes what the next step costs: it acts on the state after it
        ahead = jnp.concatenate([problem.A, problem.B], axis=-1)[..., _order(problem, n)]
        problem = _one_sample_later(problem, n)
        K, P = K @ ahead, problem.Q + ahead.mT @ P @ ahead
    return LQR(K, P, problem.A - problem.B @ K, design.residual, design.stabilizing)


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
) -> Float[Array, "*batch"]:
    """Relative extra cost of a loop whose input arrives late, averaged over initial directions.

    Args:
        A, B, Q, R, dt, delay: as in :func:`delayed`. Before the first input arrives, none acts.
        K: the gain on x[t] of a controller that ignores the delay ``[..., m, n]``; that of :func:`lqrd` if left out.
        aware: instead take the optimum that knows the delay, :func:`lqrd_delayed`.

    Returns:
        tr(P_late)/tr(P) − 1 ``[...]`` with P of :func:`lqrd`; infinite where the delay makes the loop unstable.
    """
    flag("aware", aware)
    prompt = lqrd(A, B, Q, R, dt)
    n = jnp.shape(A)[-1]
    if aware:
        if K is not None:
            raise ValueError("K: the optimum that knows the delay has another gain; leave K or aware out")
        late = lqrd_delayed(A, B, Q, R, dt, delay).P
    else:
        problem = delayed(A, B, Q, R, dt, delay)
        gain = prompt.K if K is None else jnp.asarray(matrix_checks.real("K", K))
        on_inputs = jnp.zeros((*gain.shape[:-1], problem.A.shape[-1] - n), gain.dtype)
        late = cost_to_go(problem, jnp.concatenate([gain, on_inputs], axis=-1))
    late, first = (jnp.trace(P[..., :n, :n], axis1=-2, axis2=-1) for P in (late, prompt.P))
    return jnp.where(jnp.isnan(late) & ~jnp.isnan(first), jnp.inf, late / first - 1)
