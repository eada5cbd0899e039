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
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
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
    shares = _shares(given.functions)
    for name, share in shares.items():
        calls = max(round(given.calls * share / sum(shares.values())), 1)
        found = _function(name, calls, given.seed, shown)
        outcomes += found
        print(f"{name}: {_counts(found)}", flush=True)
    total = outcomes.total()
    print(f"seed {given.seed}: {total} calls of {len(shares)} functions: {_counts(outcomes)}")
    return outcomes["wrong"] + outcomes["hang"] + outcomes["crash"] + (outcomes["cryptic"] > total / 200)


def _counts(outcomes: collections.Counter) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in outcomes.most_common())


def _shares(part: str) -> dict[str, float]:
    """The functions whose name contains ``part``, and what share of the calls each gets."""
    import fuzz_calls

    return {name: 1 / fuzz_calls.SLOW.get(name, 1) for name in fuzz_calls.CALLS if part in name}


def _function(name: str, calls: int, seed: int, shown: set[str]) -> collections.Counter:
    """All calls of one function; after a hang or a crash another process makes those that are missing."""
    outcomes = collections.Counter()
    while calls > 0:
        command = [sys.executable, __file__, "--in-process", "--functions", name]
        command += ["--calls", str(calls), "--seed", str(seed)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=lambda c=child, q=lines: [q.put(x) for x in [*c.stdout, ""]], daemon=True
        ).start()
        call, line, limit = "before the first call", "-", 5 * LIMIT  # a busy machine imports slowly
        while line:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                child.kill()
                ended = "hang"
                break
            row, limit = json.loads(line or "{}"), LIMIT
            call = row.get("call", call)
            if "outcome" in row:
                calls -= 1
                outcomes[row["outcome"]] += 1
                _show(row["outcome"], call, row["words"], shown)
        else:
            if child.wait() == 0:
                break
            ended = "crash"
        calls, seed = calls - 1, seed + 1
        outcomes[ended] += 1
        _show(ended, call, "", shown)
    return outcomes


def _show(outcome: str, call: str, words: str, shown: set[str]) -> None:
    """Print what must not be, once for each kind."""
    kind = f"{outcome} {call.partition('(')[0]} {words[:60]}"
    if outcome not in ("right", "refused") and kind not in shown:
        shown.add(kind)
        print(f"{outcome}: {call}\n    {words}", flush=True)


def _calls(name: str, calls: int, seed: int) -> int:
    """Make calls of one function and write a line before and after each."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where a file name is asked for, and "x" is given
        make_calls(name, calls, seed, lambda row: print(json.dumps(row), flush=True))
        os.chdir("/")
    return 0


def make_calls(
    name: str, calls: int, seed: int, say: Callable[[dict], None], refusals: tuple[type, ...] | type = ()
) -> None:
    """Make calls of one function; ``say`` hears of each before and after.

    An exception of one of the types ``refusals`` is a refusal, whatever its words.
    """
    import hypothesis
    from fuzz_calls import CALLS
    from fuzz_damage import arguments

    function, valid, check = CALLS[name]
    quiet = [*hypothesis.HealthCheck]
    settings = hypothesis.settings(max_examples=calls, database=None, deadline=None, suppress_health_check=quiet,
                                   phases=[hypothesis.Phase.generate])  # fmt: skip

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(arguments(valid))
    def call(drawn: tuple[dict, list[str]]) -> None:
        given, damage = drawn
        say({"call": f"{name}({', '.join(damage)})"})
        outcome, words = outcome_of(function, valid, given, check, refusals)
        say({"outcome": outcome, "words": words})

    call()


def outcome_of(function, valid: dict, given: dict, check, refusals) -> tuple[str, str]:
    """How a call ends, and in what words."""
    from fuzz_damage import Made, mistaken

    given = {name: value.make() if isinstance(value, Made) else value for name, value in given.items()}
    try:
        found = function(**given)
        words = mistaken(valid, given) or check(found, given)
    except refusals as error:
        return "refused", _words(error)
    except (ValueError, TypeError) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        ours = "lqrlab" in Path(at.filename).parts and (at.line or "").startswith("raise")
        named = re.match(r"[^:]{1,100}: ", str(error))
        return ("refused" if ours and named else "cryptic"), _words(error)
    except Exception as error:
        return "cryptic", _words(error)
    return ("wrong" if words else "right"), words


def _words(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


if __name__ == "__main__":
    sys.exit(main())
