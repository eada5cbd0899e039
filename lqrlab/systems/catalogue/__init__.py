"""The built-in families, one module a field; importing this registers them in this order."""

import importlib

from lqrlab.systems.families import enter
from lqrlab.systems.plant import Plant

FIELDS = (
    *("oscillators", "pendulums", "carts", "arms", "robots", "mobile", "vehicles"),
    *("aerial", "hovering", "space", "electrical", "power", "process"),
)
"""Modules of the catalogue; each class in them that lists its inputs is a family."""

for _field in FIELDS:
    _module = importlib.import_module(f"{__name__}.{_field}")
    for _cls in vars(_module).values():
        if isinstance(_cls, type) and issubclass(_cls, Plant) and vars(_cls).get("inputs"):
            enter(_cls)
