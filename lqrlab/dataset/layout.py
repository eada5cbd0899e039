"""The arrays that each file of a data set has: their names, types and shapes, which follow from its config."""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from lqrlab.dataset.data_config import DataConfig
from lqrlab.systems import M_MAX, N_MAX

_REAL, _WHOLE, _TEXT = "<f8", "<i[48]", r"\|S\d{1,3}"  # types as NumPy writes them
_PARAMETER = "<[fi][48]"

Expected = dict[str, tuple[str, tuple[int, ...]]]


def _expected(config: DataConfig, plants: int, rows: int, n: int, m: int) -> Expected:
    """Type and shape of each array of a file, by the number of its plants, rows of trajectories, states, inputs."""
    steps = config.row_steps
    variants: Expected = {
        "family": (_TEXT, ()),
        "variant": (_WHOLE, ()),
        "split": (_TEXT, ()),
        "dt": (_REAL, ()),
        "scale_x": (_REAL, (n,)),
        "scale_u": (_REAL, (m,)),
        "A": (_REAL, (n, n)),
        "B": (_REAL, (n, m)),
        "Q": (_REAL, (n, n)),
        "R": (_REAL, (m, m)),
        "K": (_REAL, (m, n)),
        "P": (_REAL, (n, n)),
    }
    trajectories: Expected = {
        "variant": (_WHOLE, ()),
        "x0": (_REAL, (n,)),
        "states": ("<f4", (steps + 1, n)),
        "controls": ("<f4", (steps, m)),
        "cost": (_REAL, ()),
    }
    if config.segmented:
        trajectories["start"] = (_WHOLE, ())
    return {
        **{f"variants/{name}": (kind, (plants, *shape)) for name, (kind, shape) in variants.items()},
        **{f"trajectories/{name}": (kind, (rows, *shape)) for name, (kind, shape) in trajectories.items()},
    }


def missing(names: Container[str], config: DataConfig) -> str:
    """Which arrays of a file are not among these, in words; empty if none is missing."""
    absent = [name for name in _expected(config, 0, 0, 0, 0) if name not in names]
    return f"{', '.join(absent)} are missing" if absent else ""


def wrong(headers: Mapping[str, Mapping[str, Any]], config: DataConfig) -> Iterator[str]:
    """What is wrong with the names, types and shapes of a file's arrays, in words; looks at no number in them.

    Args:
        headers: name → ``{"shape": [...], "dtype": "<f8"}``.
        config: of the data set.
    """
    if absent := missing(headers, config):
        yield absent
        return
    B, of = headers["variants/B"]["shape"], headers["trajectories/variant"]["shape"]
    if not (len(B) == 3 and len(of) == 1 and 1 <= B[1] <= N_MAX and 1 <= B[2] <= M_MAX):
        yield f"variants/B, trajectories/variant: expected plants and their trajectories, but found shapes {B}, {of}"
        return
    (plants, n, m), rows = B, of[0]
    expected = _expected(config, plants, rows, n, m)
    for name, header in headers.items():
        kind, shape = expected.get(name, (_PARAMETER, (plants,)))
        if name not in expected and not name.startswith("variants/parameters/"):
            yield f"{name} is no array of a data set"
        elif list(header["shape"]) != list(shape):
            yield f"{name}: expected shape {shape}, but found {tuple(header['shape'])}"
        elif not re.fullmatch(kind, header["dtype"]):
            yield f"{name} holds {header['dtype']}, not the type of a data set"
