"""Robots from MuJoCo's files and URDF, as plants."""

from lqrlab.extensions.robots.robot_plants import from_mujoco

__all__ = ["from_mujoco"]
