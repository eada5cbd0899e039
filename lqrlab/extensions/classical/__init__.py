"""Classical control: PID and its tuning rules, process models, compensators."""

from lqrlab.extensions.classical.compensator import Compensator
from lqrlab.extensions.classical.pid_controller import PID, pid_loops
from lqrlab.extensions.classical.pid_tuning import pid
from lqrlab.extensions.classical.process_models import ProcessModel
from lqrlab.extensions.classical.tuning_rules import Gains, amigo, cohen_coon, simc, ziegler_nichols

__all__ = [
    "PID",
    "Compensator",
    "Gains",
    "ProcessModel",
    "amigo",
    "cohen_coon",
    "pid",
    "pid_loops",
    "simc",
    "ziegler_nichols",
]
