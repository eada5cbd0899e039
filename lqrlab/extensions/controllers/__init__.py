"""Controllers to be judged: built in, or from runs and files; foreign code in a separate process."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.controllers.loading import load
    from lqrlab.extensions.controllers.processes import BUILT_IN
    from lqrlab.extensions.controllers.selection import PlantSelection, compared, scenarios_of, verify

__getattr__, __dir__, __all__ = lazily(__name__)
