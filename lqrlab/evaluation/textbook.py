"""Designs that others have published: plants of which nothing is in the catalogue, listed in ``textbook.toml``."""

import dataclasses
import tomllib
from pathlib import Path

import numpy as np

from lqrlab.systems import Linear, from_matrices

Rows = list[list[float]]


@dataclasses.dataclass(frozen=True)
class PublishedDesign:
    """A published plant ẋ = Ax + Bu and its weights.

    Attributes:
        A, B: as printed.
        dt: sample time [s].
        source: where it is printed.
        Q, R: diagonals of the weights; empty for ones.
        K: gain of the continuous regulator, where the source prints it.
    """

    A: Rows
    B: Rows
    dt: float
    source: str
    Q: list[float] = dataclasses.field(default_factory=list)
    R: list[float] = dataclasses.field(default_factory=list)
    K: Rows = dataclasses.field(default_factory=list)

    def plant(self) -> Linear:
        """The plant, with its weights and sample time, as a batch of one."""
        A, B = np.array(self.A, float), np.array(self.B, float)
        Q, R = (np.diag(w or np.ones(size)) for w, size in ((self.Q, len(A)), (self.R, B.shape[1])))
        return from_matrices(A[None], B[None], Q=Q[None], R=R[None], dt=self.dt)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DESIGNS = {name: PublishedDesign(**table) for name, table in _TABLES.items()}
"""Name → design."""


def designs() -> dict[str, Linear]:
    """The plants of all designs by name, each a batch of one."""
    return {name: design.plant() for name, design in DESIGNS.items()}
