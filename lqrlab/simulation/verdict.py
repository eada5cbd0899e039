"""The one verdict on a closed loop: it converged, it is bounded, or it diverged.

Training's validation, the score, data generation, regions of attraction, panels and cards all ask here, so that one
word means one thing everywhere.

For a constant gain on a linear plant the closed loop F = A − BK itself decides, exactly (:func:`of_gain`):

- *converged*: all modes decay, so x → 0 from every state;
- *bounded*: not converged, but the powers of F do not grow;
- *diverged*: x grows without bound from almost every state.

For any other loop a simulated run of T steps decides (:func:`of_sizes`), by its size
s[t] = max |x_i[t]| / scale_i and by the largest size in its last and in its last but one quarter:

- *diverged*: a state is not finite, or left the model (s above 1000 scales and 1000 times where it began), or the
  run is still growing by more than 0.1 % from quarter to quarter, beyond where it began;
- *converged*: at rest (the last quarter is below 10⁻⁴ of the largest size), or still falling by more than 0.1 % from
  quarter to quarter and near the equilibrium (within one scale, or a tenth of where it began);
- *bounded*: neither. A limit cycle, another equilibrium, an input stuck at its limit.

Noise or excitation keeps a loop moving, so growth and rest say nothing then: a disturbed loop that does not leave the
model is bounded.
"""

import enum
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab import control
from lqrlab.compute.linalg import expand_batch

FAR = 1e3
"""A state this many scales away from the equilibrium (and from where it began) has left the model."""
AT_REST = 1e-4
"""Of the largest size of a loop: below that it is at rest."""
_CHANGE = 1e-3  # from quarter to quarter, that counts as growing or falling
_SQUARINGS = 10


class Verdict(enum.IntEnum):
    """What becomes of a closed loop; arrays of verdicts hold these numbers as int8."""

    CONVERGED = 0
    BOUNDED = 1
    DIVERGED = 2


def size(xs: Any, scale_x: Any) -> Any:
    """max |x_i| / scale_i of states ``[*batch, *extra, n]`` in units ``[*batch, n]``: ``[*batch, *extra]``."""
    return abs(xs / expand_batch(scale_x, xs.ndim)).max(-1)


def quarters(num_steps: int) -> tuple[int, int]:
    """The samples, of 0 … T, at which the last but one and the last quarter of a run begin."""
    quarter = max((num_steps + 1) // 4, 1)
    return max(num_steps + 1 - 2 * quarter, 0), num_steps + 1 - quarter


def of_sizes(sizes: Any, *, disturbed: bool = False) -> Array:
    """The verdict on simulated runs.

    Args:
        sizes: of the states at samples 0 … T ``[..., T+1]``, see :func:`size`.
        disturbed: whether noise or excitation acted.

    Returns:
        ``[...]`` int8, see :class:`Verdict`.
    """
    third, last = quarters(sizes.shape[-1] - 1)
    peaks = (jnp.max(sizes[..., a:b], axis=-1) for a, b in ((0, None), (third, last), (last, None)))
    return of_peaks(sizes[..., 0], *peaks, disturbed=disturbed)


def of_peaks(start: Any, peak: Any, before: Any, last: Any, *, disturbed: bool = False) -> Array:
    """As :func:`of_sizes`, from what is left of runs whose states were not kept, each ``[...]``.

    Args:
        start: size of the first state.
        peak: largest size.
        before, last: largest size in the last but one and in the last quarter, see :func:`quarters`.
        disturbed: whether noise or excitation acted.
    """
    start, peak, before, last = (jnp.asarray(a) for a in (start, peak, before, last))
    lost = ~(peak <= FAR * jnp.maximum(start, 1.0))  # NaN is not
    if disturbed:
        return jnp.where(lost, Verdict.DIVERGED, Verdict.BOUNDED).astype(jnp.int8)
    growing = (last > before * (1 + _CHANGE)) & (last > start)
    near = last <= jnp.maximum(1.0, start / 10)
    falling = (last <= before * (1 - _CHANGE)) & near
    settled = (last <= AT_REST * peak) | falling
    verdict = jnp.where(settled, Verdict.CONVERGED, Verdict.BOUNDED)
    return jnp.where(lost | growing, Verdict.DIVERGED, verdict).astype(jnp.int8)


@jax.jit
def of_gain(closed: Array) -> Array:
    """The verdict on linear loops x[t+1] = F x[t], exact but for rounding.

    Args:
        closed: F = A − BK ``[..., n, n]``.

    Returns:
        ``[...]`` int8, see :class:`Verdict`.
    """
    power = jax.lax.fori_loop(0, _SQUARINGS, lambda _, F: F @ F, closed)
    # of a chain of integrators the powers grow, of an oscillator they do not
    before, after = (jnp.sum(F * F, axis=(-1, -2)) for F in (power, power @ power))
    bounded = after <= 1.02 * before
    unsettled = jnp.where(bounded, Verdict.BOUNDED, Verdict.DIVERGED)
    return jnp.where(control.is_stable(closed), Verdict.CONVERGED, unsettled).astype(jnp.int8)
