"""One rule of broadcasting for functions that are written for a single problem."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def broadcast(fn: Callable, *args: tuple[Array | None, int]) -> Any:
    """Call ``fn`` over all leading axes of its array arguments, which broadcast against each other.

    Args:
        fn: function of ``len(args)`` arrays, written for one problem.
        args: pairs ``(array or None, core dimensions)``: a matrix has 2, a vector 1, a scalar 0. None is
            handed on as it is.

    Returns:
        What ``fn`` returns, each leaf with the broadcast leading axes in front.
    """
    arrays = [(jnp.asarray(a), core) for a, core in args if a is not None]
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in arrays))
    axes: list[list[int | None]] = []
    flat = []
    for a, core in arrays:
        own = (1,) * (len(lead) - (a.ndim - core)) + a.shape[: a.ndim - core]
        # an axis of length one is not mapped over, so a shared argument is not copied
        axes.append([0 if size != 1 or full == 1 else None for size, full in zip(own, lead)])
        keep = tuple(s for s, full in zip(own, lead) if s != 1 or full == 1)
        flat.append(a.reshape(keep + a.shape[a.ndim - core :]))
    present = [a is not None for a, _ in args]

    def call(*values: Array) -> Any:
        it = iter(values)
        return fn(*(next(it) if there else None for there in present))

    for level in reversed(range(len(lead))):
        in_axes = tuple(ax[level] for ax in axes)
        if all(ax is None for ax in in_axes):  # cannot happen: some argument carries each axis
            raise AssertionError("an axis belongs to no argument")
        call = jax.vmap(call, in_axes=in_axes, out_axes=0)
    return call(*flat)
