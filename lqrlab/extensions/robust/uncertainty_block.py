"""Structure of an uncertainty Δ: its blocks down the diagonal."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lqrlab.compute import checks


@dataclasses.dataclass(frozen=True)
class UncertaintyBlock:
    """Of Δ: full, or a scalar times the identity, complex or real.

    Attributes:
        full: any complex matrix; else a scalar times the identity.
        real: that scalar is real.
        begin, end: its first row and column in Δ, and those after its last; rows are inputs of M, columns outputs.
    """

    full: bool
    real: bool
    begin: tuple[int, int]
    end: tuple[int, int]

    @property
    def rows(self) -> slice:
        """Its rows in Δ."""
        return slice(self.begin[0], self.end[0])

    @property
    def columns(self) -> slice:
        """Its columns in Δ."""
        return slice(self.begin[1], self.end[1])

    @property
    def size(self) -> int:
        """Number of its rows."""
        return self.end[0] - self.begin[0]


def uncertainty_structure(blocks: Any, z: int, w: int) -> tuple[UncertaintyBlock, ...]:
    """Blocks as ``robust.mu`` takes them, for M of shape (z, w); a ``ValueError`` where they do not go with it."""
    blocks = blocks.tolist() if isinstance(blocks, np.ndarray) else blocks
    if not isinstance(blocks, Sequence) or isinstance(blocks, str) or not blocks:
        raise ValueError(f"blocks: expected a list of the blocks of Δ, but found {blocks!r}")
    found, i, j = [], 0, 0
    for given in blocks:
        several = isinstance(given, tuple | list)
        pair = [checks.whole("blocks", x, None) for x in (given if several else [given])]
        pair = pair if several else [*pair, max(*pair, 0)]
        if len(pair) != 2 or pair[0] == 0 or pair[1] < 0 or (pair[0] < 0 < pair[1]):
            wanted = "(r, c), (r, 0) or (-r, 0) with whole numbers"
            raise ValueError(f"blocks: expected {wanted}, but found {given!r}")
        rows, columns = abs(int(pair[0])), int(pair[1]) or abs(int(pair[0]))
        full, real = bool(pair[1] > 0), bool(pair[0] < 0)
        found.append(UncertaintyBlock(full, real, (i, j), (i + rows, j + columns)))
        i, j = i + rows, j + columns
    if (i, j) != (w, z):
        raise ValueError(f"blocks: expected {w} rows and {z} columns, as M of shape {(z, w)} wants, but found {i}, {j}")
    return tuple(found)
