"""Recorders: keep something of closed loops while they run, so that whole trajectories need not be in memory."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lqrlab.compute.jit import KEPT
from lqrlab.simulation import verdict

Arrays = dict[str, Array]
Recorder = Callable[[Array, Array, Array, Array, Any], Arrays]
"""``(xs [t, n, loop], us [t, m, loop], costs [t, loop], t [t], extra) → {name: [t, …, loop]}``."""


class Keep(NamedTuple):
    """Recorders of a run, each a :data:`Recorder` or None; another function is compiled anew.

    Inputs and costs of sample T and later have not happened.

    Attributes:
        points: kept at samples 0 … T.
        intervals: kept at samples 0 … T − 1.
        sums: added up over all samples; ``costs`` after the last step are zero.
        peaks: the largest over samples 0 … T.
        starts, length: points and intervals are kept of the steps from each of these samples on, so many, each
            segment in a row of its own ``[row, t, …]``; of all steps if there are no starts.
    """

    points: Recorder | None = None
    intervals: Recorder | None = None
    sums: Recorder | None = None
    peaks: Recorder | None = None
    starts: tuple[int, ...] = ()
    length: int = 0

    def rows(self, num_steps: int) -> tuple[tuple[int, ...], int]:
        """The first samples of the segments, and their number of steps."""
        return self.starts or (0,), self.length or num_steps


def paid(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
    """The cost of each step, as ``cost``."""
    return {"cost": costs}


@functools.lru_cache(KEPT)  # a program is compiled for each
def largest_sizes(num_steps: int) -> Recorder:
    """Sizes of states that judge a loop, see :func:`lqrlab.simulation.verdict.of_peaks`; ``extra`` are their units.

    In all (``peak``), in the last quarter but one (``before``) and in the last (``last``).
    """
    begin, end = verdict.quarters(num_steps)

    def peaks(xs: Array, us: Array, costs: Array, t: Array, scale_x: Array) -> Arrays:
        per_unit = (1 / scale_x).astype(xs.dtype)
        size = functools.reduce(jnp.maximum, (jnp.abs(xs[:, i] * per_unit[i][None]) for i in range(xs.shape[1])))
        parts = {"peak": t >= 0, "before": (t >= begin) & (t < end), "last": t >= end}
        return {name: jnp.where(part[:, None], size, 0) for name, part in parts.items()}

    return peaks


def evaluate(f: Recorder | None, xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
    """The recorder's result; nothing for None."""
    return dict(f(xs, us, costs, t, extra)) if f else {}


def shapes(
    f: Recorder | None, samples: int, n: int, m: int, width: int, dtype: np.dtype, extra: object
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and types of what a recorder returns for so many samples of ``width`` loops."""
    arrays = (jax.ShapeDtypeStruct((samples, *size, width), dtype) for size in ((n,), (m,), ()))
    return jax.eval_shape(f, *arrays, jax.ShapeDtypeStruct((samples,), jnp.int32), extra) if f else {}


def segmented(keep: Keep, kept: Arrays, num_steps: int, points: bool) -> Arrays:
    """The steps of points or intervals ``[loop, t, …]``, or the segments of ``keep`` ``[loop, row, t, …]``."""
    if not keep.starts:
        return {name: a[:, : num_steps + points] for name, a in kept.items()}
    starts, length = keep.rows(num_steps)
    return {
        name: jnp.stack([a[:, first : first + length + points] for first in starts], axis=1) for name, a in kept.items()
    }
