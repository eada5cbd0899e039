"""Input delay, exactly: the sampled-data problem with the inputs on their way as states, its optimum and its cost."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import as_jax
from lqrlab.compute.checks import flag, number, traced
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import Sampled, compiled
from lqrlab.control.lyapunov import cost_to_go
from lqrlab.control.regulator import LQR, dlqr, lqrd

Delay = float | Sequence[float] | np.ndarray  # in sample times: of all inputs, or of each one
LONGEST = 500  # sample times that an input may be on its way: each adds states, and a program that is compiled


def delayed(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: Delay, N: ArrayLike | None = None
) -> Sampled:
    """The sampled-data problem of a plant whose held inputs arrive ``delay`` sample times after they were computed.

    The state is extended by the inputs that are on their way, the newest first: z = (x[t], u[t−1], …, u[t−d]) with d
    the longest delay, rounded up. The cost is ∫ xᵀQx + uᵀRu + 2xᵀNu dt with u the input that acts on the plant.

    Args:
        A, B, Q, R, dt, N: the continuous problem and its sample time [s], as in :func:`lqrd`.
        delay: in sample times, 0 … :data:`LONGEST`, whole or not, one for all inputs or one each ``[m]``, not batched.

    Returns:
        :class:`Sampled` with n + m d states. Its R is zero for inputs from a delay of one sample time on: these are
        charged later, through the state, so :func:`dlqr` warns of it; :func:`lqrd_delayed` does not.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 2.3.
    """
    matrices, step, waits = _checked(A, B, Q, R, dt, delay, N)
    return _with_memory(_parts(matrices, step, waits), waits)


def _checked(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: object, N: ArrayLike | None
) -> tuple[tuple[Array, ...], Array, np.ndarray]:
    """The problem, its sample time, and the delay of each input in sample times ``[m]``."""
    matrices = matrix_checks.arguments(A, B, Q, R, N)
    m = matrices[1].shape[-1]
    words = f"a number of sample times in [0, {LONGEST}], or one for each of {m} inputs, not traced"
    several = isinstance(delay, Sequence | np.ndarray) and not isinstance(delay, str) and np.ndim(delay)
    each = list(delay) if several else [delay] * m  # type: ignore[call-overload]
    if len(each) != m:
        raise ValueError(f"delay: expected {words}, but found {len(each)} of them")
    waits = np.array([number("delay", d, words, low=0, high=LONGEST) for d in each])
    return matrices, matrix_checks.sample_time(dt, matrices[0].dtype, *matrices), waits


def _parts(matrices: tuple[Array, ...], step: Array, waits: np.ndarray) -> list[tuple[float, Sampled]]:
    """The parts of a sample time within which no input changes: where each begins, and the problem sampled over it."""
    cuts = np.array([*sorted({0.0, *(waits % 1)}), 1.0])
    shares = [(cut, jnp.asarray(end - cut, step.dtype)) for cut, end in itertools.pairwise(cuts)]
    return [(cut, compiled(*matrices, step * share)) for cut, share in shares]


def _with_memory(parts: list[tuple[float, Sampled]], waits: np.ndarray) -> Sampled:
    """The problem of state (x, u[t−1], …, u[t−d]) and input u[t], part by part of a sample time."""
    first = parts[0][1]
    few = not traced(first) and matrix_checks.few(first.B.shape[:-2])
    library: Any = np if few else jnp  # each delay has shapes of its own: of a few no programs are compiled
    parts = [(begins, Sampled(*map(library.asarray, part))) for begins, part in parts]
    (n, m), d, lead = first.B.shape[-2:], math.ceil(waits.max(initial=0.0)), first.B.shape[:-2]
    width = n + m * d + m

    def spread(a: np.ndarray) -> Any:
        return library.broadcast_to(library.asarray(a, first.A.dtype), (*lead, *a.shape))

    # rows take what they are named for out of (x, u[t−1], …, u[t−d], u[t])
    x, weight = spread(np.eye(n, width)), spread(np.zeros((width, width)))
    for begins, part in parts:
        ages = np.floor(waits).astype(int) + (waits % 1 > begins)
        acting = np.eye(width)[n + m * ((ages - 1) % (d + 1)) + np.arange(m)]
        both = library.concatenate([x, spread(acting)], axis=-2)
        joint = [library.concatenate(row, axis=-1) for row in ([part.Q, part.N], [part.N.mT, part.R])]
        weight = weight + both.mT @ library.concatenate(joint, axis=-2) @ both
        x = library.concatenate([part.A, part.B], axis=-1) @ both
    memory = np.eye(width)[np.r_[n + m * d : width, n : width - m][: m * d]]
    whole, z = library.concatenate([x, spread(memory)], axis=-2), n + m * d
    weights = weight[..., :z, :z], weight[..., z:, z:], weight[..., :z, z:]
    return Sampled(*map(as_jax, (whole[..., :z], whole[..., z:], *weights)))


def lqrd_delayed(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, delay: Delay, N: ArrayLike | None = None
) -> LQR:
    """The sampled-data optimum of a plant with delayed inputs, for a delay-aware controller.

    Whole sample times of all inputs are bridged by prediction, the rest by a Riccati equation of the inputs on the way.

    Args:
        A, B, Q, R, dt, delay, N: as in :func:`delayed`.

    Returns:
        :class:`LQR` of the extended state: u[t] = −K (x[t], u[t−1], …); its P is the cost to go from it.
    """
    matrices, step, waits = _checked(A, B, Q, R, dt, delay, N)
    samples = math.floor(waits.min())
    waits, parts, n, m = waits - samples, _parts(matrices, step, waits), *matrices[1].shape[-2:]
    problem = _with_memory(parts, waits)
    design = _soon_charged(matrices, step, waits) if waits.max() >= 1 else dlqr(*problem)
    K, P = design.K, design.P
    for _ in range(samples):  # no input of now changes what the next step costs: it acts on the state after it
        size, waits = problem.A.shape[-1], waits + 1
        order = np.r_[:n, size : size + m, n:size]
        ahead, problem = jnp.concatenate([problem.A, problem.B], axis=-1)[..., order], _with_memory(parts, waits)
        K, P = K @ ahead, problem.Q + ahead.mT @ P @ ahead
    return LQR(K, P, problem.A - problem.B @ K, design.residual, design.stabilizing)


def _soon_charged(matrices: tuple[Array, ...], step: Array, waits: np.ndarray) -> LQR:
    """The optimum where an input comes whole samples after another one.

    Some of R is charged when an input is computed, which changes nothing but what those on their way still cost: a
    Riccati equation needs a cost of each input.
    """
    lead = np.broadcast_shapes(step.shape, *(M.shape[:-2] for M in matrices))
    A, B, Q, R, N = (jnp.broadcast_to(M, (*lead, *M.shape[-2:])) for M in matrices)
    left = R - N.mT @ jnp.linalg.pinv(Q, hermitian=True) @ N
    early = 0.5 * jnp.linalg.eigvalsh(left)[..., :1, None]
    d, one = math.ceil(waits.max()), jnp.broadcast_to(jnp.eye(len(waits), dtype=R.dtype), R.shape)
    p = _with_memory(_parts((A, B, Q, R - early * one, N), step, waits), waits)
    charge = early * jnp.broadcast_to(step, lead)[..., None, None]
    design = dlqr(p.A, p.B, p.Q, p.R + charge * one, p.N)
    to_act = np.clip(waits + 1 - np.arange(1, d + 1)[:, None], 0, 1).ravel()  # shares of a sample time
    share = jnp.asarray(np.diag(np.concatenate([np.zeros(A.shape[-1]), to_act])), R.dtype)
    paid = charge * jnp.broadcast_to(share, design.P.shape)
    return LQR(design.K, design.P + paid, design.closed_loop, design.residual, design.stabilizing)


def delay_cost(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    dt: ArrayLike,
    delay: Delay,
    *,
    K: ArrayLike | None = None,
    aware: bool = False,
) -> Float[Array, "*batch"]:
    """Relative extra cost of a delayed input, averaged over initial directions.

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
