"""Plants as environments for anybody's reinforcement learning code, with each return beside the optimum's.

Names are loaded when they are first used, so that Gymnasium learns this room's ids without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING

from lqrlab.extensions.environments.ids import register

if TYPE_CHECKING:
    from lqrlab.extensions.environments.actions import Action, Channel, Full, Levels, Mask, Range
    from lqrlab.extensions.environments.agents import AgentPolicy, host_agent, optimal
    from lqrlab.extensions.environments.core import Environment
    from lqrlab.extensions.environments.episode_recording import Recorder, play
    from lqrlab.extensions.environments.factory import make
    from lqrlab.extensions.environments.libraries import (
        BraxEnv,
        brax,
        brax_agent,
        gymnax,
    )
    from lqrlab.extensions.environments.spaces import Box, Discrete
    from lqrlab.extensions.environments.state import State
    from lqrlab.extensions.environments.state_files import load, save
    from lqrlab.extensions.environments.vectorised import batch_reset, batch_step

_MODULES = {
    "actions": ("Action", "Channel", "Full", "Levels", "Mask", "Range"),
    "core": ("Environment",),
    "episode_recording": ("Recorder", "play"),
    "agents": ("AgentPolicy", "host_agent", "optimal"),
    "libraries": ("BraxEnv", "brax", "brax_agent", "gymnax"),
    "factory": ("make",),
    "vectorised": ("batch_reset", "batch_step"),
    "state": ("State",),
    "spaces": ("Box", "Discrete"),
    "state_files": ("load", "save"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Action", "AgentPolicy", "Box", "BraxEnv", "Channel", "Discrete", "Environment", "Full", "Levels", "Mask",
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
