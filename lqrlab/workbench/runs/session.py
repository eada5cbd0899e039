"""The beginning and the end of a notebook's work: its folder first, its numbers last.

The same in a notebook that somebody has open as in one that papermill or ``lqrlab run`` executes.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import lqrlab
from lqrlab.compute import files as disk

if TYPE_CHECKING:
    from lqrlab.compute import Backend

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy")

_started: dict[str, "tuple[float, str, Backend | None]"] = {}


class Result(TypedDict):
    """What a notebook leaves in ``results/<name>.json``."""

    notebook: str
    numbers: dict[str, object]
    files: list[str]
    execution: str | None
    fingerprint: str | None
    started: str
    seconds: float
    device: str
    backend: dict[str, object] | None
    versions: dict[str, str]


def headless() -> bool:
    """Whether nobody is there to move a slider: widgets then draw a static figure."""
    someone = "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
    return "LQRLAB_HEADLESS" in os.environ or not someone


def project() -> Path:
    """The project's folder: the nearest, from here upwards, with ``notebooks`` or a ``pyproject.toml``; else here."""
    here = Path.cwd()
    marks = ("notebooks", "pyproject.toml")
    return next((p for p in (here, *here.parents) if any((p / mark).exists() for mark in marks)), here)


def begin(name: str, run: str | Path, backend: "Backend | None" = None) -> Path:
    """Start a notebook's work: set JAX up and return the folder that the run reads and writes.

    A relative folder is meant from the project's folder (:func:`project`), so that it is the same one in JupyterLab, in
    papermill and in a pipeline. The backend is recorded with the result; its device and precision hold from here on,
    all of it where a function is given it, or within ``with backend.active()``.
    """
    import jax

    from lqrlab import compute

    compute.setup()
    if backend is not None:
        jax.config.update("jax_default_matmul_precision", backend.precision)
        jax.config.update("jax_default_device", None if backend.device == "auto" else backend.jax_device)
    folder = (project() / Path(run).expanduser()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    result_path(folder, name).unlink(missing_ok=True)  # so that a result is one of this execution
    _started[name] = time.monotonic(), now(), backend
    return folder


def finish(name: str, folder: Path, numbers: Mapping[str, object], files: Sequence[str | Path] = ()) -> Path:
    """End a notebook's work: write its numbers, atomically, to ``<folder>/results/<name>.json``, which is returned.

    Args:
        name, folder: as given to and returned by :func:`begin`.
        numbers: numbers, strings, arrays, nested as they like.
        files: what the notebook made in ``folder`` for those after it; where one is missing it is not finished.
    """
    import jax

    if name not in _started:
        raise ValueError(f"finish: session.begin({name!r}, run) has to come first")
    begun, started, backend = _started[name]
    missing = [str(f) for f in files if not (folder / f).exists()]
    if missing:
        raise ValueError(f"{name}: says that it made {', '.join(missing)}, but {folder} has no such file")
    device = jax.devices()[0]
    kind = f" ({device.device_kind})" if device.device_kind != device.platform else ""
    result: Result = {
        "notebook": name,
        "numbers": plain(numbers),
        "files": [str(f) for f in files],
        "execution": os.environ.get("LQRLAB_EXECUTION"),
        "fingerprint": os.environ.get("LQRLAB_FINGERPRINT"),
        "started": started,
        "seconds": round(time.monotonic() - begun, 3),
        "device": f"{len(jax.devices())} × {device.platform}{kind}",
        "backend": None if backend is None else dataclasses.asdict(backend),
        "versions": versions(),
    }
    path = result_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return disk.write_json(path, result, ensure_ascii=False, allow_nan=False)


def results(folder: Path, name: str) -> Result:
    """What the notebook ``name`` wrote at its end; a ``ValueError`` says which notebook to run first."""
    try:
        return disk.read_object(result_path(folder, name))  # type: ignore[return-value]
    except (OSError, ValueError):
        raise ValueError(f"{folder}: no result of {name}; run that notebook first") from None


def result_path(folder: Path, name: str) -> Path:
    """Where the notebook ``name`` writes its result."""
    return folder / "results" / f"{name}.json"


def versions() -> dict[str, str]:
    """Versions of Python, lqrlab and of what computes for it."""
    known = {"python": platform.python_version(), "lqrlab": lqrlab.__version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known


def now() -> str:
    """The time here, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def plain(value: Any) -> Any:
    """As JSON has it: arrays as lists, numbers as Python's, those that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy and JAX arrays and scalars
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)
