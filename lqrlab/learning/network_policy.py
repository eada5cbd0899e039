"""A trained network as a controller that a simulator can run, and the repair of its gain by Newton's method."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
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
from lqrlab.compute import checks, one_program, pytree, quick_jit
from lqrlab.compute.linalg import expand_batch
from lqrlab.learning import checkpoints, models
from lqrlab.simulation import LinearPolicy, Policy, Problem, Told, bind, measured_or, verdict
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant, check_size
from lqrlab.systems.coordinates import SHAPES

History = tuple[Array, Array, Array]
"""States ``[*batch, W, n]``, the inputs before them ``[*batch, W, m]``, time mask ``[*batch, W]``; scaled, padded."""
_NEWTON = 24  # steps from a gain that did not stabilise, which may be far from the optimum


@pytree
@dataclasses.dataclass(frozen=True)
class NetworkPolicy:
    """A network bound to its plants; a :class:`lqrlab.simulation.Policy`.

    Attributes:
        params, graph: the network's parameters, shared by all plants, and its structure.
        context: what it has made of the plants' descriptions ``[*batch, …]``.
        coordinates: the plants' units and masks ``[*batch, …]``.
        window: steps of history that it sees.
        n, m: the plants' numbers of states and inputs.
        verified: of each plant ``[*batch]``, whether the gain was verified to stabilise it; None where nothing was.
        repaired: whether that is another gain than the network's, which did not stabilise the plant.
    """

    params: dict[str, Array]
    context: Any
    coordinates: Coordinates
    graph: nnx.GraphDef = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})
    n: int = dataclasses.field(default=N_MAX, metadata={"static": True})
    m: int = dataclasses.field(default=M_MAX, metadata={"static": True})
    verified: Array | None = None
    repaired: Array | None = None

    def as_gain(self) -> "LinearPolicy | NetworkPolicy":
        """The constant gain that the network answers with, where that is all that it does; else itself."""
        if not models.merge(self.graph, self.params).linear:
            return self
        units = self.coordinates
        gain = self.context.gain.reshape(*self.context.gain.shape[:-1], units.m_max, units.n_max)
        gain = units.zero_padding(gain.astype(units.scale_x.dtype), "u", "x")
        return LinearPolicy(units.unscale("K", gain, self.n, self.m))

    def init(self, batch_shape: tuple[int, ...]) -> History:
        """An empty history, at least in float32."""
        shape, units = (*batch_shape, self.window), self.coordinates
        dtype = np.promote_types(next(iter(self.params.values())).dtype, np.float32)
        xs, us, mask = (jnp.zeros(size, dtype) for size in ((*shape, units.n_max), (*shape, units.m_max), shape))
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
        u = u.reshape(*lead, self.coordinates.m_max).astype(us.dtype)
        us = jnp.concatenate([us[..., 1:, :], u[..., None, :]], axis=-2)
        return (xs, us, mask), self.coordinates.unscale_input(u.astype(self.coordinates.scale_u.dtype), self.m)


def _spread(a: Array, lead: tuple[int, ...], batch: int) -> Array:
    """View a ``[*batch, …]`` with the axes that follow the plants' own in ``lead``."""
    core = a.ndim - batch
    return jnp.broadcast_to(expand_batch(a, len(lead) + core, core), (*lead, *a.shape[batch:]))


def policy(
    model: nnx.Module, plants: Plant | Sequence[Plant] | Problem | Told, *, verify: bool = True, repair: int = 0
) -> NetworkPolicy:
    """Bind a network to plants, seen in training or not.

    Its gain is verified to stabilise each plant, and replaced where it does not: ``.verified`` and ``.repaired`` say
    which. The network alone, as benchmarks judge it, is ``verify=False``.

    Args:
        model: a trained (or any) network; see :mod:`lqrlab.learning.models`.
        plants: a plant or a batch; several batches, one after another; a problem of them; or the units of plants with
            unknown A and B, for a network with ``description=False``.
        verify: whether gains that do not stabilise are replaced, of networks that answer with a gain.
        repair: so many Newton steps are made from each gain. This hides the network's quality.

    Raises:
        ValueError: weights that this kind of network does not take; A and B unknown where it needs them; plants larger
            than it takes; of a single plant, outside a trace, also that no gain stabilises it, and why.
    """
    if not isinstance(model, nnx.Module) or not hasattr(model, "config"):
        raise ValueError(f"model: expected a network, as learning.load gives, but found {type(model).__name__}")
    problem = plants if isinstance(plants, Problem | Told) else Problem.of(plants, linear=True, optimum=False)
    if isinstance(problem, Problem) and not getattr(model, "any_weights", False):
        _check_absorbed(problem)
    bare: Any = dict.fromkeys(("plant", "continuous", "x_eq", "u_eq"))
    told = problem if isinstance(problem, Told) else _told(dataclasses.replace(problem, **bare))
    n, m = (told.coordinates.n_max, told.coordinates.m_max) if isinstance(problem, Told) else (problem.n, problem.m)
    if not getattr(model, "any_size", False):
        check_size(n, m, getattr(problem, "plant", None))
    unknown = told.A is None or not (checks.traced(told.A) or np.isfinite(told.A).any())
    if model.config.description and unknown:
        raise ValueError(
            "plants: expected plants with A and B, the inputs of this network, but found only their units; "
            "train a network with description=False"
        )
    graph, params = models.split(model)
    context, stable = _encoded[math.prod(told.batch_shape) <= _FEW](graph, params, told)
    bound = NetworkPolicy(params, context, told.coordinates, graph, model.config.window, n, m)
    if checks.whole("repair", repair, 0) and stable is None:
        raise ValueError(
            "repair: expected a network that answers with a gain, such as gain or matrix, but found "
            f"{model.config.kind}, whose answer depends on the history; leave repair out"
        )
    verify = checks.flag("verify", verify) or repair > 0
    return _verified(bound, told, stable, repair) if verify and stable is not None else bound


def _verified(bound: NetworkPolicy, told: Told, stable: Array, steps: int) -> NetworkPolicy:
    """The policy with verified gains: after so many Newton steps, or without any where the network's stabilise."""
    if not steps and not checks.traced(stable) and np.all(stable):  # the usual case, of which nothing is compiled
        return dataclasses.replace(bound, verified=stable, repaired=~stable)
    problem, units, batch = _sampled(told, bound.n, bound.m), told.coordinates, told.batch_shape
    K = bound.context.gain.reshape(*batch, units.m_max, units.n_max)[..., : bound.m, : bound.n].astype(told.A.dtype)
    keep = stable & (steps == 0)

    def better(K: Array, keep: Array) -> tuple[Array, Array]:
        found, verified = _reached(problem, jnp.where(jnp.isfinite(K), K, 0.0), steps or _NEWTON)
        return jnp.where(keep[..., None, None], K, found), keep | verified

    K, verified = _unless(keep, better, K, keep)
    # not rounded to the network's type: it is verified as it is
    gain = systems.pad_matrix(_known(K, verified), units.m_max, units.n_max).reshape(*batch, -1)
    context = dataclasses.replace(bound.context, gain=gain)
    return dataclasses.replace(bound, context=context, verified=verified, repaired=verified & ~stable)


def _sampled(problem: Problem | Told, n: int, m: int) -> control.Sampled:
    """Matrices in scaled coordinates without the padding beyond n states and m inputs."""
    sizes = {"x": n, "u": m}
    axes = {name: tuple(slice(sizes[letter]) for letter in SHAPES[name]) for name in "ABQRN"}
    return control.Sampled(**{name: getattr(problem, name)[..., *at] for name, at in axes.items()})


def _reached(problem: control.Sampled, K: Array, steps: int) -> tuple[Array, Array]:
    """Gains so many Newton steps from K, and whether they stabilise; the optimum's where none is found on the way."""
    found = control.policy_iteration(*problem, K=K, steps=steps)
    reached = found.K, found.stabilizing

    def from_optimum(K: Array, good: Array) -> tuple[Array, Array]:
        best = control.dlqr(*problem)  # names the mode of a single plant that has none
        return jnp.where(good[..., None, None], K, best.K), good | best.stabilizing

    return _unless(found.stabilizing, from_optimum, *reached)


def _unless(good: Array, otherwise: Any, *values: Array) -> Any:
    """``values`` where all are good; without a trace nothing else is compiled for that."""
    if checks.traced(good, values):
        return jax.lax.cond(jnp.all(good), lambda *values: values, otherwise, *values)
    return values if np.all(good) else otherwise(*values)


def _check_absorbed(problem: Problem) -> None:
    """Refuse, outside of traces, weights that are not 1 when scaled, for a network that is told A and B alone."""
    plant = problem.continuous
    if plant is None or checks.traced(problem):
        return
    why = "this kind of network does not know the weights, so its output would not depend on {}; kind='matrix' does"
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
    """Improve gains by Newton's method on the Riccati equation, also gains that do not stabilise.

    Batched, differentiable, inside ``jit``; see :func:`lqrlab.control.policy_iteration`.

    Args:
        K: u = −Kx in the plants' units ``[*batch, m, n]``.
        plants: a plant or a batch; several batches, one after another; or a problem of them.
        steps: of Newton's method; 0 only makes the gains stabilizing.

    Returns:
        Gains like K, each verified: its loop is stable, and the cost found solves the Lyapunov equation of that loop.
        The optimum's where none is found on the way from K. NaN for a plant that none stabilises, in a batch outside a
        trace with a warning that counts them.

    Raises:
        ValueError: gains of another shape; of a single plant, outside a trace, also that it has none, and why.

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
    sampled = _sampled(scaled, n, m)
    return units.unscale("K", _known(*_reached(sampled, units.scale("K", K)[..., :m, :n], steps)), n, m)


def _known(K: Array, verified: Array) -> Array:
    """Gains, NaN where none was found to stabilise; that is an error of a single plant, of a batch a warning."""
    if not checks.traced(verified) and not np.all(verified):
        bad = f"plants: no stabilizing gain was found for {np.sum(~verified)} of {np.size(verified)}"
        if not np.ndim(verified):
            raise ValueError(f"{bad}: the loop of the optimum itself is stable but for rounding; change dt")
        why = "control.dlqr on one gives the reason"
        warnings.warn(f"{bad} plants, whose gains are NaN; leave them out: {why}", stacklevel=4)
    return jnp.where(verified[..., None, None], K, jnp.nan)


def require_states(x: Float[Array, "*loops n"], n: int) -> None:
    """Refuse states of other plants than those, with n states, that a policy is bound to; 12 may be any, padded."""
    if n != N_MAX and x.shape[-1] != n:
        raise ValueError(
            f"expected the {n} states of the plants that the policy is bound to, but found {x.shape[-1]}; bind it to "
            "the plants that it is to control"
        )


@bind.register(nnx.Module)
@bind.register(str)
@bind.register(Path)
def _network(model: Any, problem: Problem) -> Policy:
    return policy(model if isinstance(model, nnx.Module) else checkpoints.load(model, "best"), problem).as_gain()


def _encode(graph: nnx.GraphDef, params: dict[str, Array], d: Told) -> tuple[Any, Array | None]:
    """Contexts of descriptions ``[*batch, …]``; of a network that answers with a gain, whether that stabilises."""
    batch, model = d.batch_shape, models.merge(graph, params)
    flat = jax.tree.map(lambda a: a.reshape(math.prod(batch), *a.shape[len(batch) :]), d)
    context, stable = models.answer(model, flat), None
    if model.linear and d.A is not None:
        gain = context.gain.reshape(-1, d.coordinates.m_max, d.coordinates.n_max).astype(d.A.dtype)
        P = control.cost_to_go(control.Sampled(flat.A, flat.B, flat.Q, flat.R, flat.N), gain)  # NaN if rounding decides
        stable = (verdict.of_gain(flat.A - flat.B @ gain) == 0) & jnp.all(jnp.isfinite(P), axis=(-1, -2))
    return jax.tree.map(lambda a: a.reshape(*batch, *a.shape[1:]), (context, stable))


_FEW = 64  # plants: their answer is sooner there by a program that is quickly compiled
_told = quick_jit(Problem.told)
_encoded = {few: jit(_encode, static_argnums=0) for few, jit in ((True, quick_jit), (False, jax.jit))}
