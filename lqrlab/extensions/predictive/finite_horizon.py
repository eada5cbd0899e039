"""The program of one horizon: assembled from matrices and limits, solved, with its verdict."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lqrlab.compute import pytree
from lqrlab.extensions.predictive.quadratic_program import horizon_solver, shared_plant
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet
from lqrlab.extensions.predictive.quadratic_program.horizon_qp import HorizonQP, excess, limited, objective
from lqrlab.simulation.limits import Limits


class Horizon(NamedTuple):
    """A program without its limits: matrices ``[..., S, ·, ·]`` and vectors ``[..., S, ·]`` of S = T or 1 steps.

    Qf is ``[..., n, n]``; x0, qf and the input before, ``last``, are vectors. What is None is zero, ``last`` is free.
    """

    A: Array
    B: Array
    Q: Array
    R: Array
    N: Array
    x0: Array
    Qf: Array
    c: Array | None = None
    q: Array | None = None
    r: Array | None = None
    qf: Array | None = None
    C: Array | None = None
    D: Array | None = None
    last: Array | None = None
    soft: tuple[Array, Array] | None = None


class Multipliers(NamedTuple):
    """Multipliers of limits: decrease of cost per unit of relaxation; None without a limit.

    Above zero at an upper limit, below zero at a lower one. ``dynamics`` are the multipliers of x[t+1] = Ax + Bu + c:
    what the cost rises by for each unit that x[t+1] is pushed.
    """

    u: Float[Array, "*batch T m"]
    x: Float[Array, "*batch T n"] | None
    y: Float[Array, "*batch T p"] | None
    du: Float[Array, "*batch T m"] | None
    dynamics: Float[Array, "*batch T n"] | None


@pytree
@dataclasses.dataclass(frozen=True)
class ConstrainedLQR:
    """The optimum of a horizon with limits.

    Attributes:
        us, xs: inputs and states. Of an infeasible problem, those that keep the inputs' limits and violate the others
            least, in the sum of squares relative to each limit's size. Of a problem that is neither solved nor
            infeasible, inputs that keep their limits and, as far as those allow, those of changes, and where they lead.
        cost: that of us and xs, excesses included; infinite for an infeasible problem.
        multipliers: :class:`Multipliers`; of an infeasible problem those that prove it: no input within its limits has
            Σ multiplier · (value − limit) ≤ 0. They stand at the limits that give.
        residual: the largest violation of the optimality conditions by the best answer, each relative to its terms.
        solved: residual ≤ 1e-9.
        infeasible: proven. The work is bounded, so a problem may be left neither solved nor infeasible: the search did
            not come to its active limits, its numbers have no more digits, or rounding hides the proof.
    """

    us: Float[Array, "*batch T m"]
    xs: Float[Array, "*batch T+1 n"]
    cost: Float[Array, "*batch"]
    multipliers: Multipliers
    residual: Float[Array, "*batch"]
    solved: Bool[Array, "*batch"]
    infeasible: Bool[Array, "*batch"]


def solved_from(guess: ActiveSet | None, horizon: Horizon, limits: Limits, T: int) -> tuple[ConstrainedLQR, ActiveSet]:
    """The answer and its active set, searched from a guess of it ``[..., 2, T, rows]``; from none if left out."""
    with jax.numpy_rank_promotion("allow"):  # what all steps share, [rows, W], meets [T, rows, W]
        qp, sizes = _program(horizon, limits, T)
        hard = ~jnp.isfinite(qp.linear)[..., None, :]
        same = (qp.limits[..., 0, :, :] == -qp.limits[..., 1, :, :]) & hard
        same = jnp.stack([same, jnp.zeros_like(same)], axis=-3)
        at, out = guess or (jnp.zeros_like(same), jnp.zeros_like(same))
        at, out = (jnp.broadcast_to(a, same.shape) for a in (at, out))
        known = horizon_solver.cold_start(qp, ActiveSet((at & ~jnp.any(same, -3, keepdims=True)) | same, out))
        # a guess from the step before is nearly right: then a search in the whole is as fast
        alike = guess is None and _one_plant(horizon)
        alike = alike and shared_plant.pays(math.prod(qp.x0.shape[:-1]), math.prod(qp.limits.shape[-2:]))
        if alike:
            known = shared_plant.search(jax.lax.stop_gradient(qp), known.active)
        found = horizon_solver.solve(qp, known, sizes[3])
        return _told(qp, found, sizes), found.active


def _one_plant(h: Horizon) -> bool:
    """True if the matrices are not of several plants, and no limit is soft."""
    matrices = h.A, h.B, h.Q, h.R, h.N, h.Qf[..., None, :, :], h.C, h.D
    return h.soft is None and all(a is None or a.size == math.prod(a.shape[-3:]) for a in matrices)


_OF_STEPS = {"A": 2, "B": 2, "Q": 2, "R": 2, "N": 2, "C": 2, "D": 2, "c": 1, "q": 1, "r": 1}
_OF_ENDS = {"Qf": 2, "qf": 1, "x0": 1}
"""Axes of each part of a program, without those of the batch and the steps."""


def _program(horizon: Horizon, limits: Limits, T: int) -> tuple[HorizonQP, tuple[int, int, int, int]]:
    """The program with leading axes, and how many inputs, states, outputs and changes of inputs are limited."""
    h: dict[str, Any] = horizon._asdict()
    n, m, dtype = horizon.A.shape[-1], horizon.B.shape[-1], horizon.A.dtype
    zeros: dict[str, tuple[int, ...]] = {"c": (1, n), "q": (1, n), "r": (1, m), "qf": (n,)}
    zeros |= {"C": (1, 0, n), "D": (1, 0, m)} if horizon.C is None else {}
    h |= {name: jnp.zeros(shape, dtype) for name, shape in zeros.items() if h[name] is None}
    shift = jnp.zeros((1, 1), dtype)
    if h["D"] is None:  # y of the state after the step
        shift = jnp.squeeze(h["C"] @ h["c"][..., None], -1)
        h |= {"C": h["C"] @ horizon.A, "D": h["C"] @ horizon.B}
    free = jnp.full((1, m), jnp.inf, dtype)
    rows: list[Any] = [(-free, free) if limits.u is None else limits.u]
    if limits.x is not None:
        rows.append(limits.x)
    if limits.y is not None:
        rows.append(tuple(end - shift for end in limits.y))
    sizes = m, 0 if limits.x is None else n, rows[-1][0].shape[-1] if limits.y is not None else 0, 0
    if limits.du is not None:
        h, sizes = _remembering(h, m), (*sizes[:3], m)
        low, high = (jnp.broadcast_to(a, (*a.shape[:-2], T, m)) for a in limits.du)
        if horizon.last is None:
            low, high = low.at[..., 0, :].set(-jnp.inf), high.at[..., 0, :].set(jnp.inf)
        if limits.x is not None:
            rows[1] = tuple(_side_by_side(a, s * free) for a, s in zip(rows[1], (-1, 1)))
        rows.append((low, high))
    lead = jnp.broadcast_shapes(
        *(h[name].shape[: -1 - core] for name, core in _OF_STEPS.items()),
        *(h[name].shape[:-core] for name, core in _OF_ENDS.items()),
        *(a.shape[:-2] for pair in rows for a in pair),
    )
    S = max(h[name].shape[-1 - core] for name, core in _OF_STEPS.items())
    parts = {k: jnp.broadcast_to(h[k], (*lead, S, *h[k].shape[-core:])) for k, core in _OF_STEPS.items()}
    parts |= {k: jnp.broadcast_to(h[k], (*lead, *h[k].shape[-core:])) for k, core in _OF_ENDS.items()}
    low, high = (
        jnp.concatenate([jnp.broadcast_to(pair[k], (*lead, T, pair[k].shape[-1])) for pair in rows], axis=-1)
        for k in (0, 1)
    )
    linear, quadratic = _prices(horizon.soft, low.shape[-1], m, low.shape[-1] - sizes[3], lead, dtype)
    return HorizonQP(**parts, limits=jnp.stack([high, -low], axis=-3), linear=linear, quadratic=quadratic), sizes


def _side_by_side(*parts: Array) -> Array:
    """Arrays joined along their last axis, others broadcast."""
    lead = jnp.broadcast_shapes(*(a.shape[:-1] for a in parts))
    return jnp.concatenate([jnp.broadcast_to(a, (*lead, a.shape[-1])) for a in parts], axis=-1)


def block(rows: list[list[Array]]) -> Array:
    """A matrix of blocks whose leading axes broadcast."""
    lead = jnp.broadcast_shapes(*(a.shape[:-2] for row in rows for a in row))
    return jnp.block([[jnp.broadcast_to(a, (*lead, *a.shape[-2:])) for a in row] for row in rows])


def _remembering(h: dict[str, Any], m: int) -> dict[str, Any]:
    """The program whose state holds the input before, so that its change u − u[t−1] is one of the outputs."""
    eye = jnp.eye(m, dtype=h["A"].dtype)

    def wide(name: str, *more: int) -> Array:
        """With zeros after its last axes."""
        return jnp.pad(h[name], [(0, 0)] * (h[name].ndim - len(more)) + [(0, k) for k in more])

    last = jnp.zeros(m, eye.dtype) if h["last"] is None else h["last"]
    changed = {"B": block([[h["B"]], [eye]]), "D": block([[h["D"]], [eye]]), "x0": _side_by_side(h["x0"], last)}
    changed["C"] = block([[wide("C", 0, m)], [jnp.pad(-eye, [(0, 0), (h["A"].shape[-1], 0)])]])
    changed |= {name: wide(name, m, m) for name in ("A", "Q", "Qf")} | {"N": wide("N", m, 0)}
    return h | changed | {name: wide(name, m) for name in ("c", "q", "qf")}


def _prices(
    soft: tuple[Array, Array] | None, rows: int, first: int, end: int, lead: tuple[int, ...], dtype: np.dtype
) -> tuple[Array, Array]:
    """Prices of an excess ``[..., rows]``, for half the cost: those of inputs and their changes are infinite."""
    linear, quadratic = jnp.full(rows, jnp.inf, dtype), jnp.zeros(rows, dtype)
    if soft is not None:
        priced = (jnp.arange(rows) >= first) & (jnp.arange(rows) < end)
        linear, quadratic = jnp.where(priced, soft[0] / 2, linear), jnp.where(priced, soft[1], quadratic)
    return jnp.broadcast_to(linear, (*lead, rows)), jnp.broadcast_to(quadratic, (*lead, rows))


def _told(qp: HorizonQP, found: horizon_solver.Solved, sizes: tuple[int, int, int, int]) -> ConstrainedLQR:
    """The answer for the whole cost, which is twice the program's."""
    point, infeasible = found.point, found.infeasible
    m, n, p, changes = sizes
    states = qp.A.shape[-1] - changes
    net = 2 * (point.multipliers[..., 0, :, :] - point.multipliers[..., 1, :, :])
    ends = np.cumsum([m, n + (changes if n else 0), p, changes])
    u, x, y, du = jnp.split(net, ends[:-1], axis=-1)
    multipliers = Multipliers(
        u, x[..., :n] if n else None, y if p else None, du if changes else None, 2 * point.costates[..., :states]
    )
    solved = ~infeasible & (found.residual <= horizon_solver.EXACT)
    cost = 2 * _cost(qp, point.xs, point.us)
    return ConstrainedLQR(
        point.us,
        point.xs[..., :states],
        jnp.where(infeasible, jnp.inf, cost),
        multipliers,
        jnp.where(infeasible, jnp.inf, found.residual),
        solved,
        infeasible,
    )


def _cost(qp: HorizonQP, xs: Array, us: Array) -> Array:
    """The objective with that of excesses, of programs with leading axes."""

    def one(qp: HorizonQP, xs: Array, us: Array) -> Array:
        qp = jax.tree.map(lambda a: a[..., None], qp)
        v = limited(qp, xs[..., None], us[..., None])
        over = jnp.where(jnp.isfinite(qp.linear), excess(qp, v), 0)
        linear = jnp.where(jnp.isfinite(qp.linear), qp.linear, 0)
        priced = jnp.sum(over * (linear + qp.quadratic * over / 2), (0, 1, 2))
        return (objective(qp, xs[..., None], us[..., None]) + priced)[0]

    lead = qp.x0.shape[:-1]
    count = math.prod(lead)
    flat = jax.tree.map(lambda a: a.reshape(count, *a.shape[len(lead) :]), (qp, xs, us))
    return jax.vmap(one)(*flat).reshape(lead)
