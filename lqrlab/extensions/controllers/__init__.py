"""Any controller against the least cost: contenders from names and files, each in a process of its own, and the page."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.judging.contenders import BUILT_IN, contender

__getattr__, __dir__, __all__ = lazily(__name__)
