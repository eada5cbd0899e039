"""The main job: notebooks one after another, each handing the next files in one run folder.

A notebook is finished when its process ended well *and* the last cell of that very execution wrote its result file.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lqrlab.compute import checks
from lqrlab.workbench.runs import notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Notebook, Values
from lqrlab.workbench.runs.run_folder import Record, RunError, Status, short
from lqrlab.workbench.runs.terminal import clock, say

FAMILIES = ("family", "families", "held_out", "others", "pages", "films")
"""Parameters that name families of plants."""
_STATUS: dict[str, Status] = {"TimeLimit": "timed out", "Stopped": "stopped", "DeadKernelError": "kernel died"}


class Step(NamedTuple):
    """A notebook of a run, its parameters, and the fingerprint of its result."""

    nb: Notebook
    values: Values
    fingerprint: str


def run(
    profile: str = "quick",
    folder: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    only: Sequence[str] = (),
    source: str | Path | None = None,
    fresh: bool = False,
    report: bool = True,
    dry_run: bool = False,
) -> Path:
    """Execute the notebooks in order, each unless its result is there and up to date; write the report.

    Args:
        profile: file in ``notebooks/profiles`` that sets parameters: notebook → parameter → value.
        folder: what the run reads and writes, and what is returned; ``data/runs/<profile>`` by default.
        overrides: ``"03_training.learning_rate"``, or ``"learning_rate"`` for all notebooks → value, also as typed.
        only: names or paths of the notebooks to execute; the whole main job if left out.
        fresh: remove what runs made in ``folder``, where the record of one is, and start from scratch.
        dry_run: check everything, print what would be executed and with which values, start nothing.

    Raises:
        ValueError: a parameter, profile, notebook or the folder is refused (nothing was started).
        RunError: a notebook failed; those before it are kept.
    """
    source = notebooks.find_source(source)
    steps = _steps(source, profile, overrides or {}, only)
    folder = Path(folder).expanduser() if folder else source.parent / "data" / "runs" / profile
    folder = Path(os.path.realpath(folder))  # which ends, even where a link leads to itself
    run_folder.refuse_foreign(folder, source)
    if dry_run:
        _say_plan(steps, folder, fresh)
        return folder
    with run_folder.hold(folder):
        what = f"{len(steps)} notebooks" if len(steps) > 1 else steps[0].nb.name
        say(f"lqrlab run · profile {profile} · {what} → {short(folder)}")
        if fresh:
            run_folder.clear(folder)
        begun = time.monotonic()
        others = run_folder.read(folder / run_folder.RUN).get("parameters", {}) if only else {}
        parameters = others | {step.nb.name: notebooks.without_run(step.values) for step in steps}
        about: Record = {"profile": profile, "parameters": parameters, "commit": run_folder.commit(source)}
        execute(steps, folder, about)
        say(f"finished in {clock(time.monotonic() - begun)}")
        if report:
            from lqrlab.workbench.runs import report as reports

            say(f"report: {short(reports.write(folder))}")
            say(f'next: lqrlab report {short(folder)} --open; in a notebook, run = "{short(folder)}" reads it')
    return folder


def _say_plan(steps: Sequence[Step], folder: Path, fresh: bool) -> None:
    """Print the plan for each notebook, and its values, those marked that are not its defaults."""
    for step in steps:
        kept = not fresh and run_folder.finished(folder, step.nb.name, step.fingerprint)
        print(f"{step.nb.name}: {'finished before, is kept' if kept else 'would run'} in {short(folder)}")
        for name, value in notebooks.without_run(step.values).items():
            usual = step.nb.parameters[name].default
            print(f"  {name} = {value!r}" + ("" if value == usual else f"  (default {usual!r})"))


def _steps(source: Path, profile: str, given: Mapping[str, object], only: Sequence[str]) -> list[Step]:
    """Steps to be executed, all of them checked, with what they read from others."""
    main_job, chosen = notebooks.find(source), notebooks.named(source, only)
    known = {nb.name: nb for nb in (*main_job, *chosen)}
    chain = notebooks.with_inputs(chosen or main_job, [*known.values()])
    others = {path.stem for path in source.glob(notebooks.NUMBERED)} - {nb.name for nb in chain}
    settings = {k: v for k, v in notebooks.read_profile(source, profile).items() if k not in others}
    values = notebooks.effective(chain, settings, given)
    check_names(values, given)
    prints = notebooks.fingerprints(chain, values)
    wanted = {nb.name for nb in chosen or chain}
    return [Step(nb, values[nb.name], prints[nb.name]) for nb in chain if nb.name in wanted]


def check_names(values: Mapping[str, Values], given: Iterable[str]) -> None:
    """Refuse families of plants that do not exist, where ``given`` names their parameters."""
    named = {key.rpartition(".")[2] for key in given} & {*FAMILIES}
    for notebook, parameters in values.items():
        for name in named & {*parameters}:
            from lqrlab import compute, systems

            compute.setup()
            chosen = parameters[name]
            for family in [chosen] if isinstance(chosen, str) else chosen:  # type: ignore[attr-defined]
                if family not in (*systems.names(), "all"):
                    hint = checks.did_you_mean(family, systems.names()) or "; lqrlab systems lists them"
                    raise ValueError(f"{notebook}.{name}: no plant is called {family!r}{hint}")


def execute(
    steps: Sequence[Step], folder: Path, about: Record, say: Callable[[str], None] = say, ended: Callable[[], str] = str
) -> None:
    """Execute what is not up to date in a folder that is held; its record, with ``about``, says how far that came.

    A ``RunError`` says which notebook failed, or that ``ended`` gave a reason to end it.
    """
    from lqrlab.workbench.runs import execution  # and papermill: a second

    with run_folder.recording(folder / run_folder.RUN, about) as end:
        try:
            for nb, values, fingerprint in steps:
                if run_folder.finished(folder, nb.name, fingerprint):
                    say(f"✓ {nb.name}  finished before")
                else:
                    execution.execute(nb, folder, values, fingerprint, say, ended)
                end["device"] = session.results(folder, nb.name)["device"]
            end["status"] = "finished"
        except execution.CellError as problem:
            why, details = problem.args
            error = f"{nb.name} failed: {why}"
            end |= {"status": _STATUS.get(why.partition(":")[0], "failed"), "error": error}
            failed = folder / "notebooks" / f"{nb.name}.failed.ipynb"
            executed = [f"executed up to there: {short(failed)}"] * failed.exists()
            advice = "Fix the cause and run the same command again: finished notebooks are kept."
            raise RunError("\n".join([error, details, *executed, advice])) from None
