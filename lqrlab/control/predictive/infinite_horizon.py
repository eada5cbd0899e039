"""The constrained optimum over all time, of linear plants."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import checks, pytree
from lqrlab.control.predictive.design import mpc

_SHORTEST = 16


@pytree
@dataclasses.dataclass(frozen=True)
class ConstrainedOptimum:
    """What the best controller pays that keeps the limits, and how far ahead it has to look.

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
    ([16, 64], [0.405, 22180.043])
    """
    checks.whole("longest", longest, low=_SHORTEST)
    checks.on_host("constrained_optimum", A, B, Q, R, x0)
    given = jnp.asarray(checks.real("x0", x0))
    horizon, best = _SHORTEST, None
    while True:
        design = mpc(A, B, Q, R, horizon, **limits)
        batch = jnp.broadcast_shapes(given.shape[:-1], design.A.shape[:-2])
        if best is None:
            x = jnp.broadcast_to(given.astype(design.A.dtype), (*batch, design.A.shape[-1])).reshape(-1, design.A.shape[-1])
            best = _nothing(len(x), design.B.shape[-1], x.dtype)
        open_ = jnp.nonzero(~(best.found | best.infeasible))[0]
        best = _improved(best, design, x, open_, batch, horizon)
        horizon *= 2
        if horizon > longest or bool((best.found | best.infeasible).all()):
            return jax.tree.map(lambda a: a.reshape(*batch, *a.shape[1:]), best)


def _nothing(count: int, m: int, dtype: Any) -> ConstrainedOptimum:
    none = jnp.zeros(count, bool)
    return ConstrainedOptimum(
        jnp.full(count, jnp.nan, dtype), jnp.full((count, m), jnp.nan, dtype), jnp.zeros(count, int), none, none
    )


def _improved(best: ConstrainedOptimum, design: Any, x: Array, open_: Array, batch: tuple, horizon: int) -> ConstrainedOptimum:
    """What a longer horizon finds of the starts that are left."""
    lead = design.A.ndim - 2
    if lead:  # plants of their own: all starts again, those of the others for nothing
        plan, _ = design.plan(x.reshape(*batch, -1))
        exact, plan = design.exact(plan).reshape(-1), jax.tree.map(lambda a: a.reshape(len(x), *a.shape[len(batch) :]), plan)
        chosen = jnp.arange(len(x))
    else:
        chosen = open_
        plan, _ = design.plan(x[open_])
        exact = design.exact(plan)
    keep = ~(best.found | best.infeasible)[chosen]
    found, infeasible = exact & keep, plan.infeasible & keep
    cost = jnp.where(infeasible, jnp.inf, plan.cost)
    done = found | infeasible
    return ConstrainedOptimum(
        best.cost.at[chosen].set(jnp.where(done, cost, best.cost[chosen])),
        best.u.at[chosen].set(jnp.where(done[:, None], plan.us[:, 0], best.u[chosen])),
        best.horizon.at[chosen].set(jnp.where(found, horizon, best.horizon[chosen])),
        best.found.at[chosen].set(found | best.found[chosen]),
        best.infeasible.at[chosen].set(infeasible | best.infeasible[chosen]),
    )
