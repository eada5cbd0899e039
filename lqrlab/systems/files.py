"""Plants from files with matrices."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lqrlab.systems.custom import Linear, from_matrices

_KNOWN = ("A", "B", "C", "Q", "R", "dt", "states", "inputs")
_LIMIT = 64 * 2**20


def load(path: str | Path, *, dt: float | None = None) -> Linear:
    """A plant from a file that holds A and B, and perhaps C, Q, R, dt, states, inputs.

    Args:
        path: ``.npz`` (NumPy), ``.mat`` (MATLAB up to version 7) or ``.json`` (lists of rows). Nothing in it
            is executed: pickled objects are refused.
        dt: sample time [s]; the file's, or 0.01 s, if left out.

    Raises:
        ValueError: naming the file and what is wrong with it: missing, truncated, foreign, without A or B,
            or with matrices that do not fit.
    """
    file = Path(path)
    readers = {".npz": _npz, ".mat": _mat, ".json": _json}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ValueError(f"{file}: expected a file ending in {', '.join(readers)}, but found {file.suffix!r}")
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if file.stat().st_size > _LIMIT:
        raise ValueError(f"{file}: expected some matrices, but found {file.stat().st_size / 2**20:.0f} MiB")
    try:
        content = reader(file)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(
            f"{file}: cannot be read as {file.suffix} ({type(error).__name__}: {error}); it is truncated, "
            "damaged or of another kind"
        ) from error
    missing = [name for name in "AB" if name not in content]
    if missing:
        names = ", ".join(sorted(content)) or "nothing"
        raise ValueError(
            f"{file}: expected the matrices A and B, but {missing[0]} is missing; it holds {names}"
        )
    given = {name: content[name] for name in _KNOWN if name in content}
    step = float(np.squeeze(given.pop("dt", 0.01))) if dt is None else dt
    given.pop("dt", None)
    for name in ("states", "inputs"):
        if name in given:
            given[name] = [str(text).strip() for text in np.ravel(given[name])]
    try:
        return from_matrices(**given, dt=step)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _npz(file: Path) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > _LIMIT:
            raise ValueError(f"it unpacks to {size / 2**20:.0f} MiB")
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _mat(file: Path) -> dict[str, Any]:
    import scipy.io  # 0.2 s that only this format costs

    content = scipy.io.loadmat(file)
    return {name: value for name, value in content.items() if not name.startswith("__")}


def _json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"expected an object with A and B, but found a {type(content).__name__}")
    return content
