"""Kill, damage, deceive, and see whether anything is lost: ``make torture``; ``--kills 8 --flips 50`` is a short one.

Data generation, a run of notebooks with its training, and a sweep are killed (all their processes, ``kill -9``) at
random moments and started again by the same command, until they end; on a disk that becomes full, and on one that may
only be read, they and ``lqrlab train`` end in a sentence, and resume when there is room. What they leave must be what
an undisturbed one leaves: data sets byte for byte, parameters bit for bit, the same numbers in results. Single bits of
a data set and of checkpoints are flipped: what is read afterwards is what was written, or is refused in words. Hostile
files (``hostile_files.py``) are read: each ends within seconds in the words that it should end in.
"""

import argparse
import collections
import contextlib
import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_files
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = "families=pendulum,cart_pole variants=40 variants_per_shard=10 trajectories=6 num_steps=60"
TRAIN = "num_steps=300 report_every=20"
SWEEP = "sweep cart_pole -p pole_length=0.1:1 -p dt=0.01,0.02 --random 3000 --no-report --folder"
SHARE = {"generation": 0.45, "sweep": 0.35, "train": 0.12, "run": 0.08}
"""Of the kills, to each kind of work."""
VOLATILE = ("second", "time", "megabytes", "rate", "per_", "started", "compil", "folder", "memory")
"""Parts of names of numbers that differ from run to run."""


def command(kind: str, folder: Path) -> list[str]:
    """The command line of one kind of work."""
    rest = {
        "generation": ["data", "generate", str(folder), *given(DATA)],
        "run": ["run", "--profile", "tiny", "--folder", str(folder), *given(TRAIN, "03_training.")],
        "train": ["train", "--profile", "tiny", str(folder), *given(TRAIN)],
        "sweep": [*SWEEP.split(), str(folder)],
    }
    return rest[kind] + ["03_training"] * (kind == "run" and folder.exists())


def given(text: str, prefix: str = "") -> list[str]:
    """``-p NAME=VALUE`` for each setting."""
    return [word for setting in text.split() for word in ("-p", prefix + setting)]


def started(line: list[str], log: Path) -> multiprocessing.process.BaseProcess:
    """The command in a process of its own, forked from one that has imported what it needs: half of its time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torture_imports"])
    process = context.Process(target=_work, args=(line, log))
    process.start()
    return process


def _work(line: list[str], log: Path) -> None:
    os.setsid()
    os.chdir(ROOT)
    with log.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    from lqrlab.workbench.cli import main

    main(line)


def ended(line: list[str], log: Path) -> tuple[int | None, str]:
    """Let a command end: its exit code, and what it says."""
    process = started(line, log)
    process.join()
    return process.exitcode, log.read_text(errors="replace")


def done(line: list[str], log: Path) -> float:
    """Let a command end well; the seconds that it took."""
    began = time.monotonic()
    code, told = ended(line, log)
    assert code == 0, f"lqrlab {' '.join(line)} ends with {code}:\n{told[-3000:]}"
    return time.monotonic() - began


# Kills -----------------------------------------------------------------------------------------------------


def killed(line: list[str], log: Path, kills: int, longest: float, rng: np.random.Generator) -> int:
    """Kill a command at random moments; how many kills met it alive."""
    met = 0
    for _ in range(kills):
        process = started(line, log)
        process.join(rng.uniform(0.1, longest))
        met += process.is_alive()
        _kill(process.pid)
        process.join()
    return met


def _kill(pid: int) -> None:
    """The process and all that it started, the kernels that lead groups of their own too."""
    import psutil

    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def begin(kind: str, whole: Path, folder: Path, rng: np.random.Generator) -> None:
    """What a work of this kind that was cut off some time ago may have left."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    if kind == "generation":
        for path in (folder / "manifest.json", folder / "card.md", folder / "card.html"):
            path.unlink()
        for path in folder.glob("*.h5"):
            if rng.uniform() < 0.7:
                path.unlink()
    elif kind == "sweep":
        (folder / "results.csv").unlink()
    else:
        if kind == "run":
            (folder / "results" / "03_training.json").unlink()
        (folder / "metrics.jsonl").unlink()
        shutil.rmtree(folder / "checkpoints")


def kills(kind: str, count: int, place: Path, rng: np.random.Generator) -> str:
    """So many kills of one kind of work, some before each comparison with what was not disturbed."""
    whole, folder, log = (place / f"{kind}-{what}" for what in ("whole", "killed", "log"))
    met = begun = rounds = 0
    longest = 10.0
    while begun < count:
        some = min(int(rng.integers(2, 8)), count - begun)
        shutil.rmtree(folder, ignore_errors=True)
        if rounds or kind in ("run", "train"):  # once from nothing, then from what was done in part
            begin(kind, whole, folder, rng)
        line = command(kind, folder)
        met, begun, rounds = met + killed(line, log, some, longest, rng), begun + some, rounds + 1
        longest = 0.7 * longest + 0.3 * done(line, log)  # others may work on this machine, too
        assert left(kind, folder) == left(kind, whole), f"{kind}: differs after {some} kills, see {place}"
        print(f"  {kind}: {begun} kills", flush=True)
    return f"{begun} kills, {met} of them before the end; {rounds} times compared: nothing lost, the same numbers"


def left(kind: str, folder: Path) -> dict[str, object]:
    """What the work has left, without what differs from run to run."""
    if kind == "generation":
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
                if p.is_file() and p.suffix in (".h5", ".json")}  # fmt: skip
    if kind == "sweep":
        with (folder / "results.csv").open() as file:
            return {str(i): _steady(row) for i, row in enumerate(csv.DictReader(file))}
    results = {p.name: _steady(json.loads(p.read_text())["numbers"]) for p in (folder / "results").glob("0[123]*.json")}
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = results | {"metrics": [_steady(row) for row in steps]}
    return found | hostile_files.parameters(folder / "checkpoints")


def _steady(row: dict[str, object]) -> dict[str, object]:
    kept = {k: v for k, v in row.items() if not any(part in k for part in VOLATILE)}
    return {k: _steady(v) if isinstance(v, dict) else v for k, v in kept.items()}


# Flipped bits ----------------------------------------------------------------------------------------------


def flips(good: Path, count: int, rng: np.random.Generator, read: Callable[[Path], object]) -> str:
    """Flip one bit of one file at a time; count what was refused, and what was read as it was written."""
    counts, expected = collections.Counter(), read(good)
    files = [p for p in sorted(good.rglob("*")) if p.is_file() and p.stat().st_size and p.suffix != ".lock"]
    sizes = np.array([p.stat().st_size for p in files], float)
    for number in range(count):
        # half by size, half file by file, so that small files are met too
        weights = sizes / sizes.sum() if number % 2 else np.full(len(files), 1 / len(files))
        path = files[rng.choice(len(files), p=weights)]
        whole = path.read_bytes()
        at, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            with warnings.catch_warnings(action="error", category=UserWarning):  # an older one, in words
                found = read(good)
        except (ValueError, OSError, UserWarning) as error:
            counts["refused" if str(error) else "refused without a word"] += 1
        else:
            assert found == expected, f"bit {bit} of byte {at} in {path} changed what is read"
            counts["as written"] += 1
        path.write_bytes(whole)
    return f"{count} flipped bits, {counts['as written']} read as written, {counts['refused']} refused in words"


# Disks -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Callable[[str], object]]:
    """A small file system at ``folder``, and what changes its options."""

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)

    folder.mkdir(exist_ok=True)
    mount("size=64m")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disks(kind: str, count: int, place: Path, rng: np.random.Generator) -> str:
    """A disk that becomes full, or that may only be read, and then has room: so many times."""
    whole, said = place / f"{kind}-whole", collections.Counter()
    with disk(place / "disk") as mount:
        for _ in range(count):
            folder = place / "disk" / "work"
            begin(kind, whole, folder, rng)
            line = command(kind, folder)
            used, needed = (sum(p.stat().st_blocks for p in f.rglob("*")) * 512 for f in (place / "disk", whole))
            room = used + int(rng.uniform(0, 0.8) * max(needed - used, 20_000))
            for options, words in (("ro", "Read-only file system"), (f"rw,size={room}", "No space left on device")):
                mount(options)
                code, told = ended(line, place / "disk-log")
                if code == 0 and "rw" in options:
                    said["had room enough"] += 1
                    continue
                assert code in (1, 2), f"{kind}, {options}: exit code {code}\n{told[-3000:]}"
                assert words in told, f"{kind}, {options}: says nothing of it\n{told[-3000:]}"
                assert "Traceback" not in told, f"{kind}, {options}: a traceback\n{told[-3000:]}"
                said[words] += 1
            mount("rw,size=64m")
            done(line, place / "disk-log")
            assert left(kind, folder) == left(kind, whole), f"{kind}: differs after a full disk, see {place}"
            shutil.rmtree(folder)
    return f"{dict(said)}; resumed {count} times: nothing lost, the same numbers"


# All of it -------------------------------------------------------------------------------------------------


def hostile(place: Path) -> str:
    """Read all hostile files."""
    data, run = place / "generation-whole", place / "run-whole" / "checkpoints"
    good = {"data set": data, "checkpoints": run}
    hostile_files.data_set(data), hostile_files.parameters(run)  # what they import and compile is not counted
    longest, counts = 0.0, collections.Counter()
    for kind, (_, cases) in hostile_files.KINDS.items():
        for number, case in enumerate(cases):
            at = place / "hostile" / f"{kind}-{number}"
            longest = max(longest, hostile_files.met(kind, case, at, good.get(kind)))
            shutil.rmtree(at)
            counts[kind] += 1
    assert longest < 5, f"one took {longest:.1f} s"
    took = f"the longest took {longest:.1f} s of the processor"
    return f"{counts.total()} ({dict(counts)}); {took}; nothing read or written elsewhere"


def wholes(place: Path) -> None:
    """Each kind of work, undisturbed."""
    for kind in ("generation", "run", "sweep"):
        done(command(kind, place / f"{kind}-whole"), place / "log")
    shutil.copytree(place / "run-whole", place / "train-whole", ignore=lambda *_: ["checkpoints", "metrics.jsonl"])
    done(command("train", place / "train-whole"), place / "log")


def main() -> None:
    """All of it, with a line of figures for each part; exit code 1 if anything was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--disks", type=int, default=2, help="times that each kind of work meets a full disk")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, place = np.random.default_rng(asked.seed), Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"seed {asked.seed}, in {place}", flush=True)
    wholes(place)
    data, run = place / "generation-whole", place / "run-whole" / "checkpoints"
    parts = {
        "hostile files": lambda: hostile(place),
        "data set": lambda: flips(data, asked.flips // 2, rng, hostile_files.data_set),
        "checkpoints": lambda: flips(run, asked.flips - asked.flips // 2, rng, hostile_files.parameters),
    }
    for kind in ("generation", "train", "sweep", "run"):
        parts[f"{kind}, disk"] = lambda kind=kind: disks(kind, asked.disks, place, rng)
    for kind, share in SHARE.items():
        parts[kind] = lambda kind=kind, share=share: kills(kind, round(share * asked.kills), place, rng)
    wrong = 0
    for name, part in parts.items():
        began = time.monotonic()
        try:
            figures = part()
        except Exception as error:  # the other parts have their turn
            wrong, figures = wrong + 1, f"WRONG: {type(error).__name__}: {error}"
        print(f"{name}: {figures} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{wrong} parts of {len(parts)} wrong", flush=True)
    if wrong:
        sys.exit(1)
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
