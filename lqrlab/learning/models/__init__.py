"""Networks from a plant's history and prior information to its input.

``@models.register("name")`` enters one of your own.
"""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.learning.models import matrix
    from lqrlab.learning.models.history_network import HistoryNetwork
    from lqrlab.learning.models.network import (
        Context,
        Described,
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

__getattr__, __dir__, __all__ = lazily(__name__)

from lqrlab.learning.models import history_network, matrix  # noqa: E402 (each registers its own)
