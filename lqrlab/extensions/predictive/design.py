"""Model predictive controllers of linear problems: the program solved at each sample, and its terminal set."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.control import matrix_checks
from lqrlab.control.estimation import dlqe
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.finite_horizon import ConstrainedLQR, Horizon, block, solved_from
from lqrlab.extensions.predictive.quadratic_program import active_set
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet
from lqrlab.simulation import Limits, Problem
from lqrlab.simulation.noise import NONE, Correlated

_NOTHING = 1e-150


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
        problem: the sampled plant and its cost, K and P of the regulator without limits (None with Qf), the limits.
        Qf: terminal weight.
        C: outputs y = Cx that follow the reference, None for none.
        soft: cost of an excess over limits of states and outputs, or None.
        reference: ``[..., steps, p]`` from the first sample on, the last one holds; None for the equilibrium.
        target: where it settles, None without a reference and a disturbance.
        L: gain of the estimator of x and d ``[..., n + d, measured]``, None where the state is taken as it is seen.
        sensor: what the estimator sees of the state ``[..., measured, n]``.
        horizon: samples that are planned.
        disturbance: what is estimated: ``"none"``, a constant d added to the ``"input"`` or to the ``"output"`` Cx.
    """

    problem: Problem
    Qf: Float[Array, "*batch n n"]
    C: Float[Array, "*batch p n"] | None
    soft: tuple[Array, Array] | None
    reference: Float[Array, "*batch steps p"] | None
    target: Target | None
    L: Float[Array, "*batch k q"] | None
    sensor: Float[Array, "*batch q n"] | None
    horizon: int = dataclasses.field(metadata={"static": True})
    disturbance: str = dataclasses.field(metadata={"static": True})

    @property
    def limits(self) -> Limits:
        """Those of the problem."""
        return self.problem.limits or Limits()

    @one_program
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
        p, limits = self.problem, self.limits
        A, B, Q, R, N = (a[..., None, :, :] for a in p.sampled)
        x = jnp.asarray(x, p.A.dtype)
        horizon = Horizon(A, B, Q, R, N, x, self.Qf, soft=self.soft)
        if self.target is not None:
            xs, us, c = self._aims(d, step, jnp.broadcast_shapes(x.shape[:-1], p.batch_shape))
            q = -(_matvec_each(p.Q, xs[..., :-1, :]) + _matvec_each(p.N, us))
            r = -(_matvec_each(p.R, us) + _matvec_each(p.N.mT, xs[..., :-1, :]))
            qf = -_matvec_each(self.Qf, xs[..., -1:, :])[..., 0, :]
            horizon = horizon._replace(c=c, q=q, r=r, qf=qf)
        if limits.y is not None:
            C, D = (None if a is None else jnp.asarray(a)[..., None, :, :] for a in (limits.C, limits.D))
            horizon = horizon._replace(C=C, D=D)
        if limits.du is not None:
            last = jnp.zeros((*x.shape[:-1], p.m), x.dtype) if u_last is None else jnp.asarray(u_last, x.dtype)
            horizon = horizon._replace(last=last)
        return solved_from(guess, horizon, dataclasses.replace(limits, C=None, D=None), self.horizon)

    def begin(self, batch: tuple[int, ...]) -> ActiveSet:
        """The guess that no limit is active, to start the first plan from."""
        return active_set.none_active(self.limits, batch, self.horizon, self.problem.n, self.problem.m)

    def planned(
        self, guess: ActiveSet, x: Array, u_last: Array, d: Array, step: Array
    ) -> tuple[ActiveSet, Array, Array]:
        """The active set, the inputs and the states of the plan from x on, of plants first and their loops after."""
        design = self.for_loops(x.ndim)
        plan, active = design.plan(x, u_last=u_last, d=d if d.shape[-1] else None, step=step, guess=guess)
        return active, plan.us, plan.xs

    def for_loops(self, ndim: int) -> "MPC":
        """The design with axes of size one after its batch, for states of ``ndim`` axes."""
        batch = self.problem.batch_shape
        more = (1,) * (ndim - 1 - len(batch))
        if not batch or not more:
            return self

        def widen(a: Array) -> Array:
            at = a.shape[: len(batch)]
            return a.reshape(*at, *more, *a.shape[len(batch) :]) if at == batch else a

        return jax.tree.map(widen, self)

    def _aims(self, d: ArrayLike | None, step: int | Array, batch: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """States and inputs to go to over the horizon ``[..., T+1, n]``, ``[..., T, m]``, and what d adds to a step."""
        target = self.target
        assert target is not None
        d = jnp.zeros(target.Xd.shape[-1]) if d is None else jnp.asarray(d)
        d = jnp.broadcast_to(d, (*batch, d.shape[-1]))[..., None, :]
        ahead = step + jnp.arange(self.horizon + 1)
        r = jnp.zeros((1, target.Xr.shape[-1])) if self.reference is None else self.reference
        r = jnp.take(r, jnp.minimum(ahead, r.shape[-2] - 1), axis=-2)
        r = jnp.broadcast_to(r, (*batch, *r.shape[-2:]))
        xs = _matvec_each(target.Xr, r) + _matvec_each(target.Xd, d)
        us = (_matvec_each(target.Ur, r) + _matvec_each(target.Ud, d))[..., :-1, :]
        c = _matvec_each(self.problem.B, d) if self.disturbance == "input" else jnp.zeros_like(xs[..., :1, :])
        return xs, us, c

    @property
    def level(self) -> Float[Array, "*batch"]:
        """The largest α such that u = −Kx keeps every limit for ever wherever xᵀPx ≤ α: a terminal set.

        Changes of inputs are those within it: :meth:`exact` looks at the one that leads there.
        """
        p, limits = self.problem.solved(check=False), self.limits
        P, rows = p.P, {"u": -p.K, "x": jnp.eye(p.n, dtype=p.A.dtype), "du": p.K - p.K @ p.closed_loop()}
        if limits.y is not None:
            C = jnp.asarray(limits.C)
            rows["y"] = C if limits.D is None else C - jnp.asarray(limits.D) @ p.K
        # a state that costs nothing, as padding does, is bounded by no level of the cost: its part of the inverse
        # is huge
        costs = jnp.diagonal(P, axis1=-2, axis2=-1)[..., None, :]
        free = (costs == 0) & jnp.broadcast_to(jnp.eye(P.shape[-1], dtype=bool), P.shape)
        inverse = jnp.linalg.inv(P + jnp.where(free, _NOTHING, 0))
        levels = []
        for name, (low, high) in limits.signals().items():
            reach = jnp.einsum("...ri,...ij,...rj->...r", rows[name], inverse, rows[name])
            room = jnp.minimum(jnp.min(high, -2), jnp.min(-low, -2))
            levels.append(jnp.min(jnp.where(room < jnp.inf, jnp.maximum(room, 0) ** 2 / reach, jnp.inf), -1))
        everywhere = jnp.full(P.shape[:-2], jnp.inf, P.dtype)
        return functools.reduce(jnp.minimum, jnp.broadcast_arrays(everywhere, *levels))

    def exact(self, plan: ConstrainedLQR) -> Bool[Array, "*batch"]:
        """True if a plan ends where the regulator needs no limits: then it is the optimum over all time.

        Its cost is then that of the infinite horizon, the loop keeps to it and is stable from there: longer horizons
        change nothing (Scokaert and Rawlings, IEEE Trans. Autom. Control 43 (1998)). Without a reference and a
        disturbance, and with Qf = P; else no plan is.
        """
        P = self.problem.P
        if P is None:
            return jnp.zeros_like(plan.solved)
        same = jnp.max(jnp.abs(self.Qf - P), (-2, -1)) <= 1e-9 * jnp.max(jnp.abs(P), (-2, -1))
        last = plan.xs[..., -1, :]
        good = plan.solved & (quadratic(P, last) <= self.level) & same & (self.target is None)
        return good & self.within_changes(-matvec(self.problem.K, last) - plan.us[..., -1, :])

    def within_changes(self, change: Float[Array, "*loops m"]) -> Bool[Array, "*loops"]:
        """True where a change of the inputs is within its limits, those after the horizon."""
        if self.limits.du is None:
            return jnp.ones(change.shape[:-1], bool)
        low, high = (jnp.broadcast_to(a[..., -1, :], change.shape) for a in self.limits.du)
        return jnp.all((change >= low) & (change <= high), -1)


def _matvec_each(M: Float[Array, "*#batch a b"], x: Float[Array, "*#batch k b"]) -> Float[Array, "*#batch k a"]:
    """M x for each of k vectors."""
    return x @ M.mT


def mpc(
    problem: Problem,
    horizon: int = 20,
    *,
    soft: tuple[ArrayLike, ArrayLike] | None = None,
    Qf: ArrayLike | None = None,
    C: ArrayLike | None = None,
    reference: ArrayLike | None = None,
    disturbance: str = "none",
    Wd: ArrayLike | None = None,
    sensor: ArrayLike | None = None,
) -> MPC:
    """A model predictive controller: the constrained optimum over a horizon, solved anew at each sample.

    Args:
        problem: plants, sample time, cost, limits, and the noise that an estimator expects; its sampled, linear model
            plans. Without limits of inputs the policy takes those of the problem that it is bound to.
        horizon: samples that are planned.
        soft: ``(linear, quadratic)``, cost of an excess over limits of states and outputs; see :class:`Terms`.
        Qf: terminal weight; P of the regulator without limits if left out. With one of your own none is designed.
        C, reference: what y = Cx is to follow: p numbers, or ``[steps, p]`` from the first sample on, seen in advance.
        disturbance: ``"input"`` or ``"output"`` estimates a constant d, added to the inputs or to y = Cx, so that y
            settles without an error; needs Wd, the covariance of d's random walk.
        sensor: what is measured of the state ``[q, n]``; the state itself if left out, C for an output disturbance.

    Raises:
        ValueError: bad arguments; a plant without a stabilizing optimum; a target that no input holds.

    Source: J. B. Rawlings, D. Q. Mayne and M. M. Diehl, Model Predictive Control, 2nd ed. (2017), sections 1.5, 2.5.

    >>> plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=np.eye(2), R=[[1.0]], dt=0.1)
    >>> design = predictive.mpc(simulation.Problem.of(plant, limits=(-1, 1)), 20)
    >>> plan, _ = design.plan([2.0, 0.0])
    >>> plan.us[:3, 0].tolist(), bool(design.exact(plan))
    ([-1.0, -1.0, -1.0], False)
    """
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    T = checks.whole("horizon", horizon, high=constrained.MOST_STEPS)
    checks.choice("disturbance", disturbance, ("none", "input", "output"))
    if Qf is None:
        problem = problem.solved(check=not problem.batch_shape)
    n, dtype, batch = problem.n, problem.A.dtype, problem.batch_shape
    if problem.limits is not None:
        problem.limits.checked(n, problem.m, dtype, T)  # as many rows as steps
    terminal = matrix_checks.terminal_weight(Qf, problem.Q, problem.Q if problem.P is None else problem.P)
    if C is None and (reference is not None or disturbance == "output"):
        raise ValueError("C: expected the outputs y = Cx that the reference and an output disturbance are of")
    if C is not None:
        C = matrix_checks.trailing("C", C, (np.shape(C)[-2] if np.ndim(C) > 1 else 1, n), dtype)
    r = None
    if C is not None and reference is not None:
        r = matrix_checks.trailing("reference", reference, C.shape[-2:-1], dtype)
        r = r[..., None, :] if r.ndim == 1 else r
    target = _target(problem.A, problem.B, C, disturbance) if reference is not None or disturbance != "none" else None
    sensor, L = _estimator(problem, C, disturbance, sensor, Wd)
    # as many rows as there are plants are no axis of theirs
    shared = terminal, C, r
    terminal, outputs, r = jax.tree.map(lambda a: jnp.broadcast_to(a, (*batch, *a.shape)) if a.ndim == 2 else a, shared)
    nothing: dict = dict.fromkeys(("plant", "continuous", "x_eq", "u_eq"))
    bare = dataclasses.replace(problem, **nothing, noise=NONE, linear=True, substeps=1)
    prices = None if soft is None else constrained.prices(soft, dtype)
    return MPC(bare, terminal, outputs, prices, r, target, L, sensor, horizon=T, disturbance=disturbance)


def _target(A: Array, B: Array, C: Array | None, disturbance: str) -> Target:
    """The steady state for a reference and a disturbance: Ax + Bu + Bd = x, Cx (+ d) = r."""
    n, m = B.shape[-2:]
    lead = A.shape[:-2]
    if C is None:  # an input disturbance alone: it is cancelled
        none, eye = jnp.zeros((*lead, n, 0), A.dtype), jnp.eye(m, dtype=A.dtype)
        return Target(none, none[..., :m, :], jnp.zeros_like(B), -jnp.broadcast_to(eye, (*lead, m, m)))
    p = C.shape[-2]
    if p > m:
        raise ValueError(f"C: {m} inputs cannot hold {p} outputs at will; choose at most {m}")
    still = jnp.broadcast_to(jnp.eye(n, dtype=A.dtype), A.shape)
    system = block([[A - still, B], [C, jnp.zeros((p, m), A.dtype)]])
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
    problem: Problem, C: Array | None, disturbance: str, sensor: ArrayLike | None, Wd: ArrayLike | None
) -> tuple[Array | None, Array | None]:
    """The sensor and the gain of the stationary Kalman filter of (x, d); None where the state is seen."""
    (n, m), lead, dtype = problem.B.shape[-2:], problem.batch_shape, problem.A.dtype
    if (Wd is None) != (disturbance == "none"):
        raise ValueError(
            "Wd: expected the covariance of the disturbance's random walk with a disturbance, and only then"
        )
    if disturbance == "none" and sensor is None:
        return None, None
    A, B, H = problem.A, problem.B, C if disturbance == "output" else None
    if H is None:
        H = jnp.eye(n) if sensor is None else matrix_checks.trailing("sensor", sensor, np.shape(sensor)[-2:], dtype)
    H = jnp.broadcast_to(H, (*lead, *H.shape[-2:])).astype(dtype)
    W, V = (_covariance(spread) for spread in problem.noise[:2])
    V = H @ V @ H.mT
    if disturbance == "none":
        return H, dlqe(A, H, W, V).L
    k = m if disturbance == "input" else H.shape[-2]
    onto = B if disturbance == "input" else jnp.zeros((*lead, n, k), dtype)
    seen = jnp.zeros((*lead, H.shape[-2], k), dtype)
    if disturbance == "output":
        seen = seen + jnp.eye(k, dtype=dtype)
    walk = jnp.asarray(matrix_checks.real("Wd", Wd), dtype)
    full = block([[A, onto], [jnp.zeros((k, n), dtype), jnp.eye(k, dtype=dtype)]])
    noise = block([[W, jnp.zeros((n, k), dtype)], [jnp.zeros((k, n), dtype), walk]])
    try:
        return H, dlqe(full, block([[H, seen]]), noise, V).L
    except ValueError as error:
        integrates = "; the output's is indistinguishable from the state of an integrating plant: take the input's"
        raise ValueError(
            f"disturbance: undetectable from the measurements{integrates if disturbance == 'output' else ''} ({error})"
        ) from error


def _covariance(spread: Array | Correlated | None) -> Float[Array, "*batch n n"]:
    """Of a problem's noise."""
    if spread is None:
        raise ValueError("problem: expected noise and sensor_noise, which an estimator weighs, but found none")
    if isinstance(spread, Correlated):
        return spread.root @ spread.root.mT
    return spread[..., None] ** 2 * jnp.broadcast_to(jnp.eye(spread.shape[-1]), (*spread.shape, spread.shape[-1]))
