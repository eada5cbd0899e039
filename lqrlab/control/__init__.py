"""Optimal control of linear plants: batched over leading axes, differentiable, free of LAPACK."""

from lqrlab.control.analysis import (
    covariance,
    from_statespace,
    h2_norm,
    hinf_norm,
    noise_cost,
    sampling_cost,
    to_statespace,
)
from lqrlab.control.design import LQR, dlqr, lqr, lqrd
from lqrlab.control.horizon import TimeVaryingLQR, finite_horizon
from lqrlab.control.lyapunov import dlyap, is_stable, lyap
from lqrlab.control.observers import LQG, Estimator, dlqe, lqe, lqg
from lqrlab.control.riccati import care, dare
from lqrlab.control.sampling import Sampled, c2d, sample
from lqrlab.control.structure import Diagnosis, Margins, Mode, ctrb, diagnose, gram, margins, modes, obsv
from lqrlab.control.tracking import Integral, feedforward, lqi, output_weights, place

__all__ = [
    "LQG",
    "LQR",
    "Diagnosis",
    "Estimator",
    "Integral",
    "Margins",
    "Mode",
    "Sampled",
    "TimeVaryingLQR",
    "c2d",
    "care",
    "covariance",
    "ctrb",
    "dare",
    "diagnose",
    "dlqe",
    "dlqr",
    "dlyap",
    "feedforward",
    "finite_horizon",
    "from_statespace",
    "gram",
    "h2_norm",
    "hinf_norm",
    "is_stable",
    "lqe",
    "lqg",
    "lqi",
    "lqr",
    "lqrd",
    "lyap",
    "margins",
    "modes",
    "noise_cost",
    "obsv",
    "output_weights",
    "place",
    "sample",
    "sampling_cost",
    "to_statespace",
]
