"""Packages that not everybody has installed: asked for when they are needed, and missed in words."""

import importlib
from types import ModuleType


def load(name: str, extra: str, what: str) -> ModuleType:
    """A module of this or another package that the extra ``lqrlab[extra]`` brings.

    Args:
        name: of the module.
        extra: that brings what it needs.
        what: cannot be done without, as in ``"films"``.

    Raises:
        ImportError: it, or a package that it needs, is not installed; with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        if missing == "lqrlab":
            raise
        raise ImportError(
            f"{what}: needs the package {missing}, which is not installed; pip install 'lqrlab[{extra}]' brings it",
            name=missing,
        ) from error
