"""Controllers of all kinds bound to a problem: one table, which everything that takes a controller asks.

A new kind of controller is one row. Subpackages further down add theirs when they are imported, and say so in the entry
points ``lqrlab.controllers``, so that a row is found before anybody has imported them.
"""

import dataclasses
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lqrlab.compute import checks
from lqrlab.control import ILQR, LQG, LQR, MPC, PID, Compensator, Integral, LQTracking, TimeVaryingLQR
from lqrlab.simulation import memory_policies
from lqrlab.simulation.policies import LinearPolicy, Policy, tracking
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.receding_horizon import predictive
from lqrlab.systems import Plant, check_plant

MODULES = "lqrlab.controllers"
"""Entry points of modules that add rows when they are imported."""


class Kind(NamedTuple):
    """A row of the table: one kind of controller.

    Attributes:
        words: the kind in words, for the sentence that refuses what is none.
        recognises: whether something is of it.
        bind: its policy on a problem, which has K and P only if it was :meth:`Problem.solved`; a ``ValueError`` in
            words where it does not go with the problem.
    """

    words: str
    recognises: Callable[[object], bool]
    bind: Callable[..., Policy]


def is_policy(controller: object) -> bool:
    """True if something has a policy's ``init`` and can be called."""
    return callable(controller) and callable(getattr(controller, "init", None))


def _is_gain(controller: object) -> bool:
    """An array, or nested lists of numbers."""
    if isinstance(controller, list | tuple):
        if checks.traced(controller):
            return True
        try:
            return bool(controller) and np.asarray(controller).dtype.kind in "fiu"
        except ValueError:  # rows of several lengths
            return False
    return isinstance(controller, jax.Array | np.ndarray)


def _gain(K: object, problem: Problem, policy: LinearPolicy | None = None) -> LinearPolicy:
    """The policy of a gain, or the one that has it already, if it is one for the problem's states and inputs."""
    K = jnp.asarray(checks.real("controller", K), float if isinstance(K, list | tuple) else None)
    if K.shape[-2:] != (problem.m, problem.n):
        late = (K.shape[-1:] or (0,))[0] - problem.n
        hint = "; simulation.delayed makes the policy of a gain on inputs that are on their way"
        raise ValueError(
            f"controller: expected a gain K of shape [..., {problem.m}, {problem.n}], inputs by states of "
            f"{problem.name}, but found {K.shape}{hint if late > 0 and late % problem.m == 0 else ''}"
        )
    return LinearPolicy(K) if policy is None else policy


def _function(make: Callable[[Problem], object], problem: Problem) -> Policy:
    """The policy that a function makes for the problem."""
    signature = inspect.signature(make)
    try:
        signature.bind(problem)
    except TypeError:
        raise ValueError(
            f"controller: expected a function from a problem to a policy, but found one of {signature}"
        ) from None
    made = make(_with_optimum(problem))
    if not is_policy(made) and callable(made):
        raise ValueError(
            f"controller: expected a function from a problem to a policy, but it returned {type(made).__name__}"
        )
    return bind(made, problem)


def _with_optimum(problem: Problem) -> Problem:
    """The problem with K and P, which a function may ask for, unless there are none or it is hidden."""
    hidden = not checks.traced(problem.A) and not np.isfinite(problem.A).all()
    if problem.P is not None or hidden:
        return problem
    try:
        return problem.solved(check=False)
    except ValueError:  # without an optimum it can be controlled all the same
        return problem


TABLE: list[Kind] = [
    Kind("a gain K", _is_gain, _gain),
    Kind("a regulator", lambda c: isinstance(c, LQR), lambda c, problem: _gain(c.K, problem)),
    Kind("an LQG design", lambda c: isinstance(c, LQG), lambda c, problem: memory_policies.estimated(problem, c)),
    Kind(
        "a design with integral action",
        lambda c: isinstance(c, Integral),
        lambda c, problem: memory_policies.integrating(problem, c),
    ),
    Kind("PID loops", lambda c: isinstance(c, PID), lambda c, problem: memory_policies.pid_loops(problem, c)),
    Kind(
        "a compensator",
        lambda c: isinstance(c, Compensator),
        lambda c, problem: memory_policies.compensated(problem, c),
    ),
    Kind("a predictive controller", lambda c: isinstance(c, MPC), lambda c, problem: predictive(problem, c)),
    Kind(
        "a plan over a horizon",
        lambda c: isinstance(c, ILQR | LQTracking | TimeVaryingLQR),
        lambda c, problem: tracking(problem, c),
    ),
]
"""Kinds of controllers, the first that recognises one binds it; a policy is one already."""
_FUNCTION = Kind("a function from a problem to a policy", callable, _function)


def bind(controller: object, problem: Problem | Plant) -> Policy:
    """The policy of a controller on the plants of a problem.

    Args:
        controller: a policy, taken as it is; a gain; a design of :mod:`lqrlab.control` (LQR, LQG, LQI, PID, MPC, a
            plan); a network or the ``checkpoints`` folder of one; an agent of a reinforcement learning library; or a
            function from the problem to any of these.
        problem: what it is to control.

    Raises:
        ValueError: what is no controller, or does not go with the problem, in words.

    >>> plant = systems.make("pendulum")
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> simulation.bind(optimum, plant).K.shape, simulation.bind([[-20.0, -5.0]], plant).K.shape
    ((1, 2), (1, 2))
    """
    check_controller(controller)
    if not isinstance(problem, Problem):
        check_plant(problem)
        problem = Problem.of(problem, optimum=False)
    if is_policy(controller):
        policy = controller.as_gain() if hasattr(controller, "as_gain") else controller
        _check_steps(policy, problem.dt)
        return _gain(policy.K, problem, policy) if type(policy) is LinearPolicy else policy  # type: ignore[return-value]
    return (recognised(controller) or _FUNCTION).bind(controller, problem)


def _check_steps(policy: object, dt: Array) -> None:
    """Refuse a policy that is made for another step than ``dt``, or that holds one or an estimator that is."""
    if hasattr(policy, "check_step"):
        policy.check_step(dt)
    if dataclasses.is_dataclass(policy):
        inside = [getattr(policy, field.name) for field in dataclasses.fields(policy)]
        slower = dt * getattr(policy, "every", 1)
        for part in inside:
            if is_policy(part) or hasattr(part, "check_step"):
                _check_steps(part, slower)


def check_controller(controller: object) -> None:
    """Refuse what is no kind of controller, where there is no problem yet to bind it to."""
    if callable(controller) or recognised(controller) is not None:
        return
    words = ", ".join(kind.words for kind in (*TABLE, _FUNCTION))
    raise ValueError(f"controller: expected a policy, {words}, but found {type(controller).__name__}")


def recognised(controller: object) -> Kind | None:
    """The row of the table for a controller; None for a policy, a function, and what is no controller."""
    found = next((kind for kind in TABLE if kind.recognises(controller)), None)
    if found is None and not callable(controller):  # perhaps of a subpackage that nobody has imported yet
        for point in importlib.metadata.entry_points(group=MODULES):
            point.load()
        found = next((kind for kind in TABLE if kind.recognises(controller)), None)
    return found
