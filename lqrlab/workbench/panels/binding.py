"""A controller bound to a plant: a network, a policy, or a function that makes a policy for a plant."""

import inspect
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from lqrlab import control, learning
from lqrlab.simulation import LinearPolicy, Policy
from lqrlab.systems import Plant

Controller = nnx.Module | Policy | Callable[[Plant], Policy] | str | Path


def bind(controller: Controller, plant: Plant) -> Policy:
    """The policy of a controller on one plant, or a ``ValueError``.

    It is a network, which is given the plant's description; the ``checkpoints`` folder of a run, for its best network;
    a policy, taken as it is; or a function from a plant to a policy.
    """
    if isinstance(controller, str | Path):
        controller = learning.load(controller, "best")
    if isinstance(controller, nnx.Module):
        bound = learning.policy(controller, plant)
        return _constant_gain(bound, plant) if controller.linear else bound  # type: ignore[attr-defined]
    if callable(controller) and hasattr(controller, "init"):
        return controller  # type: ignore[return-value]
    expected = "policy: expected a network, a policy, a checkpoints folder or a function plant → policy"
    if not callable(controller):
        hint = "; the policy of a gain K is simulation.LinearPolicy(K)" * hasattr(controller, "shape")
        raise ValueError(f"{expected}, but found {type(controller).__name__}{hint}")
    signature = inspect.signature(controller)
    try:
        signature.bind(plant)
    except TypeError:
        raise ValueError(f"{expected}, but found a function of {signature}") from None
    return controller(plant)


def optimal(plant: Plant) -> LinearPolicy:
    """The plant's sampled-data LQR."""
    return LinearPolicy(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)


def _constant_gain(policy: Policy, plant: Plant) -> LinearPolicy:
    """The gain of a policy that is linear in the state and has no memory, from its inputs at unit states."""
    units = jnp.eye(plant.n) * plant.scales[0]
    _, us = jax.jit(lambda p, x: p(p.init(x.shape[:-1]), x))(policy, units)
    return LinearPolicy(-(us / plant.scales[0][:, None]).T.astype(float))
