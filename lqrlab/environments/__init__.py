"""Plants as environments for anybody's reinforcement learning code, with each return beside the optimum's.

Names are loaded when they are first used, so that Gymnasium learns this room's ids without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING

from lqrlab.environments.ids import register

if TYPE_CHECKING:
    from lqrlab.environments.actions import Action, Channel, Full, Levels, Mask, Range
    from lqrlab.environments.core import Environment
    from lqrlab.environments.keeping import Recorder, play
    from lqrlab.environments.libraries import (
        AgentPolicy,
        BraxEnv,
        brax,
        brax_agent,
        gymnax,
        host_agent,
        optimal,
    )
    from lqrlab.environments.making import make
    from lqrlab.environments.many import batch_reset, batch_step
    from lqrlab.environments.spaces import Box, Discrete
    from lqrlab.environments.state import Model, State
    from lqrlab.environments.state_files import load, save

_MODULES = {
    "actions": ("Action", "Channel", "Full", "Levels", "Mask", "Range"),
    "core": ("Environment",),
    "keeping": ("Recorder", "play"),
    "libraries": ("AgentPolicy", "BraxEnv", "brax", "brax_agent", "gymnax", "host_agent", "optimal"),
    "making": ("make",),
    "many": ("batch_reset", "batch_step"),
    "state": ("Model", "State"),
    "spaces": ("Box", "Discrete"),
    "state_files": ("load", "save"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Action", "AgentPolicy", "Box", "BraxEnv", "Channel", "Discrete", "Environment", "Full", "Levels", "Mask", "Model",
    "Range", "Recorder", "State", "batch_reset", "batch_step", "brax", "brax_agent", "gymnax", "host_agent", "load",
    "make", "optimal", "play", "save",
]  # fmt: skip


register()


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
