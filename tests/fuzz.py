"""Calls of the public functions with wrong arguments: ``make fuzz``, ``python tests/fuzz.py --calls 300 --seed 1``.

Each call is a correct one in which one or two arguments were exchanged or damaged. Its outcome is one of

right         an answer that agrees with an independent check, or that says itself that there is none
refused       a ValueError or TypeError in the package's words, which names the argument
cryptic       any other exception, or other words
wrong         an answer where there is none: complex numbers or text taken for real ones, a failed check
hang, crash   more than two minutes, or the end of the process
"""

import argparse
import collections
import json
import queue
import subprocess
import sys
import threading
import traceback
from pathlib import Path

LIMIT = 120.0  # seconds without a word from the process that makes the calls


def main(arguments: list[str] | None = None) -> int:
    """Make the calls in other processes; print how they ended, and return how many must not end so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--functions", default="", help="only those whose name contains this")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.in_process:
        return _calls(given.functions, given.calls, given.seed)
    outcomes, shown = collections.Counter(), set()
    names = [name for name in _names() if given.functions in name]
    for name in names:
        _function(name, max(given.calls // len(names), 1), given.seed, outcomes, shown)
    total = sum(outcomes.values())
    print(f"seed {given.seed}: {total} calls, " + ", ".join(f"{k} {n}" for k, n in outcomes.most_common()))
    return outcomes["wrong"] + outcomes["hang"] + outcomes["crash"] + (outcomes["cryptic"] > total / 200)


def _names() -> list[str]:
    import fuzz_calls

    return list(fuzz_calls.CALLS)


def _function(name: str, calls: int, seed: int, outcomes: collections.Counter, shown: set[str]) -> None:
    """All calls of one function; after a hang or a crash another process makes those that are missing."""
    while calls > 0:
        command = [sys.executable, __file__, "--in-process", "--functions", name]
        command += ["--calls", str(calls), "--seed", str(seed)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=lambda c=child, q=lines: [q.put(x) for x in [*c.stdout, ""]], daemon=True
        ).start()
        call, line = "before the first call", "-"
        while line:
            try:
                line = lines.get(timeout=LIMIT)
            except queue.Empty:
                child.kill()
                ended = "hang"
                break
            row = json.loads(line or "{}")
            call = row.get("call", call)
            if "outcome" in row:
                calls -= 1
                outcomes[row["outcome"]] += 1
                _show(row["outcome"], call, row["words"], shown)
        else:
            if child.wait() == 0:
                return
            ended = "crash"
        calls, seed = calls - 1, seed + 1
        outcomes[ended] += 1
        _show(ended, call, "", shown)


def _show(outcome: str, call: str, words: str, shown: set[str]) -> None:
    """Print what must not be, once for each kind."""
    kind = f"{outcome} {call.partition('(')[0]} {words[:60]}"
    if outcome not in ("right", "refused") and kind not in shown:
        shown.add(kind)
        print(f"{outcome}: {call}\n    {words}", flush=True)


def _calls(name: str, calls: int, seed: int) -> int:
    """Make calls of one function and write a line before and after each."""
    import hypothesis
    from fuzz_calls import CALLS, arguments

    from lqrlab import compute

    compute.setup()
    function, valid, check = CALLS[name]
    quiet = [*hypothesis.HealthCheck]
    settings = hypothesis.settings(max_examples=calls, database=None, deadline=None, suppress_health_check=quiet,
                                   phases=[hypothesis.Phase.generate])  # fmt: skip

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(arguments(valid))
    def call(drawn: tuple[dict, list[str]]) -> None:
        given, damage = drawn
        print(json.dumps({"call": f"{name}({', '.join(damage)})"}), flush=True)
        outcome, words = _outcome(function, given, damage, check)
        print(json.dumps({"outcome": outcome, "words": words}), flush=True)

    call()
    return 0


def _outcome(function, given: dict, damage: list[str], check) -> tuple[str, str]:
    try:
        found = function(**given)
        words = check(found, given, damage)
    except (ValueError, TypeError) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        ours = "lqrlab" in Path(at.filename).parts and (at.line or "").startswith("raise")
        return ("refused" if ours else "cryptic"), _words(error)
    except Exception as error:
        return "cryptic", _words(error)
    return ("wrong" if words else "right"), words


def _words(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


if __name__ == "__main__":
    sys.exit(main())
