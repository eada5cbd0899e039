"""Gymnasium's ids of the catalogue's families; imports nothing heavy.

Gymnasium 1.0 gave up entry points, so ids are there once lqrlab is imported after Gymnasium, or this subpackage is,
which ``gymnasium.make("lqrlab.extensions.environments:lqrlab/CartPole-v0")`` does by itself.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

from lqrlab.compute.configuration import snake_case

_CATALOGUE = Path(__file__).parents[2] / "systems" / "catalogue"
_FAMILY = re.compile(r"^class (\w+)\((?:(?!^class ).*\n)*? {4}inputs\b", re.MULTILINE)  # it lists its inputs
FAMILIES = tuple(
    snake_case(name)
    for file in sorted(_CATALOGUE.glob("*.py"))
    for name in _FAMILY.findall(file.read_text(encoding="utf-8"))
)
"""The catalogue's families, read from its source: importing it would wait for JAX."""
_HOME = "lqrlab.extensions.environments.gymnasium_adapter"


def gymnasium_id(family: str) -> str:
    """``cart_pole`` → ``lqrlab/CartPole-v0``."""
    return f"lqrlab/{''.join(part.capitalize() for part in family.split('_'))}-v0"


def register() -> None:
    """Tell Gymnasium, where it is installed, all families, and ``lqrlab/Plant-v0`` for ``make(id, plant=...)``."""
    if importlib.util.find_spec("gymnasium") is None:
        return
    from gymnasium.envs.registration import register as enter
    from gymnasium.envs.registration import registry

    if "lqrlab/Plant-v0" in registry:
        return
    entry: dict[str, Any] = {"entry_point": f"{_HOME}:PlantEnv", "vector_entry_point": f"{_HOME}:PlantVectorEnv"}
    enter("lqrlab/Plant-v0", **entry)
    for family in FAMILIES:
        enter(gymnasium_id(family), **entry, kwargs={"plant": family})
