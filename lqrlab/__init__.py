"""lqrlab: a library and a notebook-first workbench for optimal and learned control, in JAX.

The library, in the order that data flows: :mod:`compute`, :mod:`systems`, :mod:`control`, :mod:`simulation`,
:mod:`dataset`, :mod:`learning`, :mod:`evaluation`. On top of it :mod:`workbench`, what people see and start; and the
extensions :mod:`identification`, :mod:`environments`, :mod:`robots`, :mod:`deployment`, each with an extra of its own.
Each is loaded when it is first named, so that asking for one does not pay for all.
"""

import importlib
import sys
from typing import Any

__version__ = "0.3.0.dev0"
LIBRARY = ("compute", "systems", "control", "simulation", "dataset", "learning", "evaluation")
"""The library's subpackages: each imports only those before it."""
EXTENSIONS = ("identification", "environments", "robots", "deployment")
"""What nothing else imports; in ``lqrlab.extensions``, and by name here."""
__all__ = [*LIBRARY, "workbench", *EXTENSIONS]

if "gymnasium" in sys.modules:  # which has no entry points: else the ids are registered when environments is named
    importlib.import_module("lqrlab.extensions.environments.ids").register()


def __getattr__(name: str) -> Any:
    if name in EXTENSIONS:
        from lqrlab.compute import extras

        return extras.load(f"{__name__}.extensions.{name}", name, f"lqrlab.{name}")
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
