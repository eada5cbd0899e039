"""Model predictive control: constrained linear-quadratic problems over a horizon, and the controllers that they make.

``horizon_qp`` holds the problem and its optimality conditions, batch last; ``riccati_sweep`` solves it for given
weights of its limits; ``active_set`` and ``interior_point`` find out which limits hold; ``constrained`` is the door.
"""
