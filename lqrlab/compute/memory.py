"""Host memory that JAX on a CPU takes over as it is."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

_BOUNDARY = 64  # bytes; JAX copies an array that begins elsewhere


def aligned(
    shape: tuple[int, ...], dtype: DTypeLike = np.float32, make: Callable[..., np.ndarray] = np.empty
) -> np.ndarray:
    """An array on a boundary of 64 bytes, uninitialised or as ``make`` (``np.zeros``) fills bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = make(size + _BOUNDARY, np.uint8)
    start = -buffer.ctypes.data % _BOUNDARY
    return buffer[start : start + size].view(dtype).reshape(shape)
