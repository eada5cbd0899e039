"""Exported controllers, compiled and in a loop again."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class ExportedController:
    """A controller in C, compiled: one more kind of controller for :func:`lqrlab.simulation.bind`."""


def load_c(folder: str | Path) -> ExportedController:
    """Compile the C code of a folder that :func:`to_c` wrote."""
    raise NotImplementedError
