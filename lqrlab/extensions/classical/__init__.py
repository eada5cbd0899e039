"""Classical control: PID and its tuning rules, process models, compensators."""

from lqrlab.extensions.classical.compensator import Compensator
from lqrlab.extensions.classical.pid_controller import PID, pid_loops
from lqrlab.extensions.classical.pid_tuning import pid
from lqrlab.extensions.classical.process_models import ProcessModel

__all__ = ["PID", "Compensator", "ProcessModel", "pid", "pid_loops"]
