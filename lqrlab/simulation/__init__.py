"""Closed loops: the sampled problem, policies, one loop, one verdict."""

from lqrlab.simulation import verdict
from lqrlab.simulation.environment import Env, env
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
from lqrlab.simulation.verdict import Verdict

__all__ = [
    "DelayedPolicy",
    "Env",
    "Keep",
    "LinearPolicy",
    "Noise",
    "Policy",
    "SampledProblem",
    "ScheduledPolicy",
    "SwitchingPolicy",
    "TrackingPolicy",
    "Trajectory",
    "Verdict",
    "check_policy",
    "env",
    "no_control",
    "record",
    "rollout",
    "scheduled",
    "step",
    "tracking",
    "verdict",
]
