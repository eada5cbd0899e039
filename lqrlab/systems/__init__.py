"""Plants: physical parameters with ranges and units, nonlinear dynamics, exact linearisation."""

from lqrlab.compute.names import moved
from lqrlab.systems import drawing
from lqrlab.systems.coordinates import M_MAX, N_MAX, Coordinates, check_size, pad, pad_matrix
from lqrlab.systems.custom import Linear, from_control, from_dynamics, from_matrices
from lqrlab.systems.declaration import Signal, gravity, param, signals, with_rates
from lqrlab.systems.declaration_checks import check, check_plant
from lqrlab.systems.families import check_parameter, family, make, names, register, sample
from lqrlab.systems.linearisation import Linearisation, linearise, stack
from lqrlab.systems.matrix_files import load
from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Plant, parameter_fields
from lqrlab.systems.plant_files import register_file

# isort: split
from lqrlab.systems import catalogue  # its families are declared with the names above

__all__ = [
    "M_MAX",
    "N_MAX",
    "Coordinates",
    "Linear",
    "Linearisation",
    "Mechanical",
    "Plant",
    "Signal",
    "catalogue",
    "check",
    "check_parameter",
    "check_plant",
    "check_size",
    "drawing",
    "family",
    "from_control",
    "from_dynamics",
    "from_matrices",
    "gravity",
    "linearise",
    "load",
    "make",
    "names",
    "pad",
    "pad_matrix",
    "param",
    "parameter_fields",
    "register",
    "register_file",
    "sample",
    "signals",
    "stack",
    "with_rates",
]

__getattr__ = moved(__name__)
