"""From where a loop comes back: regions of attraction by rollouts in bulk, and nothing kept but the verdict."""

import dataclasses
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
from lqrlab.simulation import Env, Policy
from lqrlab.simulation.policies import check_policy
from lqrlab.systems import Plant

_BLOCK = 1024  # loops of one call: what a core keeps in its cache
_SHARE = 25  # samples between two looks at who has arrived


@dataclasses.dataclass(frozen=True, eq=False)
class Attraction:
    """What became of each start, ``[*lead]``; one that is neither back nor lost had not decided at the end.

    Attributes:
        back: the loop came to its equilibrium and stayed.
        lost: it left for good: beyond ``far``, or not finite.
        seconds: until the verdict [s].
    """

    back: np.ndarray
    lost: np.ndarray
    seconds: np.ndarray

    @property
    def share(self) -> float:
        """Share of the starts that come back."""
        return float(np.mean(self.back))


def attraction(
    plant: Plant,
    policy: Policy,
    x0: ArrayLike,
    *,
    num_steps: int = 500,
    dt: float | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    near: float = 0.05,
    far: float = 50.0,
    check: Callable[[], None] = lambda: None,
) -> Attraction:
    """Roll a nonlinear plant out under a policy from many starts and say which come back to the equilibrium.

    Every 25 samples those whose fate is known leave: back are loops whose states were all within ``near`` of their
    scales at two looks in a row and nearer at the second; lost are those beyond ``far`` scales. What comes to rest at
    another equilibrium (a pole a full turn further, a cart that stands elsewhere) is not back.

    Args:
        plant: one plant.
        policy: bound to it.
        x0: initial deviations ``[*lead, n]``; in float32 it is a few times faster, and as good but for the boundary.
        num_steps: samples after which those that have not decided are given up.
        dt, limits: as in :func:`lqrlab.simulation.rollout`.
        near, far: in scales of the states.
        check: called now and then; what it raises ends the work.

    Raises:
        ValueError: a batch of plants, starts of another dimension, no policy for this plant.
    """
    starts = np.asarray(x0)
    if plant.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
    if starts.shape[-1:] != (plant.n,):
        raise ValueError(f"x0: expected states [..., {plant.n}] of {plant.name}, but found {starts.shape}")
    if not isinstance(num_steps, int | np.integer) or num_steps < 1:
        raise ValueError(f"num_steps: expected at least one step, but found {num_steps!r}")
    starts = starts if starts.dtype == np.float32 else starts.astype(float)
    check_policy(policy, jnp.zeros((1, plant.n), starts.dtype), plant.m)
    lead, flat = starts.shape[:-1], starts.reshape(-1, plant.n)
    world = _cast(simulation.env(plant, dt=dt, limits=limits), flat.dtype)
    step, scales = float(world.dt), np.asarray(plant.scales[0])
    count = len(flat)
    block = min(_BLOCK, max(count, 1))
    carry = jax.tree.map(np.asarray, policy.init((count,)))
    back, lost, seconds = np.zeros(count, bool), np.zeros(count, bool), np.full(count, num_steps * step)
    here, x, before = np.arange(count), flat, np.full(count, np.inf)
    with ThreadPoolExecutor(os.cpu_count() if jax.default_backend() == "cpu" else 1) as pool:
        for taken in range(0, num_steps, _SHARE):
            if not len(here):
                break
            check()
            steps = min(_SHARE, num_steps - taken)
            x, carry = _advanced(pool, world, policy, x, carry, steps, block)
            size = np.abs(x / scales).max(axis=1)
            gone = ~(size <= far)
            arrived = (size < near) & (before < near) & ((size < before) | (size < 1e-3 * near))
            lost[here[gone]], back[here[arrived]] = True, True
            seconds[here[gone | arrived]] = (taken + steps) * step
            stay = ~(gone | arrived)
            carry = _rows(carry, len(here), stay)
            here, x, before = here[stay], x[stay], size[stay]
    return Attraction(*(a.reshape(lead) for a in (back, lost, seconds)))


def _rowed(a: Any, rows: int) -> bool:
    """Whether a memory has a row a loop; a count of steps has none."""
    return bool(np.ndim(a)) and len(a) == rows


def _rows(carry: Any, rows: int, chosen: np.ndarray) -> Any:
    return jax.tree.map(lambda a: a[chosen] if _rowed(a, rows) else a, carry)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(
        lambda a: jnp.asarray(a, dtype) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a, tree
    )


def _advanced(
    pool: ThreadPoolExecutor, world: Env, policy: Policy, x: np.ndarray, carry: Any, steps: int, block: int
) -> tuple[np.ndarray, Any]:
    """All loops some samples on, block by block on all cores; the last block is filled up with its last loop."""
    rows = len(x)

    def piece(start: int) -> tuple[np.ndarray, Any]:
        index = np.minimum(np.arange(start, start + block), rows - 1)
        done = jax.tree.map(np.asarray, _advance(world, policy, x[index], _rows(carry, rows, index), steps))
        return _rows(done, block, np.arange(min(block, rows - start)))

    starts = range(0, rows, block)
    pieces = [piece(0), *pool.map(piece, starts[1:])]  # the first alone: two threads would compile twice
    return jax.tree.map(lambda *a: np.concatenate(a) if np.ndim(a[0]) else a[0], *pieces)


@partial(jax.jit, static_argnames="steps")
def _advance(world: Env, policy: Policy, x: Array, carry: Any, steps: int) -> tuple[Array, Any]:
    def step(state: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
        x, carry = state
        carry, u = policy(carry, x)
        return (world.step(x, u.astype(x.dtype))[0], carry), None

    return jax.lax.scan(step, (x, carry), length=steps)[0]
