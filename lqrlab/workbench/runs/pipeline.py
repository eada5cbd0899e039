"""The main job: notebooks one after another, each handing the next files in one run folder."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lqrlab.installation import program, typed
from lqrlab.workbench.runs import notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Step
from lqrlab.workbench.runs.run_folder import Record
from lqrlab.workbench.runs.terminal import clock, say


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

    A ``ValueError`` refuses a parameter, profile, notebook or folder; a ``RunError`` says that a notebook failed.
    """
    source = notebooks.find_source(source)
    steps = _steps(source, profile, overrides or {}, only)
    folder = run_folder.place(folder or source.parent / "data" / "runs" / profile, source)
    for step in steps:
        session.require(step.nb.name, folder, {*step.nb.metadata.get("needs", ())} - {other.nb.name for other in steps})
    if dry_run:
        _say_plan(steps, folder, fresh)
        return folder
    with run_folder.hold(folder):
        what = f"{len(steps)} notebooks" if len(steps) > 1 else steps[0].nb.name
        say(f"lqrlab run · profile {profile} · {what} → {typed(folder)}")
        if fresh:
            run_folder.clear(folder)
        begun = time.monotonic()
        others = run_folder.read(folder / run_folder.RUN).get("parameters", {}) if only else {}
        parameters = others | {step.nb.name: notebooks.without_run(step.values) for step in steps}
        about: Record = {"profile": profile, "parameters": parameters, "commit": run_folder.commit(source)}
        from lqrlab.workbench.runs import execution  # and papermill: a second

        execution.execute(steps, folder, about)
        say(f"finished in {clock(time.monotonic() - begun)}")
        if report:
            from lqrlab.workbench.runs import report as reports

            say(f"report: {typed(reports.write(folder))}")
            say(f'next: {program()} report {typed(folder)} --open; in a notebook, run = "{typed(folder)}" reads it')
    return folder


def _say_plan(steps: Sequence[Step], folder: Path, fresh: bool) -> None:
    """Print the plan for each notebook, and its values, those marked that are not its defaults."""
    for step in steps:
        kept = not fresh and run_folder.finished(folder, step.nb.name, step.fingerprint)
        print(f"{step.nb.name}: {'finished before, is kept' if kept else 'would run'} in {typed(folder)}")
        for name, value in notebooks.without_run(step.values).items():
            usual = step.nb.parameters[name].default
            print(f"  {name} = {value!r}" + ("" if value == usual else f"  (default {usual!r})"))


def _steps(source: Path, profile: str, given: Mapping[str, object], only: Sequence[str]) -> list[Step]:
    """Steps to be executed, all of them checked, with the notebooks whose files they read, directly or not."""
    main_job, chosen = notebooks.find(source), notebooks.named(source, only)
    known = [*{nb.name: nb for nb in (*main_job, *chosen)}.values()]
    wanted = {nb.name for nb in chosen or main_job}
    read = set(wanted)
    for i in reversed(range(len(known))):
        if known[i].name in read:
            read |= set(known[i].metadata.get("needs", [nb.name for nb in known[:i]]))
    chain = [nb for nb in known if nb.name in read]
    values = notebooks.effective(chain, notebooks.read_profile(source, profile), given)
    prints = notebooks.fingerprints(chain, values)
    return [Step(nb, values[nb.name], prints[nb.name]) for nb in chain if nb.name in wanted]
