"""Where and how arrays are computed: settings, devices, compilation, debugging, linear algebra, batching, timing."""

from lqrlab.compute import debugging, linalg
from lqrlab.compute.backend import Backend, setup
from lqrlab.compute.broadcasting import broadcast
from lqrlab.compute.compiling import Compiled, CompileReport, EagerFallbackWarning, compile
from lqrlab.compute.processes import grouped, join, start
from lqrlab.compute.pytrees import pytree
from lqrlab.compute.quick import quick_jit
from lqrlab.compute.timing import Timing, timeit

__all__ = [
    "Backend",
    "CompileReport",
    "Compiled",
    "EagerFallbackWarning",
    "Timing",
    "broadcast",
    "compile",
    "debugging",
    "grouped",
    "join",
    "linalg",
    "pytree",
    "quick_jit",
    "setup",
    "start",
    "timeit",
]
