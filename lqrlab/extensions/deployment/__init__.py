"""Controllers outside the notebook: as C code for a microcontroller, the same numbers to rounding."""

from lqrlab.extensions.deployment.c_files import to_c
from lqrlab.extensions.deployment.fmu import to_fmu
from lqrlab.extensions.deployment.loading import ExportedController, load_c

__all__ = ["ExportedController", "load_c", "to_c", "to_fmu"]
