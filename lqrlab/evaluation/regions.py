"""From where a loop converges: regions of attraction by rollouts in bulk."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int8

from lqrlab import simulation
from lqrlab.compute import checks, jit_by_function
from lqrlab.compute.threads import on_threads
from lqrlab.simulation import Policy, Problem, bind, check_policy, verdict
from lqrlab.systems import Plant, check_plant

_BLOCK = 128  # loops of one call, which ends when all of them have decided
_LOOK = 25  # samples between two looks at which loops have decided


@dataclasses.dataclass(frozen=True, eq=False)
class Attraction(verdict.Judged):
    """The end of the loop from each start, ``[*lead]``.

    Attributes:
        verdict: converged, bounded or diverged, see :mod:`lqrlab.simulation.verdict`.
        seconds: until it was at rest or had left the model [s]; else the horizon.
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
    dt: float | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Attraction:
    """Judge the loops of a nonlinear plant under a policy from many starts: which converge to the equilibrium?

    The verdict is that on a run of ``num_steps`` samples. Loops that are at rest or have left the model are not run
    further. A loop at rest at another equilibrium (a pole a full turn further) is bounded.

    Args:
        plant: one plant, or a problem of it.
        controller: see :func:`lqrlab.simulation.bind`.
        x0: initial deviations ``[*lead, n]``; in float32 it is a few times faster, and as good but for the boundary.
        num_steps: samples of a run.
        dt, limits: as in :func:`lqrlab.simulation.rollout`; taken from a problem.
        check: called now and then; what it raises ends the work.

    Raises:
        ValueError: a batch of plants, starts of another dimension, no policy for this plant.

    >>> plant = systems.make("pendulum")
    >>> gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    >>> starts = jnp.array([[0.1, 0.0], [1.5, 0.0]])
    >>> evaluation.attraction(plant, simulation.LinearPolicy(gain), starts, limits=(-2.0, 2.0)).converged.tolist()
    [True, False]
    """
    problem = _problem(plant, dt, limits)
    starts = np.asarray(checks.real("x0", x0))
    if not np.isfinite(starts).all():
        raise ValueError("x0: expected finite numbers, but found inf or NaN")
    if starts.shape[-1:] != (problem.n,):
        raise ValueError(f"x0: expected states [..., {problem.n}] of {problem.name}, but found {starts.shape}")
    if not starts.size:
        raise ValueError("x0: expected at least one start, but found none")
    num_steps = checks.whole("num_steps", num_steps)
    starts = starts if starts.dtype == np.float32 else starts.astype(float)
    policy = bind(controller, problem)
    check_policy(policy, jnp.zeros((1, problem.n), starts.dtype), problem.m)
    constant, flat = (problem.astype(starts.dtype), policy), starts.reshape(-1, problem.n)
    block = min(_BLOCK, len(flat))

    def piece(first: int) -> list[np.ndarray]:
        check()
        rows = np.minimum(np.arange(first, first + block), len(flat) - 1)  # the last one is filled up with its last
        return [np.asarray(a)[: len(flat) - first] for a in _judged(*constant, flat[rows], num_steps)]

    program = (jax.tree.structure(constant), flat.dtype, flat.shape[1], block, num_steps)
    judged, samples = (np.concatenate(a) for a in zip(*on_threads(piece, range(0, len(flat), block), program)))
    return Attraction(*(a.reshape(starts.shape[:-1]) for a in (judged, samples * float(problem.dt))))


def _problem(plant: Plant | Problem, dt: float | None, limits: tuple[ArrayLike, ArrayLike] | None) -> Problem:
    """The problem of one nonlinear plant."""
    if not isinstance(plant, Problem):
        check_plant(plant, one=True)
        return Problem.of(plant, dt=dt, limits=limits, optimum=False)
    if plant.batch_shape or dt is not None or limits is not None:
        raise ValueError("plant: expected a problem of one plant, which says itself what dt and limits are")
    return plant


@partial(jit_by_function, static_argnames="num_steps")
def _judged(problem: Problem, policy: Policy, x0: Float[Array, "loops n"], num_steps: int) -> tuple[Array, Array]:
    """Verdicts on a block's loops, and the samples until each had decided; it runs until all have."""
    bounds = sorted({0, *verdict.quarters(num_steps), num_steps})  # the quarters of the run begin with a look
    looks = [*itertools.chain(*(range(a + _LOOK, b, _LOOK) for a, b in itertools.pairwise(bounds))), *bounds[1:]]
    look = jnp.zeros(num_steps + 1, bool).at[jnp.array(looks)].set(True)
    start = verdict.size(x0, problem.scale_x)

    def sample(state: tuple) -> tuple:
        t, x, carry, peaks, largest, samples = state
        running, size = samples == num_steps, verdict.size(x, problem.scale_x)
        largest = jnp.maximum(largest, size)
        peaks = tuple(jnp.where(running, *two) for two in zip(verdict.noted(peaks, size, t, num_steps), peaks))
        x, carry, _paid = simulation.step(problem, policy, x, carry)
        left = ~(peaks[0] <= verdict.FAR * jnp.maximum(start, 1.0))
        rested = largest <= verdict.AT_REST * peaks[0]
        looked = look[t + 1] & running & (t + 1 < num_steps)
        peaks = (peaks[0], *(jnp.where(looked & rested, largest, peak) for peak in peaks[1:]))
        samples = jnp.where(looked & (left | rested), t + 1, samples)
        return t + 1, x, carry, peaks, jnp.where(look[t + 1], 0.0, largest), samples

    def undecided(state: tuple) -> Array:
        return (state[0] < num_steps) & jnp.any(state[-1] == num_steps)

    nothing, steps = jnp.zeros_like(start), jnp.full(start.shape, num_steps)
    first = (jnp.zeros((), int), x0, policy.init(start.shape), (start, nothing, nothing), nothing, steps)
    _, x, _, peaks, _, samples = jax.lax.while_loop(undecided, sample, first)
    ends = verdict.noted(peaks, verdict.size(x, problem.scale_x), num_steps, num_steps)
    judged = (jnp.where(samples == num_steps, *two) for two in zip(ends, peaks))
    return verdict.of_peaks(start, *judged, num_steps=num_steps), samples
