"""Controllers outside the notebook: as C code for a microcontroller, the same numbers to rounding."""

from lqrlab.extensions.deployment.c_files import to_c
from lqrlab.extensions.deployment.loading import ExportedController, load_c
from lqrlab.extensions.deployment.onnx_files import to_onnx

__all__ = ["ExportedController", "load_c", "to_c", "to_onnx"]
