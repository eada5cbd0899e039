"""No file at all: fresh trajectories are simulated on the device while a learner uses the last ones."""

import dataclasses
import functools
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import simulation
from lqrlab.dataset import trajectories, windows
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import plan
from lqrlab.dataset.problem import Problem, problems
from lqrlab.dataset.sources.loading import Loader, check_numbers
from lqrlab.dataset.store import Dataset, VariantTable
from lqrlab.dataset.windows import Batch, Resident, check_window


class Drawn(Dataset):
    """A data set that is nowhere: the variants that :func:`lqrlab.dataset.generate` would write, in memory."""

    @functools.cached_property
    def tables(self) -> tuple[dict[str, np.ndarray], ...]:
        """Group ``variants`` of each file that there would be."""
        # the plants are the same
        short = dataclasses.replace(self.config, trajectories=1, num_steps=1, keep_every=1, linear=True)
        found = []
        for shard in plan(short):
            arrays = trajectories.make(short, shard).arrays
            found.append(
                {n.removeprefix("variants/"): a for n, a in arrays.items() if n.startswith("variants/")}
            )
        return tuple(found)

    @classmethod
    def of(cls, config: DataConfig) -> "Drawn":
        """Draw and design."""
        config.check_registered()
        drawn = cls(Path("live"), config, {})
        for shard, table in zip(plan(config), drawn.tables):
            drawn.record.setdefault("shards", []).append(
                {"family": shard.family, "variants": len(table["dt"])}
            )
        return drawn


def live(
    config: DataConfig,
    *,
    split: str = "train",
    batch_size: int,
    window: int,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    device: jax.Device | None = None,
    at_once: int = 1024,
    process_index: int = 0,
    process_count: int = 1,
) -> Loader:
    """Batches like those of :func:`lqrlab.dataset.loader`, of trajectories that nobody has seen before.

    The plants are those of the data set that the config describes, so a policy can be judged on its validation
    variants and held-out families. Each of many rounds simulates new loops of randomly drawn variants and hands
    out their windows shuffled, each once. A batch is a pure function of (seed, epoch, position), and an epoch
    has as many windows as the data set would. Windows may end at any step of a loop, so nothing is thinned.

    Args:
        config: its trajectories are drawn by ``seed``, not by its own. Nonlinear plants are simulated as
            :func:`lqrlab.dataset.generate` does it, a family at a time, each with its share of a round.
        split, batch_size, window, seed, epoch, start, device: as for a loader.
        at_once: loops of a round; a multiple of the batches' appetite is taken where they are too few.
        process_index, process_count: which of several processes this is; each simulates loops of its own.

    Raises:
        ValueError: an argument that does not fit, an empty split, loops that all leave the model.
    """
    check_numbers(batch_size=batch_size, seed=seed, epoch=epoch, start=start, at_once=at_once)
    check_numbers(process_index=process_index, process_count=process_count)
    if process_index >= process_count:
        raise ValueError(
            f"process_index: expected one of {process_count} processes, but found {process_index}"
        )
    window = check_window(window)
    drawn = Drawn.of(config)
    rows = drawn.rows(split)
    if not len(rows):
        raise ValueError(f"split: the config has no variant in {split!r}")
    steps = config.num_steps
    loops = max(at_once, -(-batch_size // steps))
    table = jax.device_put(drawn.table(), device)
    if config.linear:
        with jax.enable_x64(True):
            problem = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), problems(drawn))
        problem, chosen = jax.device_put((problem, jnp.asarray(rows, jnp.int32)), device)
    else:
        families = _families(drawn, split, loops)
        loops = sum(family.loops for family in families)
    per_round = loops * steps // batch_size
    num_windows = len(rows) * config.trajectories * config.kept_steps // process_count
    num_batches = max(num_windows // batch_size, 1)

    @functools.lru_cache(maxsize=2)
    def simulated(number: int) -> Resident:
        where = np.array([seed, epoch, number, process_index], np.uint32)
        if config.linear:
            held, stay = _round(jnp.asarray(where), problem, table, chosen, config, window, loops)
        else:
            held, stay = _nonlinear_round(where, families, table, config, window, device)
        if number == 0 and not bool(stay):
            raise ValueError(
                "config: every loop of a round leaves the model for good; take a smaller gain_error or less noise"
            )
        return held

    def batch(position: int) -> Batch:
        if not 0 <= position < num_batches:
            raise ValueError(f"position: expected one of {num_batches} batches, but found {position}")
        number, within = divmod(position, per_round)
        held = simulated(number)
        if within == per_round // 2 and (number + 1) * per_round < num_batches:
            simulated(number + 1)  # begun with, not waited for
        return _taken(held, np.uint32(within * batch_size), batch_size, np.uint32(seed), np.uint32(number))

    return Loader(batch, table, num_windows, num_batches, start, ahead=2)


@partial(jax.jit, static_argnums=2)
def _taken(source: Resident, first: Array, count: int, seed: Array, number: Array) -> Batch:
    return source.gather(source.order(first + jnp.arange(count, dtype=first.dtype), seed, number))


def _key(where: Array | np.ndarray) -> Array:
    """Of a round: seed, epoch, number, process."""
    key = jax.random.key(where[0], impl="threefry2x32")
    for number in (where[1], where[2], where[3]):
        key = jax.random.fold_in(key, number)
    return key


@partial(jax.jit, static_argnums=(4, 5, 6))
def _round(
    where: Array,
    problem: Problem,
    table: VariantTable,
    rows: Array,
    config: DataConfig,
    window: int,
    num: int,
) -> tuple[Resident, Array]:
    """Loops of a round as windows, and whether any of them stays, in scaled coordinates, float32."""
    pick, begin, push, disturb, sense, miss = jax.random.split(_key(where), 6)
    variant = rows[jax.random.randint(pick, (num,), 0, len(rows))]
    A, B, K = (a[variant] for a in (problem.A, problem.B, problem.K))
    state_mask, input_mask = (
        a[variant] for a in (table.description.state_mask, table.description.input_mask)
    )
    if config.gain_error:
        K = K * (1 + config.gain_error * jax.random.normal(miss, K.shape, K.dtype))
    limit = np.float32(np.inf if config.saturation is None else config.saturation)

    def drawn(key: Array, t: Array, live: Array, size: float) -> Array:
        if not size:
            return jnp.zeros_like(live)
        return np.float32(size) * live * jax.random.normal(jax.random.fold_in(key, t), live.shape, live.dtype)

    def step(x: Array, t: Array) -> tuple[Array, Array]:
        seen = x + drawn(sense, t, state_mask, config.sensor_noise)
        u = -jnp.einsum("bij,bj->bi", K, seen) + drawn(push, t, input_mask, config.excitation)
        u = jnp.clip(u, -limit, limit)
        after = jnp.einsum("bij,bj->bi", A, x) + jnp.einsum("bij,bj->bi", B, u)
        return after + drawn(disturb, t, state_mask, config.noise), jnp.concatenate([x, u], axis=-1)

    x0 = state_mask * jax.random.normal(begin, state_mask.shape, state_mask.dtype)
    _, both = jax.lax.scan(step, x0, jnp.arange(config.num_steps))
    both = jnp.moveaxis(both, 0, 1)
    x, u = both[..., : x0.shape[-1]], both[..., x0.shape[-1] :]
    signals = jnp.concatenate([x, jnp.pad(u[:, :-1], ((0, 0), (1, 0), (0, 0)))], axis=-1)
    signals = jnp.pad(signals, ((0, 0), (window - 1, 0), (0, 0)))
    # a loop that leaves the model gives its place to one that does not
    stays = jnp.all(jnp.abs(jnp.nan_to_num(both, nan=jnp.inf)) < trajectories.DIVERGED, axis=(1, 2))
    good = jnp.argsort(~stays)[jnp.arange(num) % jnp.maximum(stays.sum(), 1)]
    kept = jnp.where(stays.any(), signals[good], 0.0)
    return Resident(kept, variant[good], table, window, config.num_steps), stays.any()


@dataclasses.dataclass(frozen=True, eq=False)
class _Family:
    """Nonlinear plants of one family, in SI units, float64.

    Attributes:
        rows: of the table ``[v]``.
        world: the plants with their limits and disturbances.
        K, P: their optimal gains and costs to go ``[v, m, n]``, ``[v, n, n]``.
        sx, su: their scales ``[v, n]``, ``[v, m]``.
        loops: in a round.
    """

    rows: np.ndarray
    world: simulation.Env
    K: np.ndarray
    P: np.ndarray
    sx: np.ndarray
    su: np.ndarray
    loops: int

    def simulate(
        self, config: DataConfig, key: Array
    ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
        """Loops of plants drawn at random: which ``[loops]``, what is recorded of them, which of them are kept."""
        pick, begin, miss, noise = jax.random.split(key, 4)
        of = np.asarray(jax.random.randint(pick, (self.loops,), 0, len(self.rows)))
        own = jax.tree.map(lambda a: a[of] if jnp.shape(a)[:1] == (len(self.rows),) else a, self.world)
        world = dataclasses.replace(own, noise=self.world.noise)
        sx, su, K = self.sx[of], self.su[of], self.K[of]
        if config.gain_error:
            K = K * (1 + config.gain_error * np.asarray(jax.random.normal(miss, K.shape)))
        x0 = trajectories.starts(world.plant, begin, 1, sx)
        out = simulation.rollout(
            world,
            simulation.LinearPolicy(jnp.asarray(K)),
            x0,
            config.num_steps,
            key=noise,
            sensor_noise=config.sensor_noise * sx[0],
            excitation=config.excitation * su[0],
        )
        runs = trajectories.recorded(config, out, sx, su)
        shaped = {name: a.reshape(self.loops, 1, *a.shape[1:]) for name, a in runs.items()}
        P = self.P[of] * sx[:, :, None] * sx[:, None, :]
        kept, _ = trajectories.kept(config, np.ones(self.loops, bool), x0 / sx[:, None], shaped, P)
        return of, runs, kept[:, 0]


def _families(drawn: Drawn, split: str, loops: int) -> list[_Family]:
    """Each family of a split, with as many of the loops as it has of the split's plants, rounded up."""
    config, total, found = drawn.config, len(drawn.rows(split)), []
    with jax.enable_x64(True):
        for name in config.families:
            rows = drawn.rows(split, name)
            if not len(rows):
                continue
            plants = drawn.plants(split, name)
            K, P, sx, su = (drawn.column(a, split, name) for a in ("K", "P", "scale_x", "scale_u"))
            u_eq, high = plants.equilibrium()[1], np.inf if config.saturation is None else config.saturation
            limits = u_eq - high * su, u_eq + high * su
            world = simulation.env(plants, limits=limits, noise=config.noise * sx[0])
            found.append(_Family(rows, world, K, P, sx, su, -(-loops * len(rows) // total)))
    return found


def _nonlinear_round(
    where: np.ndarray,
    families: list[_Family],
    table: VariantTable,
    config: DataConfig,
    window: int,
    device: jax.Device | None,
) -> tuple[Resident, bool]:
    """As :func:`_round`, of the families' own equations of motion."""
    signals = windows.zeros(sum(family.loops for family in families), window, config.num_steps)
    variant, stays, at = np.empty(len(signals), np.int32), np.empty(len(signals), bool), 0
    for number, family in enumerate(families):
        here = slice(at, at + family.loops)
        with jax.enable_x64(True), jax.default_device(device), np.errstate(over="ignore", invalid="ignore"):
            of, runs, stays[here] = family.simulate(config, jax.random.fold_in(_key(where), number))
            scales = family.sx[of], family.su[of]
            windows.put(signals, here, window, runs["states"], runs["controls"], scales)
        variant[here], at = family.rows[of], here.stop
    if not stays.all():  # a loop that is not kept gives its place to one that is
        good = np.flatnonzero(stays) if stays.any() else np.arange(1)
        good = good[np.arange(len(signals)) % len(good)]
        signals, variant = np.where(stays.any(), signals[good], np.float32(0)), variant[good]
    signals, of = jax.device_put((signals, variant), device)
    return Resident(signals, of, table, window, config.num_steps), bool(stays.any())
