"""Computing: settings, devices, compilation, debugging, linear algebra, batching, timing.

Each name is loaded when it is first used: what needs no arrays (``checks``, ``configuration``, ``files``) serves the
command line, which must not wait for JAX.
"""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.compute import debugging, linalg
    from lqrlab.compute.backend import Backend, join, setup
    from lqrlab.compute.compilation import Compiled, CompileReport, EagerFallbackWarning, compile
    from lqrlab.compute.debugging import Timing, seconds, timeit
    from lqrlab.compute.jit import as_jax, broadcast, jit_by_function, one_program, quick_jit
    from lqrlab.compute.pytrees import pytree

__getattr__, __dir__, __all__ = lazily(__name__)
