"""Optimal control of linear plants.

Designs, Riccati and Lyapunov equations, sampling and costs take leading axes, gradients and ``jit``. Analyses of one
loop (margins, norms, zeros, modes, diagnosis) run on the host by NumPy and SciPy, and refuse traced arrays in words.
"""

from lqrlab.control.analysis.controllability import ctrb, gram, obsv
from lqrlab.control.analysis.diagnosis import Diagnosis, diagnose
from lqrlab.control.analysis.eigenmodes import Mode, modes, settling_steps, settling_time
from lqrlab.control.analysis.frequency import frequency_response, sensitivity, to_statespace
from lqrlab.control.analysis.stability_margins import Disk, Margins, margins
from lqrlab.control.analysis.step import StepInfo, step_info, step_response
from lqrlab.control.analysis.system_norms import h2_norm, hinf_norm
from lqrlab.control.analysis.transmission_zeros import zeros
from lqrlab.control.classical.compensator import Compensator
from lqrlab.control.classical.pid_controller import PID
from lqrlab.control.classical.pid_tuning import pid
from lqrlab.control.classical.process_models import ProcessModel
from lqrlab.control.delay import delay_cost, delayed, lqrd_delayed
from lqrlab.control.discretization import Sampled, c2d, discretize
from lqrlab.control.estimation import LQG, Estimator, TimeVaryingEstimator, dlqe, finite_dlqe, lqe, lqg, sampled_noise
from lqrlab.control.horizon import LQTracking, TimeVaryingLQR, continuous_horizon, finite_horizon, lq_tracking
from lqrlab.control.inverse import Inverse, inverse_lqr
from lqrlab.control.lyapunov import dlyap, lyap
from lqrlab.control.pareto_front import Front, pareto
from lqrlab.control.policy_iteration import policy_iteration, spectral_radius
from lqrlab.control.predictive.constrained import ConstrainedLQR, Multipliers, constrained_lqr
from lqrlab.control.predictive.design import MPC, mpc
from lqrlab.control.predictive.infinite_horizon import ConstrainedOptimum, constrained_optimum
from lqrlab.control.regulator import LQR, dlqr, lqr, lqrd, unsaturated_level
from lqrlab.control.riccati.equations import care, dare
from lqrlab.control.robust.h2_synthesis import h2syn
from lqrlab.control.robust.hinf_synthesis import hinfsyn
from lqrlab.control.robust.mixed_sensitivity import mixsyn, ncfsyn
from lqrlab.control.robust.model_reduction import ReducedModel, balred
from lqrlab.control.robust.mu_synthesis import MuController, musyn
from lqrlab.control.robust.norm_requirement import NormRequirement
from lqrlab.control.robust.robust_controller import RobustController
from lqrlab.control.robust.structured_singular_value import StructuredSingularValue, mu
from lqrlab.control.robust.structured_synthesis import hinfstruct
from lqrlab.control.scheduling import Schedule, gain_schedule
from lqrlab.control.servo import Integral, feedforward, lqi, place
from lqrlab.control.trajectory.solver import ILQR, ilqr
from lqrlab.control.tuning.specifications import StepSpecs
from lqrlab.control.tuning.tuner import Tuned, tune
from lqrlab.control.weights import cost_to_go, stage_weight

__all__ = [
    "ILQR",
    "LQG",
    "LQR",
    "MPC",
    "PID",
    "Compensator",
    "ConstrainedLQR",
    "ConstrainedOptimum",
    "Diagnosis",
    "Disk",
    "Estimator",
    "Front",
    "Integral",
    "Inverse",
    "LQTracking",
    "Margins",
    "Mode",
    "MuController",
    "Multipliers",
    "NormRequirement",
    "ProcessModel",
    "ReducedModel",
    "RobustController",
    "Sampled",
    "Schedule",
    "StepInfo",
    "StepSpecs",
    "StructuredSingularValue",
    "TimeVaryingEstimator",
    "TimeVaryingLQR",
    "Tuned",
    "balred",
    "c2d",
    "care",
    "constrained_lqr",
    "constrained_optimum",
    "continuous_horizon",
    "cost_to_go",
    "ctrb",
    "dare",
    "delay_cost",
    "delayed",
    "diagnose",
    "discretize",
    "dlqe",
    "dlqr",
    "dlyap",
    "feedforward",
    "finite_dlqe",
    "finite_horizon",
    "frequency_response",
    "gain_schedule",
    "gram",
    "h2_norm",
    "h2syn",
    "hinf_norm",
    "hinfstruct",
    "hinfsyn",
    "ilqr",
    "inverse_lqr",
    "lq_tracking",
    "lqe",
    "lqg",
    "lqi",
    "lqr",
    "lqrd",
    "lqrd_delayed",
    "lyap",
    "margins",
    "mixsyn",
    "modes",
    "mpc",
    "mu",
    "musyn",
    "ncfsyn",
    "obsv",
    "pareto",
    "pid",
    "place",
    "policy_iteration",
    "sampled_noise",
    "sensitivity",
    "settling_steps",
    "settling_time",
    "spectral_radius",
    "stage_weight",
    "step_info",
    "step_response",
    "to_statespace",
    "tune",
    "unsaturated_level",
    "zeros",
]
