"""Optimal control of linear plants: batched over leading axes, differentiable, free of LAPACK."""

from lqrlab.control.design import LQR, TimeVaryingLQR, dlqr, finite_horizon, lqr, lqrd
from lqrlab.control.lyapunov import dlyap, is_stable, lyap
from lqrlab.control.riccati import care, dare
from lqrlab.control.sampling import Sampled, c2d, sample

__all__ = [
    "LQR",
    "Sampled",
    "TimeVaryingLQR",
    "c2d",
    "care",
    "dare",
    "dlqr",
    "dlyap",
    "finite_horizon",
    "is_stable",
    "lqr",
    "lqrd",
    "lyap",
    "sample",
]
