"""Computing: settings, devices, compilation, debugging, linear algebra, batching, timing.

Each name is loaded when it is first used: what needs no arrays (``checks``, ``configuration``, ``files``) serves the
command line, which must not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lqrlab.compute import debugging, linalg
    from lqrlab.compute.backend import Backend, setup
    from lqrlab.compute.broadcasting import broadcast
    from lqrlab.compute.compilation import Compiled, CompileReport, EagerFallbackWarning, compile
    from lqrlab.compute.jit import jit_by_function, quick_jit
    from lqrlab.compute.processes import join
    from lqrlab.compute.pytrees import pytree
    from lqrlab.compute.timing import Timing, seconds, timeit

_HOME = {
    **dict.fromkeys(("Backend", "setup"), "backend"),
    **dict.fromkeys(("CompileReport", "Compiled", "EagerFallbackWarning", "compile"), "compilation"),
    **dict.fromkeys(("jit_by_function", "quick_jit"), "jit"),
    **dict.fromkeys(("join",), "processes"),
    **dict.fromkeys(("Timing", "seconds", "timeit"), "timing"),
    **{"broadcast": "broadcasting", "pytree": "pytrees", "debugging": "", "linalg": ""},
}

__all__ = [
    "Backend",
    "CompileReport",
    "Compiled",
    "EagerFallbackWarning",
    "Timing",
    "broadcast",
    "compile",
    "debugging",
    "jit_by_function",
    "join",
    "linalg",
    "pytree",
    "quick_jit",
    "seconds",
    "setup",
    "timeit",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name] or name}")
    return getattr(module, name) if _HOME[name] else module


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
