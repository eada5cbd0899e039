"""Kill, damage, and see whether anything is lost: ``make torture``, ``python tests/torture.py --kills 8 --flips 50``.

Data generation, training, a run of notebooks and a sweep are each killed (the whole process group, ``kill -9``) at
random moments and started again by the same command, until they end. What they leave must be what an undisturbed one
leaves: data sets byte for byte, parameters bit for bit, the same numbers in results. Then single bits of a data set
and of a checkpoint are flipped: what is read afterwards is what was written, or is refused in words.
"""

import argparse
import collections
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = [
    "-p",
    "families=pendulum,cart_pole",
    "-p",
    "variants=40",
    "-p",
    "trajectories=6",
    "-p",
    "num_steps=60",
]
RUN = ["-p", "03_training.num_steps=300", "-p", "03_training.report_every=20"]
SWEEP = ["cart_pole", "-p", "pole_length=0.1:1", "-p", "dt=0.01,0.02", "--random", "3000"]
VOLATILE = ("second", "time", "megabytes", "rate", "per_", "started", "compil", "folder", "memory")
"""Parts of names of numbers that differ from run to run."""


def command(kind: str, folder: Path) -> list[str]:
    """The command line of one kind of work."""
    rest = {
        "generation": ["data", "generate", str(folder), *DATA],
        "run": ["run", "--profile", "tiny", "--folder", str(folder), *RUN],
        "sweep": ["sweep", *SWEEP, "--folder", str(folder)],
    }
    return [sys.executable, "-m", "lqrlab.workbench", *rest[kind]]


def killed(line: list[str], kills: int, longest: float, rng: np.random.Generator) -> int:
    """Kill a command at random moments, then let it end; how many kills met it alive."""
    met = 0
    for _ in range(kills):
        process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)  # fmt: skip
        time.sleep(rng.uniform(0.2, longest))
        met += process.poll() is None
        _kill(process.pid)
        process.communicate()
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(line)} does not resume:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return met


def _kill(group: int) -> None:
    """The process and all that it started, the kernels that lead groups of their own too."""
    import psutil

    try:
        family = [psutil.Process(group), *psutil.Process(group).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def left(kind: str, folder: Path) -> dict[str, object]:
    """What the work has left, without what differs from run to run."""
    if kind == "generation":
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
                if p.is_file() and p.suffix in (".h5", ".json")}  # fmt: skip
    if kind == "sweep":
        with (folder / "results.csv").open() as file:
            return {str(i): _steady(row) for i, row in enumerate(csv.DictReader(file))}
    results = {
        p.name: _steady(json.loads(p.read_text())["numbers"]) for p in (folder / "results").glob("*.json")
    }
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return results | {"metrics": [_steady(row) for row in steps]} | parameters(folder / "checkpoints")


def parameters(folder: Path) -> dict[str, object]:
    """The trained parameters as bytes."""
    from lqrlab import learning

    model = learning.load(folder)
    return {name: np.asarray(a).tobytes() for name, a in learning.models.split(model)[1].items()}


def _steady(row: dict[str, object]) -> dict[str, object]:
    kept = {k: v for k, v in row.items() if not any(part in k for part in VOLATILE)}
    return {k: _steady(v) if isinstance(v, dict) else v for k, v in kept.items()}


def flipped(good: Path, flips: int, rng: np.random.Generator, read) -> collections.Counter:
    """Flip one bit of one file at a time; count what was refused, and what was read as it was written."""
    counts, expected = collections.Counter(), read(good)
    files = [p for p in sorted(good.rglob("*")) if p.is_file() and p.stat().st_size and p.suffix != ".lock"]
    sizes = np.array([p.stat().st_size for p in files], float)
    for number in range(flips):
        # half by size, half file by file, so that small files are met too
        weights = sizes / sizes.sum() if number % 2 else np.full(len(files), 1 / len(files))
        path = files[rng.choice(len(files), p=weights)]
        whole = path.read_bytes()
        at, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            with warnings.catch_warnings(
                action="error", category=UserWarning
            ):  # an older checkpoint, in words
                found = read(good)
        except (ValueError, OSError, UserWarning) as error:
            counts["refused" if str(error) else "refused without a word"] += 1
        else:
            assert found == expected, f"bit {bit} of byte {at} in {path} changed what is read"
            counts["as written"] += 1
        path.write_bytes(whole)
    return counts


def windows(folder: Path) -> dict[str, bytes]:
    """What training would read of a data set that verifies."""
    import jax

    from lqrlab import dataset

    report = dataset.verify(folder)
    if not report.ok:
        raise ValueError(report.problems[0][1])
    source = dataset.source(dataset.open(folder), kind="memory", batch_size=64, window=4)
    leaves = jax.tree.leaves(source.windows(0, 4))
    return {str(i): np.asarray(a).tobytes() for i, a in enumerate(leaves)}


def main() -> None:
    """All of it, with a line of figures for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, longest = np.random.default_rng(given.seed), {"generation": 8.0, "run": 25.0, "sweep": 8.0}
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    for kind, limit in longest.items():
        whole, often = place / f"{kind}-whole", place / f"{kind}-killed"
        killed(command(kind, whole), 0, limit, rng)
        met, begun = 0, 0
        while begun < given.kills // len(longest):
            shutil.rmtree(often, ignore_errors=True)
            some = min(int(rng.integers(1, 6)), given.kills // len(longest) - begun)
            met, begun = met + killed(command(kind, often), some, limit, rng), begun + some
            assert left(kind, often) == left(kind, whole), f"{kind}: differs after {some} kills, see {place}"
        print(
            f"{kind}: {begun} kills, {met} of them before the end; nothing lost, the same numbers", flush=True
        )
    for name, good, read in (("data set", place / "generation-whole", windows),
                             ("checkpoint", place / "run-whole" / "checkpoints", parameters)):  # fmt: skip
        print(
            f"{name}: {dict(flipped(good, given.flips // 2, rng, read))} of {given.flips // 2} flipped bits",
            flush=True,
        )
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
