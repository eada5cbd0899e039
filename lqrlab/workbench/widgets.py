"""Interactive panels; strips of pictures in headless runs.

Each is loaded when it is first named, so the designer does not wait for training's imports.
"""

import importlib.metadata
from typing import Any

from lqrlab.installation import of_extra

PANELS = "lqrlab.panels"
"""Entry points of extensions' panels."""
_PANELS = ("attraction_map", "data_browser", "live_figure", "lqr_designer", "policy_inspector", "training_monitor")
__all__ = [*_PANELS]


def __getattr__(name: str) -> Any:
    if name in _PANELS:
        return getattr(of_extra(f"lqrlab.workbench.panels.{name}", "[workbench]", f"widgets.{name}"), name)
    for point in importlib.metadata.entry_points(group=PANELS, name=name):
        return getattr(of_extra(point.module, "[workbench]", f"widgets.{name}"), point.attr)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PANELS, *importlib.metadata.entry_points(group=PANELS).names])
