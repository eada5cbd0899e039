"""What closed loops cost in all, without their trajectories."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.compute.linalg import batch_last, quadratic
from lqrlab.simulation.environment import Env, env
from lqrlab.simulation.loop import rollout
from lqrlab.simulation.policies import LinearPolicy, Policy
from lqrlab.systems import Plant


def total_cost(plant: Plant | Env, policy: Policy, x0: ArrayLike, num_steps: int, **options: Any) -> Array:
    """The cost of each loop over ``num_steps`` steps, ``rollout(…).cost`` without what lies between.

    A linear plant under a constant gain within its limits needs no steps: with the closed loop F and the weight
    W of one step seen from the state, the cost is x0ᵀ S x0 with S = Σ FᵀᵗWFᵗ over t < num_steps, which doubling
    sums in log₂(num_steps) products: S₂ₖ = Sₖ + (Fᵏ)ᵀ Sₖ Fᵏ.
    Source: E. J. Davison and F. T. Man, The numerical solution of A'Q + QA = −C (1968), for the doubling.

    Args:
        plant: one plant, a batch, or an :class:`Env` of them.
        policy: as for :func:`lqrlab.simulation.rollout`.
        x0: initial deviations ``[*batch, *extra, n]``.
        num_steps: T.
        options: the others of ``rollout``.

    Returns:
        ``[*batch, *extra]``, in float64 where the plants are.
    """
    x0 = jnp.asarray(x0)
    if _doubles(plant, policy, x0, num_steps, options):
        world = plant if isinstance(plant, Env) else env(plant, linear=True, dt=options.get("dt"))
        if world.noise is None and bool(jnp.all(jnp.isinf(world.low) & jnp.isinf(world.high))):
            return _quadratic(world.sampled, policy.K, x0, num_steps)  # type: ignore[attr-defined]
    return rollout(plant, policy, x0, num_steps, keep=("costs",), **options).cost


def _doubles(plant: Plant | Env, policy: Policy, x0: Array, num_steps: int, options: dict[str, Any]) -> bool:
    """Whether the closed form is for this; what does not fit is left to ``rollout``, which says why."""
    if type(policy) is not LinearPolicy or checks.traced(plant, policy, x0, options, jnp.zeros(())):
        return False
    is_env = isinstance(plant, Env)
    linear = plant.linear if isinstance(plant, Env) else bool(options.get("linear"))
    batch, n = plant.batch_shape, plant.n
    fits = x0.shape[: len(batch)] == batch and x0.shape[-1:] == (n,) and policy.K.shape[:-2] in ((), batch)
    positive = isinstance(num_steps, int | np.integer) and num_steps > 0
    known = set() if is_env else {"dt", "linear"}
    return linear and set(options) <= known and fits and positive and bool(np.all(np.isfinite(x0)))


@functools.partial(jax.jit, static_argnames="num_steps")
def _quadratic(sampled: control.Sampled, K: Array, x0: Array, num_steps: int) -> Array:
    A, B, Q, R, N = sampled
    K = K.astype(A.dtype)
    F, W = batch_last.together((2, 2), A - B @ K, control.stage_weight(Q, R, N, K))
    S = _summed(num_steps)(F, W)
    return quadratic(S, x0.astype(S.dtype))


@functools.cache
def _summed(num_steps: int) -> Callable:
    """Σ FᵀᵗWFᵗ over t < num_steps."""
    mul, t = batch_last.mul, batch_last.t

    @batch_last.solver(2, 2)
    def solve(F: Array, W: Array) -> Array:
        def bit(state: tuple[Array, Array], one: Array) -> tuple[tuple[Array, Array], None]:
            S, power = state  # of k steps; the bits of num_steps from the highest make k
            S = S + mul(t(power), mul(S, power))
            power = mul(power, power)
            return jax.lax.cond(one, once_more, lambda *state: state, S, power), None

        def once_more(S: Array, power: Array) -> tuple[Array, Array]:
            return W + mul(t(F), mul(S, F)), mul(power, F)

        bits = jnp.asarray([c == "1" for c in f"{num_steps:b}"[1:]])
        return jax.lax.scan(bit, (W, F), bits)[0][0]

    return solve
