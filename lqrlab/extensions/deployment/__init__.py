"""Controllers outside the notebook: C code, FMUs, files of other tools, loops in real time."""

from lqrlab.extensions.deployment.c_files import to_c
from lqrlab.extensions.deployment.c_loading import ExportedController, load_c
from lqrlab.extensions.deployment.exchange import load, save
from lqrlab.extensions.deployment.fmu_export import to_fmu
from lqrlab.extensions.deployment.fmu_import import CoSimulation, from_fmu
from lqrlab.extensions.deployment.realtime import TimedRun, realtime

__all__ = [
    "CoSimulation",
    "ExportedController",
    "TimedRun",
    "from_fmu",
    "load",
    "load_c",
    "realtime",
    "save",
    "to_c",
    "to_fmu",
]
