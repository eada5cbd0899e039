"""Regulating plants that nobody has described to the controller: what learning them costs above knowing them."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from lqrlab import control, dataset, simulation
from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.learning import Known
from lqrlab.simulation import Env, LinearPolicy, Policy, SampledProblem
from lqrlab.systems import M_MAX, N_MAX, Plant

MOST = 10.0
"""A loop that costs more than so many times the optimum counts as diverged."""
LARGEST = 1000.0
"""So does one whose state exceeds so many units."""
NEAR = 0.1
"""Excess over the optimum, from some step on, below which the plant counts as learned."""


@pytree
@dataclasses.dataclass(frozen=True)
class Unknown:
    """Plants that are to be regulated without being described, in scaled, padded coordinates, with Q = R = I.

    Attributes:
        problem: the sampled plants with their optimum ``[V, …]``.
        known: what a controller is told of them ``[V]``.
        limit: of the inputs, ±.
        family: from which of the batches each plant came ``[V]``.
    """

    problem: SampledProblem
    known: Known
    limit: Float[Array, ""]
    family: Int[Array, " V"]

    def __len__(self) -> int:
        return len(self.problem.A)

    def __getitem__(self, index: object) -> "Unknown":
        """Some of the plants, or some of them several times: a slice, or an array of indices or of truth values."""
        index = index if isinstance(index, slice) else np.asarray(index)
        part = jax.tree.map(lambda a: a[index], (self.problem, self.known, self.family))
        return Unknown(part[0], part[1], self.limit, part[2])

    def disturbed(self, noise: ArrayLike, sensor_noise: ArrayLike = 0.0) -> "Unknown":
        """The same plants under other noise: standard deviations, for all plants or one for each ``[V]``."""
        noise, sensor = (
            _deviations(name, a, len(self)) for name, a in (("noise", noise), ("sensor_noise", sensor_noise))
        )
        return dataclasses.replace(
            self, known=dataclasses.replace(self.known, noise=noise, sensor_noise=sensor)
        )


@pytree
@dataclasses.dataclass(frozen=True)
class Regret:
    """What loops cost above the optimum, ``[V, S]`` or with steps ``[V, S, T]``.

    Attributes:
        ratio: cost over that of the exact LQR under the same noise; inf where the loop diverged.
        diverged: whether it cost more than :data:`MOST` times the optimum, or its state exceeded :data:`LARGEST`.
        regret: cost so far and the least that then remains to be paid, minus the same of the exact LQR's loop; it
            only grows where there is no noise.
        excess: what the loop's inputs cost above the optimal ones from this step to the end, over the least cost
            that can be expected from the state of this step on: Σ (u + Kx)ᵀ(R + BᵀPB)(u + Kx) over xᵀP x plus the
            noise's share. Zero for the optimal gain whatever the noise; a controller that has learned its plant by
            this step has little of it.
    """

    ratio: Float[Array, "V S"]
    diverged: Bool[Array, "V S"]
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
        """Excess cost in percent (median, p95), percent diverged, and steps until learned (median, p95)."""
        gap, steps = (np.asarray(self.ratio).ravel() - 1) * 100, self.steps_until().ravel()
        (median, p95), (learned, learned_p95) = (
            np.quantile(a, (0.5, 0.95), method="higher") for a in (gap, steps)
        )
        return {
            "median": float(median),
            "p95": float(p95),
            "diverged": 100 * float(np.mean(self.diverged)),
            "learned": float(learned),
            "learned_p95": float(learned_p95),
        }


@pytree
@dataclasses.dataclass(frozen=True)
class Fixed(LinearPolicy):
    """A constant gain; not of the type that takes another engine, which draws other noise."""


def undescribed(
    plants: Plant | Sequence[Plant],
    *,
    noise: ArrayLike = 0.0,
    sensor_noise: ArrayLike = 0.0,
    limit: float = 20.0,
) -> Unknown:
    """The problem of regulating plants that the controller is not told.

    Args:
        plants: a batch with one leading axis, or several, one a family; linearised and sampled here.
        noise: standard deviation of the disturbance of the scaled state at each step; one for all or each plant.
        sensor_noise: the same of the measured state.
        limit: of the scaled inputs.

    >>> plants = [systems.sample(name, key=jax.random.key(0), num=2) for name in ("pendulum", "cart_pole")]
    >>> len(evaluation.undescribed(plants, noise=0.01))
    4
    """
    limit = checks.number("limit", limit, "a number > 0", above=0)
    batches = [plants] if isinstance(plants, Plant) else plants
    if not isinstance(batches, Sequence) or isinstance(batches, str) or not batches:
        raise ValueError(f"plants: expected a batch of plants, or several in a list, but found {plants!r}")
    parts = [_problem(plant, limit) for plant in batches]
    problem, known = jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
    family = jnp.asarray(np.repeat(np.arange(len(parts)), [len(problem.A) for problem, _ in parts]))
    return Unknown(problem, known, jnp.asarray(limit), family).disturbed(noise, sensor_noise)


def _problem(plant: Plant, limit: float) -> tuple[SampledProblem, Known]:
    """A batch of plants with their optimum, and what is told of them."""
    if not isinstance(plant, Plant):
        raise ValueError(
            f"plants: expected plants, but found {plant!r}; systems.sample draws some of a family"
        )
    if len(plant.batch_shape) != 1 or not plant.batch_shape[0]:
        raise ValueError(
            f"plants: expected a batch with one leading axis, but found {plant.name} of batch shape "
            f"{plant.batch_shape}; systems.sample draws one"
        )
    d = dataset.describe(plant)
    Q, R = (jnp.broadcast_to(jnp.eye(k), (len(d.A), k, k)) for k in (N_MAX, M_MAX))
    sampled = control.Sampled(d.A, d.B, Q, R, jnp.zeros_like(d.B))
    problem = SampledProblem.to_compare(sampled, f" of {plant.name}")
    exists = d.state_mask[:, :, None] * d.state_mask[:, None, :]
    # nothing is paid for states that are padding
    problem = dataclasses.replace(problem, P=problem.P * exists)
    return problem, Known.of(plant, limit=limit).scaled()


def _deviations(name: str, value: ArrayLike, num: int) -> Array:
    """A standard deviation a plant."""
    given = np.asarray(checks.real(name, value), float)
    if not np.all(np.isfinite(given) & (given >= 0)):
        raise ValueError(f"{name}: expected a standard deviation ≥ 0, but found {value}")
    if given.shape not in ((), (num,)):
        raise ValueError(
            f"{name}: expected a number, or one for each of {num} plants, but found shape {given.shape}"
        )
    return jnp.broadcast_to(jnp.asarray(given), (num,))


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
    cost is Σ |x|² + |u|² over the steps, with the least that remains to be paid at the end, x_TᵀP x_T. The reference
    sees what the controller sees: with sensor noise it is not the best that there is, and a ratio below 1 can occur.

    Args:
        controller: from what is known to a policy in scaled, padded coordinates. It is not told the equations.
        plants: see :func:`undescribed`.
        key: of initial states and noise.
        num_initial: loops a plant.
        num_steps: T.

    >>> plants = evaluation.undescribed(systems.sample("pendulum", key=jax.random.key(0), num=2))
    >>> controller = lambda known: learning.adaptive(known, learning.wide())
    >>> regret = evaluation.unknown(controller, plants, key=jax.random.key(1))
    >>> regret.ratio.shape, bool(regret.diverged.any())
    ((2, 4), False)
    """
    num_initial, num_steps = checks.whole("num_initial", num_initial), checks.whole("num_steps", num_steps)
    checks.random_key(key)
    if not isinstance(plants, Unknown):
        raise ValueError(
            f"plants: expected what evaluation.undescribed makes of plants, but found {type(plants).__name__}"
        )
    if not callable(controller) or hasattr(controller, "init"):
        raise ValueError(
            "controller: expected a function from what is known to a policy, such as lambda known: "
            f"learning.adaptive(known, learning.wide()), but found {type(controller).__name__}"
        )
    start, noise = jax.random.split(key)
    told, exists = plants.known, plants.known.coordinates.state_mask
    x0 = jax.random.normal(start, (len(plants), num_initial, N_MAX), float) * exists[:, None]
    world = Env.of_problem(plants.problem, limit=plants.limit)
    world = dataclasses.replace(world, noise=told.noise[:, None] * exists)
    sensor = told.sensor_noise[:, None] * exists

    def run(policy: Policy) -> simulation.Trajectory:
        return simulation.rollout(world, policy, x0, num_steps, key=noise, sensor_noise=sensor)

    return _compared(plants, run(controller(told)), run(Fixed(plants.problem.K)))


@jax.jit
def _compared(plants: Unknown, run: simulation.Trajectory, best: simulation.Trajectory) -> Regret:
    problem = plants.problem
    paid, owed = (
        jnp.cumsum(each.costs, -1) + problem.optimal_cost(each.xs[..., 1:, :]) for each in (run, best)
    )
    ratio = paid[..., -1] / owed[..., -1]
    diverged = ~(ratio <= MOST) | ~(jnp.max(jnp.abs(run.xs), (-1, -2)) <= LARGEST)
    xs = run.xs[..., :-1, :]
    error = run.us + matvec(problem.K, xs)
    above = jnp.cumsum(quadratic(problem.S, error)[..., ::-1], -1)[..., ::-1]
    left = jnp.arange(xs.shape[-2], 0, -1).astype(float)
    disturbance = plants.known.noise**2 * jnp.trace(problem.P, axis1=-2, axis2=-1)
    excess = above / (problem.optimal_cost(xs) + disturbance[:, None, None] * left[None, None])
    return Regret(jnp.where(diverged, jnp.inf, ratio), diverged, paid - owed, excess)
