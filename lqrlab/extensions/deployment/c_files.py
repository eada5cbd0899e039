"""The files of an exported controller."""

from pathlib import Path

from lqrlab.simulation import Problem
from lqrlab.systems import Plant


def to_c(controller: object, problem: Problem | Plant, folder: str | Path) -> Path:
    """Write a controller as C99: header, code, test vectors, a test, a build file and a README."""
    raise NotImplementedError
