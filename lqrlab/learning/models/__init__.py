"""Networks that map what has been seen of a plant, and what is known of it, to its input.

One file a model; ``@models.register("name")`` enters one of your own, ``@models.block("name")`` a block of the
transformer, ``@models.activation("name")`` an activation.
"""

from lqrlab.learning.models.gain import GainNetwork
from lqrlab.learning.models.matrix import MatrixNetwork
from lqrlab.learning.models.mlp import MLP
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
    features,
    fits,
    merge,
    register,
    split,
    used,
)
from lqrlab.learning.models.transformer import Attention, Transformer, block

__all__ = [
    "MLP",
    "Attention",
    "Context",
    "Described",
    "GainNetwork",
    "HistoryNetwork",
    "MatrixNetwork",
    "Model",
    "Transformer",
    "activation",
    "answer",
    "apply_gain",
    "block",
    "build",
    "count",
    "features",
    "fits",
    "merge",
    "register",
    "split",
    "used",
]
