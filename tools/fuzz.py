"""Calls of the public functions with wrong arguments: ``make fuzz``, ``python tools/fuzz.py --calls 300 --seed 1``.

Each call is a correct one in which one or two arguments were exchanged or damaged. Its outcome is one of

right         an answer that agrees with an independent check, or that says itself that there is none
refused       a ValueError or TypeError in the package's words, which names the argument
cryptic       any other exception, or other words
wrong         an answer where there is none: complex numbers or text taken for real ones, a failed check
hang, crash   more than --limit seconds, or the end of the process
"""

import argparse
import collections
import itertools
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

ENVIRONMENT = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiling takes longer than the calls


def main(arguments: list[str] | None = None) -> int:
    """Make the calls in other processes; print how they ended, and return how many must not end so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--functions", default="", help="only those whose name contains this")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a call may take")
    parser.add_argument("--todo", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.todo:
        return _calls(given.todo, given.seed)
    todo, shown, seed = _shared(given.functions, given.calls), set(), given.seed
    outcomes = {name: collections.Counter() for name in todo}
    while todo:
        _process(todo, seed, given.limit, outcomes, shown)
        seed += 1
    total = sum(outcomes.values(), collections.Counter())
    count = total.total()
    print(f"seed {given.seed}: {count} calls of {len(outcomes)} functions: {_counts(total)}")
    return total["wrong"] + total["hang"] + total["crash"] + (total["cryptic"] > count / 200)


def _counts(outcomes: collections.Counter) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in outcomes.most_common())


def _shared(part: str, calls: int) -> dict[str, int]:
    """The functions whose name contains ``part``, and how many of the calls each gets."""
    import fuzz_calls

    shares = {name: 1 / fuzz_calls.SLOW.get(name, 1) for name in fuzz_calls.CALLS if part in name}
    return {name: max(round(calls * share / sum(shares.values())), 1) for name, share in shares.items()}


def _process(todo: dict[str, int], seed: int, limit: float, outcomes: dict, shown: set[str]) -> None:
    """Make calls in another process, until all are made, one crashes it, or one hangs; ``todo`` is what is left."""
    command = [sys.executable, __file__, "--todo", json.dumps(todo), "--seed", str(seed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [*map(lines.put, itertools.chain(child.stdout, [""]))], daemon=True).start()
    name, call, ended = "", "", ""
    while not ended:
        try:
            line = lines.get(timeout=limit if name else 5 * limit)  # a busy machine imports slowly
        except queue.Empty:
            child.kill()
            ended = "hang"
            continue
        if not line:
            if not todo:
                return
            ended = "crash"
            continue
        row = json.loads(line) if line.startswith("{") else {}
        name, call = row.get("function", name), row.get("call", call)
        if "outcome" in row:
            todo[name] -= 1
            outcomes[name][row["outcome"]] += 1
            _show(row["outcome"], call, row["words"], shown)
        if "done" in row:
            del todo[name]
            print(f"{name}: {_counts(outcomes[name])}", flush=True)
    if not name:
        raise SystemExit(f"{ended} before the first call: {' '.join(command)}")
    todo[name] -= 1
    outcomes[name][ended] += 1
    _show(ended, call, "", shown)


def _show(outcome: str, call: str, words: str, shown: set[str]) -> None:
    """Print what must not be, once for each kind."""
    kind = f"{outcome} {call.partition('(')[0]} {words[:60]}"
    if outcome not in ("right", "refused") and kind not in shown:
        shown.add(kind)
        print(f"{outcome}: {call}\n    {words}", flush=True)


def _calls(todo: dict[str, int], seed: int) -> int:
    """Make calls and write a line before and after each."""
    import jax

    def say(row: dict) -> None:
        print(json.dumps(row), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where a file name is asked for, and "x" is given
        for name, calls in todo.items():
            say({"function": name, "call": f"{name} before its first call"})
            if calls > 0:
                make_calls(name, calls, seed, say)
            say({"done": name})
            jax.clear_caches()
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
    from fuzz_damage import Made, hidden_nan, mistaken

    given = {name: value.make() if isinstance(value, Made) else value for name, value in given.items()}
    try:
        found = function(**given)
        words = mistaken(valid, given) or hidden_nan(found, given) or check(found, given)
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
