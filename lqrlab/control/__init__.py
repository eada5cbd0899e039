"""Optimal control of linear plants: batched over leading axes, differentiable, free of LAPACK."""

from lqrlab.control.analysis.margins import (
    Disk,
    Margins,
    StepInfo,
    disk_margin,
    frequency_response,
    margins,
    sensitivity,
    step_info,
    step_response,
    zeros,
)
from lqrlab.control.analysis.norms import (
    covariance,
    from_statespace,
    h2_norm,
    hinf_norm,
    noise_cost,
    sampling_cost,
    to_statespace,
)
from lqrlab.control.analysis.structure import Diagnosis, Mode, ctrb, diagnose, gram, modes, obsv
from lqrlab.control.delay import delay_cost, delayed, lqrd_delayed
from lqrlab.control.discretization import Sampled, c2d, discretize
from lqrlab.control.estimation import LQG, Estimator, dlqe, lqe, lqg
from lqrlab.control.horizon import TimeVaryingLQR, finite_horizon
from lqrlab.control.inverse import Inverse, inverse_lqr
from lqrlab.control.lyapunov import dlyap, is_stable, lyap
from lqrlab.control.pareto_front import Front, pareto
from lqrlab.control.regulator import LQR, dlqr, lqr, lqrd
from lqrlab.control.riccati.equations import care, dare
from lqrlab.control.scheduling import Schedule, schedule
from lqrlab.control.servo import Integral, feedforward, lqi, output_weights, place
from lqrlab.control.trajectory import ILQR, ilqr, unsaturated_level
from lqrlab.control.tuning.tune import StepSpecs, Tuned, tune
from lqrlab.control.weights import stage_weight

__all__ = [
    "ILQR",
    "LQG",
    "LQR",
    "Diagnosis",
    "Disk",
    "Estimator",
    "Front",
    "Integral",
    "Inverse",
    "Margins",
    "Mode",
    "Sampled",
    "Schedule",
    "StepInfo",
    "StepSpecs",
    "TimeVaryingLQR",
    "Tuned",
    "c2d",
    "care",
    "covariance",
    "ctrb",
    "dare",
    "delay_cost",
    "delayed",
    "diagnose",
    "discretize",
    "disk_margin",
    "dlqe",
    "dlqr",
    "dlyap",
    "feedforward",
    "finite_horizon",
    "frequency_response",
    "from_statespace",
    "gram",
    "h2_norm",
    "hinf_norm",
    "ilqr",
    "inverse_lqr",
    "is_stable",
    "lqe",
    "lqg",
    "lqi",
    "lqr",
    "lqrd",
    "lqrd_delayed",
    "lyap",
    "margins",
    "modes",
    "noise_cost",
    "obsv",
    "output_weights",
    "pareto",
    "place",
    "sampling_cost",
    "schedule",
    "sensitivity",
    "stage_weight",
    "step_info",
    "step_response",
    "to_statespace",
    "tune",
    "unsaturated_level",
    "zeros",
]
