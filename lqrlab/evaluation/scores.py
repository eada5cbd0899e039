"""Closed-loop cost over the optimal cost, for any policy on any plants."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, simulation
from lqrlab.compute import pytree
from lqrlab.simulation import Policy
from lqrlab.systems import Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Score:
    """What closed loops cost, over what they need have cost; one entry a variant and initial state ``[*batch, S]``.

    Attributes:
        ratio: cost / x0ᵀP x0, never below 1 for a linear plant; inf where the loop was destabilised.
        destabilised: the loop moves away: what it has still to pay grows over the last quarter of the horizon.
    """

    ratio: Array
    destabilised: Array

    def __getitem__(self, index: object) -> "Score":
        """The scores of some variants."""
        return Score(self.ratio[index], self.destabilised[index])

    def summary(self) -> dict[str, float]:
        """Excess cost in percent (median, p95, p99, worst; inf where so many loops fail) and the share destabilised."""
        gap = (np.asarray(self.ratio, float).ravel() - 1) * 100
        quantiles = np.quantile(gap, (0.5, 0.95, 0.99, 1.0), method="higher")
        return {
            **{name: float(q) for name, q in zip(("median", "p95", "p99", "worst"), quantiles)},
            "destabilised": 100 * float(np.asarray(self.destabilised, float).mean()),
        }


def settling_steps(
    design: control.LQR, *, times: float = 2.0, shortest: int = 100, longest: int = 2000
) -> int:
    """A horizon in which every optimal loop has settled ``times`` over: amplitude 10⁻³ is settled once."""
    slowest = float(np.max(np.abs(np.asarray(design.poles))))
    steps = times * math.log(1e-3) / math.log(min(max(slowest, 1e-9), 1 - 1e-9))
    return int(np.clip(math.ceil(steps / 50) * 50, shortest, longest))


def evaluate(
    policy: Policy,
    plants: Plant,
    *,
    key: Array,
    num_initial: int = 16,
    num_steps: int | None = None,
    linear: bool = True,
) -> Score:
    """Run ``policy`` from typical initial states and compare its cost with the optimum.

    The reference is x0ᵀP x0 of the sampled-data optimum. What is left at the end of the horizon counts as
    x_TᵀP x_T, the least that any controller could still pay, so a linear plant's ratio is at least 1 whatever
    the horizon; below 1 is an error of this function and raises.

    Args:
        policy: bound to ``plants``.
        plants: one plant, or a batch of one family or stacked.
        key: of the initial states.
        num_initial: initial states a plant.
        num_steps: horizon; two settling times of the slowest optimal loop if left out.
        linear: on the linearised plants; else on the nonlinear ones, where the optimum is only that of the
            linearisation and a ratio below 1 can occur.

    Returns:
        :class:`Score` ``[*batch, num_initial]``.
    """
    (A, B), (Q, R) = plants.matrices(), plants.weights()
    design = control.lqrd(A, B, Q, R, plants.dt)
    if not bool(jnp.all(design.stabilizing)):
        raise ValueError(
            f"plants: {int(jnp.sum(~design.stabilizing))} of {design.stabilizing.size} have no stabilizing optimum "
            "to compare with; control.lqrd on one of them says why"
        )
    x0 = plants.initial_state(key=key, num=num_initial)
    steps = num_steps or settling_steps(design)
    path = simulation.rollout(plants, policy, x0, steps, linear=linear)
    value = _value(design.P, path.xs)
    start, rest = value[..., 0], value[..., -1]
    ratio = (path.cost + rest) / start
    destabilised = _grows(value) | ~jnp.isfinite(ratio)
    ratio = jnp.where(destabilised, jnp.inf, ratio)
    lowest = float(jnp.min(ratio))
    if linear and lowest < 1 - 1e-6:
        raise AssertionError(
            f"a loop cost {lowest:.9f} of the optimum: the reference or the simulation is wrong"
        )
    return Score(jnp.where(linear, jnp.maximum(ratio, 1.0), ratio), destabilised)


@jax.jit
def _value(P: Array, xs: Array) -> Array:
    """xᵀPx for P ``[*batch, n, n]``, xs ``[*batch, S, T, n]``."""
    return jnp.sum(xs * (xs @ P[..., None, :, :]), axis=-1)


def _grows(value: Array) -> Array:
    """Whether a loop's cost to go ``[..., T]`` is larger in its last quarter than in the quarter before.

    Quarters, because a loop that decays slowly may swing; what has come to rest is left out of the comparison.
    """
    quarter = max(value.shape[-1] // 4, 1)
    before, last = (
        jnp.max(value[..., cut], axis=-1) for cut in (slice(-2 * quarter, -quarter), slice(-quarter, None))
    )
    return ~(last <= before * (1 + 1e-9)) & ~(last < 1e-9 * value[..., 0])
