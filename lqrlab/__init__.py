"""lqrlab: a library and a notebook-first workbench for optimal and learned control, in JAX.

The library, in the order that data flows: :mod:`compute`, :mod:`systems`, :mod:`control`, :mod:`simulation`,
:mod:`dataset`, :mod:`learning`, :mod:`evaluation`. On top of it :mod:`workbench`, what people see and start, and the
subjects of :mod:`lqrlab.extensions`, each of which is a name here too: ``import lqrlab.predictive``,
``from lqrlab import predictive``. Each is loaded when it is first named, so that asking for one does not pay for all.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

__version__ = "0.3.0.dev0"
LIBRARY = ("compute", "systems", "control", "simulation", "dataset", "learning", "evaluation")
"""The library's subpackages: each imports only those before it."""
EXTENSIONS = (
    "predictive", "robust", "classical", "tuning", "unknown",
    "identification", "environments", "robots", "deployment", "controllers",
)  # fmt: skip
"""Extensions of the library, in ``lqrlab.extensions``; the library imports none of them."""
__all__ = [*LIBRARY, "workbench", *EXTENSIONS]


class _Extensions(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``lqrlab.predictive`` where it is, in ``lqrlab.extensions``: one module under two names."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        parent, _, extension = name.partition(".")
        found = parent == __name__ and extension.partition(".")[0] in EXTENSIONS
        return importlib.machinery.ModuleSpec(name, self) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        from lqrlab.installation import extras, of_extra

        _, subject, *inner = spec.name.split(".")
        needs = extras(subject, *["workbench"] * bool(inner))  # as its figures do
        module = of_extra(".".join([__name__, "extensions", subject, *inner]), needs, spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Keep the first name: the module was executed under it."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Extensions())
if "gymnasium" in sys.modules:  # which has no entry points: else the ids are registered when environments is named
    importlib.import_module("lqrlab.extensions.environments.ids").register()


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
