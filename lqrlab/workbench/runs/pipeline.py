"""The main job: notebooks one after another, each handing the next files in one run folder.

:func:`run` checks all parameters, executes what is not finished yet, and writes the report. A notebook is finished
when its process ended well *and* the last cell of that very execution wrote its result file.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import NamedTuple, TextIO

import lqrlab
from lqrlab.workbench.runs import execution, name_checks, notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Notebook, Values
from lqrlab.workbench.runs.run_folder import Record, Status, short
from lqrlab.workbench.runs.terminal import Progress, clock

ERRORS: dict[str, Status] = {execution.TIME_LIMIT: "timed out", "DeadKernelError": "kernel died"}


class RunError(RuntimeError):
    """A run that stopped at a notebook; the message says where, why and what to do next."""


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
    stream: TextIO | None = None,
) -> Path:
    """Execute the notebooks in order, each unless its result is there and up to date, then write the report.

    Args:
        profile: name of a file in ``notebooks/profiles`` that sets parameters: notebook → parameter → value.
        folder: what the run reads and writes; ``data/runs/<profile>`` in the project's folder by default.
        overrides: ``"03_training.learning_rate"``, or ``"learning_rate"`` for all notebooks that have it →
            value, as Python value or as typed on a command line.
        only: names or paths of the notebooks to execute, of the main job or of those numbered from 10; the whole
            main job if left out. What they read from others is to be there already.
        source: the folder of the notebooks.
        fresh: remove what the record in ``folder`` lists as made by a run, and start from scratch.
        report: write ``<folder>/report``.
        dry_run: check everything, say what would be executed and with which values, and start nothing.
        stream: where progress is shown.

    Returns:
        The run's folder.

    Raises:
        ValueError: a parameter, profile or notebook is not right (nothing was started), or another run holds
            the folder, or the folder is not one for a run (:func:`run_folder.refuse_foreign`).
        RunError: a notebook failed; those before it are kept.
    """
    source = find_source(source)
    steps = _steps(source, profile, overrides or {}, only)
    folder = Path(folder).expanduser() if folder else source.parent / "data" / "runs" / profile
    folder = Path(os.path.realpath(folder))  # which ends, even where a link leads to itself
    run_folder.refuse_foreign(folder, source)
    if dry_run:
        return _only_say(steps, folder, fresh, stream)
    with run_folder.hold(folder), Progress(stream) as progress:
        what = f"{len(steps)} notebooks" if len(steps) > 1 else steps[0].nb.name
        progress.say(f"lqrlab run · profile {profile} · {what} → {short(folder)}")
        if fresh:
            run_folder.clear(folder)
        if report:
            _import_soon()
        begun = time.monotonic()
        others = run_folder.read(folder / run_folder.RUN).get("parameters", {}) if only else {}
        parameters = others | {step.nb.name: notebooks.without_run(step.values) for step in steps}
        about: Record = {"profile": profile, "parameters": parameters, "commit": run_folder.commit(source)}
        execute(steps, folder, about, progress)
        progress.say(f"finished in {clock(time.monotonic() - begun)}")
        if report:
            progress.say(f"report: {short(_reports().write(folder))}")
            progress.say(_next(folder))
    return folder


def _import_soon() -> None:
    """Import what writes the report, which takes two seconds, while a notebook runs."""
    soon = Timer(5, _reports)
    soon.daemon = True
    soon.start()


def _reports() -> ModuleType:
    from lqrlab.workbench.runs import report

    return report


def _next(folder: Path) -> str:
    """What to open after a run."""
    place = "" if [folder] == session.runs()[:1] else f' with run = "{short(folder)}"'
    look = f"lqrlab report {short(folder)} --open"
    return f"next: {look}; then 04_performance_analysis (jupyter lab notebooks){place}"


def _only_say(steps: Sequence[Step], folder: Path, fresh: bool, stream: TextIO | None) -> Path:
    for step in steps:
        (stream or sys.stdout).write(_intention(step, folder, fresh))
    return folder


def _intention(step: Step, folder: Path, fresh: bool) -> str:
    """What would become of a notebook, and its values, those marked that are not its defaults."""
    kept = not fresh and run_folder.finished(folder, step.nb.name, step.fingerprint)
    lines = [f"{step.nb.name}: {'finished before, is kept' if kept else 'would run'} in {short(folder)}"]
    for name, value in notebooks.without_run(step.values).items():
        usual = step.nb.parameters[name].default
        lines.append(f"  {name} = {value!r}" + ("" if value == usual else f"  (default {usual!r})"))
    return "\n".join(lines) + "\n"


def _steps(source: Path, profile: str, given: Mapping[str, object], only: Sequence[str]) -> list[Step]:
    """What is to be executed, all of it checked."""
    chain, chosen = notebooks.find(source), notebooks.named(source, only)
    chain += [nb for nb in chosen if nb.name not in {other.name for other in chain}]
    names = {nb.name for nb in chain}
    others = {path.stem for path in source.glob(notebooks.NUMBERED)} - names
    settings = {k: v for k, v in notebooks.read_profile(source, profile).items() if k not in others}
    values = notebooks.effective(chain, settings, given)
    name_checks.check(values, given)
    prints = notebooks.fingerprints(chain, values)
    wanted = {nb.name for nb in chosen} or names
    return [Step(nb, values[nb.name], prints[nb.name]) for nb in chain if nb.name in wanted]


def execute(
    steps: Sequence[Step], folder: Path, about: Record, progress: Progress, time_limit: float | None = None
) -> None:
    """Execute what is not finished in a folder that is held; its record, with ``about``, says how far that came.

    A ``RunError`` says which notebook failed, or took longer than ``time_limit`` seconds.
    """
    path, begun = folder / run_folder.RUN, time.monotonic()
    run_folder.begin(path, **about)
    status: Status = "stopped"
    error = device = None
    try:
        for step in steps:
            if run_folder.finished(folder, step.nb.name, step.fingerprint):
                progress.say(f"✓ {step.nb.name}  finished before")
            else:
                _execute(step, folder, progress, time_limit)
            device = session.results(folder, step.nb.name)["device"]
        status = "finished"
    except execution.CellError as problem:
        status = ERRORS.get(problem.error.partition(":")[0], "failed")
        error = f"{step.nb.name} failed: {problem.error}"
        failed = folder / "notebooks" / f"{step.nb.name}.failed.ipynb"
        raise RunError(_explanation(error, problem, failed)) from None
    finally:
        seconds = round(time.monotonic() - begun, 2)
        run_folder.note(path, status=status, error=error, ended=session.now(), seconds=seconds, device=device)


def _execute(step: Step, folder: Path, progress: Progress, time_limit: float | None) -> None:
    """Execute one notebook and show how far it is."""
    name, titles = step.nb.name, step.nb.steps
    progress.update(name, 0, "starting Python", total=len(titles))

    def show(event: execution.Event) -> None:
        number = event.get("cell")
        progress.update(name, number, titles[number - 1] if number else None, event.get("note"))

    mark, text = "■", "interrupted at"
    try:
        execution.execute(
            step.nb, folder, step.values, step.fingerprint, on_event=show, time_limit=time_limit
        )
        mark, text = "✓", f"{len(titles)} steps"
    except execution.CellError:
        mark, text = "✗", "stopped at"
        raise
    finally:
        where = "" if mark == "✓" else f' "{progress.tasks[name].title}"'
        progress.close(name, mark, text + where)


def _explanation(what: str, error: execution.CellError, failed: Path) -> str:
    parts = [what]
    if error.source:
        parts += ["in the cell", *(f"  │ {line}" for line in error.source.strip("\n").splitlines())]
    if error.traceback:
        parts += ["with the traceback", *(f"  {line}" for line in error.traceback.splitlines())]
    if failed.exists():
        parts.append(f"executed up to there: {short(failed)}")
    return "\n".join([*parts, "Mend the cause and repeat the command: finished notebooks are kept."])


def find_source(source: str | Path | None = None) -> Path:
    """The folder of the notebooks: the one given, else ``notebooks`` in the project's folder or in the checkout."""
    if source is not None:
        return Path(source).resolve()
    places = [session.project() / "notebooks", Path(lqrlab.__file__).parents[1] / "notebooks"]
    for place in places:
        if any(place.glob(notebooks.MAIN_JOB)):
            return place.resolve()
    raise ValueError(
        f"notebooks: none found in {places[0]}; start in a project's folder, or make one: lqrlab init my_study"
    )
