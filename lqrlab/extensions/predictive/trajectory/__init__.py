"""Optimal trajectories of nonlinear plants within limits of inputs and states: iterative LQR."""
