"""Figures, panels, runs of notebooks, the command line.

Four parts: ``figures`` (plots, tables, drawings that move), ``panels`` (collected in ``widgets``), ``runs`` (a
notebook's session, the pipeline, sweeps, reports), ``cli``. The modules that notebooks use can be imported from here;
each is loaded when it is first named: the command line must not wait for JAX or matplotlib.
"""

from types import ModuleType

from lqrlab.installation import of_extra

_MODULES = {
    **{name: name for name in ("cli", "figures", "panels", "runs", "widgets")},
    **{
        name: f"figures.{name}"
        for name in ("animation", "catalogue_page", "data_card", "judgement_page", "loop_design", "plots", "tables")
    },
    **{name: f"runs.{name}" for name in ("notebooks", "pipeline", "report", "session", "sweep")},
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return of_extra(f"{__name__}.{_MODULES[name]}", "[workbench]", f"lqrlab.workbench.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
