"""The command line: ``lqrlab --help``."""

from lqrlab.workbench.cli.commands import main

__all__ = ["main"]
