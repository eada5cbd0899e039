"""Closed loops in bulk: functional environments, policies, rollouts."""

from lqrlab.simulation.environment import Env, env
from lqrlab.simulation.policies import LinearPolicy, Policy, no_control
from lqrlab.simulation.rollouts import Trajectory, rollout

__all__ = ["Env", "LinearPolicy", "Policy", "Trajectory", "env", "no_control", "rollout"]
