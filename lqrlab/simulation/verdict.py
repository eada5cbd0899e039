"""The one verdict on a closed loop: it converged, it is bounded, or it diverged.

Training's validation, the score, data generation, regions of attraction, panels and cards all ask here.

For a constant gain on a linear plant the closed loop F = A − BK itself decides, exactly (:func:`of_gain`):

- *converged*: all modes decay, so x → 0 from every state;
- *bounded*: no mode grows, but one does not decay: an oscillator without damping, an integrator left alone;
- *diverged*: x grows without bound from almost every state. So it does in a chain of integrators.

For any other loop a simulated run decides (:func:`of_sizes`). The size of a state is max |x_i| / scale_i, and the run
is judged by its largest sizes: in all, in its last quarter, and in the quarter before that.

- *diverged*: a state is not finite or has left the model (1000 scales, and 1000 times the initial size), or the run
  still grows: its largest size is in the last quarter, more than 1 % above the quarter before. A linear plant's model
  holds everywhere: how large it becomes on the way is no divergence, unless it still grows out there;
- *converged*: the last quarter is at rest (below 10⁻⁴ of the largest size, if that is within the model, or zero to
  rounding); or it is more than 1 % below the quarter before, and near the equilibrium (within one scale, or a tenth of
  the initial size);
- *bounded*: neither. A limit cycle, another equilibrium, an input stuck at its limit, or a loop so slow that the run
  does not show what becomes of it.

A run of fewer than eight samples does not show growth: quarters of one sample say where in a swing a loop is.

Noise keeps a loop moving, so growth and rest say nothing: a disturbed loop that does not leave the model is bounded.
"""

import enum
import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int8

from lqrlab.compute import checks
from lqrlab.compute.linalg import expand_batch

FAR = 1e3  # a state so many scales, and so many times the initial size, from the equilibrium has left the model
AT_REST = 1e-4  # share of a run's largest size below which a loop is at rest
_CHANGE = 0.01  # from one quarter to the next, that is more than the sampling of a limit cycle makes
_FEWEST = 8  # samples in a run that shows growth
_EVENED = 8  # sweeps of :func:`_even`, each of which about halves what is uneven (of its logarithm)
_ROUNDING = 64  # times the rounding error of one scale: zero, for a loop that moves about an operating point

Arrays = TypeVar("Arrays", Array, np.ndarray)


class Verdict(enum.IntEnum):
    """Outcome of a closed loop; arrays of verdicts hold these numbers as int8."""

    CONVERGED = 0
    BOUNDED = 1
    DIVERGED = 2


class Judged:
    """Mixin of results that have a ``verdict`` on each loop."""

    verdict: Array | np.ndarray

    @property
    def converged(self) -> Bool[np.ndarray, "*loops"]:
        """True for each loop that converged."""
        return np.asarray(self.verdict) == Verdict.CONVERGED

    @property
    def diverged(self) -> Bool[np.ndarray, "*loops"]:
        """True for each loop that diverged."""
        return np.asarray(self.verdict) == Verdict.DIVERGED


def size(xs: Arrays, scale_x: Arrays) -> Arrays:
    """max |x_i| / scale_i of states ``[*batch, *extra, n]`` in units ``[*batch, n]``: ``[*batch, *extra]``."""
    return abs(xs / expand_batch(scale_x, xs.ndim)).max(-1)


def quarters(num_steps: int) -> tuple[int, int]:
    """The samples, of 0 … T, at which the last but one and the last quarter of a run begin."""
    quarter = max((num_steps + 1) // 4, 1)
    return max(num_steps + 1 - 2 * quarter, 0), num_steps + 1 - quarter


def noted(peaks: tuple[Array, ...], size: Array, t: int | Array, num_steps: int) -> tuple[Array, ...]:
    """Largest sizes in a run, in its last quarter but one and in its last, with the size at sample t; NaN stays."""
    before, last = quarters(num_steps)
    inside = (t >= 0, (t >= before) & (t < last), t >= last)
    return tuple(jnp.where(part, jnp.maximum(peak, size), peak) for part, peak in zip(inside, peaks))


def of_sizes(sizes: Arrays, *, disturbed: bool = False, linear: bool = False) -> Arrays:
    """The :class:`Verdict` on simulated runs ``[*lead]``, NumPy's of NumPy's.

    By the sizes of the states at samples 0 … T ``[*lead, samples]``, see :func:`size`, whether noise or excitation
    acted (``disturbed``), and whether the plant is ``linear``.
    """
    third, last = quarters(sizes.shape[-1] - 1)
    peaks = (sizes[..., a:b].max(-1) for a, b in ((0, None), (third, last), (last, None)))
    return of_peaks(sizes[..., 0], *peaks, num_steps=sizes.shape[-1] - 1, disturbed=disturbed, linear=linear)


def of_peaks(start: ArrayLike, *peaks: ArrayLike, num_steps: int, disturbed: bool = False, linear: bool = False) -> Any:
    """As :func:`of_sizes`, for runs of T steps whose states were not kept: of the first size and the largest.

    These ``peaks`` are of the run, of its last quarter but one and of its last, see :func:`quarters`. All are
    ``[*lead]``; NaN if there was one.
    """
    given = start, *peaks
    library: Any = np if all(isinstance(a, np.ndarray | np.floating) for a in given) else jnp  # no programs for numbers
    begin, most, third, end = (library.asarray(a) for a in given)
    rising = (end > (1 + _CHANGE) * third) & (num_steps + 1 >= _FEWEST)
    far = FAR * library.maximum(begin, 1)
    gone = ~library.isfinite(most) | ((end > far) & rising if linear else most > far)
    if disturbed:
        return library.where(gone, Verdict.DIVERGED, Verdict.BOUNDED).astype(np.int8)
    growing = (end >= most) & rising
    near = end <= library.maximum(1, begin / 10)
    falling = near & (end < (1 - _CHANGE) * third)
    at_rest = end <= library.maximum(AT_REST * library.minimum(most, far), _ROUNDING * jnp.finfo(end.dtype).eps)
    verdict = library.where(at_rest | falling, Verdict.CONVERGED, Verdict.BOUNDED)
    return library.where(gone | growing, Verdict.DIVERGED, verdict).astype(np.int8)


@jax.jit
def of_gain(closed: ArrayLike) -> Int8[Array, "*batch"]:
    """The verdict on linear loops x[t+1] = F x[t], exact but for rounding.

    With E(N) = Σ ‖Fᵗ‖² over t < N, the second half of a long run has E(2N) − E(N) of it. That is nothing in a loop
    that decays, as much as the first half in one that goes on moving, seven times as much or more in a chain of
    integrators, and more than in any such chain in one that grows. Doubling computes both: E(2N) = E(N) + ‖.‖ of Fᴺ;
    sizes are kept as logarithms, so none is too large. N is 2²⁶ samples, in single precision 2¹¹, or more where
    rounding has changed E by less than a hundredth. The units of the states do not matter.

    Args:
        closed: F = A − BK ``[*batch, n, n]``.

    Returns:
        See :class:`Verdict`. Not a number is diverged.

    >>> F = jnp.array([[[0.9]], [[1.0]], [[1.1]]])
    >>> [simulation.Verdict(int(v)).name for v in simulation.verdict.of_gain(F)]
    ['CONVERGED', 'BOUNDED', 'DIVERGED']
    """
    F = jax.lax.stop_gradient(checks.floating("closed", closed))
    limits, n = jnp.finfo(F.dtype), F.shape[-1]
    F = _even(jnp.clip(F, -1 / limits.eps, 1 / limits.eps))

    def size(state: tuple[Array, ...]) -> Array:
        power, scale = state[:2]
        return scale + jnp.log2(jnp.sum(power * power, axis=(-1, -2)) + limits.tiny) / 2

    def undecided(state: tuple[Array, ...]) -> Array:
        *_, length, growth, k = state
        exact = (k <= limits.nmant // 2) | (length < limits.nmant - 7)
        chain = (growth < 2 * n + 4) | (k < (8 * n).bit_length())  # n states multiply E by 2²ⁿ⁻¹, at first by more
        return (size(state) > -1) & exact & chain

    def double(state: tuple[Array, ...]) -> tuple[Array, ...]:
        power, scale, energy, length, _, k = state
        second = jnp.swapaxes(power, -1, -2) @ energy @ power  # of the run's second half, over 4 ** scale
        trace = jnp.trace(second, axis1=-2, axis2=-1) + limits.tiny
        growth = jnp.log2(trace) + 2 * scale
        share = jax.nn.sigmoid(math.log(2) * growth)[..., None, None]
        energy = (1 - share) * energy + share * second / trace[..., None, None]  # over its trace
        squared = power @ power
        exponent = jnp.round(jnp.log2(jnp.max(jnp.abs(squared), axis=(-1, -2)) + limits.tiny))
        length = length + jnp.logaddexp2(jnp.zeros_like(growth), growth)
        new = squared * jnp.exp2(-exponent)[..., None, None], 2 * scale + exponent, energy, length, growth
        go = undecided(state)
        return *(jnp.where(go.reshape(*go.shape, *(1,) * (a.ndim - go.ndim)), a, b) for a, b in zip(new, state)), k + 1

    flat = jnp.zeros(F.shape[:-2], F.dtype)
    one = jnp.broadcast_to(jnp.eye(n, dtype=F.dtype) / n, F.shape)
    start: tuple[Array, ...] = (F, flat, one, flat, flat, jnp.int32(0))
    state = jax.lax.while_loop(lambda state: jnp.any(undecided(state)), double, start)
    growth, last = state[4], size(state)
    bounded = (growth <= 1) & (last < jnp.inf)
    return jnp.where((last <= -1) | (bounded & (growth < -1)), 0, jnp.where(bounded, 1, 2)).astype(jnp.int8)


def _even(F: Array) -> Array:
    """F in units of the states, powers of two, in which what is large in its rows and columns is even.

    Source: E. E. Osborne, On pre-conditioning of matrices, J. ACM 7 (1960), halfway, for all states at once.
    """
    couplings = F * F * jnp.broadcast_to(1 - jnp.eye(F.shape[-1], dtype=F.dtype), F.shape)

    def even(_: Array, units: Array) -> Array:
        seen = couplings * jnp.square(units[..., None, :] / units[..., :, None])
        # couplings below one need no help; a state that is coupled one way alone is counted in larger units
        return units * ((jnp.sum(seen, axis=-1) + 1) / (jnp.sum(seen, axis=-2) + 1)) ** 0.125

    units = jax.lax.fori_loop(0, _EVENED, even, jnp.ones(F.shape[:-1], F.dtype))
    units = jnp.ldexp(jnp.ones_like(units), jnp.round(jnp.log2(units)).astype(jnp.int32))  # so that nothing is rounded
    return F * (units[..., None, :] / units[..., :, None])
