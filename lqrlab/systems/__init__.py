"""Plants: physical parameters with ranges and units, nonlinear dynamics, exact linearisation."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.systems import catalogue, drawing
    from lqrlab.systems.coordinates import M_MAX, N_MAX, Coordinates, check_size, pad, pad_matrix
    from lqrlab.systems.custom import Linear, from_dynamics, from_matrices, linearise
    from lqrlab.systems.declaration import Signal, gravity, param, signals, with_rates
    from lqrlab.systems.declaration_checks import check
    from lqrlab.systems.families import check_parameter, family, make, names, register, sample
    from lqrlab.systems.mechanics import Mechanical
    from lqrlab.systems.plant import Plant, check_plant, parameter_fields
    from lqrlab.systems.plant_files import load, register_file

__getattr__, __dir__, __all__ = lazily(__name__)
