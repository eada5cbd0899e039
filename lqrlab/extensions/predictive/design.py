"""Model predictive controllers of linear problems: the program solved at each sample, and its terminal set."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.control import matrix_checks
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.finite_horizon import ConstrainedLQR, Horizon, block, solved_from
from lqrlab.extensions.predictive.quadratic_program import active_set
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet
from lqrlab.simulation import Limits, Problem
from lqrlab.simulation.noise import NONE

_NOTHING = 1e-150


class Target(NamedTuple):
    """The state and the input at which y = r: x = X r, u = U r."""

    X: Float[Array, "*batch n p"]
    U: Float[Array, "*batch m p"]


@pytree
@dataclasses.dataclass(frozen=True)
class MPC:
    """A model predictive controller: at each sample the first input of :meth:`plan`.

    Attributes:
        problem: the sampled plant and its cost, K and P of the regulator without limits, and the limits.
        Qf: terminal weight.
        soft: cost of an excess over limits of states and outputs, or None.
        reference: ``[..., steps, p]`` from the first sample on, the last one holds; None for the equilibrium.
        target: where it settles, None without a reference.
        horizon: samples that are planned.
    """

    problem: Problem
    Qf: Float[Array, "*batch n n"]
    soft: tuple[Array, Array] | None
    reference: Float[Array, "*batch steps p"] | None
    target: Target | None
    horizon: int = dataclasses.field(metadata={"static": True})

    @property
    def limits(self) -> Limits:
        """Those of the problem."""
        return self.problem.limits or Limits()

    def plan(
        self, x: ArrayLike, *, u_last: ArrayLike | None = None, step: int | Array = 0, guess: ActiveSet | None = None
    ) -> tuple[ConstrainedLQR, ActiveSet]:
        """Inputs and states that are best from x on, over the horizon, and the active set to start the next plan from.

        Args:
            x: the state ``[..., n]``.
            u_last: the input before, which limits of changes start from; zero if left out.
            step: samples since the start, which the reference is counted from.
            guess: the active set that the search starts from, as a plan before has left it.
        """
        p, limits = self.problem, self.limits
        A, B, Q, R, N = (a[..., None, :, :] for a in p.sampled)
        x = jnp.asarray(x, p.A.dtype)
        horizon = Horizon(A, B, Q, R, N, x, self.Qf, soft=self.soft)
        if self.target is not None:
            xs, us = self._aims(step)
            q = -(_matvec_each(p.Q, xs[..., :-1, :]) + _matvec_each(p.N, us))
            r = -(_matvec_each(p.R, us) + _matvec_each(p.N.mT, xs[..., :-1, :]))
            qf = -_matvec_each(self.Qf, xs[..., -1:, :])[..., 0, :]
            horizon = horizon._replace(q=q, r=r, qf=qf)
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

    def planned(self, guess: ActiveSet, x: Array, u_last: Array, step: Array) -> tuple[ActiveSet, Array, Array]:
        """The active set, the inputs and the states of the plan from x on, of plants first and their loops after."""
        design = self.for_loops(x.ndim)
        plan, active = design.plan(x, u_last=u_last, step=step, guess=guess)
        u = plan.us
        if design.limits.u is not None:  # a plan that was not solved may ask for more
            u = jnp.clip(u, *(jnp.broadcast_to(end, u.shape) for end in design.limits.u))
        return active, u, plan.xs

    def for_loops(self, ndim: int) -> "MPC":
        """The design with axes of size one after its batch, for states of ``ndim`` axes."""
        batch = self.problem.batch_shape
        more = (1,) * (ndim - 1 - len(batch))
        if not batch or not more:
            return self

        def widen(a: Array) -> Array:
            # limits and gains that are the same for all plants have no batch to widen
            at = a.shape[: len(batch)]
            return a.reshape(*at, *more, *a.shape[len(batch) :]) if at == batch else a

        return jax.tree.map(widen, self)

    def _aims(self, step: int | Array) -> tuple[Array, Array]:
        """States and inputs to go to over the horizon ``[..., T+1, n]``, ``[..., T, m]``."""
        assert self.target is not None
        assert self.reference is not None
        ahead = jnp.minimum(step + jnp.arange(self.horizon + 1), self.reference.shape[-2] - 1)
        r = jnp.take(self.reference, ahead, axis=-2)
        return _matvec_each(self.target.X, r), _matvec_each(self.target.U, r[..., :-1, :])

    @property
    def level(self) -> Float[Array, "*batch"]:
        """The largest α such that u = −Kx keeps every limit for ever wherever xᵀPx ≤ α: a terminal set.

        Changes of inputs are those within it: :meth:`exact` looks at the one that leads there.
        """
        p, limits = self.problem, self.limits
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
        change nothing (Scokaert and Rawlings, IEEE Trans. Autom. Control 43 (1998)). Without a reference and with
        Qf = P; else no plan is.
        """
        P = self.problem.P
        same = jnp.max(jnp.abs(self.Qf - P), (-2, -1)) <= 1e-9 * jnp.max(jnp.abs(P), (-2, -1))
        last = plan.xs[..., -1, :]
        good = plan.solved & (quadratic(P, last) <= self.level) & same & (self.target is None)
        if self.limits.du is not None:
            low, high = (a[..., -1, :] for a in self.limits.du)
            change = -matvec(self.problem.K, last) - plan.us[..., -1, :]
            good = good & jnp.all((change >= low) & (change <= high), -1)
        return good


def _matvec_each(M: Float[Array, "*batch a b"], x: Float[Array, "*batch k b"]) -> Float[Array, "*batch k a"]:
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
) -> MPC:
    """A model predictive controller: the constrained optimum over a horizon, solved anew at each sample.

    Args:
        problem: plants, sample time, cost and limits; its sampled, linear model plans. Without limits of inputs the
            policy takes those of the problem that it is bound to.
        horizon: samples that are planned.
        soft: ``(linear, quadratic)``, cost of an excess over limits of states and outputs; see :class:`Terms`.
        Qf: terminal weight; P of the regulator without limits if left out.
        C, reference: what y = Cx is to follow: p numbers, or ``[steps, p]`` from the first sample on, seen in advance.

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
    problem = problem.solved(check=not problem.batch_shape)
    n, m, dtype = problem.n, problem.m, problem.A.dtype
    if problem.limits is not None:
        problem.limits.checked(n, m, dtype, T)  # as many rows as steps
    terminal = matrix_checks.terminal_weight(Qf, problem.Q, problem.P)
    r = target = None
    if reference is not None:
        if C is None:
            raise ValueError("C: expected the outputs y = Cx that the reference is of")
        C = matrix_checks.trailing("C", C, (np.shape(C)[-2] if np.ndim(C) > 1 else 1, n), dtype)
        r = matrix_checks.trailing("reference", reference, C.shape[-2:-1], dtype)
        r = r[..., None, :] if r.ndim == 1 else r
        target = _target(problem.A, problem.B, C)
    nothing: dict = dict.fromkeys(("plant", "continuous", "x_eq", "u_eq"))
    bare = dataclasses.replace(problem, **nothing, noise=NONE, linear=True, substeps=1)
    prices = None if soft is None else constrained.prices(soft, dtype)
    return MPC(bare, terminal, prices, r, target, horizon=T)


def _target(A: Array, B: Array, C: Array) -> Target:
    """The steady state for a reference: Ax + Bu = x, Cx = r."""
    (n, m), p = B.shape[-2:], C.shape[-2]
    if p > m:
        raise ValueError(f"C: {m} inputs cannot hold {p} outputs at will; choose at most {m}")
    system = block([[A - jnp.eye(n, dtype=A.dtype), B], [C, jnp.zeros((p, m), A.dtype)]])
    held = jnp.linalg.pinv(system)
    if not checks.traced(A, B, C):
        wrong = np.abs(np.asarray(system @ held) - np.eye(n + p)).max()
        if not wrong < 1e-6:
            raise ValueError("C: no constant input holds y = Cx at a value of its own: a transmission zero at 1")
    return Target(held[..., :n, n:], held[..., n:, n:])
