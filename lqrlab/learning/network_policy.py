"""A trained network as a controller that a simulator can run, and the repair of its gain by Newton's method."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from lqrlab import control, systems
from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.learning import checkpoints, models
from lqrlab.simulation import LinearPolicy, Policy, Problem, Told, bind, measured_or
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
        n, m: the plants' numbers of states and inputs.
    """

    params: dict[str, Array]
    context: Any
    coordinates: Coordinates
    graph: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})
    n: int = dataclasses.field(default=N_MAX, metadata={"static": True})
    m: int = dataclasses.field(default=M_MAX, metadata={"static": True})

    def as_gain(self) -> "LinearPolicy | NetworkPolicy":
        """The constant gain that the network answers with, where that is all that it does; else itself."""
        if not models.merge(self.graph, self.params).linear:
            return self
        gain = self.context.gain.reshape(*self.context.gain.shape[:-1], M_MAX, N_MAX)
        units = self.coordinates
        gain = units.zero_padding(gain.astype(units.scale_x.dtype), "u", "x")
        return LinearPolicy(units.unscale("K", gain, self.n, self.m))

    def init(self, batch_shape: tuple[int, ...]) -> History:
        """An empty history, at least in float32."""
        shape = (*batch_shape, self.window)
        dtype = np.promote_types(next(iter(self.params.values())).dtype, np.float32)
        xs, us, mask = (jnp.zeros(size, dtype) for size in ((*shape, N_MAX), (*shape, M_MAX), shape))
        return xs, us, mask

    @one_program
    def __call__(self, carry: History, x: Array) -> tuple[History, Array]:
        """Take x ``[*batch, *extra, n]`` into the history and answer with u ``[*batch, *extra, m]``."""
        require_states(x, self.n)
        xs, us, mask = carry
        lead, batch = x.shape[:-1], self.coordinates.scale_x.ndim - 1
        seen = self.coordinates.scale_state(x) * expand_batch(self.coordinates.state_mask, x.ndim)
        seen = measured_or(xs[..., -1, :].astype(seen.dtype), seen)  # the last one again
        xs = jnp.concatenate([xs[..., 1:, :], seen.astype(xs.dtype)[..., None, :]], axis=-2)
        mask = jnp.concatenate([mask[..., 1:], jnp.ones((*lead, 1), mask.dtype)], axis=-1)
        num = math.prod(lead)  # the network is written for one batch axis
        flat = (a.reshape(num, *a.shape[len(lead) :]) for a in (xs, us, mask))
        context = jax.tree.map(lambda a: _spread(a, lead, batch).reshape(num, *a.shape[batch:]), self.context)
        u = models.merge(self.graph, self.params)(*flat, context, last=True)
        u = u.reshape(*lead, M_MAX).astype(us.dtype)
        us = jnp.concatenate([us[..., 1:, :], u[..., None, :]], axis=-2)
        return (xs, us, mask), self.coordinates.unscale_input(u.astype(self.coordinates.scale_u.dtype), self.m)


def _spread(a: Array, lead: tuple[int, ...], batch: int) -> Array:
    """View a ``[*batch, …]`` with the axes that follow the plants' own in ``lead``."""
    core = a.ndim - batch
    return jnp.broadcast_to(expand_batch(a, len(lead) + core, core), (*lead, *a.shape[batch:]))


def policy(model: nnx.Module, plants: Plant | Sequence[Plant] | Problem | Told, *, repair: int = 0) -> NetworkPolicy:
    """Bind a network to what it is to control, seen in training or not.

    Args:
        model: a trained (or any) network; see :mod:`lqrlab.learning.models`.
        plants: a plant or a batch; several batches, one after another; a problem of them; or what is told of plants
            that nobody describes, to a network with ``description=False``.
        repair: so many Newton steps are made from the network's gain, see :func:`lqrlab.learning.repair`. This
            needs the plants' matrices and hides the network's quality; a network that answers with a gain only.

    Raises:
        ValueError: weights that this kind of network is not told; matrices that it needs and is not told.
    """
    if not isinstance(model, nnx.Module) or not hasattr(model, "config"):
        raise ValueError(f"model: expected a network, as learning.load gives, but found {type(model).__name__}")
    config, sizes = model.config, (N_MAX, M_MAX)
    problem = plants if isinstance(plants, Problem) else None
    if isinstance(plants, Told):
        told = plants
    else:
        if problem is None:
            problem = Problem.of(plants, linear=True, optimum=False)  # type: ignore[arg-type]
        if not getattr(model, "any_weights", False):
            _check_absorbed(problem)
        told, sizes = problem.told(), (problem.n, problem.m)
    unknown = told.A is None or not (checks.traced(told.A) or np.isfinite(told.A).any())
    if config.description and unknown:
        raise ValueError(
            "plants: expected plants with their matrices, which this network is told, but found only their units; "
            "train a network with description=False"
        )
    graph, params = models.split(model)
    context = _encode(graph, params, told)
    bound = NetworkPolicy(params, context, told.coordinates, graph, config.window, *sizes)
    return _repaired(bound, problem, repair, config.kind) if checks.whole("repair", repair, 0) else bound


def _repaired(bound: NetworkPolicy, problem: Problem | None, steps: int, kind: str) -> NetworkPolicy:
    """The policy with a better gain."""
    gain = bound.as_gain()
    if not isinstance(gain, LinearPolicy):
        raise ValueError(
            f"repair: expected a network that answers with a gain, such as gain or matrix, but found {kind}, whose "
            "answer depends on the history; leave repair out"
        )
    if problem is None:
        raise ValueError("repair: needs the plants' matrices, but only their units are told")
    K = repair(gain.K, problem, steps)
    better = problem.coordinates.scale("K", K).reshape(bound.context.gain.shape)
    # not rounded to the network's type: it is verified as it is
    return dataclasses.replace(bound, context=dataclasses.replace(bound.context, gain=better))


def _check_absorbed(problem: Problem) -> None:
    """Refuse, outside of traces, weights that are not 1 when scaled, for a network that is told A and B alone."""
    plant = problem.continuous
    if plant is None or checks.traced(problem):
        return
    why = "this kind of network is not told the weights, so its output would not depend on {}; kind='matrix' is"
    masks = problem.coordinates.state_mask, problem.coordinates.input_mask
    for name, weight, scale, mask in zip("QR", (plant.Q, plant.R), (problem.scale_x, problem.scale_u), masks):
        size = np.asarray(mask[..., : scale.shape[-1]])
        unit = np.asarray(scale) * size
        scaled = np.asarray(weight) * unit[..., :, None] * unit[..., None, :]
        if np.abs(scaled - np.eye(scaled.shape[-1]) * size[..., None, :]).max() > 1e-6:
            raise ValueError(
                f"plant: expected {name} to be diagonal and positive, so that the units of the signals absorb it; "
                + why.format("them")
            )
    if plant.N is not None and np.any(np.asarray(plant.N)):
        raise ValueError("N: expected no cross weight: " + why.format("it"))


def repair(K: ArrayLike, plants: Plant | Sequence[Plant] | Problem, steps: int = 1) -> Float[Array, "*batch m n"]:
    """Better gains for plants, by Newton's method from given ones; from gains that do not stabilise too.

    The sampled problem of each plant is improved in scaled coordinates by :func:`lqrlab.control.policy_iteration`: a
    step squares a small error, and costs about as much as the design of the optimum. Batched, differentiable, inside
    ``jit``.

    Args:
        K: u = −Kx in the plants' units ``[*batch, m, n]``.
        plants: a plant or a batch; several batches, one after another; or a problem of them.
        steps: of Newton's method; 0 only makes the gains stabilizing.

    Returns:
        Gains like K, each verified: its loop is stable, and the cost found solves the Lyapunov equation of that loop.
        NaN for a plant of which none was found, in a batch outside a trace with a warning that counts them.
        :func:`lqrlab.control.policy_iteration` gives the same verdict as a flag, ``stabilizing``.

    Raises:
        ValueError: gains of another shape; of a single plant, outside a trace, also that none was found, and why.

    >>> plant = systems.make("pendulum")
    >>> better = learning.repair(jnp.zeros((1, 2)), plant, steps=6)
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> bool(jnp.allclose(better, optimum.K))
    True
    """
    problem = plants if isinstance(plants, Problem) else Problem.of(plants, linear=True, optimum=False)
    (n, m), batch = (problem.n, problem.m), problem.batch_shape
    K = jnp.asarray(checks.real("K", K))
    if K.shape[-2:] != (m, n) or K.ndim > len(batch) + 2:
        raise ValueError(f"K: expected gains {(*batch, m, n)}, inputs by states, for these plants, but found {K.shape}")
    K = jnp.broadcast_to(K, (*batch, m, n)).astype(problem.A.dtype)
    scaled, units = problem.scaled(), problem.units
    rows = {"A": n, "B": n, "Q": n, "R": m, "N": n}
    cut = {name: getattr(scaled, name)[..., :k, : m if name in "BRN" else n] for name, k in rows.items()}
    found = control.policy_iteration(**cut, K=units.scale("K", K)[..., :m, :n], steps=steps)
    gain = jnp.where(found.stabilizing[..., None, None], found.K, jnp.nan)
    better = units.unscale("K", systems.pad_matrix(gain, M_MAX, N_MAX), n, m)
    if not checks.traced(better):
        _say_where_none_was_found(np.asarray(better), problem)
    return better


def _say_where_none_was_found(gains: np.ndarray, problem: Problem) -> None:
    """An error for a single plant, a warning for a batch, where a gain is NaN."""
    bad = ~np.isfinite(gains).all((-1, -2))
    if bad.ndim and bad.any():
        warnings.warn(
            f"K: no stabilizing gain was found for {np.sum(bad)} of {bad.size} plants, whose gains are NaN; begin with "
            "another K there, such as problem.K, or leave these plants out: control.dlqr on one says why it has none",
            stacklevel=3,
        )
    elif bad.any():
        control.dlqr(*problem.sampled)  # names the mode that no gain stabilises
        raise ValueError(
            "K: expected a gain from which Newton steps lead to a stabilizing one, but found none on the way, although "
            "the plant has an optimum; begin with another gain, such as that of control.lqrd"
        )


def require_states(x: Float[Array, "*loops n"], n: int) -> None:
    """Refuse states of other plants than those, with n states, that a policy is bound to; 12 may be any, padded."""
    if n < N_MAX and x.shape[-1] != n:
        raise ValueError(
            f"expected the {n} states of the plants that the policy is bound to, but found {x.shape[-1]}; bind it to "
            "the plants that it is to control"
        )


@bind.register(nnx.Module)
def _network(model: Any, problem: Problem) -> Policy:
    return policy(model, problem).as_gain()


@bind.register(str)
@bind.register(Path)
def _checkpoints(folder: str | Path, problem: Problem) -> Policy:
    return _network(checkpoints.load(folder, "best"), problem)


@partial(jax.jit, static_argnums=0)
def _encode(graph: nnx.GraphDef, params: dict[str, Array], d: Told) -> Any:
    """Contexts of descriptions ``[*batch, …]``."""
    batch = d.batch_shape
    flat = jax.tree.map(lambda a: a.reshape(math.prod(batch), *a.shape[len(batch) :]), d)
    context = models.answer(models.merge(graph, params), flat)
    return jax.tree.map(lambda a: a.reshape(*batch, *a.shape[1:]), context)
