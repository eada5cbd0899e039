"""The main job: notebooks one after another, each handing the next files in one run folder.

Inside a notebook, :func:`begin` and :func:`finish` frame the work. From outside, :func:`run` checks all
parameters, executes what is not finished yet, and writes the report. A notebook is finished when its process
ended well *and* the last cell of that very execution wrote its result file.
"""

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import lqrlab
from lqrlab.workbench import execution, notebooks
from lqrlab.workbench.terminal import Progress, clock

PRODUCTS = ("notebooks", "dataset", "checkpoints", "metrics.jsonl", "results", "report", "run.json")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy")

_started: dict[str, tuple[float, str]] = {}


class RunError(RuntimeError):
    """A run that stopped at a notebook; the message says where, why and what to do next."""


# In a notebook ------------------------------------------------------------------------------------------


def headless() -> bool:
    """Whether nobody is there to move a slider: widgets then draw a static figure."""
    someone = "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
    return "LQRLAB_HEADLESS" in os.environ or not someone


def begin(name: str, run: str | Path) -> Path:
    """Start a notebook's work: set JAX up and return the folder that the run reads and writes.

    Args:
        name: the notebook's name, as ``"03_training"``.
        run: the folder; a relative one is meant from the project's folder (the nearest above with a
            ``pyproject.toml``), so that it is the same one in JupyterLab, in papermill and in a pipeline.
    """
    from lqrlab import compute

    compute.setup()
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "pyproject.toml").exists()), here)
    folder = (root / Path(run).expanduser()).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    _result(folder, name).unlink(missing_ok=True)  # what is there afterwards was written by this execution
    _started[name] = time.monotonic(), _now()
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
        raise ValueError(f"finish: pipeline.begin({name!r}, run) has to come first")
    begun, started = _started[name]
    missing = [str(f) for f in files if not (folder / f).exists()]
    if missing:
        raise ValueError(f"{name}: says that it made {', '.join(missing)}, but {folder} has no such file")
    device = jax.devices()[0]
    kind = f"{device.platform} ({device.device_kind})" if device.device_kind != device.platform else device.platform
    return write_json(
        _result(folder, name),
        {
            "notebook": name,
            "numbers": numbers,
            "files": [str(f) for f in files],
            "execution": os.environ.get("LQRLAB_EXECUTION"),
            "fingerprint": os.environ.get("LQRLAB_FINGERPRINT"),
            "started": started,
            "seconds": round(time.monotonic() - begun, 3),
            "device": f"{len(jax.devices())} × {kind}",
            "versions": versions(),
        },
    )


def results(folder: Path, name: str) -> dict[str, Any]:
    """What the notebook ``name`` wrote at its end; a ``ValueError`` says which notebook to run first."""
    try:
        return json.loads(_result(folder, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{folder}: no result of {name}; run that notebook first") from None


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write ``content`` to ``path`` in one piece: whoever reads it sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(_plain(content), file, indent=2, allow_nan=False)
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


def commit(folder: Path) -> str | None:
    """Commit that ``folder`` stands at, with ``+`` where files differ from it; None outside of git."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "") if head else None
    except (OSError, subprocess.SubprocessError):
        return None


def _result(folder: Path, name: str) -> Path:
    return folder / "results" / f"{name}.json"


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


# From outside -------------------------------------------------------------------------------------------


def run(
    profile: str = "quick",
    folder: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    source: str | Path | None = None,
    fresh: bool = False,
    report: bool = True,
    stream: TextIO | None = None,
) -> Path:
    """Execute the notebooks in order, each unless its result is there and up to date, then write the report.

    Args:
        profile: name of a file in ``notebooks/profiles``, which sets parameters: notebook → parameter → value.
        folder: what the run reads and writes; ``data/runs/<profile>`` in the project's folder by default.
        overrides: ``"03_training.learning_rate"``, or ``"learning_rate"`` for every notebook that has it →
            value, as Python value or as typed on a command line.
        source: the folder of the notebooks.
        fresh: remove what an earlier run left in ``folder``, and start anew.
        report: write ``<folder>/report``.
        stream: where progress is shown.

    Returns:
        The run's folder.

    Raises:
        ValueError: a parameter, profile or notebook is not right (nothing was started), or another run holds
            the folder.
        RunError: a notebook failed; those before it are kept.
    """
    stream = stream or sys.stdout
    source = find_source(source)
    chain = notebooks.find(source)
    values = notebooks.effective(chain, read_profile(source, profile), overrides or {})
    fingerprints = notebooks.fingerprints(chain, values)
    folder = Path(folder).expanduser() if folder else source.parent / "data" / "runs" / profile
    folder = folder.resolve()
    with _locked(folder) as lock:
        print(
            f"lqrlab run · profile {profile} · {len(chain)} notebooks → {_short(folder)}",
            file=stream,
            flush=True,
        )
        if fresh:
            _clear(folder)
        record = {
            "profile": profile,
            "parameters": values,
            "versions": versions(),
            "commit": commit(source),
            "platform": platform.platform(),
            "started": _now(),
            "status": "running",
        }
        write_json(folder / "run.json", record)
        begun = time.monotonic()
        try:
            for nb in chain:
                if _finished(folder, nb.name, fingerprints[nb.name]):
                    print(f"✓ {nb.name}  finished before", file=stream, flush=True)
                else:
                    _execute(nb, folder, values[nb.name], fingerprints[nb.name], lock, stream)
            record["status"] = "finished"
        except BaseException as error:
            record["status"] = "stopped" if isinstance(error, KeyboardInterrupt) else f"failed at {nb.name}"
            raise
        finally:
            done = [results(folder, nb.name) for nb in chain if _result(folder, nb.name).exists()]
            record |= {"ended": _now(), "device": done[-1]["device"] if done else None}
            write_json(folder / "run.json", record)
        print(f"finished in {clock(time.monotonic() - begun)}", file=stream, flush=True)
        if report:
            from lqrlab.workbench import report as reports

            print(f"report: {_short(reports.write(folder))}", file=stream, flush=True)
    return folder


def find_source(source: str | Path | None = None) -> Path:
    """The folder of the notebooks: the one given, else ``notebooks`` here, else that of the checkout."""
    if source is not None:
        return Path(source).resolve()
    places = [Path.cwd() / "notebooks", Path(lqrlab.__file__).parents[1] / "notebooks"]
    for place in places:
        if any(place.glob("0[0-9]_*.ipynb")):
            return place.resolve()
    raise ValueError(
        f"notebooks: none found in {' or '.join(map(str, places))}; start in the project's folder"
    )


def read_profile(source: Path, name: str) -> dict[str, dict[str, Any]]:
    """The parameters that a profile sets: notebook → parameter → value."""
    path = source / "profiles" / f"{name}.json"
    if not path.exists():
        there = sorted(p.stem for p in path.parent.glob("*.json"))
        raise ValueError(
            f"profile: there is no {name!r} in {path.parent}; there are {', '.join(there) or 'none'}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise ValueError(f"{path}: expected {{notebook: {{parameter: value}}}}")
    return content


def _execute(
    nb: notebooks.Notebook, folder: Path, values: dict[str, Any], fingerprint: str, lock: int, stream: TextIO
) -> None:
    """Execute one notebook, show how far it is, and make sure that it came to its end."""
    token = uuid.uuid4().hex
    executed = folder / "notebooks" / f"{nb.name}.ipynb"
    failed = executed.with_suffix(".failed.ipynb")
    _result(folder, nb.name).unlink(missing_ok=True)
    given = {k: v for k, v in values.items() if v != nb.parameters[k].default}
    given["run"] = str(folder)
    steps = nb.steps
    progress = Progress(nb.name, len(steps), stream)
    progress.update(0, "starting Python")

    def show(event: dict[str, Any]) -> None:
        if "cell" in event:
            progress.update(event["cell"], steps[event["cell"] - 1])
        else:
            progress.update(note=event.get("note"))

    try:
        execution.execute(
            nb.path,
            failed,
            given,
            cwd=nb.path.parent.parent,
            env={"LQRLAB_EXECUTION": token, "LQRLAB_FINGERPRINT": fingerprint},
            on_event=show,
            pass_fds=[lock],
        )
        if not _finished(folder, nb.name, fingerprint, token):
            raise execution.CellError(
                f"the notebook ended without writing {_short(_result(folder, nb.name))}",
                traceback="its last cell has to be pipeline.finish(...)",
            )
    except execution.CellError as error:
        progress.close("✗", f'stopped at "{progress.title}"')
        _result(folder, nb.name).unlink(missing_ok=True)
        raise RunError(_explain(nb, error, failed)) from None
    except KeyboardInterrupt:
        progress.close("■", f'interrupted at "{progress.title}"')
        raise
    os.replace(failed, executed)
    progress.close("✓", f"{len(steps)} steps")


def _explain(nb: notebooks.Notebook, error: execution.CellError, failed: Path) -> str:
    parts = [f"{nb.name} failed: {error.error}"]
    if error.source:
        numbered = error.source.strip("\n").splitlines()
        parts.append("in the cell\n" + "\n".join(f"  │ {line}" for line in numbered))
    if error.traceback:
        parts.append("which said\n" + "\n".join(f"  {line}" for line in error.traceback.splitlines()))
    if failed.exists():
        parts.append(f"executed up to there: {_short(failed)}")
    parts.append("Mend the cause, then give the same command again: finished notebooks are kept.")
    return "\n".join(parts)


def _finished(folder: Path, name: str, fingerprint: str, token: str | None = None) -> bool:
    try:
        result = results(folder, name)
    except ValueError:
        return False
    if token is not None:
        return result.get("execution") == token
    there = (folder / "notebooks" / f"{name}.ipynb").exists()
    return (
        there
        and result.get("fingerprint") == fingerprint
        and all((folder / f).exists() for f in result["files"])
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold the folder: a lock of the operating system, which ends with the processes that hold it."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "?"
            raise ValueError(
                f"{_short(folder)}: another run works in this folder (process {holder}); wait for it, end it, or "
                "give another --folder"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _clear(folder: Path) -> None:
    """Remove what runs make, and nothing else, from a folder that was a run's."""
    if (folder / "run.json").exists():
        for name in PRODUCTS:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _short(path: Path) -> str:
    """A path as a person in this folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
