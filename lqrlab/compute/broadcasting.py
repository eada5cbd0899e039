"""One rule of broadcasting for functions that are written for a single problem."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

R = TypeVar("R")


def broadcast(fn: Callable[..., R], *args: tuple[ArrayLike | None, int]) -> R:
    """Call ``fn`` over all leading axes of its array arguments, which broadcast against each other.

    Args:
        fn: function of ``len(args)`` arrays, written for one problem.
        args: pairs ``(array or None, core dimensions)``: a matrix has 2, a vector 1, a scalar 0. None is
            handed on as it is.

    Returns:
        What ``fn`` returns, each leaf with the broadcast leading axes in front.

    >>> compute.broadcast(lambda A, x: A @ x, (np.ones((5, 2, 3)), 2), (np.ones(3), 1)).shape
    (5, 2)
    """
    given = [(jnp.asarray(a), core) for a, core in args if a is not None]
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in given))
    arrays, axes = [], []
    for a, core in given:
        split = a.ndim - core
        sizes = (1,) * (len(lead) - split) + a.shape[:split]
        # an axis of length one is not mapped over, so a shared argument is not copied
        mapped = [size != 1 or full == 1 for size, full in zip(sizes, lead)]
        arrays.append(a.reshape(*(size for size, over in zip(sizes, mapped) if over), *a.shape[split:]))
        axes.append([0 if over else None for over in mapped])

    def call(*values: Array) -> R:
        remaining = iter(values)
        return fn(*(None if a is None else next(remaining) for a, _ in args))

    for in_axes in reversed(list(zip(*axes))):
        call = jax.vmap(call, in_axes=in_axes)
    return call(*arrays)
