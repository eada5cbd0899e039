"""Optimal trajectories of nonlinear plants within input limits: iterative LQR."""
