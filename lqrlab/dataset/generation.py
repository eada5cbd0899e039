"""From a config to files: a plan of shards that know nothing of each other, each made, written and kept."""

import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lqrlab
from lqrlab import control, simulation, systems
from lqrlab.dataset import manifest, shards, store
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import in_units
from lqrlab.dataset.plan import Shard, keys, plan, splits
from lqrlab.systems import M_MAX, N_MAX, Plant

DIVERGED = 1e3
"""A state this many scales away from the equilibrium has left the model for good."""

Progress = Callable[[int, int, str], None]


def generate(config: DataConfig, path: str | Path, *, progress: Progress | None = None) -> "store.Dataset":
    """Make a data set, or finish one that was begun.

    Each shard is written to a temporary file, flushed and renamed; the manifest comes last. What a killed run
    left is kept where its checksums are right; the same call goes on from there and ends in the same bytes.

    Args:
        config: what to make.
        path: a folder, made if it is missing.
        progress: called as ``(shards done, shards in all, what is done now)``.

    Returns:
        The data set, opened.

    Raises:
        ValueError: an unknown family; a folder that holds something else, with the differing keys.
    """
    config.check_registered()
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with manifest.alone(folder):
        manifest.claim(folder, config)
        _fill(config, folder, progress or (lambda done, total, what: None))
    return store.open(folder)


def _fill(config: DataConfig, folder: Path, progress: Progress) -> None:
    """Make the shards that are missing, then the manifest; one is written while the next is computed."""
    todo, records = plan(config), []
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-write") as writer:
        pending: list[concurrent.futures.Future] = []
        for done, shard in enumerate(todo):
            last = shard.first + shard.count - 1
            progress(done, len(todo), f"{shard.family}, variants {shard.first} to {last}")
            path = folder / shard.name
            kept = shards.sound(path)
            if kept is not None and kept.attributes.get("config") == config.to_json():
                pending.append(writer.submit(_record, path, shard, kept, kept.digests()))
            else:
                pending.append(writer.submit(_record, path, shard, make(config, shard), None))
            if len(pending) > 2:  # what waits to be written stays small
                records.append(pending.pop(0).result())
        records += [future.result() for future in pending]
    manifest.seal(folder, config, records)
    progress(len(todo), len(todo), "all shards written")


def _record(
    path: Path, shard: Shard, content: shards.Content, digests: dict[str, str] | None
) -> dict[str, Any]:
    """Write what is not there yet, and what the manifest is to say of it."""
    digests = shards.write(path, content) if digests is None else digests
    return manifest.record(path, shard.family, content, digests)


def make(config: DataConfig, shard: Shard) -> shards.Content:
    """Everything in one shard, computed in float64."""
    with jax.enable_x64(True):
        return _make(config, shard)


def _make(config: DataConfig, shard: Shard) -> shards.Content:
    draw, start, noise = keys(config, shard)
    # always a whole block, cut afterwards: one compiled program for all shards, and the same bits in each
    size = min(config.variants_per_shard, config.variants)
    plants = systems.sample(shard.family, key=draw, num=size, spread=config.spread)
    linear = systems.linearise(plants)
    sx, su = (jnp.broadcast_to(jnp.asarray(s, float), (size, s.shape[-1])) for s in plants.scales)
    scaled = in_units(linear, sx, su)
    design = control.lqrd(scaled.A, scaled.B, scaled.Q, scaled.R, scaled.dt)
    gain = jnp.where(design.stabilizing[:, None, None], design.K, 0.0)
    x0 = plants.initial_state(key=start, num=config.trajectories)
    run = _linear if config.linear else _nonlinear
    xs, us, cost = run(config, plants, scaled, gain, x0, sx, su, noise)

    def native(a: Array, rows: Array, columns: Array) -> np.ndarray:
        """A padded matrix in scaled coordinates as one in SI units, in the plant's own dimension."""
        cut = a[:, : rows.shape[-1], : columns.shape[-1]]
        return np.asarray(cut * rows[:, :, None] * columns[:, None, :])

    count = slice(0, shard.count)
    designed = np.asarray(design.stabilizing)[count]
    ok, counts = _kept(config, designed, *(np.asarray(a)[count] for a in (xs, us, design.P)))
    names = splits(config, shard.family)[shard.first : shard.first + shard.count]
    table = {
        "family": np.full(size, shard.family, dtype=f"S{len(shard.family)}"),
        "variant": np.arange(shard.first, shard.first + size, dtype=np.int32),
        "split": np.pad(names, (0, size - len(names))),
        "A": np.asarray(linear.A),
        "B": np.asarray(linear.B),
        "Q": np.asarray(linear.Q),
        "R": np.asarray(linear.R),
        "K": native(design.K, su, 1 / sx),
        "P": native(design.P, 1 / sx, 1 / sx),
        "dt": np.asarray(linear.dt),
        "scale_x": np.asarray(sx),
        "scale_u": np.asarray(su),
    }
    table |= {
        f"parameters/{name}": np.broadcast_to(value, (size,)) for name, value in plants.parameters.items()
    }
    row, which = np.nonzero(ok)
    states = np.asarray(xs)[row, which] * np.asarray(sx)[row, None]
    controls = np.asarray(us)[row, which] * np.asarray(su)[row, None]
    runs = {
        # rows of the table that was kept, in which variants without a design are missing
        "variant": (np.cumsum(designed) - 1)[row].astype(np.int32),
        "x0": np.asarray(x0)[row, which],
        "states": states.astype(np.float32),
        "controls": controls.astype(np.float32),
        "cost": np.asarray(cost)[row, which],
    }
    arrays = {f"variants/{name}": np.ascontiguousarray(a[count][designed]) for name, a in table.items()}
    arrays |= {f"trajectories/{name}": np.ascontiguousarray(a) for name, a in runs.items()}
    about = {
        "format": manifest.FORMAT,
        "config": config.to_json(),
        "family": shard.family,
        "first_variant": shard.first,
        "states": ", ".join(s.name for s in plants.states),
        "inputs": ", ".join(s.name for s in plants.inputs),
        "source": plants.source,
        **{f"left_out_{reason}": number for reason, number in counts.items()},
        **versions(),
    }
    return shards.Content(arrays, _units(plants), about)


def versions() -> dict[str, str]:
    """What computed the numbers."""
    return {
        "lqrlab": lqrlab.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "platform": jax.default_backend(),
    }


Run = tuple[Array, Array, Array]


def _linear(
    config: DataConfig,
    plants: Plant,
    scaled: systems.Linear,
    gain: Array,
    x0: Array,
    sx: Array,
    su: Array,
    key: Array,
) -> Run:
    """All families through one compiled program: scaled, padded plants under exact zero-order hold."""
    live_x, live_u = (np.arange(full) < own for full, own in ((N_MAX, plants.n), (M_MAX, plants.m)))
    high = jnp.inf if config.saturation is None else config.saturation
    out = simulation.rollout(
        scaled,
        simulation.LinearPolicy(gain),
        jnp.pad(x0 / sx[:, None], ((0, 0), (0, 0), (0, N_MAX - plants.n))),
        config.num_steps,
        linear=True,
        key=key,
        limits=(-high, high),
        noise=config.noise * live_x,
        sensor_noise=config.sensor_noise * live_x,
        excitation=config.excitation * live_u,
        substeps=1,
    )
    return out.xs[..., : plants.n], out.us[..., : plants.m], out.cost


def _nonlinear(
    config: DataConfig,
    plants: Plant,
    scaled: systems.Linear,
    gain: Array,
    x0: Array,
    sx: Array,
    su: Array,
    key: Array,
) -> Run:
    """One family's own equations of motion, in SI units; the costs are the same in either."""
    u_eq = plants.equilibrium()[1]
    high = jnp.inf if config.saturation is None else config.saturation
    out = simulation.rollout(
        plants,
        simulation.LinearPolicy(gain[:, : plants.m, : plants.n] * su[:, :, None] / sx[:, None, :]),
        x0,
        config.num_steps,
        key=key,
        limits=(u_eq - high * su, u_eq + high * su),
        noise=config.noise * sx[0],
        sensor_noise=config.sensor_noise * sx[0],
        excitation=config.excitation * su[0],
    )
    return out.xs / sx[:, None, None], out.us / su[:, None, None], out.cost


def _kept(
    config: DataConfig, designed: np.ndarray, xs: np.ndarray, us: np.ndarray, P: np.ndarray
) -> tuple[np.ndarray, dict[str, int]]:
    """Which trajectories ``[variants, trajectories]`` are kept, and how many are left out and why."""
    n = xs.shape[-1]
    stays = np.all(np.abs(np.nan_to_num(xs, nan=np.inf)) < DIVERGED, axis=(-1, -2))
    stuck = np.zeros_like(stays)
    if config.saturation is not None:
        # at its limit for half of the last quarter and further from rest, in cost, than it began
        tail = np.abs(us[..., -max(config.num_steps // 4, 1) :, :]) > 0.999 * config.saturation
        calm = np.where(stays[..., None, None], xs[..., [0, -1], :], 0.0)
        value = np.einsum("vnki,vij,vnkj->vnk", calm, np.nan_to_num(P[:, :n, :n]), calm)
        stuck = (tail.any(-1).mean(-1) > 0.5) & (value[..., 1] > value[..., 0])
    has = designed[:, None]
    left_out = (~designed, has & ~stays, has & stays & stuck)
    return has & stays & ~stuck, {reason: int(a.sum()) for reason, a in zip(manifest.REASONS, left_out)}


def _units(plants: Plant) -> dict[str, str]:
    x, u = (", ".join(s.unit for s in signals) for signals in (plants.states, plants.inputs))
    parameters = systems.parameter_fields(type(plants))
    found = {
        "variants/A": f"rows ({x})/s, columns 1/({x})",
        "variants/B": f"rows ({x})/s, columns 1/({u})",
        "variants/Q": f"rows and columns 1/({x})",
        "variants/R": f"rows and columns 1/({u})",
        "variants/K": f"rows ({u}), columns 1/({x})",
        "variants/P": f"rows and columns 1/({x}), times s",
        "variants/dt": "s",
        "variants/scale_x": x,
        "variants/scale_u": u,
        "trajectories/x0": x,
        "trajectories/states": x,
        "trajectories/controls": u,
        "trajectories/cost": "s",
    }
    return found | {f"variants/parameters/{name}": f.metadata["unit"] for name, f in parameters.items()}
