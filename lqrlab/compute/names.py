"""Public names of a subpackage, loaded when first asked for, and where moved ones are."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MOVED = {
    "predictive": {
        "control": "ILQR MPC ConstrainedLQR ConstrainedOptimum Multipliers constrained_lqr ilqr mpc "
        "constrained_optimum:optimum",
        "simulation": "FilteredPolicy NonlinearMPC NonlinearPlan PredictivePolicy SwitchingPolicy filtered "
        "nonlinear_mpc",
    },
    "robust": {
        "control": "MuController:MuSynthesis NormRequirement ReducedModel:Reduction RobustController:Synthesis "
        "StructuredSingularValue balred h2syn hinfstruct hinfsyn mixsyn mu musyn ncfsyn",
        "evaluation": "RobustStability WorstCaseGain robust_stability worst_case_gain",
        "systems": "UncertainPlant",
    },
    "classical": {"control": "PID Compensator ProcessModel pid", "simulation": "pid_loops"},
    "tuning": {
        "control": "Front Inverse Schedule StepInfo StepSpecs Tuned gain_schedule inverse_lqr pareto step_info "
        "step_response tune",
        "simulation": "ScheduledPolicy scheduled",
    },
    "control": {"systems": "open_loop_modes:modes_in_words", "control": "TimeVaryingLQR:LQTracking"},
    "simulation": {"simulation": "Delayed:DelayedPolicy Held:DelayedPolicy"},
    "learning": {"learning": "closed_loop_cost:losses gain_repair:network_policy"},
    "evaluation": {"learning": "Certificate certificate certify"},
    "unknown": {
        "learning": "AdaptivePolicy Families LookAheadPolicy Prior adaptive families look_ahead ridge wide",
        "evaluation": "Regret unknown:score unknown_baselines:baselines unknown_problem:problem_of",
    },
}
"""Subpackage → where its names were, and by which name, if by another."""


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__``, ``__all__`` of a package that has its names under ``if TYPE_CHECKING``."""
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    block = next(node.body for node in tree.body if isinstance(node, ast.If))
    home = {alias.name: str(node.module) for node in block if isinstance(node, ast.ImportFrom) for alias in node.names}
    elsewhere = moved(package)

    def get(name: str) -> Any:
        if name not in home:
            return elsewhere(name)
        inside = home[name] == package  # a module of the package itself
        found = importlib.import_module(f"{package}.{name}" if inside else home[name])
        vars(module)[name] = found if inside else getattr(found, name)
        return vars(module)[name]

    return get, lambda: sorted({*vars(module), *home}), sorted(home)


def moved(package: str) -> Callable[[str], Any]:
    """``__getattr__`` of a package: an ``AttributeError`` that says where a name is now."""
    room = package.removeprefix("lqrlab.")
    now = {}
    for home, by_room in _MOVED.items():
        for name in by_room.get(room, "").split():
            old, _, new = name.partition(":")
            now[old] = f"lqrlab.{home}.{new or old}"

    def get(name: str) -> Any:
        where = f": it is {now[name]} now" if name in now else ""
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}{where}", name=name, obj=sys.modules[package]
        )

    return get
