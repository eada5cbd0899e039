"""From where a loop converges: regions of attraction by rollouts in bulk, and what is left to be won beyond the LQR."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Int8, PyTree

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
    num_steps = checks.whole("num_steps", num_steps)
    starts = starts if starts.dtype == np.float32 else starts.astype(float)
    policy = bind(controller, problem)
    check_policy(policy, jnp.zeros((1, problem.n), starts.dtype), problem.m)
    loops = _Loops(problem.astype(starts.dtype), policy, starts.reshape(-1, problem.n), num_steps)
    for first, steps in _looks(num_steps):
        if not len(loops.running):
            break
        check()
        loops.advance(first, steps)
    judged = np.asarray(verdict.of_peaks(loops.start, *loops.peaks, num_steps=num_steps))
    return Attraction(*(a.reshape(starts.shape[:-1]) for a in (judged, loops.seconds)))


def _problem(plant: Plant | Problem, dt: float | None, limits: tuple[ArrayLike, ArrayLike] | None) -> Problem:
    """The problem of one nonlinear plant."""
    if not isinstance(plant, Problem):
        check_plant(plant, one=True)
        return Problem.of(plant, dt=dt, limits=limits, optimum=False)
    if plant.batch_shape or dt is not None or limits is not None:
        raise ValueError("plant: expected a problem of one plant, which says itself what dt and limits are")
    return plant


def _looks(num_steps: int) -> Iterator[tuple[int, int]]:
    """(First sample, number of steps) between two looks; the quarters of the run begin with one."""
    ends = sorted({0, *verdict.quarters(num_steps), num_steps})
    for begin, end in itertools.pairwise(ends):
        yield from ((first, min(_LOOK, end - first)) for first in range(begin, end, _LOOK))


class _Loops:
    """Loops that are run together: the states of those that still run, and what the verdict needs of all.

    ``peaks`` are the largest sizes in the run, its last quarter but one, and its last ``[3, loops]``.
    """

    def __init__(self, problem: Problem, policy: Policy, x0: np.ndarray, num_steps: int):
        self.problem, self.policy, self.scales = problem, policy, np.asarray(problem.scale_x)
        self.quarters, self.num_steps = verdict.quarters(num_steps), num_steps
        self.running, self.x = np.arange(len(x0)), x0
        self.carry = jax.tree.map(np.asarray, policy.init((len(x0),)))
        self.start = verdict.size(x0, self.scales)
        self.peaks = np.stack([self.start, np.zeros_like(self.start), np.zeros_like(self.start)])
        self.seconds = np.full(len(x0), num_steps * float(problem.dt))

    def advance(self, first: int, steps: int) -> None:
        """Run all that still run from sample ``first`` on, and let those go whose verdict is known."""
        here = self.running
        self.x, self.carry, largest = self._run(steps)
        self._note(here, first, largest)
        if first + steps == self.num_steps:
            self._note(here, self.num_steps, verdict.size(self.x, self.scales))
        left = ~(self.peaks[0, here] <= verdict.FAR * np.maximum(self.start[here], 1.0))
        rested = largest <= verdict.AT_REST * self.peaks[0, here]
        self.peaks[1:, here[rested]] = largest[rested]
        gone = left | rested
        self.seconds[here[gone]] = (first + steps) * float(self.problem.dt)
        self.carry = _rows(self.carry, len(here), ~gone)
        self.running, self.x = here[~gone], self.x[~gone]

    def _note(self, here: Int[np.ndarray, " rows"], sample: int, size: Float[np.ndarray, " rows"]) -> None:
        """Take sizes from a sample on into the peaks of the parts of the run that it lies in."""
        before, last = self.quarters
        inside = np.array([True, before <= sample < last, last <= sample])
        at = np.ix_(inside, here)
        self.peaks[at] = np.maximum(self.peaks[at], size)

    def _run(self, steps: int) -> tuple[np.ndarray, PyTree[np.ndarray], np.ndarray]:
        """Some samples, block by block on all cores; the last block is filled up with its last loop.

        Returns:
            States, what the policy remembers, and the largest size on the way.
        """
        x, carry, block, rows = self.x, self.carry, min(_BLOCK, len(self.start)), len(self.x)
        constant = self.problem, self.policy

        def piece(start: int) -> tuple[np.ndarray, PyTree[np.ndarray], np.ndarray]:
            index = np.minimum(np.arange(start, start + block), rows - 1)
            done = _advance(*constant, x[index], _rows(carry, rows, index), steps)
            return _rows(jax.tree.map(np.asarray, done), block, np.arange(min(block, rows - start)))

        program = (jax.tree.structure((constant, carry)), x.dtype, x.shape[1], block, steps)
        pieces = on_threads(piece, range(0, rows, block), program)
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
