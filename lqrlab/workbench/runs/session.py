"""What frames the work of one notebook: its folder at the beginning, its numbers at the end.

Used through :mod:`lqrlab.workbench.runs.pipeline`, in a notebook that somebody has open as well as in one that
papermill or the pipeline executes.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lqrlab

if TYPE_CHECKING:
    from lqrlab.compute import Backend

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy")

_started: dict[str, "tuple[float, str, Backend | None]"] = {}


def headless() -> bool:
    """Whether nobody is there to move a slider: widgets then draw a static figure."""
    someone = "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
    return "LQRLAB_HEADLESS" in os.environ or not someone


def begin(name: str, run: str | Path, backend: "Backend | None" = None) -> Path:
    """Start a notebook's work: set JAX up and return the folder that the run reads and writes.

    Args:
        name: the notebook's name, as ``"03_training"``.
        run: the folder; a relative one is meant from the project's folder (the nearest above with a
            ``pyproject.toml``), so that it is the same one in JupyterLab, in papermill and in a pipeline.
        backend: recorded with the result. Its device and precision hold from here on; all of it does where a
            stage is given it, or within ``with backend.active()``.
    """
    import jax

    from lqrlab import compute

    compute.setup()
    if backend is not None:
        jax.config.update("jax_default_matmul_precision", backend.precision)
        jax.config.update("jax_default_device", None if backend.device == "auto" else backend.jax_device)
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "pyproject.toml").exists()), here)
    folder = (root / Path(run).expanduser()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    result_path(folder, name).unlink(
        missing_ok=True
    )  # what is there afterwards was written by this execution
    _started[name] = time.monotonic(), now(), backend
    return folder


def finish(name: str, folder: Path, numbers: Mapping[str, Any], files: Sequence[str | Path] = ()) -> Path:
    """End a notebook's work: write its numbers, atomically, to ``<folder>/results/<name>.json``.

    Args:
        name: as given to :func:`begin`.
        folder: as returned by it.
        numbers: what the notebook found out: numbers, strings, arrays, nested as they like.
        files: what it made in ``folder`` for those after it. They must be there now; should one be missing
            later, the notebook counts as not finished.

    Returns:
        The path of the result file.
    """
    import jax

    if name not in _started:
        raise ValueError(f"finish: session.begin({name!r}, run) has to come first")
    begun, started, backend = _started[name]
    missing = [str(f) for f in files if not (folder / f).exists()]
    if missing:
        raise ValueError(f"{name}: says that it made {', '.join(missing)}, but {folder} has no such file")
    device = jax.devices()[0]
    kind = (
        f"{device.platform} ({device.device_kind})"
        if device.device_kind != device.platform
        else device.platform
    )
    return write_json(
        result_path(folder, name),
        {
            "notebook": name,
            "numbers": numbers,
            "files": [str(f) for f in files],
            "execution": os.environ.get("LQRLAB_EXECUTION"),
            "fingerprint": os.environ.get("LQRLAB_FINGERPRINT"),
            "started": started,
            "seconds": round(time.monotonic() - begun, 3),
            "device": f"{len(jax.devices())} × {kind}",
            "backend": None if backend is None else dataclasses.asdict(backend),
            "versions": versions(),
        },
    )


def results(folder: Path, name: str) -> dict[str, Any]:
    """What the notebook ``name`` wrote at its end; a ``ValueError`` says which notebook to run first."""
    try:
        return json.loads(result_path(folder, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{folder}: no result of {name}; run that notebook first") from None


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write ``content`` to ``path`` in one piece: whoever reads it sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(_plain(content), file, indent=2, ensure_ascii=False, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def _plain(value: Any) -> Any:
    """As JSON has it: arrays as lists, numbers as Python's own, those that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy and JAX arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def versions() -> dict[str, str]:
    """Versions of Python, lqrlab and of what computes for it."""
    there = {"python": platform.python_version(), "lqrlab": lqrlab.__version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            there[package] = importlib.metadata.version(package)
    return there


def result_path(folder: Path, name: str) -> Path:
    """Where the notebook ``name`` writes its result."""
    return folder / "results" / f"{name}.json"


def now() -> str:
    """The time here, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
