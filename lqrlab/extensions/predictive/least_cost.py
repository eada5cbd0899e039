"""The least cost from a start within the limits of a linear problem, exactly."""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.extensions.predictive.design import MPC, mpc
from lqrlab.extensions.predictive.quadratic_program.horizon_solver import either
from lqrlab.simulation import Limits, Problem

_SHORTEST, _LONGER = 16, 4  # first horizon that is tried; times as long as the one before
_DIGITS = 1e-6
_MOST_SEARCHED = 128  # problems whose last starts are kept
_SEARCHED: dict[bytes, Callable[[Array], Array]] = {}


@pytree
@dataclasses.dataclass(frozen=True)
class ConstrainedOptimum:
    """The cost of the constrained optimum, and the horizon at which it is exact.

    Attributes:
        cost: of each start; infinite where no input keeps the limits, NaN where it was not found.
        u: the first input of it.
        horizon: steps after which the regulator needs no limits any more, of those tried; 0 where it was not found.
        found: the cost is that of the infinite horizon, to the digits of :func:`constrained_lqr`.
        infeasible: proven: no input within its limits keeps the others.
    """

    cost: Float[Array, "*batch"]
    u: Float[Array, "*batch m"]
    horizon: Int[Array, "*batch"]
    found: Bool[Array, "*batch"]
    infeasible: Bool[Array, "*batch"]


def optimum(problem: Problem, x0: ArrayLike, *, longest: int = 512) -> ConstrainedOptimum:
    """The constrained optimum: the least infinite-horizon cost Σ xᵀQx + uᵀRu + 2xᵀNu from x0 within the limits.

    The horizon is made longer until the plan ends where the regulator without limits keeps them for ever: then the rest
    costs x[T]ᵀP x[T] and nothing is cut off. It is exact, not the best of some. Runs outside a trace.

    Args:
        problem: a linear one, with its limits; the first input changes from that of the equilibrium.
        x0: starts ``[*batch, *extra, n]``, as deviations.
        longest: horizon at which the search ends. An unstable plant that its inputs cannot hold is not found.

    Raises:
        ValueError: bad arguments; of one start, without further axes, also that no input holds it, and how much of it.

    Source: P. O. M. Scokaert and J. B. Rawlings, IEEE Trans. Autom. Control 43 (1998); D. Chmielewski and
    V. Manousiouthakis, Syst. Control Lett. 29 (1996).

    >>> problem = simulation.Problem.from_matrices([[1.0]], [[1.0]], [[1.0]], [[1.0]], limits=(-1.0, 1.0))
    >>> best = predictive.optimum(problem, [[0.5], [40.0]])
    >>> best.horizon.tolist(), [round(float(cost), 3) for cost in best.cost]
    ([16, 64], [0.405, 22179.618])
    """
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    if not problem.linear:
        raise ValueError(
            f"problem: the constrained optimum is known of a linear plant, but {problem.name} is nonlinear here; "
            "give linear=True, or compare with plans of predictive.ilqr"
        )
    checks.whole("longest", longest, low=_SHORTEST)
    checks.on_host("the constrained optimum", problem.A, x0)
    if problem.A.dtype != jnp.float64:
        raise ValueError(
            f"problem: expected float64, but found {problem.A.dtype}, in which no plan is exact; call "
            "lqrlab.compute.setup() before the plant is made"
        )
    x = jnp.asarray(checks.real("x0", x0, finite=True), problem.A.dtype)
    extra = (1,) * (x.ndim - 1 - len(problem.batch_shape))
    x = jnp.broadcast_to(x, (*jnp.broadcast_shapes(x.shape[:-1], (*problem.batch_shape, *extra)), problem.n))
    for name, (low, high) in (problem.limits or Limits()).signals().items():
        if max(np.shape(low)[-2], np.shape(high)[-2]) > 1:
            raise ValueError(
                f"limits.{name}: expected the same at each step, for the optimum is that of all time, but found "
                f"{max(np.shape(low)[-2], np.shape(high)[-2])} rows; predictive.constrained_lqr takes one for each step"
            )
    design = mpc(problem, longest).for_loops(x.ndim)
    best = _near(design, x)
    for horizon in _horizons(longest):
        if bool((best.found | best.infeasible).all()):
            break
        best = _improved(best, dataclasses.replace(design, horizon=horizon), x)
    if x.ndim == 1 and not bool(best.found):
        raise ValueError(_unheld(_held_part(design, x), longest, bool(best.infeasible)))
    return best


def reference(problem: Problem, **options: int) -> Callable[[Array], Array]:
    """For :func:`lqrlab.evaluation.evaluate`: the least cost from states ``[*batch, S, n]`` within the limits.

    NaN where no input holds a state, or none was found. The last starts' are kept, also of a problem that is given
    again, so that several controllers share the search, which takes longest. Options are those of :func:`optimum`.
    """
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    numbers = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(problem))
    seen = hashlib.sha256(numbers + repr((problem.batch_shape, problem.n, problem.m, options)).encode()).digest()
    if len(_SEARCHED) >= _MOST_SEARCHED and seen not in _SEARCHED:
        _SEARCHED.pop(next(iter(_SEARCHED)))
    return _SEARCHED.setdefault(seen, _searching(problem, options))


def _searching(problem: Problem, options: Mapping[str, int]) -> Callable[[Array], Array]:
    """The least cost from states; of the last starts it is kept."""

    @lru_cache(2)  # the starts, and where the last loops ended
    def known(numbers: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
        x = np.frombuffer(numbers, dtype).reshape(shape)
        best = optimum(problem, np.where(np.isfinite(x), x, 0.0), **options)
        return jnp.where(best.found & np.isfinite(x).all(-1), best.cost, jnp.nan)

    def least(x: Array) -> Array:
        return known(np.asarray(x).tobytes(), x.dtype.name, x.shape)

    return least


def _horizons(longest: int) -> list[int]:
    """Horizons to try: few, because each is a program of its own to compile."""
    shorter = itertools.takewhile(lambda T: longest > T, (_SHORTEST * _LONGER**k for k in itertools.count()))
    return [*shorter, longest]


@jax.jit
def _near(design: MPC, x: Array) -> ConstrainedOptimum:
    """The optimum of starts from which the regulator keeps all limits for ever, without a plan; others are open."""
    cost, u, nan = quadratic(design.problem.P, x), -matvec(design.problem.K, x), jnp.nan
    inside = (cost <= design.level) & design.within_changes(u)
    u = jnp.where(inside[..., None], u, nan)
    horizon = jnp.where(inside, min(_SHORTEST, design.horizon), 0)
    return ConstrainedOptimum(jnp.where(inside, cost, nan), u, horizon, inside, jnp.zeros_like(inside))


def _improved(best: ConstrainedOptimum, design: MPC, x: Array) -> ConstrainedOptimum:
    """The optimum with what a longer horizon finds; of one plant, only the starts that are left are planned."""
    known = best.found | best.infeasible
    if x.ndim != 2 or design.problem.A.ndim > 2:
        return either(known, best, _planned(design, x))
    size = min(len(x), _LONGER ** math.ceil(math.log(int(jnp.sum(~known)), _LONGER)))  # few sizes, few programs
    left = jnp.nonzero(~known, size=size, fill_value=int(jnp.argmin(known)))[0]
    return jax.tree.map(lambda old, new: old.at[left].set(new), best, _planned(design, x[left]))


@jax.jit
def _planned(design: MPC, x: Array) -> ConstrainedOptimum:
    """The optimum as far as the design's horizon shows it."""
    plan, _ = design.plan(x)
    found, infeasible = design.exact(plan), plan.infeasible
    cost = jnp.where(found | infeasible, plan.cost, jnp.nan)
    u = jnp.where((found | infeasible)[..., None], plan.us[..., 0, :], jnp.nan)
    return ConstrainedOptimum(cost, u, jnp.where(found, design.horizon, 0), found, infeasible)


def _held_part(design: MPC, x: Array) -> float:
    """The part of a start that inputs within the limits bring back, by bisection."""
    low, high = 0.0, 1.0
    while high > _DIGITS and high - low > _DIGITS * high:
        middle = (low + high) / 2
        low, high = (middle, high) if bool(_planned(design, middle * x).found) else (low, middle)
    return low


def _unheld(most: float, longest: int, infeasible: bool) -> str:
    """The sentence for a start without an optimum."""
    if infeasible:
        return f"x0: no input within its limits keeps the other limits; at most {most:.4g} times this start does"
    return (
        f"x0: no input within the limits recovers this state within {longest} samples; at most {most:.4g} times it is "
        f"recovered; states that grow faster than the limited inputs can brake diverge"
    )
