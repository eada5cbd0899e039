"""From where a loop converges: regions of attraction by rollouts in bulk, of which only the verdict is kept."""

import dataclasses
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import simulation
from lqrlab.compute import checks
from lqrlab.simulation import Env, Policy, Verdict, check_policy, verdict
from lqrlab.systems import Plant

_BLOCK = 1024  # loops of one call: what a core keeps in its cache
_LOOK = 25  # samples between two looks at which loops have decided


@dataclasses.dataclass(frozen=True, eq=False)
class Attraction:
    """What became of each start, ``[*lead]``.

    Attributes:
        verdict: converged, bounded or diverged, see :mod:`lqrlab.simulation.verdict`.
        seconds: until it was at rest or had left the model [s]; else the horizon.
    """

    verdict: np.ndarray
    seconds: np.ndarray

    @property
    def converged(self) -> np.ndarray:
        """Whether each loop converged."""
        return self.verdict == Verdict.CONVERGED

    @property
    def diverged(self) -> np.ndarray:
        """Whether each loop diverged."""
        return self.verdict == Verdict.DIVERGED

    @property
    def share(self) -> float:
        """Share of the starts whose loops converge."""
        return float(np.mean(self.converged))


def attraction(
    plant: Plant,
    policy: Policy,
    x0: ArrayLike,
    *,
    num_steps: int = 500,
    dt: float | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Attraction:
    """Roll a nonlinear plant out under a policy from many starts and say which converge to the equilibrium.

    The verdict is that on a run of ``num_steps`` samples. Loops that are at rest or have left the model are not run
    further. What comes to rest at another equilibrium (a pole a full turn further, a cart that stands elsewhere) is
    bounded.

    Args:
        plant: one plant.
        policy: bound to it.
        x0: initial deviations ``[*lead, n]``; in float32 it is a few times faster, and as good but for the boundary.
        num_steps: samples of a run.
        dt, limits: as in :func:`lqrlab.simulation.rollout`.
        check: called now and then; what it raises ends the work.

    Raises:
        ValueError: a batch of plants, starts of another dimension, no policy for this plant.
    """
    starts = np.asarray(x0)
    if plant.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
    if starts.shape[-1:] != (plant.n,):
        raise ValueError(f"x0: expected states [..., {plant.n}] of {plant.name}, but found {starts.shape}")
    num_steps = checks.whole("num_steps", num_steps)
    starts = starts if starts.dtype == np.float32 else starts.astype(float)
    check_policy(policy, jnp.zeros((1, plant.n), starts.dtype), plant.m)
    world = _cast(simulation.env(plant, dt=dt, limits=limits), starts.dtype)
    lead, flat = starts.shape[:-1], starts.reshape(-1, plant.n)
    loops = _Loops(world, policy, flat, num_steps, np.asarray(plant.scales[0], flat.dtype))
    with ThreadPoolExecutor(os.cpu_count() if jax.default_backend() == "cpu" else 1) as pool:
        for first, steps in _looks(num_steps):
            if not len(loops.running):
                break
            check()
            loops.advance(pool, first, steps)
    judged = verdict.of_peaks(loops.start, loops.peak, loops.before, loops.last)
    return Attraction(np.asarray(judged).reshape(lead), loops.seconds.reshape(lead))


def _looks(num_steps: int) -> list[tuple[int, int]]:
    """(First sample, number of steps) of each stretch between two looks; the quarters of the run begin with one."""
    ends = sorted({0, *verdict.quarters(num_steps), num_steps})
    return [
        (first, min(_LOOK, end - first))
        for begin, end in itertools.pairwise(ends)
        for first in range(begin, end, _LOOK)
    ]


class _Loops:
    """Loops that are run together: those that still run, and what the verdict needs of all."""

    def __init__(self, world: Env, policy: Policy, x0: np.ndarray, num_steps: int, scales: np.ndarray):
        self.world, self.policy, self.scales = world, policy, scales
        self.quarters, self.num_steps = verdict.quarters(num_steps), num_steps
        self.block = min(_BLOCK, max(len(x0), 1))
        self.running, self.x = np.arange(len(x0)), x0
        self.carry = jax.tree.map(np.asarray, policy.init((len(x0),)))
        self.start = verdict.size(x0, scales)
        self.peak, self.before, self.last = self.start.copy(), np.zeros(len(x0)), np.zeros(len(x0))
        self.seconds = np.full(len(x0), num_steps * float(world.dt))

    def advance(self, pool: ThreadPoolExecutor, first: int, steps: int) -> None:
        """Run all that still run from sample ``first`` on, and let those go whose fate is known."""
        here = self.running
        self.x, self.carry, largest = _advanced(pool, self, steps)
        self._note(here, first, largest)
        if first + steps == self.num_steps:
            self._note(here, self.num_steps, verdict.size(self.x, self.scales))
        left = ~(self.peak[here] <= verdict.FAR * np.maximum(self.start[here], 1.0))
        rested = largest <= verdict.AT_REST * self.peak[here]
        self.before[here[rested]] = self.last[here[rested]] = largest[rested]
        gone = left | rested
        self.seconds[here[gone]] = (first + steps) * float(self.world.dt)
        self.carry = _rows(self.carry, len(here), ~gone)
        self.running, self.x = here[~gone], self.x[~gone]

    def _note(self, here: np.ndarray, sample: int, size: np.ndarray) -> None:
        """Take sizes from a sample on into the peaks of the run and of its last two quarters."""
        before, last = self.quarters
        for peaks, inside in (
            (self.peak, True),
            (self.before, before <= sample < last),
            (self.last, last <= sample),
        ):
            if inside:
                peaks[here] = np.maximum(peaks[here], size)


def _rowed(a: Any, rows: int) -> bool:
    """Whether a memory has a row a loop; a count of steps has none."""
    return bool(np.ndim(a)) and len(a) == rows


def _rows(carry: Any, rows: int, chosen: np.ndarray) -> Any:
    return jax.tree.map(lambda a: a[chosen] if _rowed(a, rows) else a, carry)


def _cast(tree: Any, dtype: np.dtype) -> Any:
    return jax.tree.map(
        lambda a: jnp.asarray(a, dtype) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a, tree
    )


def _advanced(pool: ThreadPoolExecutor, loops: _Loops, steps: int) -> tuple[np.ndarray, Any, np.ndarray]:
    """All loops some samples on, block by block on all cores; the last block is filled up with its last loop.

    Returns:
        States, memories, and the largest size on the way.
    """
    x, carry, block, rows = loops.x, loops.carry, loops.block, len(loops.x)

    def piece(start: int) -> tuple[np.ndarray, Any, np.ndarray]:
        index = np.minimum(np.arange(start, start + block), rows - 1)
        arguments = (loops.world, loops.policy, x[index], _rows(carry, rows, index), loops.scales, steps)
        done = jax.tree.map(np.asarray, _advance(*arguments))
        return _rows(done, block, np.arange(min(block, rows - start)))

    starts = range(0, rows, block)
    pieces = [piece(0), *pool.map(piece, starts[1:])]  # the first alone: two threads would compile twice
    return jax.tree.map(lambda *a: np.concatenate(a) if np.ndim(a[0]) else a[0], *pieces)


@partial(jax.jit, static_argnames="steps")
def _advance(
    world: Env, policy: Policy, x: Array, carry: Any, scales: Array, steps: int
) -> tuple[Array, Any, Array]:
    def sample(state: tuple[Array, Any, Array], _: None) -> tuple[tuple[Array, Any, Array], None]:
        x, carry, largest = state
        largest = jnp.maximum(largest, verdict.size(x, scales))  # NaN stays
        after, carry, _paid = simulation.step(world, policy, x, carry)
        return (after, carry, largest), None

    start = (x, carry, jnp.zeros(x.shape[:-1], x.dtype))
    return jax.lax.scan(sample, start, length=steps)[0]
