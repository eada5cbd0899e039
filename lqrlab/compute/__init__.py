"""Where and how arrays are computed: settings, devices, small linear algebra, batching, timing."""

from lqrlab.compute import linalg
from lqrlab.compute.backend import Backend, setup
from lqrlab.compute.batching import broadcast
from lqrlab.compute.pytrees import pytree
from lqrlab.compute.timing import Timing, timeit

__all__ = ["Backend", "Timing", "broadcast", "linalg", "pytree", "setup", "timeit"]
