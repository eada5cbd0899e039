"""Plants as environments for anybody's reinforcement learning code, with each return next to the optimum's.

Names are loaded when they are first used, so that Gymnasium learns the ids of this subpackage without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING

from lqrlab.extensions.environments.ids import register

if TYPE_CHECKING:
    from lqrlab.extensions.environments.actions import Action, InputChannel, InputRange, Levels, Mask
    from lqrlab.extensions.environments.agents import AgentPolicy, optimal
    from lqrlab.extensions.environments.core import Environment
    from lqrlab.extensions.environments.episode_recording import Recorder, play
    from lqrlab.extensions.environments.factory import make
    from lqrlab.extensions.environments.gymnax_adapter import gymnax
    from lqrlab.extensions.environments.settings import Settings
    from lqrlab.extensions.environments.spaces import BoxSpace, Discrete
    from lqrlab.extensions.environments.state import State
    from lqrlab.extensions.environments.state_files import load, save
    from lqrlab.extensions.environments.vectorised import batch_reset, batch_step

_MODULES = {
    "actions": ("Action", "InputChannel", "InputRange", "Levels", "Mask"),
    "agents": ("AgentPolicy", "optimal"),
    "core": ("Environment",),
    "episode_recording": ("Recorder", "play"),
    "factory": ("make",),
    "gymnax_adapter": ("gymnax",),
    "settings": ("Settings",),
    "spaces": ("BoxSpace", "Discrete"),
    "state": ("State",),
    "state_files": ("load", "save"),
    "vectorised": ("batch_reset", "batch_step"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_HOME]

register()


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
