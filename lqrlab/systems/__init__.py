"""Plants: physical parameters with ranges and units, nonlinear dynamics, exact linearisation."""

from lqrlab.systems import catalogue  # noqa: F401  (registers the built-in families)
from lqrlab.systems.custom import (
    M_MAX,
    N_MAX,
    Linear,
    from_dynamics,
    from_matrices,
    linearise,
    pad,
    stack,
)
from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Plant, Signal, param, parameter_fields
from lqrlab.systems.registry import check, family, make, names, register, sample

__all__ = [
    "M_MAX",
    "N_MAX",
    "Linear",
    "Mechanical",
    "Plant",
    "Signal",
    "check",
    "family",
    "from_dynamics",
    "from_matrices",
    "linearise",
    "make",
    "names",
    "pad",
    "param",
    "parameter_fields",
    "register",
    "sample",
    "stack",
]
