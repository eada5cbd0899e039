"""A gain in disguise, for the tests of what recognises gains."""

import dataclasses

import jax

from lqrlab import compute, simulation


@compute.pytree
@dataclasses.dataclass(frozen=True)
class Unrecognised:
    """A constant gain that nobody can see to be one."""

    K: jax.Array
    gains = ()  # has gains, and makes none for the judge

    def init(self, batch_shape):
        return None

    def __call__(self, carry, x):
        return simulation.LinearPolicy(self.K)(carry, x)
