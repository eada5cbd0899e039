"""Gymnasium's ids of the catalogue's families; imports nothing heavy.

Gymnasium 1.0 gave up entry points, so ids are there once lqrlab is imported after Gymnasium, or this subpackage is,
which ``gymnasium.make("lqrlab.extensions.environments:lqrlab/CartPole-v0")`` does by itself.
"""

import importlib.util
from typing import Any

FAMILIES = (
    "mass_spring_damper", "double_integrator", "two_mass_spring", "mass_train", "flexible_beam", "pendulum",
    "hanging_pendulum", "double_pendulum", "reaction_wheel_pendulum", "furuta_pendulum", "acrobot", "cart_pole",
    "cart_double_pendulum", "gantry_crane", "ball_and_beam", "ball_and_plate", "two_link_arm", "three_link_arm",
    "dual_arm", "six_joint_arm", "scara", "flexible_joint_robot", "cable_robot", "planar_biped", "planar_quadruped",
    "unicycle_robot", "differential_drive_robot", "omnidirectional_robot", "segway", "vehicle_lateral",
    "cruise_control", "platoon", "quarter_car", "half_car", "fixed_wing", "airliner", "fixed_wing_lateral",
    "quadrotor", "planar_quadrotor", "vtol", "helicopter", "satellite_attitude", "satellite_orbit", "dc_motor",
    "magnetic_levitation", "pmsm", "induction_motor", "series_rlc", "parallel_rlc", "buck_converter",
    "boost_converter", "buck_boost_converter", "grid_inverter", "two_area_power", "coupled_tanks", "quadruple_tank",
    "stirred_tank_reactor", "heated_rod", "lotka_volterra", "predator_prey",
)  # fmt: skip
"""The catalogue's families, which a test compares with ``systems.names()``."""
_HOME = "lqrlab.extensions.environments.gymnasium_adapter"


def gymnasium_id(family: str) -> str:
    """``cart_pole`` → ``lqrlab/CartPole-v0``."""
    return f"lqrlab/{''.join(part.capitalize() for part in family.split('_'))}-v0"


def register() -> None:
    """Tell Gymnasium, where it is installed, all families, and ``lqrlab/Plant-v0`` for ``make(id, plant=...)``."""
    if importlib.util.find_spec("gymnasium") is None:
        return
    from gymnasium.envs.registration import register as enter
    from gymnasium.envs.registration import registry

    if "lqrlab/Plant-v0" in registry:
        return
    entry: dict[str, Any] = {
        "entry_point": f"{_HOME}:PlantEnv",
        "vector_entry_point": f"{_HOME}:PlantVectorEnv",
    }
    enter("lqrlab/Plant-v0", **entry)
    for family in FAMILIES:
        enter(gymnasium_id(family), **entry, kwargs={"plant": family})
