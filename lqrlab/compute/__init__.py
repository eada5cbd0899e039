"""Where and how arrays are computed: settings, devices, compilation, debugging, linear algebra, batching, timing.

Each name is loaded when it is first used: what needs no arrays (``checks``, ``config``, ``files``) serves the
command line, which must not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING

from lqrlab.compute.forking import refuse_in_children

if TYPE_CHECKING:
    from lqrlab.compute import debugging, linalg
    from lqrlab.compute.backend import Backend, setup
    from lqrlab.compute.broadcasting import broadcast
    from lqrlab.compute.by_function import jit_by_function
    from lqrlab.compute.compiling import Compiled, CompileReport, EagerFallbackWarning, compile
    from lqrlab.compute.processes import grouped, join, start
    from lqrlab.compute.pytrees import pytree
    from lqrlab.compute.quick import quick_jit
    from lqrlab.compute.timing import Timing, seconds, timeit

_MODULES = {
    "backend": ("Backend", "setup"),
    "broadcasting": ("broadcast",),
    "by_function": ("jit_by_function",),
    "compiling": ("CompileReport", "Compiled", "EagerFallbackWarning", "compile"),
    "processes": ("grouped", "join", "start"),
    "pytrees": ("pytree",),
    "quick": ("quick_jit",),
    "timing": ("Timing", "seconds", "timeit"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Backend", "CompileReport", "Compiled", "EagerFallbackWarning", "Timing", "broadcast", "compile", "debugging",
    "grouped", "jit_by_function", "join", "linalg", "pytree", "quick_jit", "seconds", "setup", "start", "timeit",
]  # fmt: skip

refuse_in_children()


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
