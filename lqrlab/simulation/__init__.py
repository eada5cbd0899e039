"""Closed loops in bulk: functional environments, policies, rollouts."""

from lqrlab.simulation.costs import total_cost
from lqrlab.simulation.environment import Env, env
from lqrlab.simulation.loop import Trajectory, bulk_loops, rollout
from lqrlab.simulation.policies import (
    DelayedPolicy,
    LinearPolicy,
    Policy,
    ScheduledPolicy,
    SwitchingPolicy,
    TrackingPolicy,
    no_control,
    scheduled,
    tracking,
)

__all__ = [
    "DelayedPolicy",
    "Env",
    "LinearPolicy",
    "Policy",
    "ScheduledPolicy",
    "SwitchingPolicy",
    "TrackingPolicy",
    "Trajectory",
    "bulk_loops",
    "env",
    "no_control",
    "rollout",
    "scheduled",
    "total_cost",
    "tracking",
]
