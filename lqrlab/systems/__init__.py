"""Plants: physical parameters with ranges and units, nonlinear dynamics, exact linearisation."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.systems import catalogue, drawing
    from lqrlab.systems.coordinates import M_MAX, N_MAX, Coordinates, check_size, pad, pad_matrix
    from lqrlab.systems.custom import Linear, from_control, from_dynamics, from_matrices
    from lqrlab.systems.declaration import Signal, gravity, param, signals, with_rates
    from lqrlab.systems.declaration_checks import check, check_plant
    from lqrlab.systems.families import check_parameter, family, make, names, register, sample
    from lqrlab.systems.linearisation import Linearisation, linearise
    from lqrlab.systems.matrix_files import load
    from lqrlab.systems.mechanics import Mechanical
    from lqrlab.systems.plant import Plant, parameter_fields
    from lqrlab.systems.plant_files import register_file

__getattr__, __dir__, __all__ = lazily(__name__)
