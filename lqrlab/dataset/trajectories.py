"""The closed loops of a data set: plants drawn, designs, simulation, and which loops are kept."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lqrlab import control, simulation, systems
from lqrlab.compute import pytree, quick_jit
from lqrlab.compute.by_function import KEPT
from lqrlab.dataset import manifest
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import Shard, keys
from lqrlab.simulation import Env, Keep, LinearPolicy, Noise, SampledProblem, verdict
from lqrlab.systems import N_MAX, Coordinates, Linear, Plant

Controller = Callable[[Plant], simulation.Policy]
"""From a batch of plants to the policy that runs their loops."""

Runs = dict[str, np.ndarray]
"""Name → array ``[v, s, …]``: s loops of each of v plants."""


@pytree
@dataclasses.dataclass(frozen=True)
class Designs:
    """Plants of one family with their optimum, float64 in host memory.

    Attributes:
        plants: ``[v]``.
        linear: linearised, in SI units.
        coordinates: their units and masks.
        problem: the sampled problem in scaled, padded coordinates; the gain is 0 where there is no optimum.
        stabilizing: whether there is a stabilizing optimum.
    """

    plants: Plant
    linear: Linear
    coordinates: Coordinates
    problem: SampledProblem
    stabilizing: Bool[np.ndarray, " v"]

    def __getitem__(self, rows: object) -> "Designs":
        """The designs of some plants."""
        return jax.tree.map(lambda a: a[rows] if np.ndim(a) else a, self)


def drawn(config: DataConfig, shard: Shard) -> Designs:
    """The plants of a whole block, of which a shard takes the first ``shard.count``."""
    size = min(config.variants_per_shard, config.variants)
    return designed(systems.sample(shard.family, key=keys(config, shard)[0], num=size, spread=config.spread))


def designed(plants: Plant) -> Designs:
    """Linearise, scale, sample and design; one program for plants of all families."""
    linear = jax.tree.map(np.asarray, systems.linearise(plants))
    coordinates = jax.tree.map(lambda a: np.asarray(a, float), Coordinates.of(plants))
    scaled = coordinates.scale_plant(linear)
    sampled, design = jax.tree.map(
        np.asarray, _sampled_and_designed()(scaled.A, scaled.B, scaled.Q, scaled.R, scaled.dt)
    )
    gain = np.where(design.stabilizing[:, None, None], design.K, 0.0)
    problem = SampledProblem(**sampled._asdict(), K=gain, P=design.P)  # type: ignore[arg-type]  # NumPy's
    return Designs(plants, linear, coordinates, problem, design.stabilizing)


@functools.cache
def _sampled_and_designed() -> Callable[..., tuple[control.Sampled, control.LQR]]:
    return quick_jit(lambda *problem: (control.discretize(*problem), control.lqrd(*problem)))


def initial_states(
    plants: Plant, key: PRNGKeyArray, num: int, coordinates: Coordinates
) -> Float[np.ndarray, "v num n"]:
    """Initial deviations in SI units."""
    if type(plants).initial_state is not Plant.initial_state:
        return np.asarray(plants.initial_state(key=key, num=num))
    # as Plant.initial_state, in one shape for all families: the program takes a second to compile
    normal = np.asarray(jax.random.normal(key, (len(coordinates.scale_x), num, N_MAX)))
    return coordinates.unscale_state(normal, plants.n)


class _Units(NamedTuple):
    """Factors from the units of a simulation to SI units, and to units of the signals' scales."""

    x: Array | np.ndarray
    u: Array | np.ndarray
    relative_x: Array | np.ndarray
    relative_u: Array | np.ndarray


def simulate(
    config: DataConfig,
    designs: Designs,
    x0: Float[np.ndarray, "v s n"],
    key: PRNGKeyArray,
    *,
    gain_key: PRNGKeyArray,
    controller: Controller | None = None,
) -> Runs:
    """Run the loops that the config describes.

    Args:
        config: the noises, the gain's error, the limits, what is kept of each loop.
        designs: the plants, their optimum.
        x0: initial deviations, in SI units.
        key: of the noise.
        gain_key: of the errors of the gains, if the config wants any.
        controller: runs the loops in place of the optimum.

    Returns:
        The data of each loop that are written (``x0``, ``states``, ``controls``, ``cost``, of segments ``costs``); in
        scales, those that decide whether it is kept (``start``, ``peak``, ``before``, ``last``, ``limited``, ``end``).
    """
    gain, coordinates = np.asarray(designs.problem.K), designs.coordinates
    if config.gain_error:  # in the loops alone: what is recorded as the optimum stays so
        error = jax.random.normal(gain_key, gain.shape)
        gain = gain * (1 + config.gain_error * np.asarray(error))
    scaled = config.linear and controller is None
    world, K, units = (_scaled_env if scaled else _si_env)(config, designs, gain)
    policy = LinearPolicy(jnp.asarray(K)) if controller is None else controller(designs.plants)
    n, m = x0.shape[-1], designs.plants.m
    if controller is not None:
        simulation.check_policy(policy, jnp.asarray(x0), m)
    start = coordinates.scale_state(x0)[..., :n]
    scales = (np.ones(n), np.ones(m)) if scaled else (coordinates.scale_x[0, :n], coordinates.scale_u[0, :m])
    sizes = ((config.noise, scales[0]), (config.sensor_noise, scales[0]), (config.excitation, scales[1]))
    out = simulation.record(
        world,
        policy,
        jnp.asarray(start if scaled else x0),
        config.num_steps,
        _keep(config),
        key=key if _disturbed(config) else None,
        noise=Noise(*(size * jnp.asarray(scale) if size else None for size, scale in sizes)),
        extra=jax.tree.map(jnp.asarray, units),
        total=config.variants * config.trajectories,
    )
    lead = x0.shape[:2]
    runs = {name: np.asarray(a).reshape(*lead, *a.shape[1:]) for name, a in out.items()}
    return runs | {"x0": x0, "start": start, "end": runs["end"] * units.relative_x[:, None]}


def _scaled_env(config: DataConfig, designs: Designs, gain: np.ndarray) -> tuple[Env, np.ndarray, _Units]:
    """Linear plants under exact zero-order hold, in units of their scales."""
    n, m = designs.plants.n, designs.plants.m
    sizes = {"A": (n, n), "B": (n, m), "Q": (n, n), "R": (m, m), "N": (n, m), "K": (m, n), "P": (n, n)}
    problem = SampledProblem(
        **{name: jnp.asarray(getattr(designs.problem, name)[:, :i, :j]) for name, (i, j) in sizes.items()}
    )
    limit = np.inf if config.saturation is None else config.saturation
    scale_x, scale_u = designs.coordinates.scale_x[:, :n], designs.coordinates.scale_u[:, :m]
    units = _Units(scale_x, scale_u, np.ones((1, n)), np.ones((1, m)))
    return Env.of_problem(problem, limit=limit), gain[:, :m, :n], units


def _si_env(config: DataConfig, designs: Designs, gain: np.ndarray) -> tuple[Env, np.ndarray, _Units]:
    """The family's equations of motion (or the linear plant), in SI units; the costs are the same in either."""
    plants, coordinates = designs.plants, designs.coordinates
    n, m = plants.n, plants.m
    scale_x, scale_u = coordinates.scale_x[:, :n], coordinates.scale_u[:, :m]
    limit = (np.inf if config.saturation is None else config.saturation) * scale_u
    u_eq = np.asarray(plants.equilibrium()[1])
    world = simulation.env(plants, linear=config.linear, limits=(u_eq - limit, u_eq + limit))
    units = _Units(np.ones((1, n)), np.ones((1, m)), 1 / scale_x, 1 / scale_u)
    return world, coordinates.unscale_gain(gain, n, m), units


def _keep(config: DataConfig) -> Keep:
    """The data of a loop that are written, and those that decide whether it is kept."""
    keep = _recorders(config.num_steps, config.saturation, config.segmented, _disturbed(config))
    return keep._replace(starts=config.starts, length=config.row_steps) if config.segmented else keep


@functools.lru_cache(KEPT)  # a program is compiled for each
def _recorders(num_steps: int, saturation: float | None, segmented: bool, disturbed: bool) -> Keep:
    third, last = verdict.quarters(num_steps)
    late = num_steps - _tail(num_steps)

    def points(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        return {"states": (xs * units.x[None]).astype(jnp.float32)}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        controls = {"controls": (us * units.u[None]).astype(jnp.float32)}
        return controls | {"costs": costs} if segmented else controls

    def sums(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        if saturation is None:
            return {"cost": costs}
        limited = _largest(us, units.relative_u) > 0.999 * saturation
        counts = (t >= late) & (t < num_steps)
        return {"cost": costs, "limited": (limited & counts[:, None]).astype(costs.dtype)}

    def peaks(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        size = _largest(xs, units.relative_x)
        if disturbed:  # growth says nothing then
            return {"peak": size}
        before, after = ((t >= third) & (t < last))[:, None], (t >= last)[:, None]
        return {"peak": size, "before": jnp.where(before, size, 0), "last": jnp.where(after, size, 0)}

    return Keep(points, intervals, sums, peaks)


def _largest(a: Array, relative: Array | np.ndarray) -> Array:
    """max |a_i| · relative_i over components, ``[t, k, loop]`` → ``[t, loop]``."""
    return functools.reduce(jnp.maximum, (jnp.abs(a[:, i] * relative[i][None]) for i in range(a.shape[1])))


def _disturbed(config: DataConfig) -> bool:
    return any((config.excitation, config.noise, config.sensor_noise))


def _tail(num_steps: int) -> int:
    """Samples of the last quarter."""
    return max(num_steps // 4, 1)


def kept(config: DataConfig, designs: Designs, runs: Runs) -> tuple[Bool[np.ndarray, "v s"], dict[str, int]]:
    """Which loops are kept, and how many variants or loops are left out for each of ``manifest.REASONS``.

    A loop is left out if it diverges (:mod:`lqrlab.simulation.verdict`), or if its input was at its limit for half of
    the last quarter while the state moved away: further from rest, in cost, than where it began.
    """
    start = runs["start"]
    quarters = (runs.get(name, runs["peak"]) for name in ("before", "last"))
    judged = verdict.of_peaks(
        np.abs(start).max(-1),
        runs["peak"],
        *quarters,
        num_steps=config.num_steps,
        disturbed=_disturbed(config),
    )
    stays = np.asarray(judged) != verdict.Verdict.DIVERGED
    stuck = np.zeros_like(stays)
    if config.saturation is not None:
        n = start.shape[-1]
        ends = np.where(stays[..., None, None], np.stack([start, runs["end"]], axis=2), 0.0)
        value = np.einsum("vski,vij,vskj->vsk", ends, np.nan_to_num(designs.problem.P[:, :n, :n]), ends)
        stuck = (runs["limited"] > 0.5 * _tail(config.num_steps)) & (value[..., 1] > value[..., 0])
    optimal = designs.stabilizing[:, None]
    left_out = (~designs.stabilizing, optimal & ~stays, optimal & stays & stuck)
    return optimal & stays & ~stuck, {name: int(a.sum()) for name, a in zip(manifest.REASONS, left_out)}
