"""The main job: notebooks one after another, each handing the next files in one run folder.

:func:`run` checks all parameters, executes what is not finished yet, and writes the report. A notebook is finished
when its process ended well *and* the last cell of that very execution wrote its result file.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import lqrlab
from lqrlab.workbench.runs import execution, fingerprints, notebooks, parameters, run_folder, session
from lqrlab.workbench.runs.notebooks import Notebook, Values
from lqrlab.workbench.runs.terminal import Progress, clock


class RunError(RuntimeError):
    """A run that stopped at a notebook; the message says where, why and what to do next."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run executes, checked: the notebooks, where, with which parameters.

    Attributes:
        source: the folder of the notebooks.
        profile: name of the profile.
        folder: of the run.
        chain: the notebooks that are executed.
        values, fingerprints: by name, of all notebooks of the main job.
        partial: whether other notebooks of the main job are left out.
    """

    source: Path
    profile: str
    folder: Path
    chain: list[Notebook]
    values: dict[str, Values]
    fingerprints: dict[str, str]
    partial: bool


def run(
    profile: str = "quick",
    folder: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    only: Sequence[str] = (),
    source: str | Path | None = None,
    fresh: bool = False,
    report: bool = True,
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
        fresh: remove what an earlier run left in ``folder``, and start from scratch.
        report: write ``<folder>/report``.
        stream: where progress is shown.

    Returns:
        The run's folder.

    Raises:
        ValueError: a parameter, profile or notebook is not right (nothing was started), or another run holds
            the folder.
        RunError: a notebook failed; those before it are kept.
    """
    plan = _planned(find_source(source), profile, folder, overrides or {}, only)
    with run_folder.hold(plan.folder), Progress(stream) as progress:
        what = f"{len(plan.chain)} notebooks" if len(plan.chain) > 1 else plan.chain[0].name
        progress.say(f"lqrlab run · profile {profile} · {what} → {run_folder.short(plan.folder)}")
        if fresh:
            run_folder.clear(plan.folder)
        begun = time.monotonic()
        _execute_all(plan, progress)
        progress.say(f"finished in {clock(time.monotonic() - begun)}")
        if report:
            from lqrlab.workbench.runs import report as reports

            progress.say(f"report: {run_folder.short(reports.write(plan.folder))}")
    return plan.folder


def _planned(
    source: Path,
    profile: str,
    folder: str | Path | None,
    overrides: Mapping[str, object],
    only: Sequence[str],
) -> Plan:
    """Check everything that was asked for."""
    chain, chosen = notebooks.find(source), notebooks.named(source, only)
    chain += [nb for nb in chosen if nb.name not in {other.name for other in chain}]
    names = {nb.name for nb in chain}
    others = {path.stem for path in source.glob(notebooks.NUMBERED)} - names
    given = parameters.read_profile(source, profile)
    values = parameters.effective(chain, {k: v for k, v in given.items() if k not in others}, overrides)
    prints = fingerprints.fingerprints(chain, values)
    folder = (Path(folder).expanduser() if folder else source.parent / "data" / "runs" / profile).resolve()
    if folder / "notebooks" == source:
        raise ValueError(f"--folder {run_folder.short(folder)}: holds the notebooks themselves; give another")
    wanted = {nb.name for nb in chosen} or names
    return Plan(
        source, profile, folder, [nb for nb in chain if nb.name in wanted], values, prints, bool(only)
    )


def _execute_all(plan: Plan, progress: Progress) -> None:
    """Execute what is not finished; the run's record says how far that came."""
    path = plan.folder / run_folder.RUN
    others = run_folder.read(path).get("parameters", {}) if plan.partial else {}
    given = {nb.name: {k: v for k, v in plan.values[nb.name].items() if k != "run"} for nb in plan.chain}
    commit = run_folder.commit(plan.source)
    run_folder.begin(path, profile=plan.profile, parameters=others | given, commit=commit)
    status: run_folder.Status = "failed"
    error = device = None
    try:
        for nb in plan.chain:
            if run_folder.finished(plan.folder, nb.name, plan.fingerprints[nb.name]):
                progress.say(f"✓ {nb.name}  finished before")
            else:
                _execute(nb, plan, progress)
            device = session.results(plan.folder, nb.name)["device"]
        status = "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    except BaseException as problem:
        error = f"{nb.name}: {str(problem).partition(chr(10))[0]}"
        raise
    finally:
        run_folder.note(path, status=status, error=error, ended=session.now(), device=device)


def _execute(nb: Notebook, plan: Plan, progress: Progress) -> None:
    """Execute one notebook and show how far it is."""
    steps = nb.steps
    progress.update(nb.name, 0, "starting Python", total=len(steps))

    def show(event: execution.Event) -> None:
        step = event.get("cell")
        progress.update(nb.name, step, steps[step - 1] if step else None, event.get("note"))

    try:
        values, fingerprint = plan.values[nb.name], plan.fingerprints[nb.name]
        execution.execute(nb, plan.folder, values, fingerprint, on_event=show)
    except execution.CellError as error:
        progress.close(nb.name, "✗", f'stopped at "{progress.tasks[nb.name].title}"')
        raise RunError(_explanation(nb, error, execution.failed_path(plan.folder, nb.name))) from None
    except KeyboardInterrupt:
        progress.close(nb.name, "■", f'interrupted at "{progress.tasks[nb.name].title}"')
        raise
    progress.close(nb.name, "✓", f"{len(steps)} steps")


def _explanation(nb: Notebook, error: execution.CellError, failed: Path) -> str:
    parts = [f"{nb.name} failed: {error.error}"]
    if error.source:
        parts += ["in the cell", *(f"  │ {line}" for line in error.source.strip("\n").splitlines())]
    if error.traceback:
        parts += ["with the traceback", *(f"  {line}" for line in error.traceback.splitlines())]
    if failed.exists():
        parts.append(f"executed up to there: {run_folder.short(failed)}")
    parts.append("Mend the cause and repeat the command: finished notebooks are kept.")
    return "\n".join(parts)


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
