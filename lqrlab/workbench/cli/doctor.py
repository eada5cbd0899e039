"""``lqrlab doctor``: what has to be right before a run, and what to do where it is not."""

import dataclasses
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import click

import lqrlab
from lqrlab.workbench.cli.options import as_json
from lqrlab.workbench.runs import session


@dataclasses.dataclass(frozen=True)
class Inspection:
    """One thing looked at: whether it is good, what was seen, what to do if it could be better."""

    subject: str
    good: bool
    text: str
    remedy: str = ""


@click.command()
@as_json
def doctor(as_json: bool) -> None:
    """Check the installation and say what to do.

    Versions, devices, the notebooks' kernel, disk and memory.
    """
    inspections = [python(), packages(), devices(), kernel(), disk(), memory()]
    for inspection in inspections:
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(inspection), ensure_ascii=False))
        else:
            click.echo(f"{'✓' if inspection.good else '✗'} {inspection.subject:<10}{inspection.text}")
            click.echo(f"  {'':<10}→ {inspection.remedy}\n" * bool(inspection.remedy), nl=False)
    if not all(inspection.good for inspection in inspections):
        sys.exit(1)


def _install(extra: str = "") -> str:
    """The command that installs what is missing, in a checkout and elsewhere."""
    if not (Path(lqrlab.__file__).parents[1] / "Makefile").exists():
        return f"{sys.executable} -m pip install --upgrade 'lqrlab{extra}'"
    return f".venv/bin/pip install -c constraints.txt -e '.{extra}'" if extra else "make env"


def python() -> Inspection:
    """The interpreter, and whether it is one of a virtual or conda environment."""
    apart = sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").exists()
    remedy = "" if apart else "this is the system's Python; a virtual environment keeps lqrlab apart from it"
    text = f"{sys.version.split()[0]} in {sys.prefix}"
    return Inspection("python", sys.version_info >= (3, 11), text, remedy)


def packages() -> Inspection:
    """Required packages and their versions, each ``name>=version``."""
    lacking = []
    for wanted in importlib.metadata.requires("lqrlab") or []:
        name, least = wanted.partition(";")[0].strip().split(">=")
        try:
            version = importlib.metadata.version(name)
            if "extra ==" not in wanted and _release(version) < _release(least):
                lacking.append(f"{name} {version} is not >={least}")
        except importlib.metadata.PackageNotFoundError:
            lacking += [f"{name} is missing"] * ("extra ==" not in wanted)
    text = "; ".join(lacking) or ", ".join(f"{k} {v}" for k, v in session.versions().items() if k in session.PACKAGES)
    return Inspection("packages", not lacking, text, _install() if lacking else "")


def _release(version: str) -> list[int]:
    """1.14rc1 → [1, 14], to be compared."""
    return [int(number) for number in re.findall(r"(?:^|\.)(\d+)", version)]


def devices() -> Inspection:
    """The devices that JAX computes on."""
    try:
        import jax

        present = jax.devices()
    except RuntimeError as error:
        return Inspection("devices", False, f"JAX finds none: {error}", "JAX_PLATFORMS=cpu computes on the CPU")
    text = ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in present)
    idle = all(d.platform == "cpu" for d in present) and shutil.which("nvidia-smi")
    remedy = f"there is an NVIDIA driver: {_install('[cuda]')} uses the GPU" if idle else ""
    return Inspection("devices", True, text, remedy)


def kernel() -> Inspection:
    """The kernel that ``lqrlab run`` starts, which is this Python's."""
    try:
        text = f"python3 runs {sys.executable}, ipykernel {importlib.metadata.version('ipykernel')}"
        return Inspection("kernel", True, text)
    except importlib.metadata.PackageNotFoundError:
        return Inspection("kernel", False, "ipykernel is missing", f"{_install('[workbench]')} runs notebooks")


def disk(needed: float = 5.0) -> Inspection:
    """Free space where runs are written [GB]."""
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    remedy = "" if free >= needed else f"a quick run needs about {needed:g} GB; remove old runs in data/runs"
    try:
        tempfile.TemporaryFile(dir=Path.cwd()).close()
    except OSError:
        remedy = "this folder cannot be written to; start in one that can"
    return Inspection("disk", not remedy, f"{free:.0f} GB free here", remedy)


def memory(needed: float = 4.0) -> Inspection:
    """Memory that is free for a run [GB]; only Linux tells."""
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found is None:
        return Inspection("memory", True, f"a quick run takes up to {needed:g} GB")
    free = int(found[1]) * 1024e-9
    remedy = "" if free >= needed else f"a quick run takes up to {needed:g} GB; close something"
    return Inspection("memory", not remedy, f"{free:.1f} GB free, {os.cpu_count()} cores", remedy)
