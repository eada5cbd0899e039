"""Control within limits: constrained LQR, MPC, nonlinear MPC, iLQR, the constrained optimum, filters."""

from lqrlab.extensions.predictive.constrained import Terms, constrained_lqr
from lqrlab.extensions.predictive.design import MPC, mpc
from lqrlab.extensions.predictive.finite_horizon import ConstrainedLQR, Multipliers
from lqrlab.extensions.predictive.iterative_lqr import ILQR, Search, ilqr
from lqrlab.extensions.predictive.least_cost import ConstrainedOptimum, optimum, reference
from lqrlab.extensions.predictive.nonlinear_mpc import NonlinearMPC, NonlinearPlan, nonlinear_mpc
from lqrlab.extensions.predictive.predictive_policies import FilteredPolicy, PredictivePolicy, SwitchingPolicy, filtered

__all__ = [
    "ILQR",
    "MPC",
    "ConstrainedLQR",
    "ConstrainedOptimum",
    "FilteredPolicy",
    "Multipliers",
    "NonlinearMPC",
    "NonlinearPlan",
    "PredictivePolicy",
    "Search",
    "SwitchingPolicy",
    "Terms",
    "constrained_lqr",
    "filtered",
    "ilqr",
    "mpc",
    "nonlinear_mpc",
    "optimum",
    "reference",
]
