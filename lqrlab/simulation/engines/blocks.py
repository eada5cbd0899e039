"""Blocks of loops that fit a core's cache."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from lqrlab.simulation.engines.batched_plants import Loops, NonlinearModel
from lqrlab.simulation.recording import Keep

# measured on a CPU with 1 MiB of second-level cache a core
CACHE = 80_000
"""Bytes of plants' matrices in a block."""
CALL = 4_000_000
"""Bytes of trajectories that one call of the program makes, and a fourth of what makes a block narrower."""
WIDEST = 800, 200
"""Loops in a block, of linear plants and of others, which have more intermediate results."""
CHUNK = 16
"""Samples whose states are in the cache together until what is kept of them has its loops in front."""
SHARED = 64
"""Loops of one plant that fill a block: its matrices are then numbers that all of them share."""


class Layout(NamedTuple):
    """The sizes and functions that the compiled program depends on, all but the arrays.

    Attributes:
        num_steps: T.
        substeps: Runge-Kutta steps in a sample time.
        width: loops in a block.
        blocks: worked through in one call.
        per_plant: loops of each plant.
        shared: whether a block's loops are all of one plant.
        chunk: samples that are kept together.
        keep: what is kept.
    """

    num_steps: int
    substeps: int
    width: int
    blocks: int
    per_plant: int
    shared: bool
    chunk: int
    keep: Keep

    @property
    def num_chunks(self) -> int:
        """Chunks of the samples 0 … T."""
        return -(-(self.num_steps + 1) // self.chunk)


def cut(
    loops: Loops, x0: Float[Array, "loops n"], num_steps: int, substeps: int, keep: Keep, noisy: bool
) -> tuple[Layout, Int[np.ndarray, "calls blocks"]]:
    """The layout, and the first loop of each block of each call."""
    count, n = x0.shape
    per_plant = max(count // loops.plants, 1)
    samples = num_steps + 1
    chunk = -(-samples // -(-samples // CHUNK))
    if jax.default_backend() != "cpu":
        layout = Layout(num_steps, substeps, count, 1, per_plant, False, chunk, keep)
        return layout, np.zeros((1, 1), np.int32)
    row = x0.dtype.itemsize * samples * (n + loops.K.shape[-2])
    widest = min(WIDEST[isinstance(loops.model, NonlinearModel)], max(4 * CALL // row, 72))
    shared = per_plant >= SHARED
    if shared:
        group, groups = per_plant, loops.plants
    else:
        widest = min(widest, max(CACHE // (n * n * x0.dtype.itemsize), 72))
        group, groups = count, 1
    width = -(-group // -(-group // widest))
    # the last block of a group overlaps the one before: one shape, one program
    firsts = np.minimum(np.arange(0, group, width), group - width)
    starts = (np.arange(groups)[:, None] * group + firsts).ravel()
    blocks = max(1, min(CALL // (4 * row * width), len(starts) // 4))
    filled = np.append(starts, np.repeat(starts[-1:], -len(starts) % blocks)).astype(np.int32)
    layout = Layout(num_steps, substeps, width, blocks, per_plant, shared, chunk, keep)
    return layout, filled.reshape(-1, blocks)
