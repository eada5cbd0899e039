"""Regulating plants that nobody has described to the controller: what learning them costs above knowing them."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from lqrlab import control, dataset, simulation
from lqrlab.compute import checks, pytree
from lqrlab.learning import Known
from lqrlab.simulation import Env, LinearPolicy, Policy, SampledProblem
from lqrlab.systems import M_MAX, N_MAX, Plant

MOST = 10.0
"""A loop that costs more than so many times the optimum counts as diverged."""
LARGEST = 1000.0
"""So does one whose state exceeds so many units."""


@pytree
@dataclasses.dataclass(frozen=True)
class Unknown:
    """Plants that are to be regulated without being described, in scaled, padded coordinates, with Q = R = I.

    Attributes:
        problem: the sampled plants with their optimum ``[V, …]``.
        known: what a controller is told of them ``[V]``.
        limit: of the inputs, ±.
    """

    problem: SampledProblem
    known: Known
    limit: Float[Array, ""]

    def __len__(self) -> int:
        return len(self.problem.A)


@pytree
@dataclasses.dataclass(frozen=True)
class Regret:
    """What loops cost above the optimum under the same noise, ``[V, S]`` or with steps ``[V, S, T]``.

    Attributes:
        ratio: cost over that of the exact LQR; inf where the loop diverged.
        diverged: whether it cost more than :data:`MOST` times the optimum, or its state exceeded :data:`LARGEST`.
        regret: cost so far minus the optimum's so far.
        stabilised: steps until the state stays within twice the range that the optimum's has from then on, plus a tenth of
            a unit; T if it never does.
    """

    ratio: Float[Array, "V S"]
    diverged: Bool[Array, "V S"]
    regret: Float[Array, "V S T"]
    stabilised: Int[Array, "V S"]

    def summary(self) -> dict[str, float]:
        """Excess cost in percent (median, p95), percent diverged, and the median of steps until stabilised."""
        gap = (np.asarray(self.ratio).ravel() - 1) * 100
        median, p95 = np.quantile(gap, (0.5, 0.95), method="higher")
        return {
            "median": float(median),
            "p95": float(p95),
            "diverged": 100 * float(np.mean(self.diverged)),
            "stabilised": float(np.median(self.stabilised)),
        }


@pytree
@dataclasses.dataclass(frozen=True)
class _Reference(LinearPolicy):
    """The optimal gain; not of the type that takes another engine, which draws other noise."""


def undescribed(
    plants: Plant, *, noise: float = 0.0, sensor_noise: float = 0.0, limit: float = 20.0
) -> Unknown:
    """The problem of regulating plants that the controller is not told.

    Args:
        plants: a batch with one leading axis; linearised and sampled here.
        noise: standard deviation of the disturbance of the scaled state at each step.
        sensor_noise: the same of the measured state.
        limit: of the scaled inputs.
    """
    sizes = (("noise", noise), ("sensor_noise", sensor_noise), ("limit", limit))
    noise, sensor_noise, limit = (float(checks.real(name, a)) for name, a in sizes)
    d = dataset.describe(plants)
    if d.A.ndim != 3:
        raise ValueError(f"plants: expected a batch with one leading axis, but found {d.A.shape[:-2]}")
    weights = (jnp.broadcast_to(jnp.eye(k), (len(d.A), k, k)) for k in (N_MAX, M_MAX))
    problem, stabilizing = SampledProblem.of(control.Sampled(d.A, d.B, *weights, jnp.zeros_like(d.B)))
    if not bool(jnp.all(stabilizing)):
        raise ValueError(f"plants: {int(jnp.sum(~stabilizing))} of {len(d.A)} have no stabilizing optimum")
    known = Known.of(plants, noise=noise, sensor_noise=sensor_noise, limit=limit).scaled()
    return Unknown(problem, known, jnp.asarray(limit))


def unknown(
    controller: Callable[[Known], Policy],
    plants: Unknown,
    *,
    key: PRNGKeyArray,
    num_initial: int = 4,
    num_steps: int = 200,
) -> Regret:
    """Run a controller on plants that it is not told, from x0 ~ N(0, I), beside the exact LQR under the same noise.

    States and inputs are scaled and padded; state and input are seen from the first step on, nothing else is. The
    cost is Σ |x|² + |u|² over the steps, with the least that remains to be paid at the end, x_TᵀP x_T.

    Args:
        controller: from what is known to a policy in scaled, padded coordinates. It is not told the equations.
        plants: see :func:`undescribed`.
        key: of initial states and noise.
        num_initial: loops a plant.
        num_steps: T.
    """
    num_initial, num_steps = checks.whole("num_initial", num_initial), checks.whole("num_steps", num_steps)
    checks.random_key(key)
    start, noise = jax.random.split(key)
    problem, told = plants.problem, plants.known
    x0 = jax.random.normal(start, (len(plants), num_initial, N_MAX), float)
    x0 = x0 * told.coordinates.state_mask[:, None]
    world = dataclasses.replace(
        Env.of_problem(problem, limit=plants.limit), noise=told.noise[:, None] * told.coordinates.state_mask
    )
    sensor = told.sensor_noise[:, None] * told.coordinates.state_mask

    def run(policy: Policy) -> tuple[Array, Array]:
        loops = simulation.rollout(
            world, policy, x0, num_steps, key=noise, sensor_noise=sensor, keep=("xs", "costs")
        )
        return loops.xs, loops.costs

    (xs, costs), (best, least) = run(controller(told)), run(_Reference(problem.K))
    return _compared(problem, xs, costs, best, least)


@jax.jit
def _compared(problem: SampledProblem, xs: Array, costs: Array, best: Array, least: Array) -> Regret:
    rest = (problem.optimal_cost(a[..., -1, :]) for a in (xs, best))
    paid, owed = (jnp.sum(c, -1) + r for c, r in zip((costs, least), rest))
    size, range_ = (jnp.max(jnp.abs(a), axis=-1) for a in (xs, best))
    ratio = paid / owed
    diverged = ~(ratio <= MOST) | ~(jnp.max(size, -1) <= LARGEST)
    later = jax.lax.cummax(range_, axis=range_.ndim - 1, reverse=True)
    outside = ~(size <= 2 * later + 0.1)
    steps = jnp.arange(1, size.shape[-1] + 1)
    stabilised = jnp.minimum(jnp.max(jnp.where(outside, steps, 0), axis=-1), size.shape[-1] - 1)
    regret = jnp.cumsum(costs, -1) - jnp.cumsum(least, -1)
    return Regret(jnp.where(diverged, jnp.inf, ratio), diverged, regret, stabilised)
