"""Weights and gains from requirements: specifications, inverse LQR, Pareto fronts, gain schedules."""

from lqrlab.extensions.tuning.inverse import Inverse, inverse_lqr
from lqrlab.extensions.tuning.pareto_front import Front, pareto
from lqrlab.extensions.tuning.scheduling import Schedule, ScheduledPolicy, gain_schedule, scheduled
from lqrlab.extensions.tuning.step import StepInfo, StepSpecs, step_info, step_response
from lqrlab.extensions.tuning.tuner import Tuned, tune

__all__ = [
    "Front",
    "Inverse",
    "Schedule",
    "ScheduledPolicy",
    "StepInfo",
    "StepSpecs",
    "Tuned",
    "gain_schedule",
    "inverse_lqr",
    "pareto",
    "scheduled",
    "step_info",
    "step_response",
    "tune",
]
