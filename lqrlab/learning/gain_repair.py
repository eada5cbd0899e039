"""The repair of gains: Newton's method on the plants that they are for."""

import warnings
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control, systems
from lqrlab.compute import checks
from lqrlab.simulation import Problem
from lqrlab.systems import M_MAX, N_MAX, Plant


def repair(K: ArrayLike, plants: Plant | Sequence[Plant] | Problem, steps: int = 1) -> Float[Array, "*batch m n"]:
    """Better gains for plants, by Newton's method from given ones; from gains that do not stabilise too.

    The sampled problem of each plant is improved in scaled coordinates by :func:`lqrlab.control.policy_iteration`: a
    step squares a small error, and costs about as much as the design of the optimum. Batched, differentiable, inside
    ``jit``.

    Args:
        K: u = −Kx in the plants' units ``[*batch, m, n]``.
        plants: a plant or a batch; several batches, one after another; or a problem of them.
        steps: of Newton's method; 0 only makes the gains stabilizing.

    Returns:
        Gains like K, each verified: its loop is stable, and the cost found solves the Lyapunov equation of that loop.
        NaN for a plant of which none was found, in a batch outside a trace with a warning that counts them.
        :func:`lqrlab.control.policy_iteration` gives the same verdict as a flag, ``stabilizing``.

    Raises:
        ValueError: gains of another shape; of a single plant, outside a trace, also that none was found, and why.

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
        raise ValueError(f"K: expected gains {(*batch, m, n)}, inputs by states, for these plants, but found {K.shape}")
    K = jnp.broadcast_to(K, (*batch, m, n)).astype(problem.A.dtype)
    units = problem.units
    better = units.unscale_gain(improved(problem.scaled(), units.scale_gain(K), steps, n, m), n, m)
    if not checks.traced(better):
        _say_where_none_was_found(np.asarray(better), problem)
    return better


def _say_where_none_was_found(gains: np.ndarray, problem: Problem) -> None:
    """An error for a single plant, a warning for a batch, where a gain is NaN."""
    bad = ~np.isfinite(gains).all((-1, -2))
    if not bad.any():
        return
    if bad.ndim:
        warnings.warn(
            f"K: no stabilizing gain was found for {np.sum(bad)} of {bad.size} plants, whose gains are NaN; begin with "
            "another K there, such as problem.K, or leave these plants out: control.dlqr on one says why it has none",
            stacklevel=3,
        )
        return
    control.dlqr(*problem.sampled)  # names the mode that no gain stabilises
    raise ValueError(
        "K: expected a gain from which Newton steps lead to a stabilizing one, but found none on the way, although "
        "the plant has an optimum; begin with another gain, such as that of control.lqrd"
    )


def improved(
    problem: Problem, gain: Float[Array, "*batch 6 12"], steps: int, n: int = N_MAX, m: int = M_MAX
) -> Float[Array, "*batch 6 12"]:
    """Gains of scaled, padded problems after Newton steps, NaN where the loop is not verified to be stable.

    Of plants with n states and m inputs at most.
    """
    rows = {"A": n, "B": n, "Q": n, "R": m, "N": n}
    columns = rows | {"B": m, "N": m}
    cut = {name: getattr(problem, name)[..., : rows[name], : columns[name]] for name in rows}
    found = control.policy_iteration(**cut, K=gain[..., :m, :n], steps=steps)
    K = jnp.where(found.stabilizing[..., None, None], found.K, jnp.nan)
    return systems.pad_matrix(K, M_MAX, N_MAX)


def require_states(x: Float[Array, "*loops n"], n: int) -> None:
    """Refuse states of other plants than those, with n states, that a policy is bound to; 12 may be any, padded."""
    if n < N_MAX and x.shape[-1] != n:
        raise ValueError(
            f"expected the {n} states of the plants that the policy is bound to, but found {x.shape[-1]}; bind it to "
            "the plants that it is to control"
        )
