"""Model predictive controllers: what is solved at each sample, and from where on that is the optimum for ever."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import discretize
from lqrlab.control.estimation import dlqe
from lqrlab.control.regulator import dlqr
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.constrained import ConstrainedLQR
from lqrlab.extensions.predictive.limits import Limits, boxes, check_equilibrium, prices
from lqrlab.extensions.predictive.move_blocking import solved_in_blocks
from lqrlab.extensions.predictive.quadratic_program import active_set
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet

_NOTHING = 1e-150
_DISTURBANCES = ("none", "input", "output")


class Target(NamedTuple):
    """The state and the input at which y = r, and how each disturbance moves them: x = Xr r + Xd d, u = Ur r + Ud d."""

    Xr: Float[Array, "*batch n p"]
    Ur: Float[Array, "*batch m p"]
    Xd: Float[Array, "*batch n d"]
    Ud: Float[Array, "*batch m d"]


@pytree
@dataclasses.dataclass(frozen=True)
class MPC:
    """A model predictive controller: at each sample the first input of :meth:`plan`.

    Attributes:
        A, B, Q, R, N: the sampled problem; Qf its terminal weight, K the gain of the regulator without limits.
        box: limits by name, as :func:`constrained_lqr` takes them.
        C, D: outputs y = Cx + Du: those that are limited, and Cx is what follows the reference.
        soft: cost of an excess over limits of states and outputs, or None.
        horizon: steps that are planned.
        reference: ``[..., steps, p]`` from the first sample on, the last one holds; None for the equilibrium.
        disturbance: what is estimated: ``"none"``, a constant d added to the ``"input"`` or to the ``"output"`` Cx.
        target: where it settles, None without a reference and a disturbance.
        L: gain of the estimator of x and d ``[..., n + d, measured]``, None where the state is taken as it is seen.
        sensor: what the estimator sees of the state ``[..., measured, n]``.
        dt: sample time [s], None for a plant given in discrete time.
        move_blocks: lengths of the blocks over which inputs are held, None if each step has its own.
    """

    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n m"]
    Q: Float[Array, "*batch n n"]
    R: Float[Array, "*batch m m"]
    N: Float[Array, "*batch n m"]
    Qf: Float[Array, "*batch n n"]
    K: Float[Array, "*batch m n"]
    P: Float[Array, "*batch n n"]
    box: dict[str, tuple[Array, Array]]
    C: Float[Array, "*batch p n"] | None
    D: Float[Array, "*batch p m"] | None
    soft: tuple[Array, Array] | None
    reference: Float[Array, "*batch steps p"] | None
    target: Target | None
    L: Float[Array, "*batch k q"] | None
    sensor: Float[Array, "*batch q n"] | None
    dt: Float[Array, "*batch"] | None
    horizon: int = dataclasses.field(metadata={"static": True})
    disturbance: str = dataclasses.field(metadata={"static": True})
    move_blocks: tuple[int, ...] | None = dataclasses.field(default=None, metadata={"static": True})

    def plan(
        self,
        x: ArrayLike,
        *,
        u_last: ArrayLike | None = None,
        d: ArrayLike | None = None,
        step: int | Array = 0,
        guess: ActiveSet | None = None,
    ) -> tuple[ConstrainedLQR, ActiveSet]:
        """Inputs and states that are best from x on, over the horizon, and the active set to start the next plan from.

        Args:
            x: the state ``[..., n]``.
            u_last: the input before, which limits of changes start from; zero if left out.
            d: the disturbance, if one is estimated; zero if left out.
            step: samples since the start, which the reference is counted from.
            guess: the active set that the search starts from, as a plan before has left it.
        """
        T, dtype = self.horizon, self.A.dtype
        m = self.B.shape[-1]
        x = jnp.asarray(x, dtype)
        batch = jnp.broadcast_shapes(x.shape[:-1], self.A.shape[:-2])
        last = jnp.zeros((*batch, m), dtype) if u_last is None else jnp.asarray(u_last, dtype)
        c, q, r = (jnp.zeros((1, k), dtype) for k in (x.shape[-1], x.shape[-1], m))
        qf = q[0]
        if self.target is not None:
            xs, us, c = self._aims(d, step, batch)
            q = -(matvec_each(self.Q, xs[..., :-1, :]) + matvec_each(self.N, us))
            r = -(matvec_each(self.R, us) + matvec_each(self.N.mT, xs[..., :-1, :]))
            qf = -matvec_each(self.Qf, xs[..., -1:, :])[..., 0, :]
        given = [a[..., None, :, :] for a in (self.A, self.B, self.Q, self.R, self.N)]
        limited = "y_limits" in self.box
        C = None if self.C is None or not limited else self.C[..., None, :, :]
        D = None if self.D is None or not limited else self.D[..., None, :, :]
        before = last if "du_limits" in self.box else None
        known = (*given, c, q, r, self.Qf, qf, C, D, x, before, self.soft)
        if self.lengths is not None:
            return solved_in_blocks(guess, known, self.box, self.lengths)
        return constrained.solved_from(guess, known, self.box, T)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Lengths of the blocks that make up the horizon, the last one extended; None for none."""
        blocks = self.move_blocks
        return None if blocks is None else (*blocks[:-1], self.horizon - sum(blocks[:-1]))

    def none_active(self, batch: tuple[int, ...]) -> ActiveSet:
        """The guess that no limit is active, to start the first plan from."""
        n, m = self.B.shape[-2:]
        p = 0 if self.C is None else self.C.shape[-2]
        if self.lengths is None:
            return active_set.none_active(self.box, batch, self.horizon, n, m, p)
        rows = (n if "x_limits" in self.box else 0) + (p if "y_limits" in self.box else 0)
        names = {*self.box, "y_limits"} - {"x_limits"}
        return active_set.none_active(names, batch, len(self.lengths), n, m, max(self.lengths) * rows)

    def _aims(self, d: ArrayLike | None, step: int | Array, batch: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """States and inputs to go to over the horizon ``[..., T+1, n]``, ``[..., T, m]``, and what d adds to a step."""
        target = self.target
        assert target is not None
        d = jnp.zeros(target.Xd.shape[-1]) if d is None else jnp.asarray(d)
        d = jnp.broadcast_to(d, (*batch, d.shape[-1]))[..., None, :]
        ahead = step + jnp.arange(self.horizon + 1)
        if self.reference is None:
            r = jnp.zeros((self.horizon + 1, target.Xr.shape[-1]))
        else:
            r = jnp.take(self.reference, jnp.minimum(ahead, self.reference.shape[-2] - 1), axis=-2)
        xs = matvec_each(target.Xr, r) + matvec_each(target.Xd, d)
        us = (matvec_each(target.Ur, r) + matvec_each(target.Ud, d))[..., :-1, :]
        c = matvec_each(self.B, d) if self.disturbance == "input" else jnp.zeros((1, self.A.shape[-1]), self.A.dtype)
        return xs, us, c

    @property
    def level(self) -> Float[Array, "*batch"]:
        """The largest α such that u = −Kx keeps every limit for ever wherever xᵀPx ≤ α: a terminal set.

        Changes of inputs are those within it: :meth:`exact` looks at the one that leads there.
        """
        return terminal_level(self.A, self.B, self.K, self.P, self.box, self.C, self.D)

    def exact(self, plan: ConstrainedLQR) -> Bool[Array, "*batch"]:
        """True if a plan ends where the regulator needs no limits: then it is the optimum over all time.

        Its cost is then that of the infinite horizon, the loop keeps to it and is stable from there: longer horizons
        change nothing (Scokaert and Rawlings, IEEE Trans. Autom. Control 43 (1998)). Without a reference, a disturbance
        and blocks of moves, and with Qf = P; else no plan is.
        """
        size = jnp.max(jnp.abs(self.P), (-2, -1))
        same = jnp.max(jnp.abs(self.Qf - self.P), (-2, -1)) <= 1e-9 * size
        last = plan.xs[..., -1, :]
        free = self.target is None and self.move_blocks is None
        good = plan.solved & (quadratic(self.P, last) <= self.level) & same & free
        if "du_limits" in self.box:
            low, high = (a[..., -1, :] for a in self.box["du_limits"])
            change = -matvec(self.K, last) - plan.us[..., -1, :]
            good = good & jnp.all((change >= low) & (change <= high), -1)
        return good


def matvec_each(M: Float[Array, "*batch a b"], x: Float[Array, "*batch k b"]) -> Float[Array, "*batch k a"]:
    """M x for each of k vectors."""
    return x @ M.mT


def terminal_level(
    A: Array, B: Array, K: Array, P: Array, box: dict[str, tuple[Array, Array]], C: Array | None, D: Array | None
) -> Float[Array, "*batch"]:
    """The largest level of xᵀPx on which the loop of the gain K keeps all limits of ``box``; see :attr:`MPC.level`."""
    closed, eye = A - B @ K, jnp.eye(K.shape[-1], dtype=A.dtype)
    rows = {
        "u_limits": -K,
        "x_limits": eye,
        "y_limits": None if C is None else (C if D is None else C - D @ K),
        "du_limits": K - K @ closed,
    }
    # a state that costs nothing, as padding does, is bounded by no level of the cost: its part of the inverse is huge
    costs = jnp.diagonal(P, axis1=-2, axis2=-1)[..., None, :]
    free = (costs == 0) & jnp.broadcast_to(jnp.eye(P.shape[-1], dtype=bool), P.shape)
    inverse = jnp.linalg.inv(P + jnp.where(free, _NOTHING, 0))
    levels = []
    for name, (low, high) in box.items():
        reach = jnp.einsum("...ri,...ij,...rj->...r", rows[name], inverse, rows[name])
        room = jnp.minimum(jnp.min(high, -2), jnp.min(-low, -2))
        levels.append(jnp.min(jnp.where(room < jnp.inf, jnp.maximum(room, 0) ** 2 / reach, jnp.inf), -1))
    batch = jnp.broadcast_shapes(P.shape[:-2], *(a.shape for a in levels))
    level = jnp.full(batch, jnp.inf, A.dtype)
    for a in levels:
        level = jnp.minimum(level, a)
    return level


def mpc(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    horizon: int,
    *,
    dt: ArrayLike | None = None,
    N: ArrayLike | None = None,
    u_limits: Limits | None = None,
    x_limits: Limits | None = None,
    du_limits: Limits | None = None,
    y_limits: Limits | None = None,
    C: ArrayLike | None = None,
    D: ArrayLike | None = None,
    soft: tuple[ArrayLike, ArrayLike] | None = None,
    Qf: ArrayLike | str = "lqr",
    reference: ArrayLike | None = None,
    disturbance: str = "none",
    sensor: ArrayLike | None = None,
    W: ArrayLike | None = None,
    V: ArrayLike | None = None,
    Wd: ArrayLike | None = None,
    move_blocks: Sequence[int] | None = None,
) -> MPC:
    """A model predictive controller: the constrained optimum over a horizon, solved anew at each sample.

    Args:
        A, B, Q, R, N: the plant and its cost: in continuous time with ``dt``, both sampled exactly; without, discrete.
        horizon: samples that are planned.
        dt: sample time [s].
        u_limits, x_limits, du_limits, y_limits, C, D, soft: as in :func:`constrained_lqr`, as deviations from the
            equilibrium. Without ``u_limits`` the policy takes those of the problem that it is bound to.
        Qf: terminal weight, ``"lqr"`` for P of the regulator without limits.
        reference: what y = Cx is to follow: p numbers, or ``[steps, p]`` from the first sample on, seen in advance.
        disturbance: ``"input"`` or ``"output"`` estimates a constant d, added to the inputs or to y = Cx, so that y
            settles at its reference without an error, and needs W, V and Wd.
        sensor: what is measured of the state ``[q, n]``; the state itself if left out, C for an output disturbance.
        W, V, Wd: covariances of the noise of the state, of the measurements, and of the disturbance's random walk: of
            the estimator in front, which there is if they are given.
        move_blocks: lengths of blocks of steps over which plans hold their inputs, such as ``(1, 1, 2, 4)``; the last
            is extended to the horizon. It pays for long horizons with limits of inputs: 128 plans of 60 steps in 7
            blocks took a fifth of the time. Limits of states hold at all steps, and then it is slower than without.

    Returns:
        :class:`MPC`; ``simulation.bind(design, problem)`` makes its policy.

    Raises:
        ValueError: bad arguments; limits that exclude the equilibrium; a target that no input holds.

    Source: J. B. Rawlings, D. Q. Mayne and M. M. Diehl, Model Predictive Control, 2nd ed. (2017), sections 1.5, 2.5.

    >>> design = predictive.mpc([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], np.eye(2), [[1.0]], 20, dt=0.1, u_limits=(-1, 1))
    >>> plan, _ = design.plan([2.0, 0.0])
    >>> plan.us[:3, 0].tolist(), bool(design.exact(plan))
    ([-1.0, -1.0, -1.0], False)
    """
    T = checks.whole("horizon", horizon, high=constrained.MOST_STEPS)
    checks.choice("disturbance", disturbance, _DISTURBANCES)
    A, B, Q, R, N = discretize(A, B, Q, R, dt, N) if dt is not None else matrix_checks.arguments(A, B, Q, R, N)
    n, m, dtype = A.shape[-1], B.shape[-1], A.dtype
    regulator = dlqr(A, B, Q, R, N)
    if isinstance(Qf, str):
        checks.choice("Qf", Qf, ("lqr",))
    terminal = matrix_checks.terminal_weight(None if isinstance(Qf, str) else Qf, Q, regulator.P)
    if C is None and (y_limits is not None or reference is not None or disturbance == "output"):
        raise ValueError("C: expected the outputs y = Cx that y_limits, reference and an output disturbance are of")
    C, D, r = _outputs(C, D, reference, n, m, dtype)
    p = 0 if C is None else C.shape[-2]
    box = boxes(
        T, dtype, u_limits=(u_limits, m), x_limits=(x_limits, n), y_limits=(y_limits, p), du_limits=(du_limits, m)
    )
    check_equilibrium(box)
    weights = None if soft is None else prices(soft, dtype)
    target = _target(A, B, C, disturbance) if reference is not None or disturbance != "none" else None
    sensor, L = _estimator(A, B, C, disturbance, sensor, W, V, Wd)
    step = None if dt is None else jnp.asarray(dt, dtype)
    gains = regulator.K, regulator.P
    known = A, B, Q, R, N, terminal, *gains, box, C, D, weights, r, target, L, sensor, step
    return MPC(*known, horizon=T, disturbance=disturbance, move_blocks=_blocks(move_blocks, T))


def _blocks(move_blocks: Sequence[int] | None, T: int) -> tuple[int, ...] | None:
    """The checked lengths."""
    if move_blocks is None:
        return None
    if not isinstance(move_blocks, tuple | list) or not move_blocks:
        raise ValueError(f"move_blocks: expected lengths such as (1, 1, 2, 4), but found {move_blocks!r:.80}")
    lengths = tuple(checks.whole("move_blocks", k) for k in move_blocks)
    if sum(lengths) > T:
        raise ValueError(f"move_blocks: expected blocks within the horizon of {T} steps, but these have {sum(lengths)}")
    return lengths


def _outputs(
    C: ArrayLike | None, D: ArrayLike | None, reference: ArrayLike | None, n: int, m: int, dtype: np.dtype
) -> tuple[Array | None, Array | None, Array | None]:
    """The checked outputs, and the reference with an axis of steps."""
    if C is None:
        return None, None, None
    C = matrix_checks.trailing("C", C, (np.shape(C)[-2] if np.ndim(C) > 1 else 1, n), dtype)
    p = C.shape[-2]
    D = None if D is None else matrix_checks.trailing("D", D, (p, m), dtype)
    if reference is None:
        return C, D, None
    r = matrix_checks.trailing("reference", reference, (p,), dtype)
    return C, D, r[..., None, :] if r.ndim == 1 else r


def _target(A: Array, B: Array, C: Array | None, disturbance: str) -> Target:
    """The steady state for a reference and a disturbance: Ax + Bu + Bd = x, Cx (+ d) = r."""
    n, m = B.shape[-2:]
    lead = A.shape[:-2]
    if C is None:  # an input disturbance alone: it is cancelled
        none = jnp.zeros((*lead, n, 0), A.dtype)
        return Target(
            none, none[..., :m, :], jnp.zeros_like(B), -jnp.broadcast_to(jnp.eye(m, dtype=A.dtype), (*lead, m, m))
        )
    p = C.shape[-2]
    if p > m:
        raise ValueError(f"C: {m} inputs cannot hold {p} outputs at will; choose at most {m}")
    C = jnp.broadcast_to(C, (*lead, p, n))
    system = jnp.concatenate(
        [
            jnp.concatenate([A - jnp.eye(n, dtype=A.dtype), B], -1),
            jnp.concatenate([C, jnp.zeros((*lead, p, m), A.dtype)], -1),
        ],
        -2,
    )
    held = jnp.linalg.pinv(system)
    if not checks.traced(A, B, C):
        wrong = np.abs(np.asarray(system @ held) - np.eye(n + p)).max()
        if not wrong < 1e-6:
            raise ValueError("C: no constant input holds y = Cx at a value of its own: a transmission zero at 1")
    by_r = held[..., n:]
    by_d = -by_r if disturbance == "output" else jnp.zeros((*lead, n + m, 0), A.dtype)
    if disturbance == "input":
        by_d = -held[..., :n] @ B
    return Target(by_r[..., :n, :], by_r[..., n:, :], by_d[..., :n, :], by_d[..., n:, :])


def _estimator(
    A: Array,
    B: Array,
    C: Array | None,
    disturbance: str,
    sensor: ArrayLike | None,
    W: ArrayLike | None,
    V: ArrayLike | None,
    Wd: ArrayLike | None,
) -> tuple[Array | None, Array | None]:
    """The sensor and the gain of the stationary Kalman filter of (x, d); None where the state is seen."""
    n, m = B.shape[-2:]
    if W is None and V is None:
        if disturbance != "none":
            raise ValueError("W, V: an estimated disturbance needs the covariances of the noise, and Wd its own")
        if sensor is not None:
            raise ValueError("W, V: a sensor of the state needs the covariances of the noise, for its estimator")
        return None, None
    if W is None or V is None or (Wd is None) != (disturbance == "none"):
        raise ValueError("W, V, Wd: expected W and V together, and Wd with a disturbance")
    dtype, lead = A.dtype, A.shape[:-2]
    if disturbance == "output":
        assert C is not None
        sensor = C
    H = (
        jnp.eye(n, dtype=dtype)
        if sensor is None
        else matrix_checks.trailing("sensor", sensor, np.shape(sensor)[-2:], dtype)
    )
    H = jnp.broadcast_to(H, (*lead, *H.shape[-2:]))
    W, V = (jnp.asarray(matrix_checks.real(name, a), dtype) for name, a in (("W", W), ("V", V)))
    if disturbance == "none":
        return H, dlqe(A, H, W, V).L
    k = m if disturbance == "input" else H.shape[-2]
    onto = B if disturbance == "input" else jnp.zeros((*lead, n, k), dtype)
    seen = jnp.zeros((*lead, H.shape[-2], k), dtype)
    if disturbance == "output":
        seen = seen + jnp.eye(k, dtype=dtype)
    walk = jnp.asarray(matrix_checks.real("Wd", Wd), dtype)
    full = constrained.block([[A, onto], [jnp.zeros((k, n), dtype), jnp.eye(k, dtype=dtype)]])
    noise = constrained.block([[W, jnp.zeros((n, k), dtype)], [jnp.zeros((k, n), dtype), walk]])
    try:
        return H, dlqe(full, constrained.block([[H, seen]]), noise, V).L
    except ValueError as error:
        integrates = "; an output's is not told from the state of a plant that integrates: take the input's"
        raise ValueError(
            f"disturbance: what is measured does not show it{integrates if disturbance == 'output' else ''} ({error})"
        ) from error
