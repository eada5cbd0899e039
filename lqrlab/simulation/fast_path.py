"""Fast paths of :func:`lqrlab.simulation.rollout`, each tested equal to it: which loops take one, and which."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.compute.memory import aligned
from lqrlab.compute.threads import on_threads
from lqrlab.control import Sampled, stage_weight
from lqrlab.simulation import constant_gain
from lqrlab.simulation.constant_gain import SHARED, Loops, loops_of
from lqrlab.simulation.noise import Noise, drawing
from lqrlab.simulation.policies import LinearPolicy, Policy
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.recording import Arrays, Keep

MANY = 64
"""From so many loops on matrix powers are faster than the reference scan, which has to be compiled."""
MUCH = 1_000_000
"""Steps of all loops from which on the batch-last engine gains more than its compilation costs."""
PLENTY = 4_000_000
"""The same where matrix powers, which need no compilation, would do."""
SMALL = 6
"""States up to which the batch-last engine is then the faster one, of loops that share no plant."""
_ENTRIES = 64_000  # of matrices in a piece, which stay in the cache
_LOOPS = 1600  # at most, in a piece


def rollout(
    problem: Problem,
    policy: Policy,
    x0: Float[Array, "*lead n"],
    num_steps: int,
    keep: tuple[str, ...],
    key: PRNGKeyArray | None,
) -> dict[str, Array] | None:
    """``xs``, ``us``, ``costs`` and ``seen``, as far as they are kept; None for loops that are the reference scan's.

    An engine takes many loops under constant gains, outside of traces, on one device. NumPy, which has no bfloat16,
    must know the numbers; and where JAX is to look for NaN, it has to see each step.
    """
    lead, count = x0.shape[:-1], x0.size // x0.shape[-1]
    watched = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    if (
        type(policy) is not LinearPolicy
        or count < MANY
        or watched
        or _shared_out(x0, policy.K, problem.A)
        or not np.issubdtype(x0.dtype, np.floating)
    ):
        return None
    if checks.traced(problem, policy, x0, key, jnp.zeros(())):
        return None
    loops, starts = loops_of(problem, policy.K), x0.reshape(-1, x0.shape[-1])
    out: Mapping[str, np.ndarray | Array] | None = None
    if (
        key is None
        and isinstance(loops.model, Sampled)
        and loops.low is None
        and jax.default_backend() == "cpu"
        and not (x0.shape[-1] <= SMALL and count < SHARED * loops.plants and count * num_steps >= PLENTY)
    ):
        out = matrix_powers(loops, starts, num_steps, keep)
    if out is None:
        if count * num_steps * (1 if problem.linear else problem.substeps) < MUCH:
            return None
        out = constant_gain.simulate(loops, starts, num_steps, _kept(keep), key=key, substeps=problem.substeps)
        if "seen" in keep:
            out = {**out, "seen": _seen(jnp.asarray(out["xs"]), loops.noise.sensor, key)}
    return {name: jax.device_put(out[name].reshape(*lead, *out[name].shape[1:]), may_alias=True) for name in keep}


@jax.jit
def _seen(xs: Float[Array, "loops points n"], spread: Array, key: PRNGKeyArray) -> Float[Array, "loops T n"]:
    """The states as the policies saw them: with the noise of the sensors, which is drawn again."""
    numbers = jnp.arange(len(xs), dtype=jnp.int32)
    of_loops = jnp.moveaxis(spread[numbers // (len(xs) // len(spread))], 0, -1)
    noise = drawing(key, numbers, Noise(sensor=of_loops), xs.dtype)(xs.shape[1] - 1, jnp.int32(0)).sensor
    assert noise is not None
    return xs[:, :-1] + jnp.moveaxis(noise, -1, 0)


def _shared_out(*arrays: object) -> bool:
    """True if any array is on several devices, where a scan leaves it and an engine would not."""
    return any(len(a.devices()) > 1 for a in arrays if isinstance(a, jax.Array) and not checks.traced(a))


@functools.cache
def _kept(keep: tuple[str, ...]) -> Keep:
    def points(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
        return {"xs": xs}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
        return {name: a for name, a in (("us", us), ("costs", costs)) if name in keep}

    return Keep(points if "xs" in keep else None, intervals if {"us", "costs"} & set(keep) else None)


def matrix_powers(
    loops: Loops, x0: Float[Array, "loops n"], num_steps: int, keep: tuple[str, ...]
) -> dict[str, np.ndarray] | None:
    """Undisturbed linear loops x[t+1] = F x[t], F = A − BK, within their limits, by powers of F on a CPU.

    Nothing is compiled: of 2,000 loops of one plant of four states, 500 samples, the batch-last engine takes 12 ms
    against 15, but 0.6 s in its first call, and 1.6 s with twelve states.

    Args:
        loops: p plants with their gains.
        x0: initial states ``[p·s, n]``, the s of one plant one after another.
        num_steps: T.
        keep: some of ``xs``, ``us``, ``costs``.

    Returns:
        ``xs`` ``[p·s, T+1, n]``, ``us`` ``[p·s, T, m]``, ``costs`` ``[p·s, T]`` in x0's precision, as far as they
        are kept; None where a power overflows, which a state need not do.
    """
    matrices = [np.asarray(a) for a in (*loops.model[:5], loops.K)]
    (count, n), m, T = x0.shape, loops.K.shape[-2], num_steps
    plants = max(len(a) for a in matrices)
    each = count // plants
    starts = np.asarray(x0).reshape(plants, each, n)
    sizes = {"xs": (T + 1, n), "us": (T, m), "costs": (T,)}
    result = {name: aligned((plants, each, *sizes[name]), starts.dtype) for name in keep}
    size = max(min(_LOOPS, _ENTRIES // n**2), 1)
    group, some = max(size // each, 1), min(size, each)

    def piece(at: tuple[int, int]) -> bool:
        of, these = slice(at[0], at[0] + group), slice(at[1], at[1] + some)
        A, B, Q, R, N, K = (a[:, None] if len(a) == 1 else a[of, None] for a in matrices)
        K = K.astype(A.dtype)
        begin, out = starts[of, these], {name: a[of, these] for name, a in result.items()}
        xs = out["xs"] if "xs" in out else np.empty((*begin.shape[:2], *sizes["xs"]), begin.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            if not _write_states(A - B @ K, begin, xs):
                return False
            before = xs[:, :, :-1]
            if "us" in out:
                np.matmul(before, (-K).mT.astype(xs.dtype), out=out["us"])
            if "costs" in out:
                weight = stage_weight(Q, R, N, K).astype(xs.dtype)
                terms = before @ weight
                np.multiply(terms, before, out=terms)
                np.matmul(terms, np.ones((n, 1), terms.dtype), out=out["costs"][..., None])
        return True

    pieces = [(p, s) for p in range(0, plants, group) for s in range(0, each, some)]
    finite = all(on_threads(piece, pieces, "matrix powers"))
    return {name: a.reshape(count, *a.shape[2:]) for name, a in result.items()} if finite else None


def _write_states(F: np.ndarray, x0: np.ndarray, out: np.ndarray) -> bool:
    """Write the states from x0 ``[p, s, n]`` to out ``[p, s, T+1, n]``: k of them, times Fᵏ, are the next k.

    The powers are computed by squaring, in the plants' precision: in single precision they would drift.

    Returns:
        Whether all powers of F ``[p or 1, 1, n, n]`` that were needed are finite.
    """
    out[:, :, 0], power, known, samples = x0, F.mT, 1, out.shape[2]
    while known < samples:
        factor, new = power.astype(out.dtype), min(known, samples - known)
        if not np.isfinite(factor).all():
            return False
        np.matmul(out[:, :, :new], factor, out=out[:, :, known : known + new])
        power, known = power @ power, known + new
    return True
