"""Classical control: PID and its tuning rules, process models, compensators."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.classical.compensator import Compensator
    from lqrlab.extensions.classical.pid_controller import PID, pid_loops
    from lqrlab.extensions.classical.pid_tuning import pid
    from lqrlab.extensions.classical.process_models import ProcessModel
    from lqrlab.extensions.classical.tuning_rules import Gains, amigo, cohen_coon, simc, ziegler_nichols

__getattr__, __dir__, __all__ = lazily(__name__)
