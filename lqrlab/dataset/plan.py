"""The files that a config makes, and what each follows from: its name, its random keys, the split of its plants."""

import dataclasses
import functools
import zlib

import jax
import numpy as np
from jaxtyping import Array, Key, Shaped

from lqrlab.dataset.data_config import DataConfig


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
