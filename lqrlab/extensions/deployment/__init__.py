"""Controllers outside the notebook: C code, FMUs, files of other tools, loops in real time."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.deployment.c_files import to_c
    from lqrlab.extensions.deployment.c_loading import ExportedController, load_c
    from lqrlab.extensions.deployment.exchange import load, save
    from lqrlab.extensions.deployment.fmu_export import to_fmu
    from lqrlab.extensions.deployment.fmu_import import CoSimulation, from_fmu
    from lqrlab.extensions.deployment.timed_run import TimedRun, realtime

__getattr__, __dir__, __all__ = lazily(__name__)
