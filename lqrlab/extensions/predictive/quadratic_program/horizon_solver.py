"""Many horizons' programs at once, exact and differentiable: the active-set search, what it leaves, what is infeasible.

Blocks of problems are searched a few steps at a time; those not done are gathered and searched on, then given to the
interior point, then asked whether they can be feasible at all; with limits of inputs alone they are, and are searched
on by careful steps. The work is bounded: 224 steps of the search, 30 and three times 60 of the interior point.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lqrlab.compute.linalg import batch_last, matvec
from lqrlab.extensions.predictive.quadratic_program import active_set, horizon_qp, interior_point
from lqrlab.extensions.predictive.quadratic_program.active_set import STIFF, ActiveSet, Answer
from lqrlab.extensions.predictive.quadratic_program.horizon_qp import (
    HorizonQP,
    PrimalDual,
    excess,
    limited,
    net,
    residuals,
    signed,
    times,
)

EXACT = 1e-9
"""The residual up to which a problem counts as solved."""
_WIDTH, _FEW = 40, 8  # of a block: of those that are searched; of those, few, that the interior point gets
_STEPS = 4  # of the search in a round
_ROUNDS, _CAREFUL = 4, 40  # rounds of a phase, and of careful steps
_LAST = 4  # phase: first the search alone, then from the interior point's guesses, then carefully or for feasibility
_CORES = (3, 3, 2, 3, 3, 3, 2, 2, 2, 1, 3, 3, 3, 1, 1, 1)  # axes of each part of a program, without the batch's
_SLIGHT = 1e-7  # weight of the inputs beside that of a violation, where feasibility is asked for
_NEARER = 4  # times that this weight is moved to where the inputs are


class Solved(NamedTuple):
    """State of knowledge of each problem: the point, its active set, whether none is feasible; and its residual.

    Of an infeasible one the point is that of least violation, its multipliers prove it (Farkas' lemma), the residual 0.
    """

    point: PrimalDual
    active: ActiveSet
    caution: Int[Array, "2 W"]
    infeasible: Bool[Array, " W"]
    residual: Float[Array, " W"]


def _searched(args: tuple[Array, ...], known: Solved) -> Solved:
    """A round of the active-set search; the better point stays, and until it is solved the newer guess."""
    qp = HorizonQP(*args)
    several = qp.limits.shape[2] > qp.B.shape[2]
    stiff = STIFF * active_set.unlimited(qp)[1] if several else jnp.zeros(qp.limits.shape[1:], qp.x0.dtype)
    found = active_set.search(qp, known.active, known.caution, stiff, _STEPS)
    better = found.residual < known.residual
    point = jax.tree.map(functools.partial(jnp.where, better), found.point, known.point)
    on = better | (known.residual > EXACT)  # the guess of what is solved is its point's, as gradients need it
    active = jax.tree.map(functools.partial(jnp.where, on), found.active, known.active)
    return Solved(point, active, found.caution, known.infeasible, jnp.where(better, found.residual, known.residual))


def _guessed(phase: Array, args: tuple[Array, ...], known: Solved) -> Solved:
    """The interior point's answer, or its proof that there is none, and the active set to go on from."""
    active, point, error, proven = interior_point.minimise(HorizonQP(*args), phase)
    caution = active_set.caution(len(error), _STEPS * _ROUNDS)  # the guess is near
    return Solved(point, active, caution, known.infeasible | proven, jnp.where(proven, 0, error))


def _judged(args: tuple[Array, ...], known: Solved) -> Solved:
    """The least violation, and the verdict: there is no feasible point if that proves it, or what was found before.

    The small weight of the inputs would leave a slope of the violation where inputs have no limits: it is moved to
    where the inputs are, again and again (the proximal point method), until the slope is gone.
    """
    qp, proof = HorizonQP(*args[:-1]), args[-1]
    program = _violation(qp)
    stiff = STIFF * active_set.unlimited(program)[1]

    def nearer(_: Array, state: tuple[PrimalDual, ActiveSet]) -> tuple[PrimalDual, ActiveSet]:
        point, active = state
        moved = program._replace(r=-times(program.R, point.us))
        point = active_set.on_active_set(moved, active, stiff, rounds=2)
        return point, active_set.next_set(moved, point, active)

    point, _ = jax.lax.fori_loop(0, _NEARER, nearer, (known.point, known.active))
    sure, found = (horizon_qp.infeasible(qp, one, _force(qp, one)) for one in (point, known.point))
    point = jax.tree.map(functools.partial(jnp.where, sure), point, known.point)
    point = point._replace(multipliers=jnp.where(sure | found, _force(qp, point), proof))
    none = sure | found | known.infeasible
    return known._replace(point=point, infeasible=none, residual=jnp.where(none, 0, jnp.inf))


def _force(qp: HorizonQP, point: PrimalDual) -> Float[Array, "2 T rows W"]:
    """The multipliers of what is violated, and of inputs."""
    inputs = (jnp.arange(qp.limits.shape[2]) < qp.B.shape[2])[None, None, :, None]
    return jnp.where(inputs | (excess(qp, limited(qp, point.xs, point.us)) > 0), point.multipliers, 0)


def _violation(qp: HorizonQP) -> HorizonQP:
    """The problem whose cost is the squared violation of hard limits on states and outputs, relative to their size."""
    hard = (jnp.arange(qp.limits.shape[2]) >= qp.B.shape[2])[:, None] & ~jnp.isfinite(qp.linear)
    soft = jnp.isfinite(qp.linear)
    finite = jnp.isfinite(qp.limits)
    limits = jnp.where(soft, jnp.inf, qp.limits)
    size = jnp.max(jnp.where(finite, jnp.abs(qp.limits), 0), (0, 1))
    size = jnp.where(size > 0, size, 1.0)
    weights = jnp.where(hard, 1 / size**2, 0)
    nothing = jax.tree.map(jnp.zeros_like, qp)
    eye = batch_last.eye(qp.B.shape[2], qp.x0)[None]
    penal = nothing._replace(A=qp.A, B=qp.B, C=qp.C, D=qp.D, R=qp.R, limits=qp.limits, x0=qp.x0)
    per_step = jnp.broadcast_to(weights[None], qp.limits.shape[1:])
    free = jnp.ones((qp.limits.shape[1], *qp.B.shape[2:]), bool)
    stiffness = jnp.max(horizon_qp.factor(penal._replace(R=eye + 0 * qp.R), per_step, free).diagonal, (0, 1))
    return nothing._replace(
        A=qp.A, B=qp.B, c=qp.c, C=qp.C, D=qp.D, x0=qp.x0,
        R=eye * (_SLIGHT * stiffness) + 0 * qp.R,
        limits=limits,
        linear=jnp.where(hard, 0.0, jnp.inf),
        quadratic=weights,
    )  # fmt: skip


def _broadcasting(solve: Callable[..., Any]) -> Callable[..., Any]:
    """Let what all steps share, [rows, W], meet [T, rows, W], whatever the caller's setting; ``vmap`` traces anew."""

    @functools.wraps(solve)
    def broadcasting(*args: Array) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return solve(*args)

    return broadcasting


@batch_last.flattened(*_CORES, 2, 2, 2, 3, 3, 3, 1, 0)
@_broadcasting
def _solve(*args: Array) -> Solved:
    args, (*start, at, out, caution, error) = args[:16], args[16:]
    qp = HorizonQP(*args)
    m = qp.B.shape[3]
    in_doubt = qp.limits.shape[3] > m  # limits of inputs alone can always be kept
    fresh = jnp.moveaxis(active_set.caution(len(qp.x0)), 0, -1)
    nobody = jnp.zeros(len(qp.x0), bool)
    known = Solved(PrimalDual(*start), ActiveSet(at, out), caution, nobody, error)

    def improved(step: Callable[..., Solved], args: tuple[Array, ...], known: Solved, width: int = _FEW) -> Solved:
        return batch_last.rescued(step, args, known, width, always=True)

    def least_violation(args: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(batch_last.in_blocks(lambda *args: tuple(_violation(HorizonQP(*args))), args, _WIDTH))

    def work(phase: Array, state: tuple[Solved, PrimalDual, Array]) -> tuple[Solved, PrimalDual, Array]:
        known, best, error = state
        # what is solved is left alone; in the last phase what is not forgets its error
        last, open_ = phase == _LAST, error > EXACT
        known = known._replace(residual=jnp.where(open_, jnp.where(last, jnp.inf, known.residual), 0))
        given, guessing = args, phase > 0
        rounds = jnp.where(last, _ROUNDS if in_doubt else _CAREFUL, _ROUNDS)
        if in_doubt:
            given = jax.lax.cond(last & jnp.any(open_), least_violation, lambda args: args, args)
        else:
            guessing = guessing & ~last
            known = known._replace(caution=jnp.where(last, fresh, known.caution))
        guess = functools.partial(improved, functools.partial(_guessed, phase), given)
        known = jax.lax.cond(guessing, guess, lambda known: known, known)
        # the least violation of inputs without limits is flat in them: it is judged as it is
        flat = last & in_doubt & jnp.any(jnp.isinf(qp.limits[..., :m]), (1, 2, 3))
        known = known._replace(residual=jnp.where(flat, 0, known.residual))
        known = jax.lax.fori_loop(0, rounds, lambda _, known: improved(_searched, given, known, _WIDTH), known)
        better = open_ & (known.residual < error) & ~known.infeasible & ~(last & in_doubt)
        best = either(better | (known.infeasible & ~last), known.point, best)  # of a proof, the multipliers
        return known, best, jnp.where(better, known.residual, error)

    known, best, error = jax.lax.fori_loop(0, _LAST + 1, work, (known, known.point, known.residual))
    if not in_doubt:
        return known._replace(point=best, residual=error)
    known = known._replace(residual=jnp.where(error > EXACT, jnp.inf, 0))
    known = improved(_judged, (*args, best.multipliers), known)
    best = either(known.infeasible, known.point, best)
    return known._replace(point=best, residual=jnp.where(known.infeasible, 0, error))


def either(first: Bool[Array, "*batch"], one: Any, other: Any) -> Any:
    """One of two answers for each problem."""
    return jax.tree.map(
        lambda a, b: jnp.where(first.reshape(first.shape + (1,) * (a.ndim - first.ndim)), a, b), one, other
    )


@batch_last.flattened(*_CORES, 2, 2, 2, 3, 3, 3, 2, 2, 2, 3)
@_broadcasting
def _pulled_back(*args: Array) -> HorizonQP:
    """Gradients with respect to the program."""

    def block(*args: Array) -> HorizonQP:
        qp, point, active = HorizonQP(*args[:16]), PrimalDual(*args[16:20]), ActiveSet(args[20] > 0, args[21] > 0)
        bar = PrimalDual(*args[22:])
        return _adjoint(qp, point, active, bar)

    return batch_last.in_blocks(block, args, _WIDTH)


def _adjoint(qp: HorizonQP, point: PrimalDual, active: ActiveSet, bar: PrimalDual) -> HorizonQP:
    """The implicit function theorem at the optimum: the same sweep with the cotangents ``bar`` as linear terms."""
    at, out = active
    onto = jnp.where(at | out, bar.multipliers, 0)
    backwards = qp._replace(
        q=-bar.xs[:-1], r=-bar.us, qf=-bar.xs[-1], c=-bar.costates, x0=jnp.zeros_like(qp.x0),
        limits=jnp.where(at | out, onto, jnp.inf), linear=jnp.zeros_like(qp.linear),
    )  # fmt: skip
    dual = active_set.on_active_set(backwards, active, STIFF * active_set.unlimited(qp)[1])

    def condition(qp: HorizonQP) -> Array:
        """Σ dual · (optimality conditions) less what the answer depends on the program directly."""
        slope = jnp.where(out, jnp.where(jnp.isfinite(qp.linear), qp.linear, 0), 0)
        h = jnp.where(at | out, qp.limits, 0)
        from_start = point._replace(xs=point.xs.at[0].set(qp.x0))
        away = signed(limited(qp, from_start.xs, point.us)) - h
        multipliers = jnp.where(out, slope + qp.quadratic * away, point.multipliers)
        along = residuals(qp, from_start, net(multipliers))
        total = sum(jnp.sum(d * a) for d, a in zip((dual.xs, dual.us, dual.costates), along))
        total = total + jnp.sum(jnp.where(at, dual.multipliers * away, 0))
        return total - jnp.sum(jnp.where(out, bar.multipliers * multipliers, 0))

    gradient = jax.grad(condition)(qp)
    return jax.tree.map(operator.neg, gradient._replace(x0=gradient.x0 - bar.xs[0]))


def cold_start(qp: HorizonQP, active: ActiveSet) -> Answer:
    """A guess of the active sets of programs with any leading axes, and nothing else."""
    (*lead, n), (T, _), m = qp.x0.shape, qp.limits.shape[-2:], qp.B.shape[-1]
    shapes = (T + 1, n), (T, m), (T, n), qp.limits.shape[-3:]
    point = PrimalDual(*(jnp.zeros((*lead, *shape), qp.x0.dtype) for shape in shapes))
    caution = jnp.moveaxis(active_set.caution(math.prod(lead)), 0, -1).reshape(*lead, 2)
    return Answer(point, active, caution, jnp.full(tuple(lead), jnp.inf, qp.x0.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def solve(qp: HorizonQP, known: Answer, changes: int) -> Solved:
    """Programs with equal leading axes, solved from what is known of them; differentiable, in reverse.

    Of so many inputs the ``changes`` are limited, by the last outputs; the last states are then the inputs before.
    """
    found = _solve(*qp, *known.point, *known.active, known.caution, known.residual)
    open_ = ~found.infeasible & ~(found.residual <= EXACT)
    high, low = (sign * qp.limits[..., side, :, : qp.B.shape[-1]] for side, sign in enumerate((1, -1)))
    point = found.point._replace(us=jnp.clip(found.point.us, low, high))  # rounding is no excess

    def cut(point: PrimalDual) -> PrimalDual:
        xs, us = _cut(qp, point.us, changes)
        here = open_[..., None, None]
        return point._replace(xs=jnp.where(here, xs, point.xs), us=jnp.where(here, us, point.us))

    return found._replace(point=jax.lax.cond(jnp.any(open_), cut, lambda point: point, point))


def _cut(qp: HorizonQP, us: Float[Array, "*batch T m"], changes: int) -> tuple[Array, Array]:
    """States and inputs, of inputs that are cut to their limits and those of their changes; NaN counts as zero."""
    m = us.shape[-1]

    def ahead(x: Array, given: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        step, u = given
        A, B, c = (
            jnp.take(a, 0 if a.shape[axis] == 1 else step, axis) for a, axis in ((qp.A, -3), (qp.B, -3), (qp.c, -2))
        )
        high, low = qp.limits[..., 0, step, :], -qp.limits[..., 1, step, :]
        if changes:
            last = x[..., -m:]
            u = jnp.clip(u, last + low[..., -m:], last + high[..., -m:])
        u = jnp.clip(u, low[..., :m], high[..., :m])
        x = matvec(A, x) + matvec(B, u) + c
        return x, (x, u)

    steps = jnp.arange(us.shape[-2]), jnp.moveaxis(jnp.where(jnp.isfinite(us), us, 0), -2, 0)
    xs, us = (jnp.moveaxis(a, 0, -2) for a in jax.lax.scan(ahead, qp.x0, steps)[1])
    return jnp.concatenate([qp.x0[..., None, :], xs], -2), us


def _forward(qp: HorizonQP, known: Answer, changes: int) -> tuple[Solved, tuple[HorizonQP, Solved]]:
    found = solve(qp, known, changes)
    return found, (qp, found)


def _backward(changes: int, kept: tuple[HorizonQP, Solved], bar: Solved) -> tuple[HorizonQP, None]:
    qp, found = kept
    active = (a.astype(qp.x0.dtype) for a in found.active)
    gradient = HorizonQP(*_pulled_back(*qp, *found.point, *active, *bar.point))
    good = ~found.infeasible & (found.residual <= EXACT)
    asked = functools.reduce(operator.or_, (jnp.any(a != 0, tuple(range(good.ndim, a.ndim))) for a in bar.point))

    def known(a: Array, core: int) -> Array:
        """Gradients are NaN where there is no optimum; zero where none is asked for."""
        wrong = (~good & asked).reshape(good.shape + (1,) * core)
        none = (good | asked).reshape(good.shape + (1,) * core)
        return jnp.where(wrong, jnp.nan, jnp.where(none, a, 0))

    return HorizonQP(*(known(a, core) for a, core in zip(gradient, _CORES))), None


solve.defvjp(_forward, _backward)
