"""What panels and notebooks put beside the LQR: a network, a policy, or anything that makes one for a plant."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from lqrlab import control, learning
from lqrlab.simulation import LinearPolicy, Policy
from lqrlab.systems import Plant

Contender = nnx.Module | Policy | Callable[[Plant], Policy] | str | Path


def bind(contender: Any, plant: Plant) -> Policy:
    """The policy of a contender on one plant.

    Args:
        contender: a network, which is told of the plant; the ``checkpoints`` folder of a run, for its best network; a
            policy, taken as it is; or a function from a plant to a policy.
        plant: one plant.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(contender, str | Path):
        contender = learning.load(contender, "best")
    if isinstance(contender, nnx.Module):
        bound = learning.policy(contender, plant)
        return _gain(bound, plant) if contender.linear else bound  # type: ignore[attr-defined]
    if callable(contender) and hasattr(contender, "init"):
        return contender
    expected = (
        "policy: expected a network, a policy, a checkpoints folder or a function plant → policy, but found"
    )
    if not callable(contender):
        hint = "; the policy of a gain K is simulation.LinearPolicy(K)" if hasattr(contender, "shape") else ""
        raise ValueError(f"{expected} {type(contender).__name__}{hint}")
    takes = inspect.signature(contender)
    try:
        takes.bind(plant)
    except TypeError:
        raise ValueError(f"{expected} a function of {takes}") from None
    return contender(plant)


def optimal(plant: Plant) -> LinearPolicy:
    """The plant's own sampled-data LQR."""
    return LinearPolicy(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)


def _gain(policy: Policy, plant: Plant) -> LinearPolicy:
    """A network that answers with a gain, as that gain: what it says to each state alone."""
    units = jnp.eye(plant.n) * plant.scales[0]
    _, us = jax.jit(lambda p, x: p(p.init(x.shape[:-1]), x))(policy, units)
    return LinearPolicy(-(us / plant.scales[0][:, None]).T.astype(float))
