"""Do the tests notice faults? ``make mutants``, ``python tools/mutants.py --num 400 --seed 1``.

First all tests run once, to learn which of them execute which line, and how long each takes. Then faults are drawn, and
for each the tests that execute its line run, the quickest first, until one fails (the fault is *killed*), or all have
passed, or those left would take more than --budget seconds (it *survives*). A fault in a line that no test executes
survives. What was found is kept in --folder: the same command goes on where it was stopped.
"""

import argparse
import collections
import concurrent.futures
import importlib.machinery
import json
import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mutations import Mutation, mutations

TOOLS = Path(__file__).resolve().parent
ROOT, TESTS = TOOLS.parent, TOOLS.parent / "tests"
ROOMS = ("systems", "control", "simulation", "dataset", "learning", "evaluation")
ROOMS += ("extensions",)
FAR = ("animate", "browser", "docs", "fuzz", "notebooks", "packaging", "panels", "pipeline", "report", "soak", "sweep")
"""Test files of pages and processes: they take minutes, and what they need of these rooms the others test."""
PRELOAD = ["beartype", "control", "flax.linen", "h5py", "jax", "matplotlib.pyplot", "optax"]
PRELOAD += ["pandas", "pytest", "scipy.signal", "sympy", "dask", "distributed", "rich"]


def main(arguments: list[str] | None = None) -> int:
    """Draw faults, run tests, print the survivors and the share that was killed; 0 if that is enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="", help="only files whose path contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for a fault")
    parser.add_argument("--folder", type=Path, default=ROOT / "data" / "mutants")
    parser.add_argument("--enough", type=float, default=85.0, help="percent killed")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    # programs that a fault does not change are read, not compiled again
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(given.folder / "programs")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, TESTS, TOOLS)))
    sys.path[:0] = map(str, (ROOT, TESTS, TOOLS))  # before a package installed from elsewhere, which has no fault
    if not (given.folder / "seconds.json").exists():
        _measure(given.folder, given.jobs)
    drawn = _draw(given.num, given.seed, given.part)
    outcomes = _outcomes(drawn, given.folder, given.jobs, given.budget)
    return _report(drawn, outcomes) < given.enough


def _measure(folder: Path, jobs: int) -> None:
    """Run all tests once, each as if it were the first: what another has traced is not traced again."""
    print("which tests execute which lines ...", flush=True)
    far = [f"--ignore-glob=*/test_{name}.py" for name in FAR]
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "-p", "mutants", "--cov=lqrlab"]
    command += ["--cov-context=test", "--cov-report=", *far, str(TESTS)]
    written = {"COVERAGE_FILE": str(folder / "lines.sqlite"), "MUTANTS_SECONDS": str(folder / "seconds.json")}
    subprocess.run(command, cwd=ROOT, env=os.environ | written)


@pytest.fixture(autouse=True)
def _traced_anew():
    yield
    jax = sys.modules.get("jax")
    if jax is not None and "MUTANTS_SECONDS" in os.environ:
        jax.clear_caches()


_SECONDS: dict[str, float] = collections.defaultdict(float)
_FAILED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what a test took with its fixtures."""
    _SECONDS[report.nodeid] += report.duration
    if not report.passed:
        _FAILED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the seconds of the tests that passed."""
    file = os.environ.get("MUTANTS_SECONDS")
    if file and not hasattr(session.config, "workerinput"):
        passed = {name: round(seconds, 3) for name, seconds in _SECONDS.items() if name not in _FAILED}
        Path(file).write_text(json.dumps(passed, indent=0))


def _draw(num: int, seed: int, part: str) -> list[Mutation]:
    every: list[Mutation] = []
    for room in ROOMS:
        for path in sorted((ROOT / "lqrlab" / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if part in name:
                every += mutations(name, path.read_bytes())
    random.Random(seed).shuffle(every)
    # more of them with the same seed begin with these
    return [fault for fault in every if not fault.same][:num]


def _outcomes(drawn: list[Mutation], folder: Path, jobs: int, budget: float) -> dict[str, dict[str, Any]]:
    """How each fault ended; those that an earlier run has found are taken from it."""
    from coverage import CoverageData

    file = folder / "found.jsonl"
    found = {row["fault"]: row for row in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    lines = CoverageData(str(folder / "lines.sqlite"))
    lines.read()
    seconds = json.loads((folder / "seconds.json").read_text())
    todo = [fault for fault in drawn if _name(fault) not in found]
    chosen = {fault: _tests(fault, lines, seconds, budget) for fault in todo}
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOAD)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool, file.open("a") as out:
        for row in pool.map(lambda fault: _outcome(fault, chosen[fault], server), todo):
            found[row["fault"]] = row
            out.write(json.dumps(row) + "\n")
            out.flush()
    return {_name(fault): found[_name(fault)] for fault in drawn}


def _tests(fault: Mutation, lines: Any, seconds: dict[str, float], budget: float) -> list[str]:
    """The tests of a fault, quickest first; a line that runs at import is every test's that runs one of its file."""
    by_line = lines.contexts_by_lineno(str(ROOT / fault.path))
    first, last = fault.lines
    here = {name for line in range(first, last + 1) for name in by_line.get(line, ())} - {""}
    if not here and any("" in by_line.get(line, ()) for line in range(first, last + 1)):
        here = {name for names in by_line.values() for name in names}
    names = {name.partition("|")[0] for name in here}
    left, chosen = budget, []
    for name in sorted(names & seconds.keys(), key=seconds.__getitem__):
        left -= seconds[name]
        if left < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def _outcome(fault: Mutation, tests: list[str], server: Any) -> dict[str, Any]:
    """Run a fault's tests in a process of their own."""
    code = pytest.ExitCode.OK if tests else None
    if tests:
        child = server.Process(target=_child, args=(fault, tests))
        child.start()
        child.join(600)
        code = child.exitcode
        if code is None:  # an endless loop
            child.kill()
            child.join()
    outcome = "not run" if not tests else "survived" if code == pytest.ExitCode.OK else "killed"
    print(f"{outcome:8s} {_name(fault)}", flush=True)
    return {"fault": _name(fault), "outcome": outcome, "code": code, "tests": len(tests)}


def _child(fault: Mutation, tests: list[str]) -> None:
    """Run tests with one file read otherwise than it is written."""
    path, loader = str(ROOT / fault.path), importlib.machinery.SourceFileLoader
    read, stats = loader.get_data, loader.path_stats
    mutant = fault.applied(Path(path).read_bytes())
    sys.dont_write_bytecode = True
    loader.get_data = lambda self, name: mutant if name == path else read(self, name)  # type: ignore[method-assign]
    loader.path_stats = lambda self, name: {  # the compiled file of the true source is too old
        **stats(self, name),
        **({"mtime": 1, "size": len(mutant)} if name == path else {}),
    }
    os.chdir(ROOT)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:cov", "--tb=no", "--timeout=120"]
    os._exit(pytest.main([*options, *tests]))


def _name(fault: Mutation) -> str:
    source = (ROOT / fault.path).read_bytes()
    line = source.count(b"\n", 0, fault.start) + 1
    old = " ".join(source[fault.start : fault.end].decode().split())
    return f"{fault.path}:{line}: {old}  →  {fault.text}"


def _report(drawn: list[Mutation], outcomes: dict[str, dict[str, Any]]) -> float:
    """Print how many were killed, room by room; the share in percent."""
    rooms: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for fault in drawn:
        room = next(room for room in ROOMS if fault.path.startswith(f"lqrlab/{room}/"))
        rooms[room][outcomes[_name(fault)]["outcome"]] += 1
    total = sum(rooms.values(), collections.Counter())
    for room, counts in [*rooms.items(), ("all", total)]:
        share = 100 * counts["killed"] / max(counts.total(), 1)
        print(f"{room:26s} {counts.total():4d} faults, killed {share:.1f} %, {dict(counts)}")
    return 100 * total["killed"] / max(total.total(), 1)


if __name__ == "__main__":
    sys.exit(main())
