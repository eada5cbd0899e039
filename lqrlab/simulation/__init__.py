"""Closed loops: the sampled problem, policies, one loop, one verdict."""

from lqrlab.simulation import verdict
from lqrlab.simulation.controllers import LinearController, delayed, estimated, integrating
from lqrlab.simulation.environment import Env, env
from lqrlab.simulation.estimators import (
    ExtendedKalmanFilter,
    OutputFeedback,
    StateEstimator,
    UnscentedKalmanFilter,
    extended_kalman,
    unscented_kalman,
)
from lqrlab.simulation.loop import Trajectory, record, rollout, step
from lqrlab.simulation.noise import Noise
from lqrlab.simulation.policies import (
    DelayedPolicy,
    LinearPolicy,
    Policy,
    ScheduledPolicy,
    SwitchingPolicy,
    TrackingPolicy,
    check_policy,
    no_control,
    scheduled,
    tracking,
)
from lqrlab.simulation.problem import SampledProblem
from lqrlab.simulation.recording import Keep
from lqrlab.simulation.sensors import Delayed, Held, Measured, Outputs, outputs
from lqrlab.simulation.verdict import Verdict

__all__ = [
    "Delayed",
    "DelayedPolicy",
    "Env",
    "ExtendedKalmanFilter",
    "Held",
    "Keep",
    "LinearController",
    "LinearPolicy",
    "Measured",
    "Noise",
    "OutputFeedback",
    "Outputs",
    "Policy",
    "SampledProblem",
    "ScheduledPolicy",
    "StateEstimator",
    "SwitchingPolicy",
    "TrackingPolicy",
    "Trajectory",
    "UnscentedKalmanFilter",
    "Verdict",
    "check_policy",
    "delayed",
    "env",
    "estimated",
    "extended_kalman",
    "integrating",
    "no_control",
    "outputs",
    "record",
    "rollout",
    "scheduled",
    "step",
    "tracking",
    "unscented_kalman",
    "verdict",
]
