"""``lqrlab doctor``: what has to be right before a run, and what to do where it is not."""

import dataclasses
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

import lqrlab
from lqrlab.workbench.cli.options import as_json
from lqrlab.workbench.runs import execution, session


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
    """Required packages and their versions."""
    from packaging.requirements import Requirement

    lacking = []
    for wanted in map(Requirement, importlib.metadata.requires("lqrlab") or []):
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(wanted.name)
            if not wanted.specifier.contains(version, prereleases=True):
                lacking.append(f"{wanted.name} {version} is not {wanted.specifier}")
        except importlib.metadata.PackageNotFoundError:
            lacking.append(f"{wanted.name} is missing")
    text = "; ".join(lacking) or ", ".join(f"{k} {v}" for k, v in session.versions().items() if k in session.PACKAGES)
    return Inspection("packages", not lacking, text, _install() if lacking else "")


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
    """The kernel that ``lqrlab run`` starts: of this environment or another."""
    ask = "from jupyter_client.kernelspec import get_kernel_spec as spec; "
    command = [sys.executable, "-P", "-c", f"{ask}print(spec({execution.KERNEL!r}).argv[0])"]
    done = subprocess.run(command, capture_output=True, text=True, env=execution.environment(), timeout=60)
    if done.returncode:
        tail = "".join(done.stderr.strip().splitlines()[-1:])
        return Inspection("kernel", False, f"none named {execution.KERNEL}: {tail}", f"{_install()} installs it")
    program = done.stdout.splitlines()[0]
    # Jupyter takes a bare name to mean the interpreter that starts the kernel
    ours = bool(re.fullmatch(r"python[\d.]*", program)) or Path(program).parent == Path(sys.executable).parent
    remedy = "" if ours else f"notebooks would compute elsewhere; {_install()}"
    return Inspection("kernel", ours, f"{execution.KERNEL} runs {sys.executable if ours else program}", remedy)


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
    """Memory that is free for a run [GB]."""
    import psutil

    free = psutil.virtual_memory().available / 1e9
    remedy = "" if free >= needed else f"a quick run takes up to {needed:g} GB; close something"
    return Inspection("memory", not remedy, f"{free:.1f} GB free, {psutil.cpu_count()} cores", remedy)
