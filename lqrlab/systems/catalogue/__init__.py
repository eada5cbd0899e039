"""The built-in families, one module a field; importing this registers them in this order."""

import importlib

FIELDS = (
    *("oscillators", "pendulums", "carts", "arms", "robots", "mobile", "vehicles"),
    *("aerial", "hovering", "space", "electrical", "power", "process"),
)
"""Modules of the catalogue."""

for _field in FIELDS:
    importlib.import_module(f"{__name__}.{_field}")
