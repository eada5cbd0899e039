"""The repair of gains: Newton's method on the plants that they are for."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control, systems
from lqrlab.compute import checks
from lqrlab.simulation import Problem
from lqrlab.systems import M_MAX, N_MAX, Plant


def repair(
    K: ArrayLike, plants: Plant | Sequence[Plant] | Problem, steps: int = 1
) -> Float[Array, "*batch m n"]:
    """Better gains for plants, by Newton's method from given ones; from gains that do not stabilise too.

    The sampled problem of each plant is improved in scaled coordinates by :func:`lqrlab.control.policy_iteration`: a
    step squares a small error, and costs about as much as the design of the optimum. Batched, differentiable, inside
    ``jit``.

    Args:
        K: u = −Kx in the plants' units ``[*batch, m, n]``.
        plants: a plant or a batch; several batches, one after another; or a problem of them.
        steps: of Newton's method; 0 only makes the gains stabilizing.

    Returns:
        Gains like K; NaN for a plant that no gain stabilises.

    >>> plant = systems.make("pendulum")
    >>> better = learning.repair(jnp.zeros((1, 2)), plant, steps=6)
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> bool(jnp.allclose(better, optimum.K))
    True
    """
    problem = plants
    if not isinstance(problem, Problem):
        problem = Problem.of(problem, linear=True, optimum=False)
    (n, m), batch = (problem.n, problem.m), problem.batch_shape
    K = jnp.asarray(checks.real("K", K))
    if K.shape[-2:] != (m, n) or K.ndim > len(batch) + 2:
        raise ValueError(
            f"K: expected gains {(*batch, m, n)}, inputs by states, for these plants, but found {K.shape}"
        )
    K = jnp.broadcast_to(K, (*batch, m, n)).astype(problem.A.dtype)
    units = problem.units
    return units.unscale_gain(improved(problem.scaled(), units.scale_gain(K), steps, n, m), n, m)


def improved(
    problem: Problem, gain: Float[Array, "*batch 6 12"], steps: int, n: int = N_MAX, m: int = M_MAX
) -> Float[Array, "*batch 6 12"]:
    """Gains of scaled, padded problems after Newton steps; of plants with n states and m inputs at most."""
    rows = {"A": n, "B": n, "Q": n, "R": m, "N": n}
    columns = rows | {"B": m, "N": m}
    cut = {name: getattr(problem, name)[..., : rows[name], : columns[name]] for name in rows}
    K = control.policy_iteration(**cut, K=gain[..., :m, :n], steps=steps).K
    return systems.pad_matrix(K, M_MAX, N_MAX)
