"""The files that a config makes: their names, random keys and splits, and the arrays that each of them has."""

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, Shaped

from lqrlab.dataset.data_config import DataConfig
from lqrlab.systems import M_MAX, N_MAX, Plant, parameter_fields

FORMAT = "lqrlab data set 1"

REASONS = {
    "no_stabilizing_design": "variants without a stabilizing optimal gain, and all their trajectories",
    "diverged": "trajectories that diverged: a state beyond 1000 scales (and 1000 times its start), or still growing",
    "saturated": "trajectories whose input stayed at its limit while the state moved away",
}
"""Why a variant (the first) or a trajectory may be left out."""

_REAL, _SINGLE, _WHOLE, _TEXT = "<f8", "<f4", "<i[48]", r"\|S\d{1,3}"  # types as NumPy writes them
_PARAMETER = "<[fi][48]"
_PARAMETERS = "variants/parameters/"

_ARRAYS = {
    "variants/family": (_TEXT, "v", ""),
    "variants/variant": (_WHOLE, "v", ""),
    "variants/split": (_TEXT, "v", ""),
    "variants/dt": (_REAL, "v", "s"),
    "variants/scale_x": (_REAL, "vn", "{x}"),
    "variants/scale_u": (_REAL, "vm", "{u}"),
    "variants/A": (_REAL, "vnn", "rows ({x})/s, columns 1/({x})"),
    "variants/B": (_REAL, "vnm", "rows ({x})/s, columns 1/({u})"),
    "variants/Q": (_REAL, "vnn", "rows and columns 1/({x})"),
    "variants/R": (_REAL, "vmm", "rows and columns 1/({u})"),
    "variants/K": (_REAL, "vmn", "rows ({u}), columns 1/({x})"),
    "variants/P": (_REAL, "vnn", "rows and columns 1/({x}), times s"),
    "trajectories/variant": (_WHOLE, "r", ""),
    "trajectories/x0": (_REAL, "rn", "{x}"),
    "trajectories/states": (_SINGLE, "rsn", "{x}"),
    "trajectories/controls": (_SINGLE, "rtm", "{u}"),
    "trajectories/cost": (_REAL, "r", "s"),
    "trajectories/start": (_WHOLE, "r", "steps"),
}
"""Type, axes and unit of each array of a file; v plants of n states and m inputs, r rows of t steps and s samples."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A block of variants of one family, which becomes a file; its random numbers follow from this and the seed."""

    family: str
    block: int
    first: int
    count: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.family}-{self.block:05d}.h5"


def plan(config: DataConfig) -> tuple[Shard, ...]:
    """All shards of a data set in order: families as the config lists them, then variants."""
    size = config.variants_per_shard
    return tuple(
        Shard(family, first // size, first, min(size, config.variants - first))
        for family in config.families
        for first in range(0, config.variants, size)
    )


def keys(config: DataConfig, shard: Shard) -> Key[Array, "3"]:
    """Three random keys of a shard, from the seed, the family's name and the block alone."""
    key = jax.random.key(config.seed, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, zlib.crc32(shard.family.encode())), shard.block)
    return jax.random.split(key, 3)


@functools.lru_cache(4)  # all files of a family ask for it
def splits(config: DataConfig, family: str) -> Shaped[np.ndarray, " variants"]:
    """The name of the split of each variant of a family; not to be written to."""
    if family in (config.held_out or ()):
        return np.full(config.variants, "held_out", dtype="S10")
    word = f"{config.seed}/{family}/split".encode()
    order = np.random.Generator(np.random.PCG64(zlib.crc32(word))).permutation(config.variants)
    split = np.full(config.variants, "train", dtype="S10")
    split[order[: config.num_validation]] = "validation"
    return split


def _arrays(config: DataConfig) -> dict[str, tuple[str, str, str]]:
    """The arrays of each file, but for the parameters of its plants."""
    return {name: a for name, a in _ARRAYS.items() if config.segmented or name != "trajectories/start"}


def units(config: DataConfig, plants: Plant) -> dict[str, str]:
    """The unit of each array that has one."""
    x, u = (", ".join(signal.unit for signal in signals) for signals in (plants.states, plants.inputs))
    found = {name: unit.format(x=x, u=u) for name, (_, _, unit) in _arrays(config).items() if unit}
    parameters = parameter_fields(type(plants)).items()
    return found | {f"{_PARAMETERS}{name}": field.metadata["unit"] for name, field in parameters}


def wrong(headers: Mapping[str, Mapping[str, Any]], config: DataConfig) -> Iterator[str]:
    """Faults in names, types and shapes of a file's arrays, in words; looks at no number in them.

    Args:
        headers: name → ``{"shape": [...], "dtype": "<f8"}``.
        config: of the data set.
    """
    expected = _arrays(config)
    if absent := [name for name in expected if name not in headers]:
        yield f"{', '.join(absent)} are missing"
        return
    B, of = headers["variants/B"]["shape"], headers["trajectories/variant"]["shape"]
    if not (len(B) == 3 and len(of) == 1 and 1 <= B[1] <= N_MAX and 1 <= B[2] <= M_MAX):
        yield f"variants/B, trajectories/variant: expected plants and their trajectories, but found shapes {B}, {of}"
        return
    sizes = dict(zip("vnmrts", (*B, *of, config.row_steps, config.row_steps + 1)))
    for name, header in headers.items():
        kind, axes, _ = expected.get(name, (_PARAMETER, "v", ""))
        shape = tuple(sizes[axis] for axis in axes)
        if name not in expected and not name.startswith(_PARAMETERS):
            yield f"{name} is no array of a data set"
        elif list(header["shape"]) != list(shape):
            yield f"{name}: expected shape {shape}, but found {tuple(header['shape'])}"
        elif not re.fullmatch(kind, header["dtype"]):
            yield f"{name} holds {header['dtype']}, not the type of a data set"
