"""Control within limits: constrained LQR, MPC, nonlinear MPC, iLQR, the constrained optimum, filters, imitation."""

from lqrlab.extensions.predictive.constrained import Terms, constrained_lqr
from lqrlab.extensions.predictive.design import MPC, mpc
from lqrlab.extensions.predictive.finite_horizon import ConstrainedLQR, Multipliers
from lqrlab.extensions.predictive.imitation import Imitation, ImitationConfig, imitate
from lqrlab.extensions.predictive.iterative_lqr import ILQR, Search, ilqr
from lqrlab.extensions.predictive.least_cost import ConstrainedOptimum, best_known_cost, optimum, recoveries, reference
from lqrlab.extensions.predictive.nonlinear_mpc import NonlinearMPC, NonlinearPlan, nonlinear_mpc
from lqrlab.extensions.predictive.predictive_policies import FilteredPolicy, PredictivePolicy, SwitchingPolicy, filtered
from lqrlab.extensions.predictive.recovery import Recovery, RecoveryConfig, train_recovery
from lqrlab.extensions.predictive.recovery_policy import RecoveryPolicy

__all__ = [
    "ILQR",
    "MPC",
    "ConstrainedLQR",
    "ConstrainedOptimum",
    "FilteredPolicy",
    "Imitation",
    "ImitationConfig",
    "Multipliers",
    "NonlinearMPC",
    "NonlinearPlan",
    "PredictivePolicy",
    "Recovery",
    "RecoveryConfig",
    "RecoveryPolicy",
    "Search",
    "SwitchingPolicy",
    "Terms",
    "best_known_cost",
    "constrained_lqr",
    "filtered",
    "ilqr",
    "imitate",
    "mpc",
    "nonlinear_mpc",
    "optimum",
    "recoveries",
    "reference",
    "train_recovery",
]
