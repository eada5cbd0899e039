"""The command line: ``lqrlab --help``."""

from lqrlab.workbench.cli import commands, inspection
from lqrlab.workbench.cli.options import main, with_plants

with_plants(main)

__all__ = ["main"]
