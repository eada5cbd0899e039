"""A trained network as a controller that a simulator can run."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.control import Sampled
from lqrlab.dataset import Description, describe, description
from lqrlab.learning import gains, models
from lqrlab.learning.adaptive.known import Known
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant

History = tuple[Array, Array, Array]
"""States ``[*batch, W, 12]``, the inputs before them ``[*batch, W, 6]``, time mask ``[*batch, W]``; scaled, padded."""


@pytree
@dataclasses.dataclass(frozen=True)
class NetworkPolicy:
    """A network bound to the plants that it is to control; a :class:`lqrlab.simulation.Policy`.

    Attributes:
        params: the network's parameters, shared by all plants.
        context: what it has made of the plants' descriptions ``[*batch, …]``.
        coordinates: the plants' units and masks ``[*batch, …]``.
        graph: the network's structure.
        window: steps of history that it sees.
        m: the plants' number of inputs.
    """

    params: dict[str, Array]
    context: Any
    coordinates: Coordinates
    graph: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})
    m: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def scaled(
        cls,
        graph: nnx.GraphDef,
        params: dict[str, Array],
        context: Any,
        coordinates: Coordinates,
        window: int,
    ) -> Self:
        """Of plants whose states and inputs are in scaled, padded coordinates already."""
        ones = jnp.ones_like(coordinates.scale_x), jnp.ones_like(coordinates.scale_u)
        units = Coordinates(*ones, coordinates.state_mask, coordinates.input_mask)
        return cls(params, context, units, graph, window, M_MAX)

    @property
    def scaled_gain(self) -> Array | None:
        """The gain of ũ = −K̃x̃ ``[*batch, 6, 12]`` if that is all that the network answers, else None."""
        if not models.merge(self.graph, self.params).linear:
            return None
        return self.context.gain.reshape(*self.context.gain.shape[:-1], M_MAX, N_MAX)

    @property
    def std(self) -> Array:
        """Standard deviation of a stochastic network's input ``[*batch, m]``, in the plants' units; 0 of any other.

        The policy answers with its mean. ``simulation.rollout(..., key=key, excitation=policy.std)`` draws its inputs.
        """
        stochastic = models.merge(self.graph, self.params).config.stochastic
        std = jnp.exp(self.context.log_std) if stochastic else jnp.zeros_like(self.context.log_std)
        return self.coordinates.unscale_input(std.astype(self.coordinates.scale_u.dtype), self.m)

    def init(self, batch_shape: tuple[int, ...]) -> History:
        """An empty history, at least in float32."""
        shape = (*batch_shape, self.window)
        dtype = np.promote_types(next(iter(self.params.values())).dtype, np.float32)
        xs, us, mask = (jnp.zeros(size, dtype) for size in ((*shape, N_MAX), (*shape, M_MAX), shape))
        return xs, us, mask

    def __call__(self, carry: History, x: Array) -> tuple[History, Array]:
        """Take x ``[*batch, *extra, n]`` into the history and answer with u ``[*batch, *extra, m]``."""
        xs, us, mask = carry
        lead, batch = x.shape[:-1], self.coordinates.scale_x.ndim - 1
        seen = self.coordinates.scale_state(x) * expand_batch(self.coordinates.state_mask, x.ndim)
        xs = jnp.concatenate([xs[..., 1:, :], seen.astype(xs.dtype)[..., None, :]], axis=-2)
        mask = jnp.concatenate([mask[..., 1:], jnp.ones((*lead, 1), mask.dtype)], axis=-1)
        num = math.prod(lead)  # the network is written for one batch axis
        flat = (a.reshape(num, *a.shape[len(lead) :]) for a in (xs, us, mask))
        context = jax.tree.map(lambda a: _spread(a, lead, batch).reshape(num, *a.shape[batch:]), self.context)
        u = models.merge(self.graph, self.params)(*flat, context, last=True)
        u = u.reshape(*lead, M_MAX).astype(us.dtype)
        us = jnp.concatenate([us[..., 1:, :], u[..., None, :]], axis=-2)
        return (xs, us, mask), self.coordinates.unscale_input(
            u.astype(self.coordinates.scale_u.dtype), self.m
        )


def _spread(a: Array, lead: tuple[int, ...], batch: int) -> Array:
    """View a ``[*batch, …]`` with the axes that follow the plants' own in ``lead``."""
    core = a.ndim - batch
    return jnp.broadcast_to(expand_batch(a, len(lead) + core, core), (*lead, *a.shape[batch:]))


def policy(
    model: nnx.Module,
    plants: Plant | Sequence[Plant] | Known,
    *,
    N: ArrayLike | None = None,
    repair: int = 0,
) -> NetworkPolicy:
    """Bind a network to what it is to control, seen in training or not.

    Args:
        model: a trained (or any) network; see :mod:`lqrlab.learning.models`.
        plants: a plant or a batch; or several batches of one leading axis, for ``systems.stack`` of them; or what is
            known of plants that nobody describes (:class:`Known`), to a network with ``description=False``.
        N: cross weight of the cost of one plant or batch ``[*batch, n, m]``; none if left out.
        repair: so many Newton steps are made from the network's gain, see :func:`lqrlab.learning.repair`. This
            needs the plants' matrices and hides the network's quality; a network that answers with a gain only.

    Raises:
        ValueError: weights that this kind of network is not told; a cross weight for several batches.
    """
    if isinstance(plants, Known):
        return _undescribed(model, plants)
    batches = _batches(model, plants, N)
    if checks.whole("repair", repair, 0) and not model.linear:  # type: ignore[attr-defined]
        kind = model.config.kind  # type: ignore[attr-defined]
        raise ValueError(
            f"repair: expected a network that answers with a gain, such as gain or matrix, but found {kind}, whose "
            "answer depends on the history; leave repair out"
        )
    each = [describe(batch, N) for batch in batches]
    single = isinstance(plants, Plant)
    d = each[0] if single else jax.tree.map(lambda *a: jnp.concatenate(a), *each)
    n, m = (batches[0].n, batches[0].m) if single else (N_MAX, M_MAX)
    graph, params = models.split(model)
    context = _encode(graph, params, jax.tree.map(lambda a: a.astype(jnp.float32), d))
    if repair:
        problem = Sampled(d.A, d.B, d.Q, d.R, d.N)
        gain = context.gain.reshape(*context.gain.shape[:-1], M_MAX, N_MAX).astype(d.A.dtype)
        gain = d.coordinates.zero_padding(gain, "u", "x")
        better = gains.improved(problem, gain, repair, n, m).reshape(context.gain.shape)
        context = dataclasses.replace(context, gain=better.astype(context.gain.dtype))
    window = model.config.window  # type: ignore[attr-defined]
    return NetworkPolicy(params, context, d.coordinates, graph, window, m)


def _undescribed(model: Any, known: Known) -> NetworkPolicy:
    """A network that looks at the history alone, for plants of which only units and sizes are told."""
    if model.config.description:
        raise ValueError(
            "plants: expected plants with their matrices, which this network is told, but found only what is known of "
            "undescribed ones; train a network with description=False"
        )
    units, lead = jax.tree.map(lambda a: a.astype(jnp.float32), known.coordinates), known.noise.shape

    def untold(rows: int, columns: int) -> Array:
        return jnp.zeros((*lead, rows, columns), jnp.float32)

    A, B, R = untold(N_MAX, N_MAX), untold(N_MAX, M_MAX), untold(M_MAX, M_MAX)
    graph, params = models.split(model)
    context = _encode(graph, params, Description(A, B, A, R, B, units))
    return NetworkPolicy(params, context, known.coordinates, graph, model.config.window, M_MAX)


def _batches(model: object, plants: Plant | Sequence[Plant], N: ArrayLike | None) -> Sequence[Plant]:
    """The batches of plants; refuses what is no network, no plants, and weights that the network is not told."""
    if not isinstance(model, nnx.Module) or not hasattr(model, "config"):
        raise ValueError(
            f"model: expected a network, as learning.load gives, but found {type(model).__name__}"
        )
    if not isinstance(plants, Plant) and not (isinstance(plants, Sequence) and plants):
        raise ValueError(f"plants: expected a plant or a list of batches of plants, but found {plants!r}")
    batches = [plants] if isinstance(plants, Plant) else plants
    if N is not None and not isinstance(plants, Plant):
        raise ValueError("N: expected one plant or one batch with a cross weight, but found several batches")
    if not getattr(model, "any_weights", False):
        for batch in batches:
            description.check_absorbed(batch, N)
    return batches


@partial(jax.jit, static_argnums=0)
def _encode(graph: nnx.GraphDef, params: dict[str, Array], d: Description) -> Any:
    """Contexts of descriptions ``[*batch, …]``."""
    batch = d.state_mask.shape[:-1]
    flat = jax.tree.map(lambda a: a.reshape(math.prod(batch), *a.shape[len(batch) :]), d)
    context = models.merge(graph, params).encode(flat)
    return jax.tree.map(lambda a: a.reshape(*batch, *a.shape[1:]), context)
