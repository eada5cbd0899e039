"""Controllers of all kinds bound to a problem: one generic function, which everything that takes a controller calls.

A new kind of controller is one registration, beside its class: ``@simulation.bind.register(MyController)`` over a
function ``(controller, problem) -> policy``. The problem has K and P only if it was solved; what does not go with the
problem is refused by a ``ValueError`` in words.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lqrlab.compute import checks
from lqrlab.simulation.policies import LinearPolicy, Policy, tracking
from lqrlab.simulation.problem import Problem
from lqrlab.systems import Plant, check_plant


def is_policy(controller: object) -> bool:
    """True if something has a policy's ``init`` and can be called."""
    return callable(controller) and callable(getattr(controller, "init", None))


@functools.singledispatch
def _bound(controller: Any, problem: Problem) -> Policy:
    """A policy as it is, a gain, or what a function makes for the problem."""
    if _is_gain(controller):
        return _gain(controller, problem)
    if not is_policy(controller):
        return bind(made(controller, problem), problem)
    policy = controller.as_gain() if hasattr(controller, "as_gain") else controller
    _check_steps(policy, problem.dt)
    return _gain(policy.K, problem) if type(policy) is LinearPolicy else policy


class Bind(Protocol):
    """The function, and the decorator that registers another kind of controller with it."""

    register: Any

    def __call__(self, controller: object, problem: Problem | Plant) -> Policy:
        """The policy of a controller on the plants of a problem."""


def _registering(function: Any) -> Bind:
    function.register = _bound.register
    return function


@_registering
def bind(controller: object, problem: Problem | Plant) -> Policy:
    """The policy of a controller on the plants of a problem.

    Args:
        controller: a policy, taken as it is; a gain; a design (LQR, LQG, LQI, PID, MPC, a plan); a network or the
            ``checkpoints`` folder of one; an agent of a reinforcement learning library; or a function from the
            problem to any of these.
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
    return _bound(controller, problem)


def _remembering(name: str) -> Callable[[Any, Problem], Policy]:
    """A policy of :mod:`lqrlab.simulation.memory_policies`, which is loaded when the first is made."""

    def make(controller: Any, problem: Problem) -> Policy:
        return getattr(importlib.import_module("lqrlab.simulation.memory_policies"), name)(problem, controller)

    return make


_DESIGNS = {
    "lqrlab.control.regulator.LQR": lambda design, problem: _gain(design.K, problem),
    "lqrlab.control.estimation.LQG": _remembering("estimated"),
    "lqrlab.control.state_space.StateSpace": _remembering("measuring"),
    "lqrlab.control.servo.Integral": _remembering("integrating"),
    "lqrlab.control.horizon.LQTracking": lambda plan, problem: tracking(problem, plan),
}
"""Designs that stand below this room and are registered when one of them comes, so that nothing loads them before."""


def recognised(controller: object) -> bool:
    """True if something is a gain or of a registered kind: not of a policy or a function."""
    for kind in type(controller).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _DESIGNS and kind not in _bound.registry:
            _bound.register(kind, _DESIGNS[name])
    return _is_gain(controller) or _bound.dispatch(type(controller)) is not _bound.registry[object]


def check_controller(controller: object) -> None:
    """Refuse what is no kind of controller, where there is no problem yet to bind it to."""
    if recognised(controller) or callable(controller):
        return
    names = {kind.__name__ for kind in _bound.registry if kind is not object}
    known = ", ".join(sorted(names | {name.rpartition(".")[2] for name in _DESIGNS}))
    raise ValueError(
        f"controller: expected a policy, a gain K, a function from a problem to a policy, or one of {known}, but found "
        f"{type(controller).__name__}"
    )


def _is_gain(controller: object) -> bool:
    """An array, or nested lists of numbers."""
    if isinstance(controller, list | tuple):
        leaves = jax.tree.leaves(controller)
        return bool(leaves) and all(isinstance(a, int | float | np.number | jax.Array) for a in leaves)
    return isinstance(controller, jax.Array | np.ndarray)


def _gain(K: object, problem: Problem) -> LinearPolicy:
    """The policy of a gain, if it is one for the problem's states and inputs."""
    K = jnp.asarray(checks.real("controller", K), float if isinstance(K, list | tuple) else None)
    if K.shape[-2:] != (problem.m, problem.n):
        late = (K.shape[-1:] or (0,))[0] - problem.n
        hint = "; simulation.delayed makes the policy of a gain on inputs that are on their way"
        raise ValueError(
            f"controller: expected a gain K of shape [..., {problem.m}, {problem.n}], inputs by states of "
            f"{problem.name}, but found {K.shape}{hint if late > 0 and late % problem.m == 0 else ''}"
        )
    return LinearPolicy(K)


def made(make: Callable[[Problem], object], problem: Problem) -> object:
    """The controller that a function makes for the problem."""
    signature = inspect.signature(make)
    try:
        signature.bind(problem)
    except TypeError:
        raise ValueError(
            f"controller: expected a function from a problem to a policy, but found one of {signature}"
        ) from None
    found = make(_with_optimum(problem))
    if not is_policy(found) and callable(found):
        raise ValueError(
            f"controller: expected a function from a problem to a policy, but it returned {type(found).__name__}"
        )
    return found


def _with_optimum(problem: Problem) -> Problem:
    """The problem with K and P, which a function may ask for, unless there are none or it is hidden."""
    hidden = not checks.traced(problem.A) and not np.isfinite(problem.A).all()
    if problem.P is not None or hidden:
        return problem
    try:
        return problem.solved(check=False)
    except ValueError:  # without an optimum it can be controlled all the same
        return problem


def _check_steps(policy: object, dt: Array) -> None:
    """Refuse a policy that is made for another step than ``dt``, or that holds one or an estimator that is."""
    if hasattr(policy, "check_step"):
        policy.check_step(dt)
    if dataclasses.is_dataclass(policy):
        inside = [getattr(policy, field.name) for field in dataclasses.fields(policy)]
        slower = dt * policy.every if hasattr(policy, "every") else dt
        for part in inside:
            if is_policy(part) or hasattr(part, "check_step"):
                _check_steps(part, slower)
