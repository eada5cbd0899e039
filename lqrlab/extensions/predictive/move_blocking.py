"""Inputs that are held over blocks of steps: each block is one stage of a shorter problem, exactly."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.constrained import ConstrainedLQR, Multipliers
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet

Box = dict[str, tuple[Array, Array]]


def solved_in_blocks(
    guess: ActiveSet | None, given: tuple, box: Box, lengths: tuple[int, ...]
) -> tuple[ConstrainedLQR, ActiveSet]:
    """The answer of :func:`constrained.solved_from` whose inputs are held over blocks of these lengths.

    ``given`` has a plant that is the same at all steps. Multipliers of an input and of its change stand at a block's
    first step; those of the dynamics are left out.

    Source: R. Cagienard, P. Grieder, E. C. Kerrigan and M. Morari, Move blocking strategies in receding horizon
    control, J. Process Control 17 (2007); the stages as in C. F. Van Loan's sampling of a held input's cost.
    """
    A, B, Q, R, N, c, q, r, Qf, qf, C, D, x0, last, soft = given
    n, m, dtype = A.shape[-1], B.shape[-1], A.dtype
    block, longest = np.repeat(np.arange(len(lengths)), lengths), max(lengths)
    starts = np.cumsum((0, *lengths[:-1]))
    since = np.arange(len(block)) - starts[block]
    member = jnp.asarray(block == np.arange(len(lengths))[:, None], dtype)  # [blocks, T]

    with jax.numpy_rank_promotion("allow"):
        # z = (x, u, 1) at a block's start becomes powers[i] z after i of its steps
        rest = jnp.eye(m + 1, n + m + 1, n, dtype=dtype)
        M = constrained.block([[A, B, c[..., None]], [rest]])[..., 0, :, :]
        first = jnp.broadcast_to(jnp.eye(n + m + 1, dtype=dtype), M.shape)
        _, powers = jax.lax.scan(lambda Z, _: (M @ Z, Z), first, length=longest + 1)
        powers = jnp.moveaxis(powers, 0, -3)
        q, r, zero = q[..., None], r[..., None], jnp.zeros((1, 1), dtype)
        W = constrained.block([[Q, N, q], [N.mT, R, r], [q.mT, r.mT, zero]])
        now = powers[..., since, :, :]
        W = jnp.einsum("bt,...tij->...bij", member, now.mT @ W @ now)
        Qs, Ns, qs = W[..., :n, :n], W[..., :n, n:-1], W[..., :n, -1]
        Rs, rs, constant = W[..., n:-1, n:-1], W[..., n:-1, -1], jnp.sum(W[..., -1, -1], -1)
        after = powers[..., np.asarray(lengths), :n, :]
        stage = after[..., :n], after[..., n:-1], Qs, Rs, Ns, after[..., -1], qs, rs, Qf, qf

        rows, inner = [], powers[..., 1:, :n, :]  # of x, then of y, after or at each step of a block
        if "x_limits" in box:
            rows.append(inner)
        if "y_limits" in box:
            rows.append(C @ inner if D is None else jnp.concatenate([C, D], -1) @ powers[..., :-1, :-1, :])
        outputs, of_blocks = None, _box_of_blocks(box, lengths, rows)
        if rows:
            outputs = jnp.concatenate(rows, -2)
            outputs = outputs.reshape(*outputs.shape[:-3], 1, -1, n + m + 1)
        CD = (None, None) if outputs is None else (outputs[..., :n], outputs[..., n:-1])
        if outputs is not None:
            low, high = of_blocks["y_limits"]
            of_blocks["y_limits"] = low - outputs[..., -1], high - outputs[..., -1]
        found, active = constrained.solved_from(guess, (*stage, *CD, x0, last, soft), of_blocks, len(lengths))

        us = found.us[..., block, :]
        z = jnp.concatenate([found.xs[..., block, :], us, jnp.ones_like(us[..., :1])], -1)
        xs = jnp.concatenate([(now[..., :n, :] @ z[..., None])[..., 0], found.xs[..., -1:, :]], -2)
        multipliers = _of_steps(found.multipliers, box, block, since, longest, n)
    found = dataclasses.replace(found, us=us, xs=xs, cost=found.cost + constant, multipliers=multipliers)
    return found, active


def _box_of_blocks(box: Box, lengths: tuple[int, ...], rows: list[Array]) -> Box:
    """Limits of blocks: of an input the tightest, of its change those at the start, of states and outputs all."""
    T, longest = sum(lengths), max(lengths)
    starts = np.cumsum((0, *lengths[:-1]))
    at = starts[:, None] + np.arange(longest)
    inside = np.arange(longest) < np.asarray(lengths)[:, None]
    at = np.where(inside, at, starts[:, None])  # [blocks, longest]

    def inner(name: str, side: int) -> Array:
        a = box[name][side]
        return jnp.broadcast_to(a, (*a.shape[:-2], T, a.shape[-1]))[..., at, :]

    found: Box = {}
    if "u_limits" in box:
        found["u_limits"] = jnp.max(inner("u_limits", 0), -2), jnp.min(inner("u_limits", 1), -2)
    if "du_limits" in box:
        found["du_limits"] = inner("du_limits", 0)[..., 0, :], inner("du_limits", 1)[..., 0, :]
    if rows:
        names = [name for name in ("x_limits", "y_limits") if name in box]

        def side(k: int) -> Array:
            parts = jnp.concatenate([inner(name, k) for name in names], -1)
            parts = jnp.where(inside[..., None], parts, (-jnp.inf, jnp.inf)[k])
            return parts.reshape(*parts.shape[:-2], -1)

        found["y_limits"] = side(0), side(1)
    return found


def _of_steps(
    of_blocks: Multipliers, box: Box, block: np.ndarray, since: np.ndarray, longest: int, n: int
) -> Multipliers:
    """Multipliers of the steps."""
    first = since[:, None] == 0
    u = jnp.where(first, of_blocks.u[..., block, :], 0)
    du = None if of_blocks.du is None else jnp.where(first, of_blocks.du[..., block, :], 0)
    x = y = None
    if of_blocks.y is not None:
        rows = of_blocks.y.reshape(*of_blocks.y.shape[:-1], longest, -1)[..., block, since, :]
        cut = n if "x_limits" in box else 0
        x, y = (rows[..., :cut] if cut else None), (rows[..., cut:] if "y_limits" in box else None)
    return Multipliers(u, x, y, du, None)
