"""The built-in families, one module a field, in this order, loaded when one of its families is asked for."""

import re
from pathlib import Path

from lqrlab.compute.configuration import snake_case

FIELDS = (
    *("oscillators", "pendulums", "arms", "robots", "vehicles"),
    *("aircraft", "space", "electrical", "power", "process"),
)
"""Modules of the catalogue; each class in them that lists its inputs is a family."""
_FAMILY = re.compile(r"^class (\w+)\(.*\):\n(?:(?:[ \t].*)?\n)*?    inputs = ", re.MULTILINE)


def places() -> dict[str, str]:
    """Family → ``module:class``, read off the files."""
    files = ((f"{__name__}.{field}", Path(__file__).with_name(f"{field}.py")) for field in FIELDS)
    return {
        snake_case(name): f"{module}:{name}"
        for module, file in files
        for name in _FAMILY.findall(file.read_text(encoding="utf-8"))
    }
