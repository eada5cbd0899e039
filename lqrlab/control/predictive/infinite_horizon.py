"""The constrained optimum over all time, of linear plants."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import checks, pytree
from lqrlab.control.predictive.design import MPC, mpc

_SHORTEST = 16


@pytree
@dataclasses.dataclass(frozen=True)
class ConstrainedOptimum:
    """The cost of the best controller that keeps the limits, and how far ahead it has to look.

    Attributes:
        cost: of each start; infinite where no input keeps the limits, NaN where it was not found.
        u: the first input of it.
        horizon: steps after which the regulator needs no limits any more; 0 where it was not found.
        found: the cost is that of the infinite horizon, to the digits of :func:`constrained_lqr`.
        infeasible: proven: no input within its limits keeps the others.
    """

    cost: Float[Array, "*batch"]
    u: Float[Array, "*batch m"]
    horizon: Int[Array, "*batch"]
    found: Bool[Array, "*batch"]
    infeasible: Bool[Array, "*batch"]


def constrained_optimum(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, x0: ArrayLike, *, longest: int = 512, **limits: Any
) -> ConstrainedOptimum:
    """The least cost Σ xᵀQx + uᵀRu + 2xᵀNu from x0 on for ever, within limits: what a controller can be measured by.

    The horizon is doubled until the plan ends where the regulator without limits keeps them for ever: then the rest
    costs x[T]ᵀP x[T] and nothing is cut off. It is exact, not the best of some. Runs outside a trace.

    Args:
        A, B, Q, R: as in :func:`mpc`.
        x0: starts ``[..., n]``, of one plant, or with the leading axes of several.
        longest: horizon at which the search ends. An unstable plant that its inputs cannot hold is not found.
        **limits: N, dt, u_limits, x_limits, du_limits, y_limits, C, D and soft of :func:`mpc`.

    Source: P. O. M. Scokaert and J. B. Rawlings, IEEE Trans. Autom. Control 43 (1998); D. Chmielewski and
    V. Manousiouthakis, Syst. Control Lett. 29 (1996).

    >>> best = control.constrained_optimum([[1.0]], [[1.0]], [[1.0]], [[1.0]], [[0.5], [40.0]], u_limits=(-1, 1))
    >>> best.horizon.tolist(), [round(float(cost), 3) for cost in best.cost]
    ([16, 64], [0.405, 22179.618])
    """
    checks.whole("longest", longest, low=_SHORTEST)
    checks.on_host("constrained_optimum", A, B, Q, R, x0)
    horizon = _SHORTEST
    design = mpc(A, B, Q, R, horizon, **limits)
    n, m = design.B.shape[-2:]
    given = jnp.asarray(checks.real("x0", x0), design.A.dtype)
    batch = jnp.broadcast_shapes(given.shape[:-1], design.A.shape[:-2])
    x = jnp.broadcast_to(given, (*batch, n))
    best = _unknown(batch, m, x.dtype)
    while horizon <= longest and not bool((best.found | best.infeasible).all()):
        best = _improved(best, dataclasses.replace(design, horizon=horizon), x)
        horizon *= 2
    return best


def _unknown(batch: tuple[int, ...], m: int, dtype: np.dtype) -> ConstrainedOptimum:
    none, nan = jnp.zeros(batch, bool), jnp.full((*batch, m), jnp.nan, dtype)
    return ConstrainedOptimum(nan[..., 0], nan, jnp.zeros(batch, int), none, none)


def _improved(best: ConstrainedOptimum, design: MPC, x: Array) -> ConstrainedOptimum:
    """The optimum with what a longer horizon finds of the starts that are left; of several plants, all are planned."""
    left = jnp.nonzero(~(best.found | best.infeasible)) if x.ndim > 1 and design.A.ndim == 2 else (...,)
    new = jax.tree.map(lambda a: a[left], best)
    plan, _ = design.plan(x[left])
    known = new.found | new.infeasible
    found, infeasible = design.exact(plan) & ~known, plan.infeasible & ~known
    new = ConstrainedOptimum(
        jnp.where(found | infeasible, plan.cost, new.cost),
        jnp.where((found | infeasible)[..., None], plan.us[..., 0, :], new.u),
        jnp.where(found, design.horizon, new.horizon),
        found | new.found,
        infeasible | new.infeasible,
    )
    return jax.tree.map(lambda old, a: old.at[left].set(a), best, new)
