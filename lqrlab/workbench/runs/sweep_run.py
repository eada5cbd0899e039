"""One run of a sweep, as a worker does it: hold the folder, execute the notebook, leave the truth about it there.

A job is a plain dictionary: ``folder``, ``notebook``, ``values`` and ``fingerprint`` of the run; ``links`` to
what it reads and ``inputs`` that tell it; ``time_limit``, ``retries``; the ``session`` of the sweep.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lqrlab.workbench.runs import execution, notebooks, pipeline, session

RECORD = "sweep.json"
TOPIC = "lqrlab-sweep"
_PATIENCE = 30.0  # seconds that a run waits for its folder: what a killed worker left is about to end


def done(job: Mapping[str, Any]) -> bool:
    """Whether the run has its result."""
    return pipeline.finished(Path(job["folder"]), Path(job["notebook"]).stem, job["fingerprint"])


class _Stopped(BaseException):
    """The sweep has ended: so must its runs."""


def perform(job: dict[str, Any]) -> str:
    """Do one run and leave the truth about it in its folder; returns its status. Called on a worker."""
    folder = Path(job["folder"])
    if not folder.parents[1].is_dir():
        raise FileNotFoundError(
            f"{platform.node()} does not see {folder.parents[1]}: a shared disk is needed"
        )
    with pipeline.hold(folder, patience=_PATIENCE) as lock:
        before = read(folder)
        if done(job):
            return "finished"
        again = before.get("session") == job["session"]
        attempts = before.get("attempts", 0) + 1 if again else 1
        if attempts > job["retries"] + 1:  # a cluster's scheduler hands out again what its worker dies of
            return note(folder, status="worker lost")["status"]
        if before.get("fingerprint") != job["fingerprint"]:
            pipeline.clear(folder)  # else an interrupted training goes on from its checkpoint
        path = Path(job["notebook"])
        record = {
            "profile": job["profile"],
            "parameters": {path.stem: {k: v for k, v in job["values"].items() if k != "run"}},
            "versions": session.versions(),
            "commit": job["commit"],
            "platform": platform.platform(),
            "started": session.now(),
            "status": "running",
            "session": job["session"],
            "fingerprint": job["fingerprint"],
            "attempts": attempts,
            "worker": f"{platform.node()}/{os.getpid()}",
        }
        session.write_json(folder / "run.json", record)
        begun = time.monotonic()
        status, error = "stopped", None
        try:
            status, error = _run(job, folder, lock)
        except _Stopped:
            error = "the sweep was stopped"
        finally:
            seconds = round(time.monotonic() - begun, 2)
            note(folder, status=status, error=error, ended=session.now(), seconds=seconds)
        return status


def _run(job: dict[str, Any], folder: Path, lock: int) -> tuple[str, str | None]:
    """Execute the notebook; how it ended, and what it said if it did not end well."""
    nb = notebooks.read(Path(job["notebook"]))
    if notebooks.fingerprint(nb, job["values"], job["inputs"]) != job["fingerprint"]:
        return "failed", "the notebook or the package was edited during the sweep; give the command again"
    for name, target in job["links"].items():
        link = folder / name
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(target)
    steps, sweep_record = nb.steps, folder.parents[1] / RECORD
    _tell({"run": folder.name, "step": 0, "of": len(steps), "title": "starting Python"})
    looked = time.monotonic()

    def on_event(event: dict[str, Any]) -> None:
        nonlocal looked
        if "cell" in event:
            number = event["cell"]
            _tell({"run": folder.name, "step": number, "of": len(steps), "title": steps[number - 1]})
        elif "note" in event:
            _tell({"run": folder.name, "note": event["note"]})
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            if read_json(sweep_record).get("session") != job["session"]:
                raise _Stopped

    try:
        pipeline.execute(
            nb,
            folder,
            job["values"],
            job["fingerprint"],
            lock,
            on_event=on_event,
            time_limit=job["time_limit"],
        )
    except execution.CellError as error:
        kinds = {execution.OVER_TIME: "over time", "DeadKernelError": "kernel died"}
        return kinds.get(error.error.partition(":")[0], "failed"), error.error
    return "finished", None


def _tell(event: dict[str, Any]) -> None:
    """Send to whoever watches; a run outside of a worker has nobody."""
    import distributed

    with contextlib.suppress(ValueError):
        distributed.get_worker().log_event(TOPIC, event)


def note(folder: Path, **changes: Any) -> dict[str, Any]:
    """Put what has changed into a run's ``run.json``."""
    record = read(folder) | changes
    session.write_json(folder / "run.json", record)
    return record


def read(folder: Path) -> dict[str, Any]:
    """What a run's folder says of the run; empty where it has not begun."""
    return read_json(folder / "run.json")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
