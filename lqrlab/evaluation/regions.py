"""From where a loop converges: regions of attraction by rollouts in bulk."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int8, PyTree

from lqrlab import simulation
from lqrlab.compute import checks, jit_by_function
from lqrlab.compute.threads import on_threads
from lqrlab.simulation import Policy, Problem, bind, check_policy, verdict
from lqrlab.systems import Plant, check_plant

_BLOCK = 1024  # loops of one call: what a core keeps in its cache
_LOOK = 25  # samples between two looks at which loops have decided


@dataclasses.dataclass(frozen=True, eq=False)
class Attraction(verdict.Judged):
    """The end of the loop from each start, ``[*lead]``.

    Attributes:
        verdict: converged, bounded or diverged, see :mod:`lqrlab.simulation.verdict`.
        seconds: until it was at rest or had left the model, which a linear plant does not [s]; else the horizon.
    """

    verdict: Int8[np.ndarray, "*lead"]
    seconds: Float[np.ndarray, "*lead"]

    @property
    def share(self) -> float:
        """Share of the starts whose loops converge."""
        return float(np.mean(self.converged))


def attraction(
    plant: Plant | Problem,
    controller: object,
    x0: ArrayLike,
    *,
    num_steps: int = 500,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Attraction:
    """Region of attraction: verdicts on the loops of a nonlinear plant from many starts.

    The verdict is that on a run of ``num_steps`` samples. Loops that are at rest or have left the model are not run
    further. A loop at rest at another equilibrium (a pole a full turn further) is bounded.

    Args:
        plant: one plant, or a problem of it.
        controller: see :func:`lqrlab.simulation.bind`.
        x0: initial deviations ``[*lead, n]``; in float32 it is a few times faster, and as good but for the boundary.
        num_steps: samples of a run.
        limits: as in :func:`lqrlab.simulation.rollout`; taken from a problem.
        check: called now and then; what it raises ends the work.

    Raises:
        ValueError: a batch of plants, starts of another dimension, no policy for this plant.
    """
    if not isinstance(plant, Problem):
        check_plant(plant, one=True)
    elif plant.batch_shape or limits is not None:
        raise ValueError("plant: expected a problem of one plant, without the argument limits: they are the problem's")
    problem = plant if isinstance(plant, Problem) else Problem.of(plant, limits=limits, optimum=False)
    starts = np.asarray(checks.real("x0", x0, finite=True))
    if starts.shape[-1:] != (problem.n,):
        raise ValueError(f"x0: expected states [..., {problem.n}] of {problem.name}, but found {starts.shape}")
    if not starts.size:
        raise ValueError("x0: expected at least one start, but found none")
    num_steps = checks.whole("num_steps", num_steps)
    starts = starts if starts.dtype == np.float32 else starts.astype(float)
    policy = bind(controller, problem)
    check_policy(policy, jnp.zeros((1, problem.n), starts.dtype), problem.m)
    problem, flat = problem.astype(starts.dtype), starts.reshape(-1, problem.n)
    scales, (before, last) = np.asarray(problem.scale_x), verdict.quarters(num_steps)
    start = verdict.size(flat, scales)
    far = verdict.FAR * np.maximum(start, 1.0)
    peaks = np.stack([start, np.zeros_like(start), np.zeros_like(start)])  # in all, the last quarter but one, the last
    samples = np.full(len(flat), num_steps)
    running, x, carry = np.arange(len(flat)), flat, jax.tree.map(np.asarray, policy.init(start.shape))
    bounds = sorted({0, before, last, num_steps})  # the quarters of the run begin with a look
    looks = [*itertools.chain(*(range(a, b, _LOOK) for a, b in itertools.pairwise(bounds))), num_steps]
    for first, end in itertools.pairwise(looks):
        check()
        x, carry, largest = _run(problem, policy, x, carry, end - first, min(_BLOCK, len(flat)))
        parts = np.array([0, 2] if first >= last else [0, 1] if first >= before else [0])[:, None]
        peaks[parts, running] = np.maximum(peaks[parts, running], largest)
        if end == num_steps:
            break
        left = ~np.isfinite(peaks[0, running]) | (not problem.linear) & (peaks[0, running] > far[running])
        rested = largest <= verdict.AT_REST * np.minimum(peaks[0], far)[running]
        peaks[1:, running[rested]] = largest[rested]
        samples[running[left | rested]] = end
        on = ~(left | rested)
        running, x, carry = running[on], x[on], _rows(carry, len(running), on)
        if not len(running):
            break
    whole = np.array([[0], [2]])
    peaks[whole, running] = np.maximum(peaks[whole, running], verdict.size(x, scales))
    judged = np.asarray(verdict.of_peaks(start, *peaks, num_steps=num_steps, linear=problem.linear))
    return Attraction(*(a.reshape(starts.shape[:-1]) for a in (judged, samples * float(problem.dt))))


def _run(
    problem: Problem, policy: Policy, x: np.ndarray, carry: PyTree[np.ndarray], steps: int, block: int
) -> tuple[np.ndarray, PyTree[np.ndarray], np.ndarray]:
    """States, memory and largest sizes some samples later, by blocks on all cores; the last repeats its last loop."""

    def piece(start: int) -> tuple[np.ndarray, PyTree[np.ndarray], np.ndarray]:
        index = np.minimum(np.arange(start, start + block), len(x) - 1)
        done = _advance(problem, policy, x[index], _rows(carry, len(x), index), steps)
        return _rows(jax.tree.map(np.asarray, done), block, np.arange(min(block, len(x) - start)))

    program = (jax.tree.structure((problem, policy, carry)), x.dtype, x.shape[1], block, steps)
    pieces = on_threads(piece, range(0, len(x), block), program)
    return jax.tree.map(lambda *a: np.concatenate(a) if np.ndim(a[0]) else a[0], *pieces)


def _rows(carry: PyTree, rows: int, chosen: np.ndarray) -> PyTree:
    """The chosen loops; what has no row for each loop, such as a count of steps, is left as it is."""
    return jax.tree.map(lambda a: a[chosen] if np.ndim(a) and len(a) == rows else a, carry)


@partial(jit_by_function, static_argnames="steps")
def _advance(
    problem: Problem, policy: Policy, x: Float[Array, "rows n"], carry: PyTree, steps: int
) -> tuple[Float[Array, "rows n"], PyTree, Float[Array, " rows"]]:
    def sample(state: tuple[Array, PyTree, Array], _: None) -> tuple[tuple[Array, PyTree, Array], None]:
        x, carry, largest = state
        largest = jnp.maximum(largest, verdict.size(x, problem.scale_x))  # NaN stays
        after, carry, _paid = simulation.step(problem, policy, x, carry)
        return (after, carry, largest), None

    return jax.lax.scan(sample, (x, carry, jnp.zeros(x.shape[:-1], x.dtype)), length=steps)[0]
