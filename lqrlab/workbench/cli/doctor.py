"""What has to be right before a run: versions, devices, the notebooks' kernel, disk and memory."""

import dataclasses
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lqrlab.workbench.runs import execution, session


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing looked at: whether it is good, what was seen, what to do if it could be better."""

    subject: str
    good: bool
    text: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything."""
    return [python(), packages(), devices(), kernel(), disk(), memory()]


def python() -> Finding:
    """The interpreter, and whether it is one of a virtual or conda environment."""
    version = sys.version.split()[0]
    own = sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").exists()
    remedy = "" if own else "this is the system's Python; make env keeps lqrlab apart from it"
    return Finding("python", sys.version_info >= (3, 11), f"{version} in {sys.prefix}", remedy)


def packages() -> Finding:
    """Whether what pyproject.toml asks for is installed in versions that satisfy it."""
    from packaging.requirements import Requirement

    lacking = []
    for line in importlib.metadata.requires("lqrlab") or []:
        wanted = Requirement(line)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            there = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(f"{wanted.name} is missing")
            continue
        if not wanted.specifier.contains(there, prereleases=True):
            lacking.append(f"{wanted.name} {there} is not {wanted.specifier}")
    if lacking:
        return Finding(
            "packages", False, "; ".join(lacking), "make env, or pip install -c constraints.txt -e ."
        )
    seen = session.versions()
    return Finding("packages", True, ", ".join(f"{k} {seen[k]}" for k in session.PACKAGES if k in seen))


def devices() -> Finding:
    """What JAX computes on."""
    try:
        import jax

        there = jax.devices()
    except RuntimeError as error:
        return Finding("devices", False, f"JAX finds none: {error}", "JAX_PLATFORMS=cpu computes on the CPU")
    text = ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in there)
    remedy = ""
    if all(d.platform == "cpu" for d in there) and shutil.which("nvidia-smi"):
        remedy = (
            "there is an NVIDIA driver: .venv/bin/pip install -c constraints.txt -e '.[cuda]' uses the GPU"
        )
    return Finding("devices", True, text, remedy)


def kernel() -> Finding:
    """Whether notebooks run in this very environment, asked of a kernel as the pipeline starts it."""
    ask = (
        "import sys; from jupyter_client.kernelspec import KernelSpecManager as M; "
        f"print(M().get_kernel_spec({execution.KERNEL!r}).argv[0]); print(sys.prefix)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", ask],
        capture_output=True,
        text=True,
        env=execution.environment(),
        timeout=60,
    )
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:]
        return Finding(
            "kernel", False, f"none named {execution.KERNEL}: {''.join(tail)}", "make env installs it"
        )
    program = done.stdout.splitlines()[0]
    # Jupyter takes a bare name to mean the interpreter that starts the kernel
    ours = bool(re.fullmatch(r"python[\d.]*", program)) or Path(program).parent == Path(sys.executable).parent
    remedy = "" if ours else "notebooks would compute elsewhere; make env, then make lab"
    return Finding("kernel", ours, f"{execution.KERNEL} runs {sys.executable if ours else program}", remedy)


def disk(needed: float = 5.0) -> Finding:
    """Free space where runs are written [GB]."""
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    remedy = (
        "" if free >= needed else f"a quick run needs about {needed:g} GB; remove old folders in data/runs"
    )
    writable = True
    try:
        tempfile.TemporaryFile(dir=Path.cwd()).close()
    except OSError:
        writable, remedy = False, "this folder cannot be written to; start in one that can"
    return Finding("disk", writable and free >= needed, f"{free:.0f} GB free here", remedy)


def memory(needed: float = 4.0) -> Finding:
    """Memory that is free for a run [GB]."""
    import psutil

    free = psutil.virtual_memory().available / 1e9
    remedy = "" if free >= needed else f"a quick run takes up to {needed:g} GB; close something"
    return Finding("memory", free >= needed, f"{free:.1f} GB free, {psutil.cpu_count()} cores", remedy)
