"""Plants as reinforcement-learning environments, with each return next to the optimum's.

Names are loaded when they are first used, so that Gymnasium learns the ids of this subpackage without waiting for JAX.
"""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily
from lqrlab.extensions.environments.ids import register

if TYPE_CHECKING:
    from lqrlab.extensions.environments.actions import Action, InputChannel, Mask
    from lqrlab.extensions.environments.agents import AgentPolicy, optimal, play
    from lqrlab.extensions.environments.core import Environment, State
    from lqrlab.extensions.environments.episode_recording import Recorder, load, save
    from lqrlab.extensions.environments.factory import make
    from lqrlab.extensions.environments.gymnax_adapter import gymnax
    from lqrlab.extensions.environments.settings import BoxSpace, Discrete, Settings
    from lqrlab.extensions.environments.vectorised import batch_reset, batch_step

__getattr__, __dir__, __all__ = lazily(__name__)

register()
