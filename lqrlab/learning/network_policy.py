"""A trained network as a controller that a simulator can run."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.dataset import Description, describe
from lqrlab.learning import models
from lqrlab.systems import M_MAX, N_MAX, Plant


@pytree
@dataclasses.dataclass(frozen=True)
class NetworkPolicy:
    """A network bound to the plants that it is to control; a :class:`lqrlab.simulation.Policy`.

    Attributes:
        params: the network's parameters, shared by all plants.
        context: what it has made of the plants' descriptions ``[*batch, …]``.
        scale_x, scale_u: the plants' units ``[*batch, 12]``, ``[*batch, 6]``; zero in padding.
        graph: the network's structure.
        window: steps of history that it sees.
        m: the plants' number of inputs.
    """

    params: dict[str, Array]
    context: Any
    scale_x: Array
    scale_u: Array
    graph: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})
    m: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """An empty history: states ``[*batch, W, 12]``, inputs ``[*batch, W, 6]``, live ``[*batch, W]``."""
        shape = (*batch_shape, self.window)
        sizes = (*shape, N_MAX), (*shape, M_MAX), shape
        xs, us, live = (jnp.zeros(size, jnp.float32) for size in sizes)
        return xs, us, live

    def __call__(
        self, carry: tuple[Array, Array, Array], x: Array
    ) -> tuple[tuple[Array, Array, Array], Array]:
        """Take x ``[*batch, *extra, n]`` into the history and answer with u ``[*batch, *extra, m]``."""
        xs, us, live = carry
        lead, batch = x.shape[:-1], self.scale_x.ndim - 1
        scale_x, scale_u = (_spread(a, lead, batch) for a in (self.scale_x, self.scale_u))
        there = scale_x > 0
        wide = jnp.pad(x, [(0, 0)] * len(lead) + [(0, N_MAX - x.shape[-1])])
        seen = jnp.where(there, wide / jnp.where(there, scale_x, 1.0), 0.0).astype(xs.dtype)
        xs = jnp.concatenate([xs[..., 1:, :], seen[..., None, :]], axis=-2)
        live = jnp.concatenate([live[..., 1:], jnp.ones((*lead, 1), live.dtype)], axis=-1)
        flat = len(lead)  # the network is written for one batch axis
        num = math.prod(lead)
        args = (a.reshape(num, *a.shape[flat:]) for a in (xs, us, live))
        context = jax.tree.map(lambda a: _spread(a, lead, batch).reshape(num, *a.shape[batch:]), self.context)
        u = (
            models.merge(self.graph, self.params)(*args, context, last=True)
            .reshape(*lead, M_MAX)
            .astype(us.dtype)
        )
        us = jnp.concatenate([us[..., 1:, :], u[..., None, :]], axis=-2)
        return (xs, us, live), (u * scale_u)[..., : self.m]


def _spread(a: Array, lead: tuple[int, ...], batch: int) -> Array:
    """View a ``[*batch, …]`` with the axes that follow the plants' own in ``lead``."""
    a = a.reshape(*a.shape[:batch], *([1] * (len(lead) - batch)), *a.shape[batch:])
    return jnp.broadcast_to(a, (*lead, *a.shape[len(lead) :]))


def policy(model: nnx.Module, plants: Plant | Sequence[Plant]) -> NetworkPolicy:
    """Bind a network to what it is to control, seen in training or not.

    Args:
        model: a trained (or any) network; see :mod:`lqrlab.learning.models`.
        plants: a plant or a batch; or several batches of one leading axis, for ``systems.stack`` of them.
    """
    if isinstance(plants, Plant):
        m, d = plants.m, describe(plants)
    else:
        m, d = M_MAX, jax.tree.map(lambda *a: jnp.concatenate(a), *(describe(p) for p in plants))
    _check_weights(d)
    d = jax.tree.map(lambda a: a.astype(jnp.float32), d)
    graph, params = models.split(model)
    window = model.config.window  # type: ignore[attr-defined]
    context = _encode(graph, params, d)
    scales = d.scale_x * d.state_mask, d.scale_u * d.input_mask
    return NetworkPolicy(params, context, *scales, graph, window, m)


def _check_weights(d: Description) -> None:
    """Refuse weights that the scaled coordinates do not absorb: the network would not know of them."""
    if control.checks.traced(d):
        return
    for name, weight, live in (("Q", d.Q, d.state_mask), ("R", d.R, d.input_mask)):
        size = weight.shape[-1]
        off = jnp.abs(weight - jnp.broadcast_to(jnp.eye(size), weight.shape) * live[..., None])
        if bool(jnp.max(off) > 1e-6):
            raise ValueError(
                f"plants: expected {name} to be diagonal and positive, so that it is absorbed into the units that "
                "the network sees; with cross or zero weights its answer would not depend on them"
            )


@partial(jax.jit, static_argnums=0)
def _encode(graph: nnx.GraphDef, params: dict[str, Array], d: Description) -> Any:
    """Contexts of descriptions ``[*batch, …]``."""
    batch = d.state_mask.shape[:-1]
    flat = jax.tree.map(lambda a: a.reshape(math.prod(batch), *a.shape[len(batch) :]), d)
    context = models.merge(graph, params).encode(flat)
    return jax.tree.map(lambda a: a.reshape(*batch, *a.shape[1:]), context)
