"""Closed loops: the problem, controllers bound to it as policies, one loop, one verdict."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.simulation import verdict
    from lqrlab.simulation.binding import bind, is_policy
    from lqrlab.simulation.estimators import extended_kalman, unscented_kalman
    from lqrlab.simulation.limits import Limits
    from lqrlab.simulation.loop import Trajectory, record, rollout, step
    from lqrlab.simulation.memory_policies import (
        LinearController,
        Measured,
        Outputs,
        delayed,
        estimated,
        integrating,
        outputs,
    )
    from lqrlab.simulation.noise import Noise
    from lqrlab.simulation.policies import (
        DelayedPolicy,
        LinearPolicy,
        Policy,
        TrackingPolicy,
        check_policy,
        measured_or,
        no_control,
        sent_or,
        tracking,
    )
    from lqrlab.simulation.problem import Problem
    from lqrlab.simulation.quadratic_regulator import QuadraticRegulator
    from lqrlab.simulation.recording import Keep
    from lqrlab.simulation.scaling import Told
    from lqrlab.simulation.verdict import Verdict

__getattr__, __dir__, __all__ = lazily(__name__)
