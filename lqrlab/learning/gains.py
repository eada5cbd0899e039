"""Gains in the coordinates that networks work in, and their repair."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control, systems
from lqrlab.compute import checks
from lqrlab.compute.checks import traced
from lqrlab.control import Sampled
from lqrlab.simulation import LinearPolicy, Policy
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Linear, Plant


def sampled(plants: Plant | Sequence[Plant]) -> tuple[Sampled, Coordinates]:
    """Sampled plants with their weights in scaled, padded coordinates, and these; batches one after another."""
    linear, coordinates = scaled_plants(plants)
    return control.discretize(linear.A, linear.B, linear.Q, linear.R, linear.dt), coordinates


def scaled_plants(plants: Plant | Sequence[Plant]) -> tuple[Linear, Coordinates]:
    """Linearised plants in scaled, padded coordinates, and these; several batches one after another."""

    def one(plant: Plant) -> tuple[Linear, Coordinates]:
        both = systems.linearise(plant), Coordinates.of(plant)
        # on the host, where nothing is compiled for each size
        linear, coordinates = both if traced(both) else jax.tree.map(np.asarray, both)
        return coordinates.scale_plant(linear), coordinates

    if isinstance(plants, Plant):
        return jax.tree.map(jnp.asarray, one(plants))
    return jax.tree.map(lambda *a: jnp.concatenate(a), *map(one, plants))


def scaled_gain(policy: Policy, coordinates: Coordinates) -> Float[Array, "*batch 6 12"] | None:
    """The constant gain that a policy is, ũ = −K̃x̃ in scaled, padded coordinates; None if it is none."""
    if isinstance(policy, LinearPolicy):
        batch = coordinates.scale_x.shape[:-1]
        return coordinates.scale_gain(jnp.broadcast_to(policy.K, (*batch, *policy.K.shape[-2:])))
    gain = getattr(policy, "scaled_gain", None)
    if gain is None:
        return None
    return coordinates.zero_padding(gain.astype(coordinates.scale_x.dtype), "u", "x")


def repair(K: ArrayLike, plants: Plant | Sequence[Plant], steps: int = 1) -> Float[Array, "*batch m n"]:
    """Better gains for plants, by Newton's method from given ones; from gains that do not stabilise too.

    The sampled problem of each plant is improved in scaled coordinates by :func:`lqrlab.control.policy_iteration`: a
    step squares a small error, and costs about as much as the design of the optimum. Batched, differentiable, inside
    ``jit``.

    Args:
        K: u = −Kx in the plants' units ``[*batch, m, n]``.
        plants: a plant or a batch; or several batches of one leading axis, for gains of ``systems.stack`` of them.
        steps: of Newton's method; 0 only makes the gains stabilizing.

    Returns:
        Gains like K; NaN for a plant that no gain stabilises.

    >>> plant = systems.make("pendulum")
    >>> better = learning.repair(jnp.zeros((1, 2)), plant, steps=6)
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> bool(jnp.allclose(better, optimum.K))
    True
    """
    problem, coordinates = sampled(plants)
    n, m = (plants.n, plants.m) if isinstance(plants, Plant) else (N_MAX, M_MAX)
    K = jnp.asarray(checks.real("K", K))
    batch = coordinates.scale_x.shape[:-1]
    if K.shape[-2:] != (m, n) or K.ndim > len(batch) + 2:
        raise ValueError(
            f"K: expected gains {(*batch, m, n)}, inputs by states, for these plants, but found {K.shape}"
        )
    K = jnp.broadcast_to(K, (*batch, m, n)).astype(problem.A.dtype)
    better = improved(problem, coordinates.scale_gain(K), steps, n, m)
    return coordinates.unscale_gain(better, n, m)


def improved(
    problem: Sampled, gain: Float[Array, "*batch 6 12"], steps: int, n: int = N_MAX, m: int = M_MAX
) -> Float[Array, "*batch 6 12"]:
    """Gains of scaled, padded problems after Newton steps; of plants with n states and m inputs at most."""
    rows = {"A": n, "B": n, "Q": n, "R": m, "N": n}
    columns = rows | {"B": m, "N": m}
    cut = {name: getattr(problem, name)[..., : rows[name], : columns[name]] for name in rows}
    K = control.policy_iteration(**cut, K=gain[..., :m, :n], steps=steps).K
    return systems.pad_matrix(K, M_MAX, N_MAX)
