"""This installation of lqrlab: commands that work when they are typed here, extras and the packages that they bring."""

import importlib
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import NoReturn


def of_extra(name: str, extra: str, what: str) -> ModuleType:
    """A module of this or another package that the extra ``lqrlab[extra]`` brings.

    Args:
        name: of the module.
        extra: that brings what it needs, as ``"[robots]"``; or a package, as ``"sbx-rl"``.
        what: cannot be done without, as in ``"films"``.

    Raises:
        ImportError: it, or a package that it needs, is not installed; with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        refuse(what, error, extra)


def refuse(what: str, error: ModuleNotFoundError, extra: str) -> NoReturn:
    """Say in words that a package is not installed, and the command that installs it."""
    missing = (error.name or what).partition(".")[0]
    if missing == "lqrlab":
        raise error
    why = f"needs the package {missing}, which is not installed"
    raise ImportError(f"{what}: {why}; {install(extra)} brings it", name=missing) from error


def extras(*subjects: str) -> str:
    """Extras that these subpackages need besides the library, as ``"[robots]"``."""
    named = ("workbench", "identification", "environments", "robots", "deployment")
    return f"[{','.join(name for name in named if name in subjects) or 'workbench'}]"


def install(what: str) -> str:
    """The command, typed in this folder, that installs an extra of lqrlab, as ``"[robots]"``, or another package."""
    root, pip = Path(__file__).parents[1], f"{typed(sys.executable)} -m pip install"
    if not (root / "pyproject.toml").exists():  # a wheel: pip finds the one that is installed, and adds the extra
        return f"{pip} {shlex.quote('lqrlab' * what.startswith('[') + what)}"
    wanted = f"-e {typed(root, ending=what)}" if what.startswith("[") else what
    return f"{pip} -c {typed(root / 'constraints.txt')} {wanted}"


def program(start: Path | None = None) -> str:
    """The command ``lqrlab`` as typed in a folder, this one by default, whether or not PATH has it."""
    script, found = shutil.which("lqrlab", path=sysconfig.get_path("scripts")), shutil.which("lqrlab")
    if script is None:
        return f"{typed(sys.executable, start)} -m lqrlab.workbench"
    return "lqrlab" if found and os.path.samefile(found, script) else typed(script, start)


def typed(path: str | Path, start: Path | None = None, ending: str = "") -> str:
    """A path, and its ending, as typed in a folder, this one by default: relative if it is below, else in full."""
    start = (start or Path.cwd()).resolve()
    shown = Path(path).relative_to(start) if Path(path).is_relative_to(start) else path
    return shlex.quote(f"{shown}{ending}")
