"""The least change of any controller's input with which a plant keeps its limits."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.limits import boxes, check_equilibrium
from lqrlab.simulation.binding import bind
from lqrlab.simulation.policies import Policy, measured_or
from lqrlab.simulation.problem import Problem

_SLIGHT = 1e-6  # weight of what comes after the first input beside its change


@pytree
@dataclasses.dataclass(frozen=True)
class FilteredPolicy:
    """A policy whose inputs are changed as little as keeps the limits over the next steps of the sampled plant.

    Where nothing keeps them, its input is that of the plan which violates those of the states least.

    Attributes:
        policy: what is filtered; it sees what it would see alone.
        problem: the sampled plant.
        box: limits of inputs and states, as deviations ``[*batch, 1, signals]``.
        horizon: steps that are looked ahead.
    """

    policy: Policy
    problem: Problem
    box: dict[str, tuple[Array, Array]]
    horizon: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The memory of the policy, and the last state that was seen."""
        return self.policy.init(batch_shape), jnp.zeros((*batch_shape, self.problem.n), self.problem.A.dtype)

    def __call__(self, carry: PyTree, x: Float[Array, "*loops n"]) -> tuple[PyTree, Float[Array, "*loops m"]]:
        """The input nearest to the policy's, relative to what the inputs can do, that can be followed up."""
        memory, last = carry
        memory, u = self.policy(memory, x)
        state = measured_or(last, x.astype(self.problem.A.dtype))
        u, after = nearest_safe(self.problem, self.box, self.horizon, state, u)
        return (memory, after), u.astype(x.dtype)


def nearest_safe(
    problem: Problem, box: dict[str, tuple[Array, Array]], horizon: int, x: Array, u: Array
) -> tuple[Float[Array, "*loops m"], Float[Array, "*loops n"]]:
    """The input nearest to u that plants at x can follow up within the limits of ``box``, and where it leads."""
    dtype, (n, m) = problem.A.dtype, (problem.n, problem.m)

    def widened(a: Array, core: int) -> Array:
        return expand_batch(a, x.ndim - 1 + core, core)

    A, B, Q, R, N, P = (widened(a, 2) for a in (*problem.sampled, problem.P))
    box = {name: (widened(low, 2), widened(high, 2)) for name, (low, high) in box.items()}
    low, high = box["u_limits"]
    span = jnp.where(jnp.isfinite(high - low), high - low, 1.0)[..., 0, :]
    wanted = jnp.clip(u.astype(dtype), low[..., 0, :], high[..., 0, :])
    first = (jnp.arange(horizon) == 0).astype(dtype)
    weight = jnp.where(first[:, None] > 0, 1 / span[..., None, :] ** 2, 0)  # of the first input's change
    matrices = [a[..., None, :, :] for a in (A, B, _SLIGHT * Q, _SLIGHT * R, _SLIGHT * N)]
    matrices[3] = matrices[3] + jnp.where(jnp.eye(m, dtype=bool), weight[..., None], 0)
    c, q, qf = jnp.zeros((1, n), dtype), jnp.zeros((1, n), dtype), jnp.zeros(n, dtype)
    r = -weight * wanted[..., None, :]
    given = (*matrices, c, q, r, _SLIGHT * P, qf, None, None, x, None, None)
    plan, _ = constrained.solved_from(None, given, box, horizon)
    return plan.us[..., 0, :], plan.xs[..., 1, :]


def filtered(
    controller: object, problem: Problem, *, x_limits: tuple[ArrayLike, ArrayLike] | None = None, horizon: int = 10
) -> FilteredPolicy:
    """A safety filter: any controller, with the least change of its inputs that keeps the limits.

    Args:
        controller: of any kind that :func:`bind` takes.
        problem: the plants, with the limits of their inputs; its linear, sampled model is what is looked ahead with.
        x_limits: of the states, ``(low, high)`` as deviations from the equilibrium, numbers or ``[n]``.
        horizon: steps that are looked ahead; more of them see a limit earlier, and brake more gently.

    Raises:
        ValueError: what is no controller; limits that exclude the equilibrium.

    Source: K. P. Wabersich and M. N. Zeilinger, Automatica 129 (2021), for the idea: a plan that proves each input.

    >>> plant = systems.make("pendulum")
    >>> problem = simulation.Problem.of(plant, limits=(-9.0, 9.0), linear=True)
    >>> safe = predictive.filtered([[-40.0, 0.0]], problem, x_limits=([-0.1, -9.0], [0.1, 9.0]))  # it pushes out
    >>> run = simulation.rollout(problem, safe, jnp.array([0.05, 0.0]), 100)
    >>> bool(jnp.abs(run.xs[:, 0]).max() < 0.1 + 1e-6)
    True
    """
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    T = checks.whole("horizon", horizon, high=constrained.MOST_STEPS)
    policy = bind(controller, problem)
    problem = problem if problem.P is not None else problem.solved()
    return FilteredPolicy(policy, problem, boxes_of(problem, x_limits), T)


def boxes_of(problem: Problem, x_limits: tuple[ArrayLike, ArrayLike] | None) -> dict[str, tuple[Array, Array]]:
    """Limits of a problem's inputs and of its states, checked, with the batch of the plants."""
    dtype, inf, batch = problem.A.dtype, jnp.inf, problem.batch_shape
    low, high = (-inf, inf) if problem.low is None else (a[..., None, :] for a in (problem.low, problem.high))
    box = boxes(1, dtype, u_limits=((low, high), problem.m), x_limits=(x_limits, problem.n))
    check_equilibrium(box)
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (*batch, *a.shape[-2:])) if a.ndim == 2 else a, box)
