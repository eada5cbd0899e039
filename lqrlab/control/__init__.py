"""Optimal control of linear plants.

Designs, Riccati and Lyapunov equations, sampling and costs take leading axes, gradients and ``jit``. Analyses of one
loop (margins, norms, zeros, modes, diagnosis) run on the host by NumPy and SciPy, and refuse traced arrays in words.
"""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.control.analysis.diagnosis import Diagnosis, ctrb, diagnose, gram, obsv
    from lqrlab.control.analysis.eigenmodes import Mode, modes, modes_in_words, settling_steps, settling_time, zeros
    from lqrlab.control.analysis.stability_margins import Disk, Margins, margins
    from lqrlab.control.analysis.system_norms import h2_norm, hinf_norm
    from lqrlab.control.delay import delay_cost, delayed, lqrd_delayed
    from lqrlab.control.discretization import Sampled, c2d, discretize
    from lqrlab.control.estimation import LQG, Estimator, dlqe, lqe, lqg, sampled_noise
    from lqrlab.control.horizon import LQTracking, finite_horizon, lq_tracking
    from lqrlab.control.kleinman import policy_iteration, spectral_radius
    from lqrlab.control.lyapunov import cost_to_go, dlyap, lyap, stage_weight
    from lqrlab.control.regulator import LQR, dlqr, lqr, lqrd, unsaturated_level
    from lqrlab.control.riccati.equations import care, dare
    from lqrlab.control.servo import Integral, feedforward, lqi, place
    from lqrlab.control.state_space import StateSpace, frequency_response, sensitivity

__getattr__, __dir__, __all__ = lazily(__name__)
