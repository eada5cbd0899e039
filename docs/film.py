"""The picture of the first page and of the README: ``python docs/film.py docs/cart_pole.svg``."""

import functools
import sys

import jax.numpy as jnp

from lqrlab import compute, control, simulation, systems
from lqrlab.workbench.figures import animation


@functools.cache
def film() -> animation.Animation:
    """A cart-pole, nonlinear, from one initial state with its optimal gain and without control."""
    compute.setup()
    plant = systems.make("cart_pole")
    K = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    x0 = jnp.array([0.0, 0.35, 0.0, 0.0])  # the pole leans by 20°
    policies = {"optimal": simulation.LinearPolicy(K), "no control": simulation.no_control(plant)}
    runs = {name: simulation.rollout(plant, policy, x0, num_steps=200) for name, policy in policies.items()}
    return animation.animation(plant, runs, title="Cart-pole from the same initial state", width=720)


if __name__ == "__main__":
    print(film().save(sys.argv[1]))
