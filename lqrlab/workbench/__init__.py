"""What people see and start: figures, panels, runs of notebooks, the command line.

In four rooms: ``figures`` (plots, tables, drawings that move), ``panels`` (collected in ``widgets``), ``runs`` (a
notebook's session, the pipeline, sweeps, reports), ``cli``. The names that notebooks use can be imported from here;
each module is loaded when it is first named: the command line must not wait for JAX or matplotlib.
"""

import importlib
from typing import Any

_MODULES = {
    **{name: name for name in ("cli", "figures", "panels", "runs", "widgets")},
    **{name: f"figures.{name}" for name in ("animation", "catalogue_page", "data_card", "plots", "tables")},
    "region_of_attraction": "panels.region_of_attraction",
    "regulator": "panels.regulator_design",
    **{name: f"runs.{name}" for name in ("notebooks", "pipeline", "report", "session", "sweep")},
}
_PANELS = (
    "attraction_map",
    "data_browser",
    "lqr_designer",
    "plant_explorer",
    "policy_inspector",
    "training_monitor",
)
__all__ = [*_MODULES, *_PANELS]


def __getattr__(name: str) -> Any:
    if name in _PANELS:
        return getattr(importlib.import_module(f"{__name__}.widgets"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
