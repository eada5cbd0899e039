"""The beginning and the end of a notebook's work, by hand or headless: its folder first, its numbers last."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import math
import os
import platform
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lqrlab
from lqrlab.compute import files as disk
from lqrlab.installation import program, typed
from lqrlab.workbench.runs import plant_copies

if TYPE_CHECKING:
    from lqrlab.compute import Backend

C = TypeVar("C")
LATEST, DEFAULT = "latest", "data/runs/default"
DESIGNS = "designs.json"  # of a run: designs that a person kept in its panels, by panel and name
DATASET, BY_HAND = "dataset", "by_hand"
MAKERS = {"02_data_generation": f"{DATASET}/manifest.json", "03_training": "checkpoints"}  # what others read
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy")

_started: dict[str, "tuple[float, str, Backend | None]"] = {}
_begun: list[Path] = []


def headless() -> bool:
    """True in runs without a person: widgets then draw a static figure."""
    return "LQRLAB_HEADLESS" in os.environ or not ("JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ)


def project() -> Path:
    """The project's folder: the nearest, from here upwards, with ``notebooks`` or a ``pyproject.toml``; else here."""
    here = Path.cwd()
    marks = ("notebooks", "pyproject.toml")
    return next((p for p in (here, *here.parents) if any((p / mark).exists() for mark in marks)), here)


def runs() -> list[Path]:
    """The folders of ``data/runs`` in which something was run, the newest first."""
    home = (project() / DEFAULT).parent
    marks = [*home.glob("*/run.json"), *home.glob("*/results")]
    newest = sorted(marks, key=lambda mark: mark.stat().st_mtime, reverse=True)
    return list(dict.fromkeys(mark.parent for mark in newest))


def settings(folder: Path, asked: Sequence[C], found: Sequence[C] | None) -> Sequence[C]:
    """The settings to go on with: those ``asked`` for, or for a person those with which the folder was ``found``."""
    differ = [d for a, f in zip(asked, found or ()) for d in f.differences(a)]  # type: ignore[attr-defined]
    if found is None or not differ or headless():
        return asked
    other = f"{folder} was made with other settings than this cell's: {', '.join(differ)}. What was made there is shown"
    print(f'{other}; to use this cell\'s settings, give another folder, such as run = "data/runs/mine"')
    return found


def _folder(run: str | Path, reads: Sequence[str]) -> Path:
    """The folder of a run; ``"latest"`` is the newest that has what is read, and a line names it and the next ones."""
    if str(run) != LATEST:
        return (project() / Path(run).expanduser()).resolve()
    looks = bool(reads) or not headless()  # else it is a new run
    there = [f for f in runs() if looks and all((f / name).exists() for name in reads)]
    lines = [f'run = "{path.relative_to(project()).as_posix()}"' for path in there or [project() / DEFAULT]]
    having = f" that has {' and '.join(reads)}" if reads else ""
    others = f"; others: {', '.join(lines[1:6])}" if lines[1:] else ""
    print(lines[0] + (f", the latest run{having}" if there else ", a new run") + others)
    return (there or [project() / DEFAULT])[0].resolve()


def begin(
    name: str, run: str | Path, backend: "Backend | None" = None, *, reads: str | Sequence[str] = (), plants: str = ""
) -> Path:
    """Start a notebook's work: set JAX up and return the folder that the run reads and writes.

    Args:
        name: of the notebook.
        run: the folder, relative to the project's (:func:`project`), or ``"latest"``: the newest run that has what the
            notebook ``reads``, else ``data/runs/default``.
        backend: where and how to compute: device and precision hold from here on, it is recorded with the result.
        reads: what the folder holds, as ``"dataset"`` or ``("dataset", "checkpoints")``; a new folder gets a link
            to the latest data set.
        plants: a file of plants (:func:`lqrlab.systems.register_file`), relative to the project's folder.
    """
    from lqrlab import compute
    from lqrlab.workbench.runs import notebooks

    if plants:
        from lqrlab import systems

        compute.setup()
        file = project() / Path(plants).expanduser()
        print(f"plants of {file.name}: {', '.join(systems.register_file(file))}")
    if shell := "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        notebooks.check_executed(name, shell.user_ns)
    reads = [reads] * bool(reads) if isinstance(reads, str) else reads
    folder = _folder(run, reads)
    lender = next((other for other in runs() if (other / DATASET).exists()), None)
    if DATASET in reads and lender and not headless() and not os.path.lexists(folder / DATASET):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DATASET).symlink_to(lender / DATASET)
        print(f"{DATASET}: that of {lender}, to which {folder} has a link")
    require(name, folder, reads)
    import jax  # what is refused is refused without waiting for it

    compute.setup()
    if backend is not None:
        jax.config.update("jax_default_matmul_precision", backend.precision)
        jax.config.update("jax_default_device", None if backend.device == "auto" else backend.jax_device)
    folder.mkdir(parents=True, exist_ok=True)
    if not _kept(folder, name):
        result_path(folder, name).unlink(missing_ok=True)  # so that a result is one of this execution
    _started[name] = time.monotonic(), now(), backend
    _begun.append(folder)
    return folder


def require(name: str, folder: Path, reads: Collection[str]) -> None:
    """Refuse a notebook that reads what is not there, or what other notebooks make, with the command that makes it."""
    wanted = {maker: file for maker, file in MAKERS.items() if {maker, file.partition("/")[0]} & {*reads}}
    if missing := [maker for maker, file in wanted.items() if not (folder / file).exists()]:
        first, command = " and ".join(missing), f"{program()} run {' '.join(missing)} --folder {typed(folder)}"
        raise ValueError(f"{name}: reads what {first} made, but {folder} has none; run {first} first: {command}")


def begun() -> Path | None:
    """The folder of the run that this process began last; None if it began none."""
    return _begun[-1] if _begun else None


def _kept(folder: Path, name: str) -> bool:
    """True for a result of ``lqrlab run`` in any other execution, which is a look at the run and replaces nothing."""
    return "LQRLAB_FINGERPRINT" not in os.environ and fingerprint(folder, name) is not None


def output(name: str, folder: Path) -> Path:
    """The folder for files that a notebook writes: ``folder``, or ``folder/by_hand`` for a look at a finished run."""
    if not _kept(folder, name):
        return folder
    print(f"{folder} was made by `lqrlab run` and is not changed; new files go to {folder / BY_HAND}")
    return folder / BY_HAND


def finish(name: str, folder: Path, numbers: Mapping[str, object], files: Sequence[str | Path] = ()) -> Path:
    """End a notebook's work: write its numbers, atomically, to ``<folder>/results/<name>.json``, which is returned.

    ``files`` is what it made for those after it. A result of ``lqrlab run`` stays when it is run there by hand.
    """
    import jax

    if name not in _started:
        raise ValueError(f"finish: session.begin({name!r}, run) has to come first")
    begun, started, backend = _started[name]
    if missing := [str(f) for f in files if not (folder / f).exists()]:
        raise ValueError(f"{name}: its result names {', '.join(missing)}, but {folder} has no such file")
    path = result_path(folder, name)
    if _kept(folder, name):
        print(f"Kept {path}, written by `lqrlab run`. Set `run` to another folder for your own result")
        return path
    device = jax.devices()[0]
    kind = f" ({device.device_kind})" if device.device_kind != device.platform else ""
    result: dict[str, Any] = {
        "notebook": name,
        "numbers": plain(numbers),
        "files": [str(f) for f in files],
        "fingerprint": os.environ.get("LQRLAB_FINGERPRINT"),
        "started": started,
        "seconds": round(time.monotonic() - begun, 3),
        "device": f"{len(jax.devices())} × {device.platform}{kind}",
        "backend": None if backend is None else dataclasses.asdict(backend),
        "versions": versions(),
        "plants": plant_copies.keep(folder),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return disk.write_json(path, result, ensure_ascii=False, allow_nan=False)


def results(folder: Path, name: str) -> dict[str, Any]:
    """Result that the notebook ``name`` wrote at its end; a ``ValueError`` says which notebook to run first."""
    with contextlib.suppress(ValueError):
        found = disk.read_object(result_path(folder, name))
        kinds = {"numbers": dict, "files": list, "started": str, "seconds": int | float, "device": str}
        plausible = all(isinstance(found.get(key), kind | None) for key, kind in kinds.items())
        if plausible and all(isinstance(file, str) for file in found.get("files") or ()):
            return found
    raise ValueError(f"{folder}: no result of {name}; run that notebook first")


def fingerprint(folder: Path, name: str) -> str | None:
    """The fingerprint that ``lqrlab run`` filed with the result of ``name``; None for one made by hand, or for none."""
    with contextlib.suppress(ValueError):
        return results(folder, name).get("fingerprint")
    return None


def result_path(folder: Path, name: str) -> Path:
    """Path of the result of the notebook ``name``."""
    return folder / "results" / f"{name}.json"


def versions() -> dict[str, str]:
    """Versions of Python, lqrlab and of what computes for it."""
    packages = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), "lqrlab": lqrlab.__version__, **packages}


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
    good = math.isfinite(value) if isinstance(value, float) else isinstance(value, bool | int | str | None)
    return value if good else str(value)
