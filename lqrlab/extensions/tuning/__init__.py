"""Weights and gains from requirements: specifications, inverse LQR, Pareto fronts, gain schedules."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.tuning import figures
    from lqrlab.extensions.tuning.inverse import Inverse, inverse_lqr
    from lqrlab.extensions.tuning.scheduling import Schedule, ScheduledPolicy, gain_schedule, scheduled
    from lqrlab.extensions.tuning.step import StepInfo, StepSpecs, step_info, step_response
    from lqrlab.extensions.tuning.tuner import Front, Tuned, pareto, tune

__getattr__, __dir__, __all__ = lazily(__name__)
