"""Fast paths of :func:`lqrlab.simulation.rollout`, each tested equal to it."""
