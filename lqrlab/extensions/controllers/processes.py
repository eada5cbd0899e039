"""Controllers judged in separate processes: a failure affects its own rows; finished parts are kept."""

import concurrent.futures
import contextlib
import datetime
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lqrlab.compute.files import write_atomic

if TYPE_CHECKING:
    from lqrlab.extensions.controllers.selection import Parts, PlantSelection

BUILT_IN = ("lqr", "lqg", "clipped", "mpc", "pid", "nominal", "adaptive", "network", "none")
"""Names of controllers that are built in; ``mpc:20``, ``pid:simc`` say more."""
GROUPS = ("trained", "unseen", "published", "dense")
"""Names of plants to judge on, beside those of families and files."""
_FILES = (".py", ".zip", ".fmu", ".json", ".mat", ".npz")
_EXECUTED = (".py", ".zip", ".fmu")  # so is a folder of C code
_USED = (".py", ".npy", ".npz", ".mat", ".csv")  # beside a Python file
_AT, _ENDED = "at", "ended"  # files beside a controller's parts: the scenario that it is at, why it has ended
_ENOUGH = 2  # scenarios that end a controller's process before the others are not tried


def parted(word: str) -> tuple[Path | None, str]:
    """The file or folder that a word names, and what stands behind ``.py:``; None for a built-in controller."""
    kind, _, rest = word.partition(":")
    if kind == "mpc" and not (rest or "20").isdecimal():
        raise ValueError(f"CONTROLLER: expected a horizon in samples, as mpc:20, but found {word}")
    if kind in BUILT_IN:
        return None, ""
    file, colon, name = word.rpartition(":")
    path, name = (Path(file), name) if colon and file.endswith(".py") else (Path(word), "")
    if not path.exists():
        known = ", ".join(BUILT_IN)
        raise ValueError(f"CONTROLLER: expected one of {known}, or a file or folder that is there, but found {word}")
    if path.is_file() and path.suffix not in _FILES:
        raise ValueError(f"CONTROLLER: expected a file ending in {', '.join(_FILES)}, or a folder, but found {word}")
    return path, name


def is_foreign(word: str) -> bool:
    """True of a word whose controller executes code that is not ours."""
    path, _ = parted(word)
    return path is not None and (path.suffix in _EXECUTED or any(path.glob("*.c")))


def identity(word: str) -> str:
    """Digest of the word and of the file or folder that it names: another file is another controller.

    Of a Python file also of code and arrays beside it, which it may use.
    """
    path, _ = parted(word)
    seen = hashlib.sha256(word.encode())
    if path is not None:
        inside = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        files = [path] if path.is_file() else sorted(one for one in inside.rglob("*") if one.is_file())
        if path.suffix == ".py":
            files += sorted(file for file in path.parent.iterdir() if file.suffix in _USED and file.is_file())
        for file in files:
            seen.update(os.path.relpath(file, path).encode() + file.read_bytes())
    return seen.hexdigest()[:16]


def judge(
    words: Sequence[str],
    selection: "PlantSelection",
    folder: Path,
    *,
    jobs: int = 1,
    time_limit: float = 600.0,
    memory_limit: float = 8.0,
    say: Callable[[str], None] = lambda line: None,
) -> "list[Parts]":
    """Judge the named controllers and return their parts; a repeated call resumes.

    ``jobs`` are judged at once. Code that is not ours has a process of its own in any case, with ``time_limit`` [s] for
    one scenario and ``memory_limit`` [GiB].
    """
    if len(set(words)) < len(words):
        raise ValueError(f"CONTROLLER: expected each once, but found {', '.join(words)}")
    from lqrlab.extensions.controllers.loading import load
    from lqrlab.extensions.controllers.selection import Parts, scenarios_of

    scenarios, digest = scenarios_of(selection), selection.digest
    limits = f"-{time_limit:g}s-{memory_limit:g}GiB"  # with others it may have an answer
    places = [folder / f"{identity(word)}-{digest}{limits if is_foreign(word) else ''}" for word in words]
    parts = [Parts(word, selection, scenarios, place) for word, place in zip(words, places)]
    for part in parts:
        if jobs == 1 and not is_foreign(part.word):
            part.controller = load(part.word)  # what is no controller is refused before any is judged
    stop, begun, total = threading.Event(), time.monotonic(), sum(len(part.left()) for part in parts)
    loops = selection.starts * sum(len(batch) for one in scenarios.values() for batch in one.plants.values())
    if total:
        say(f"{len(words)} controllers, {len(scenarios)} scenarios of {loops:,} loops in all; {total} left to judge")

    def tell(line: str) -> None:
        done = total - sum(len(part.left()) for part in parts)
        left = datetime.timedelta(seconds=round((time.monotonic() - begun) / max(done, 1) * (total - done)))
        say(f"{line}  ({done + 1} of {total}{f', about {left} left' if done else ''})")

    def one(part: "Parts") -> None:
        if part.controller is None:
            _apart(part, (time_limit, memory_limit), tell, stop)
        else:
            for name in part.left():
                tell(f"  {part.word}: {name}")
                part.write(name, part.controller)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            list((map if jobs == 1 else pool.map)(one, parts))
        except BaseException:  # the person's Ctrl-C among them
            stop.set()
            raise
    return parts


class NoAnswer(dict[str, str]):
    """In the place of a table of controllers by family: why there is none."""

    def __contains__(self, family: object) -> bool:
        raise ValueError(self["why"])


def _apart(parts: "Parts", limits: tuple[float, float], say: Callable[[str], None], stop: threading.Event) -> None:
    """Judge a controller in a process of its own, and in another one after a scenario that ends it."""
    ended: list[str] = []
    if (parts.place / _ENDED).exists() and not (parts.place / _AT).exists():
        # it could not be loaded, for want of a package perhaps, which is there now
        for file in parts.place.glob("*.json"):
            file.unlink()
    while parts.left() and not stop.is_set():
        for name in (_AT, _ENDED):
            (parts.place / name).unlink(missing_ok=True)
        words = _watched(parts, limits, say, stop)
        if stop.is_set() or not (left := parts.left()):
            return
        at = _text(parts.place / _AT)
        ended.append(at)
        lost = [at] if at in left and len(ended) < _ENOUGH else left
        say(f"  {parts.word}: no answer{' in what is left' if len(lost) > 1 else ''}: {words}")
        for name in lost:
            why = words if at in (name, "") else f"not tried: in others its process {words}"
            parts.write(name, NoAnswer(why=why))


def _watched(parts: "Parts", limits: tuple[float, float], say: Callable[[str], None], stop: threading.Event) -> str:
    """Run a controller's process until it ends, by itself or by its limits; why it did."""
    seconds, memory = limits
    parts.place.mkdir(parents=True, exist_ok=True)
    given = (parts.word, str(parts.place), parts.selection.to_json(), str(memory))
    command = [sys.executable, "-P", "-m", __spec__.name, *given]
    with open(parts.place / "log.txt", "ab") as log:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    at, since = "", time.monotonic()
    try:
        while running.poll() is None and not stop.is_set():
            if (now := _text(parts.place / _AT)) != at:
                at, since = now, time.monotonic()
                say(f"  {parts.word}: {at}")
            if time.monotonic() - since > seconds:
                return f"was stopped after {seconds:g} s"
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            getattr(os, "killpg", os.kill)(running.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        running.wait()
    code = running.returncode
    ended = f"ended with signal {-code}" if code < 0 else f"ended with code {code} before it was done"
    return _text(parts.place / _ENDED) or ended


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _here(word: str, place: str, selection: str, memory: str) -> None:
    """The process of a controller: what is left of its parts."""
    with contextlib.suppress(ImportError):  # Windows has no such limits
        import resource

        most = int(float(memory) * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from lqrlab import compute
    from lqrlab.extensions.controllers.loading import load
    from lqrlab.extensions.controllers.selection import Parts, PlantSelection, scenarios_of

    compute.setup()
    chosen = PlantSelection.from_json(selection)
    parts = Parts(word, chosen, scenarios_of(chosen), Path(place))
    try:
        parts.controller = load(word)
        for name in parts.left():
            write_atomic(parts.place / _AT, name)
            parts.write(name, parts.controller)
    except BaseException as error:
        write_atomic(parts.place / _ENDED, f"{type(error).__name__}: {error}"[:2000])
        raise


if __name__ == "__main__":
    _here(*sys.argv[1:])
