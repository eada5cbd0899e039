"""Host memory that JAX on a CPU takes over as it is, used again when nobody needs it any more."""

import math
import sys
import threading

import numpy as np
from numpy.typing import DTypeLike

BOUNDARY = 64
"""Bytes; an array that begins at a multiple is taken over by JAX on a CPU without a copy."""

_SPARE, _MOST = 32, 512_000_000  # buffers that are kept for what comes next, and their bytes together
_kept: list[np.ndarray] = []
_lock = threading.Lock()


def on_boundary(buffer: np.ndarray, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array on the first :data:`BOUNDARY` of a buffer of bytes that is at least as much longer."""
    start = -buffer.ctypes.data % BOUNDARY
    return buffer[start : start + math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def _references(buffers: list[np.ndarray]) -> list[int]:
    """How often each is referred to, this list and this question included."""
    return [sys.getrefcount(buffer) for buffer in buffers]


_IDLE = _references([np.empty(0)])[0]


def aligned(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
    """An uninitialised array on a boundary of :data:`BOUNDARY` bytes.

    Memory that no array refers to any more, JAX's neither, is used again: fresh pages cost more than filling
    them. At most 512 MB of it are held at a time.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize + BOUNDARY
    with _lock:
        free = [i for i, n in enumerate(_references(_kept)) if n == _IDLE]
        same = [i for i in free if _kept[i].size == size]
        if same:
            return on_boundary(_kept[same[0]], shape, dtype)
        buffer = np.empty(size, np.uint8)
        if size <= _MOST:
            _kept.append(buffer)
            # the oldest go first, whether they are in use or not: who uses one holds it too
            while len(_kept) > _SPARE or sum(b.size for b in _kept) > _MOST:
                del _kept[0]
        return on_boundary(buffer, shape, dtype)
