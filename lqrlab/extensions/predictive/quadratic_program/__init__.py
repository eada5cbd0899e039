"""Constrained linear-quadratic problems over a horizon, batch last: problem, optimality conditions, solvers."""
