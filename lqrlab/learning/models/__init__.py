"""Networks that map what has been seen of a plant, and what is known of it, to its input.

``@models.register("name")`` enters one of your own, ``@models.activation("name")`` an activation.
"""

from lqrlab.learning.models import history_network, matrix  # each registers its own
from lqrlab.learning.models.history_network import HistoryNetwork
from lqrlab.learning.models.network import (
    Context,
    Described,
    Model,
    activation,
    answer,
    apply_gain,
    build,
    count,
    fits,
    merge,
    register,
    restored,
    split,
    used,
)

__all__ = [
    "Context",
    "Described",
    "HistoryNetwork",
    "Model",
    "activation",
    "answer",
    "apply_gain",
    "build",
    "count",
    "fits",
    "history_network",
    "matrix",
    "merge",
    "register",
    "restored",
    "split",
    "used",
]
