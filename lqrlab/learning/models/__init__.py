"""Networks that map what has been seen of a plant, and what is known of it, to its input.

One file a model; ``@models.register("name")`` enters one of your own, ``@models.block("name")`` a block of the
transformer, ``@models.activation("name")`` an activation.
"""

from lqrlab.learning.models import gain, matrix, mlp  # each registers itself
from lqrlab.learning.models.network import (
    Context,
    Described,
    HistoryNetwork,
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
from lqrlab.learning.models.transformer import Attention, block

__all__ = [
    "Attention",
    "Context",
    "Described",
    "HistoryNetwork",
    "Model",
    "activation",
    "answer",
    "apply_gain",
    "block",
    "build",
    "count",
    "fits",
    "gain",
    "matrix",
    "merge",
    "mlp",
    "register",
    "restored",
    "split",
    "used",
]
