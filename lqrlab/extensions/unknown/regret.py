"""Regret: the cost of regulating plants without A and B, over that of the LQR that knows them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Int8, PRNGKeyArray

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.simulation import LinearPolicy, Policy, Problem, Trajectory, Verdict, bind, rollout, verdict
from lqrlab.simulation.noise import mean_size
from lqrlab.systems import M_MAX, N_MAX, Plant

MOST = 10.0
"""A loop that costs more than so many times the optimum has failed."""
NEAR = 0.1
"""Excess over the optimum, from some step on, below which the plant counts as learned."""


@pytree
@dataclasses.dataclass(frozen=True)
class Regret(verdict.Judged):
    """The cost of loops above the optimum, ``[V, S]`` or with steps ``[V, S, T]``.

    Attributes:
        ratio: cost over that of the exact LQR under the same noise; inf where the loop failed.
        verdict: whether it converged, is bounded or diverged, see :mod:`lqrlab.simulation.verdict`.
        failed: whether it diverged, or cost more than :data:`MOST` times the optimum.
        regret: cost so far and the least that then remains to be paid, minus the same of the exact LQR's loop.
        excess: what the loop's inputs cost above the optimal ones from this step to the end, over the least cost
            that can be expected from the state of this step on: Σ (u + Kx)ᵀ(R + BᵀPB)(u + Kx) over xᵀP x plus the
            noise's share. Zero for the optimal gain whatever the noise; little once the plant is learned.
    """

    ratio: Float[Array, "V S"]
    verdict: Int8[Array, "V S"]
    failed: Bool[Array, "V S"]
    regret: Float[Array, "V S T"]
    excess: Float[Array, "V S T"]

    def __getitem__(self, index: object) -> "Regret":
        """The loops of some plants."""
        return jax.tree.map(lambda a: a[index], self)

    def steps_until(self, excess: float = NEAR) -> Int[np.ndarray, "V S"]:
        """Steps until a loop costs no more than ``excess`` above the optimum from there on; T if it never does."""
        limit = checks.number("excess", excess, "a number > 0", above=0)
        steps = np.arange(1, self.excess.shape[-1] + 1)
        return np.max(np.where(np.asarray(self.excess) <= limit, 0, steps), axis=-1)

    def summary(self) -> dict[str, float]:
        """Percent failed and diverged, excess cost in percent (p95, median), steps until learned (p95, median)."""
        gap, steps = (np.asarray(self.ratio).ravel() - 1) * 100, self.steps_until().ravel()
        (median, p95), (learned, learned_p95) = (np.quantile(a, (0.5, 0.95), method="higher") for a in (gap, steps))
        return {
            "failed": 100 * float(np.mean(self.failed)),
            "diverged": 100 * float(np.mean(self.diverged)),
            "p95": float(p95),
            "median": float(median),
            "learned_p95": float(learned_p95),
            "learned": float(learned),
        }


@pytree
@dataclasses.dataclass(frozen=True)
class ConstantGain(LinearPolicy):
    """A constant gain; not of the type that takes another engine, which draws other noise."""


def problem_of(
    plants: Plant | Sequence[Plant], *, noise: ArrayLike = 0.0, sensor_noise: ArrayLike = 0.0, limit: float = 20.0
) -> Problem:
    """The regulation problem of plants with unknown A and B, in scaled, padded coordinates with Q = R = I.

    Args:
        plants: a batch, or several in a list, one a family.
        noise: standard deviation of the disturbance of the scaled state at each step; one for all, or ``[V, 1]``.
        sensor_noise: the same of the measured state.
        limit: of the scaled inputs.

    >>> plants = [systems.sample(name, key=jax.random.key(0), num=2) for name in ("pendulum", "cart_pole")]
    >>> len(unknown.problem_of(plants, noise=0.01))
    4
    """
    limit = checks.number("limit", limit, "a number > 0", above=0)
    batches = [plants] if isinstance(plants, Plant) else plants
    scaled = Problem.of(batches, optimum=False).scaled()
    Q, R = (jnp.broadcast_to(jnp.eye(k), (len(scaled), k, k)) for k in (N_MAX, M_MAX))
    unit = dataclasses.replace(scaled, Q=Q, R=R, N=jnp.zeros_like(scaled.B), continuous=None).solved()
    # nothing is paid for states that are padding
    unit = dataclasses.replace(unit, P=unit.coordinates.zero_padding(unit.P, "x", "x"))
    return unit.limited((-limit, limit)).disturbed(noise=noise, sensor_noise=sensor_noise)


def score(
    controller: object,
    plants: Plant | Sequence[Plant] | Problem,
    *,
    key: PRNGKeyArray,
    num_initial: int = 4,
    num_steps: int = 200,
) -> Regret:
    """Run a controller on plants with unknown A and B, from x0 ~ N(0, I), and the exact LQR under the same noise.

    States and inputs are scaled and padded; state and input are seen from the first step on, nothing else is. The
    cost is Σ |x|² + |u|² over the steps, with the least that remains to be paid at the end, x_TᵀP x_T. The reference
    sees what the controller sees: with sensor noise it is not the best that there is, and a ratio below 1 can occur.

    Args:
        controller: a function from a problem to a policy, or a network without description, as
            :func:`lqrlab.simulation.bind` takes them; in the problem that it is given A, B, K and P are not numbers.
        plants: plants; or their problem with its noise, see :func:`problem_of`.
        key: of initial states and noise.
        num_initial: loops a plant.
        num_steps: T.

    >>> plants = systems.sample("pendulum", key=jax.random.key(0), num=2)
    >>> controller = lambda problem: unknown.adaptive(problem, unknown.wide())
    >>> regret = unknown.score(controller, plants, key=jax.random.key(1))
    >>> regret.ratio.shape, bool(regret.failed.any())
    ((2, 4), False)
    """
    num_initial, num_steps = checks.whole("num_initial", num_initial), checks.whole("num_steps", num_steps)
    checks.random_key(key)
    problem = plants if isinstance(plants, Problem) else problem_of(plants)
    if not problem.in_scales or problem.K is None or len(problem.batch_shape) != 1:
        raise ValueError("plants: expected plants or a problem of unknown.problem_of, but found another problem")
    policy = bind(controller, problem.hidden())
    start, noise = jax.random.split(key)
    x0 = jax.random.normal(start, (len(problem), num_initial, N_MAX), float)
    x0 = x0 * problem.coordinates.state_mask[:, None]

    def run(policy: Policy) -> Trajectory:
        return rollout(problem, policy, x0, num_steps, key=noise)

    return _compared(problem, run(policy), run(ConstantGain(problem.K)))


@jax.jit
def _compared(problem: Problem, run: Trajectory, best: Trajectory) -> Regret:
    paid, owed = (jnp.cumsum(each.costs, -1) + problem.optimal_cost(each.xs[..., 1:, :]) for each in (run, best))
    told = problem.told("units")
    sizes = verdict.size(run.xs, problem.scale_x)
    quiet, disturbed = (verdict.of_sizes(sizes, disturbed=noisy, linear=problem.linear) for noisy in (False, True))
    excited = mean_size(problem.noise.input, problem.scale_u, problem.coordinates.input_mask)
    judged = jnp.where((told.noise + told.sensor_noise + excited > 0)[:, None], disturbed, quiet)
    ratio = paid[..., -1] / owed[..., -1]
    failed = ~(ratio <= MOST) | (judged == Verdict.DIVERGED)
    xs = run.xs[..., :-1, :]
    error = run.us + matvec(problem.K, xs)
    above = jnp.cumsum(quadratic(problem.S, error)[..., ::-1], -1)[..., ::-1]
    left = jnp.arange(xs.shape[-2], 0, -1).astype(float)
    disturbance = told.noise**2 * jnp.trace(problem.P, axis1=-2, axis2=-1)
    excess = above / (problem.optimal_cost(xs) + disturbance[:, None, None] * left[None, None])
    return Regret(jnp.where(failed, jnp.inf, ratio), judged, failed, paid - owed, excess)
