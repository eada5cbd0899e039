"""Policies: pytrees that turn the state they see into an input, and may remember."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import expand_batch, matvec
from lqrlab.simulation.problem import Problem, check_step
from lqrlab.systems import Plant, check_plant


class Policy(Protocol):
    """A controller as a pytree: a gain, a network and a recurrent network look the same to a simulator.

    Being a pytree matters: a new gain is new data, not a new program, so nothing is compiled again.

    A policy that remembers goes on without a measurement that is not finite, which would else stay in its memory for
    ever: see :func:`measured_or` and :func:`sent_or`.
    """

    def init(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The memory that an episode starts with, for ``batch_shape`` loops at once."""

    def __call__(self, carry: PyTree, x: Float[Array, "*loops n"]) -> tuple[PyTree, Float[Array, "*loops m"]]:
        """The next memory and the input, both x and u deviations from the equilibrium."""


def measured_or(predicted: Array, y: Array) -> Array:
    """The measurement y, or the memory's prediction where it is not finite."""
    return jnp.where(jnp.isfinite(y), y, predicted)


def sent_or(last: Array, u: Array, x: Array) -> Array:
    """The input u, or the last input if the measurement x is not finite.

    The answer of a policy that has no model of the plant to predict with.
    """
    return jnp.where(jnp.isfinite(u) | jnp.all(jnp.isfinite(x), axis=-1, keepdims=True), u, last)


@pytree
@dataclasses.dataclass(frozen=True)
class LinearPolicy:
    """u = −Kx; the batch axes of K are those of the plants."""

    K: Float[Array, "*batch m n"]

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    @one_program
    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """−K x."""
        return None, -matvec(self.K.astype(x.dtype), x)


@pytree
@dataclasses.dataclass(frozen=True)
class TrackingPolicy:
    """u = us[t] − K[t] (x − xs[t]), the steps counted from the start; afterwards the last point is held.

    xs and us are deviations from the plant's equilibrium: :func:`tracking` makes them of a plan.
    """

    xs: Float[Array, "*batch T+1 n"]
    us: Float[Array, "*batch T m"]
    K: Float[Array, "*batch T m n"]

    def init(self, batch_shape: tuple[int, ...]) -> Array:
        """No step taken."""
        return jnp.zeros((), int)

    @one_program
    def __call__(self, carry: Array, x: Array) -> tuple[Array, Array]:
        """One step along the trajectory."""
        at = jnp.minimum(carry, self.us.shape[-2] - 1)
        xs, us, K = (
            jax.lax.dynamic_index_in_dim(a.astype(x.dtype), at, a.ndim - axis, keepdims=False)
            for a, axis in ((self.xs, 2), (self.us, 2), (self.K, 3))
        )
        return carry + 1, expand_batch(us, x.ndim) - matvec(K, x - expand_batch(xs, x.ndim))


def tracking(plant: Plant | Problem, plan: Any) -> TrackingPolicy:
    """The policy of a plan over a finite horizon; roll it out with the plan's sample time.

    Args:
        plant: one plant, or the batch that the plan is for; or a problem of them.
        plan: one for all plants or one each, in deviations from the equilibrium, as of
            :func:`lqrlab.control.lq_tracking` or :func:`lqrlab.control.finite_horizon`; or in absolute states and
            inputs, if it has ``absolute = True``, as of ``predictive.ilqr``.
    """
    if not isinstance(plant, Problem):
        check_plant(plant)
    if not all(hasattr(plan, name) for name in ("xs", "us", "K")):
        made = "as predictive.ilqr, control.lq_tracking or control.finite_horizon make"
        raise ValueError(f"plan: expected a plan, {made}, but found {type(plan).__name__}")
    if (plan.xs.shape[-1], plan.us.shape[-1]) != (plant.n, plant.m):
        sizes = f"{plant.n} states and {plant.m} inputs"
        raise ValueError(f"plan: expected {sizes}, as the plant has, but found {plan.xs.shape}, {plan.us.shape}")
    batch = plant.batch_shape
    path = TrackingPolicy(plan.xs, plan.us, plan.K)
    if plan.xs.ndim == 2:  # one plan for all of them
        path = jax.tree.map(lambda a: jnp.broadcast_to(a, batch + jnp.shape(a)), path)
    if path.xs.shape[:-2][: len(batch)] != batch:
        raise ValueError(f"plan: expected a plan for each of the plants {batch}, but found {plan.xs.shape}")
    if not getattr(plan, "absolute", False):
        return path
    equilibrium = (plant.x_eq, plant.u_eq) if isinstance(plant, Problem) else plant.equilibrium()
    if equilibrium[0] is None:
        raise ValueError(
            "plant: expected one with an equilibrium, because the plan is in absolute states and inputs, but found a "
            "problem of matrices or of several families; subtract the equilibrium from the plan and give "
            "simulation.TrackingPolicy(xs, us, K)"
        )
    xs, us = (a - expand_batch(eq, a.ndim) for a, eq in zip((path.xs, path.us), equilibrium))
    return TrackingPolicy(xs, us, path.K)


def no_control(plant: Plant | Problem) -> LinearPolicy:
    """Inputs held at the equilibrium: the uncontrolled plant."""
    if not isinstance(plant, Problem):
        check_plant(plant)
    return LinearPolicy(jnp.zeros((*plant.batch_shape, plant.m, plant.n)))


def check_policy(policy: Policy, x: Array, m: int) -> None:
    """Raise ValueError unless it is a policy for states x ``[*batch, *extra, n]`` and m inputs."""
    x = jnp.asarray(checks.real("x", x))
    if not x.ndim:
        raise ValueError("x: expected states [..., n], but found one number")
    checks.whole("m", m)
    if not (hasattr(policy, "init") and callable(policy)):
        raise ValueError(
            f"policy: expected something with init(batch_shape) and __call__(carry, x), such as LinearPolicy(K), "
            f"but found {type(policy).__name__}"
        )
    if type(policy) is LinearPolicy:
        *lead, rows, columns = checks.real("policy", policy.K).shape
        if (rows, columns) == (m, x.shape[-1]) and tuple(lead) == x.shape[: len(lead)]:
            return  # seen without a trace, which would take longer than many a simulation
        if set(lead) - {1} and tuple(lead) != x.shape[:-1][: len(lead)]:
            raise ValueError(f"policy: gains of batch shape {tuple(lead)} do not lead states of shape {x.shape}")
    try:
        _, u = jax.eval_shape(lambda p, x: p(p.init(x.shape[:-1]), x), policy, x)
    except Exception as error:
        raise ValueError(f"policy: fails on states of shape {x.shape}: {error}") from error
    if u.shape != (*x.shape[:-1], m):
        raise ValueError(f"policy: expected inputs of shape {(*x.shape[:-1], m)}, but found {u.shape}")


@pytree
@dataclasses.dataclass(frozen=True)
class DelayedPolicy:
    """A policy evaluated every few steps; its input is held and acts ``delay`` steps later.

    A controller that is slower than the simulation: roll it out with a step that divides both its sample time and
    its delay.

    Attributes:
        policy: that is asked.
        every: steps from one of its inputs to the next, ``[]``.
        delay: steps until an input acts, at most d·every, ``[]`` or ``[m]``; until the first one arrives, none acts.
        limit: magnitude at which an input is cut before it is sent, ``[m]``; inf for none.
        memory: d, the inputs sent before that are remembered.
        aware: whether the policy sees them after the state, the newest first ``[*loops, n + m d]``, as the gain of
            :func:`lqrlab.control.lqrd_delayed` does.
        dt: step [s] that it is to be rolled out with, ``[*batch]``; None for any.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 2.3.
    """

    policy: Policy
    every: int | Array
    delay: int | Array
    limit: Float[Array, " m"]
    memory: int = dataclasses.field(metadata={"static": True})
    aware: bool = dataclasses.field(default=False, metadata={"static": True})
    dt: Array | None = None

    def check_step(self, dt: Array) -> None:
        """Refuse to be rolled out with another step than its own: outside a trace, where both are numbers."""
        if self.dt is not None:
            whose = "the step of the delayed controller, {:g} s, which is its sample time over its ticks,"
            check_step(self.dt, dt, whose, "pass dt=plant.dt / ticks to rollout or to Problem.of")

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, PyTree, Array]:
        """No step taken, the policy's memory, nothing sent: the d + 1 newest inputs ``[*batch_shape, d + 1, m]``."""
        if not checks.traced(self.every):
            checks.whole("every", np.asarray(self.every).tolist())
        sent = jnp.zeros((*batch_shape, self.memory + 1, len(self.limit)), self.limit.dtype)
        return jnp.zeros((), int), self.policy.init(batch_shape), sent

    @one_program
    def __call__(self, carry: tuple[Array, PyTree, Array], x: Array) -> tuple[tuple[Array, PyTree, Array], Array]:
        """The input that acts now."""
        step, *before = carry

        def sampled() -> tuple[PyTree, Array]:
            memory, sent = before
            known = sent[..., : self.memory if self.aware else 0, :].reshape(*x.shape[:-1], -1).astype(x.dtype)
            memory, u = self.policy(memory, jnp.concatenate([x, known], axis=-1))
            u = sent_or(sent[..., 0, :], u.astype(sent.dtype), x)
            u = jnp.clip(u, *(jnp.broadcast_to(end, u.shape) for end in (-self.limit, self.limit)))
            after = memory, jnp.concatenate([u[..., None, :], sent[..., :-1, :]], axis=-2)
            return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), after, tuple(before))

        due, held = step % self.every == 0, tuple(before)
        memory, sent = jax.lax.cond(due, sampled, lambda: held)
        age = step // self.every - (step - self.delay) // self.every
        acts = jnp.arange(self.memory + 1)[:, None] == jnp.broadcast_to(age, (1, sent.shape[-1]))
        acting = jnp.where(jnp.broadcast_to(acts, sent.shape), sent, 0).sum(axis=-2)
        return (step + 1, memory, sent), acting.astype(x.dtype)
