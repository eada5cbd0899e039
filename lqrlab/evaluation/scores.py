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
    """What closed loops cost, over what they need have cost; one entry a variant and start ``[*batch, S]``.

    Attributes:
        ratio: cost / x0ᵀP x0, never below 1 for a linear plant; inf where the loop does not come back.
        destabilised: the loop does not come back: it grows, or stays where it was driven.
        remaining: share of the cost that was still to be paid at the end of the horizon and is counted at its
            optimal price: where it is not small, the ratio is only a lower bound.
    """

    ratio: Array
    destabilised: Array
    remaining: Array

    def __getitem__(self, index: object) -> "Score":
        """The scores of some variants."""
        return Score(self.ratio[index], self.destabilised[index], self.remaining[index])

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
    x0: Array | None = None,
) -> Score:
    """Run ``policy`` from typical initial states and compare its cost with the optimum.

    The reference is x0ᵀP x0 of the sampled-data optimum. What is left at the end of the horizon counts as
    x_TᵀP x_T, the least that any controller could still pay, so a linear plant's ratio is at least 1 whatever
    the horizon, and exact once the loop has settled (see ``Score.remaining``). A constant gain is judged stable
    or not by its closed loop, any other policy by whether its cost to go falls.

    Args:
        policy: bound to ``plants``.
        plants: one plant, or a batch of one family or stacked.
        key: of the initial states.
        num_initial: initial states a plant.
        num_steps: horizon; two settling times of the slowest optimal loop if left out.
        linear: on the linearised plants; else on the nonlinear ones, where the optimum is only that of the
            linearisation and a ratio below 1 can occur.
        x0: initial deviations ``[*batch, S, n]`` instead of drawn ones.

    Returns:
        :class:`Score` ``[*batch, num_initial]``.
    """
    (A, B), (Q, R) = plants.matrices(), plants.weights()
    if A.dtype != jnp.float64:
        raise ValueError(
            f"plants: expected float64, but found {A.dtype}; call lqrlab.compute.setup() first: in float32 the "
            "optimum itself is wrong in the third digit"
        )
    if num_steps is not None and num_steps < 1:
        raise ValueError(f"num_steps: expected a horizon of at least one step, but found {num_steps}")
    design = control.lqrd(A, B, Q, R, plants.dt)
    if not bool(jnp.all(design.stabilizing)):
        raise ValueError(
            f"plants: {int(jnp.sum(~design.stabilizing))} of {design.stabilizing.size} have no stabilizing optimum "
            "to compare with; control.lqrd on one of them says why"
        )
    x0 = plants.initial_state(key=key, num=num_initial) if x0 is None else x0
    steps = settling_steps(design) if num_steps is None else num_steps
    path = simulation.rollout(plants, policy, x0, steps, linear=linear)
    value = _value(design.P, path.xs)
    start, rest = value[..., 0], value[..., -1]
    ratio = (path.cost + rest) / start
    if linear and isinstance(policy, simulation.LinearPolicy):
        lost = ~_gain_is_stable(plants, policy, ratio)
    else:
        lost = _stays(value)
    destabilised = lost | ~jnp.isfinite(ratio)
    ratio = jnp.where(destabilised, jnp.inf, ratio)
    lowest = float(jnp.min(ratio))
    if linear and lowest < 1 - 1e-6:
        raise AssertionError(
            f"a loop cost {lowest:.9f} of the optimum: the reference or the simulation is wrong"
        )
    remaining = jnp.where(destabilised, 1.0, rest / (path.cost + rest))
    return Score(jnp.maximum(ratio, 1.0) if linear else ratio, destabilised, remaining)


def _gain_is_stable(plants: Plant, policy: simulation.LinearPolicy, like: Array) -> Array:
    """Whether a constant gain stabilises each plant: exact, from the closed loop itself ``[*batch, S]``."""
    A, B = control.c2d(*plants.matrices(), jnp.asarray(plants.dt))
    stable = control.is_stable(A - B @ policy.K)
    return jnp.broadcast_to(stable[..., None], like.shape)


@jax.jit
def _value(P: Array, xs: Array) -> Array:
    """xᵀPx for P ``[*batch, n, n]``, xs ``[*batch, S, T, n]``."""
    return jnp.sum(xs * (xs @ P[..., None, :, :]), axis=-1)


def _stays(value: Array) -> Array:
    """Whether a loop's cost to go ``[..., T]`` fails to fall from the last quarter but one to the last.

    Quarters, because a loop that decays slowly may swing; a thousandth, because a loop that stands still where
    it was driven pays for ever. What has come to rest is not asked to fall further.
    """
    quarter = max(value.shape[-1] // 4, 1)
    cuts = slice(-2 * quarter, -quarter), slice(-quarter, None)
    before, last = (jnp.max(value[..., cut], axis=-1) for cut in cuts)
    return ~(last <= before * (1 - 1e-3)) & ~(last < 1e-9 * value[..., 0])
