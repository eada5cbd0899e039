"""First contact with plants that are pushed and replaced: the loop, by NumPy; what has failed; what survives."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.first_contact import first_contact
from lqrlab import systems, unknown
from lqrlab.compute import pytree
from lqrlab.extensions.unknown.regret import ConstantGain

KEY = jax.random.key(3)
FAMILIES = ("pendulum", "cart_pole")


def sampled(name, num, seed=0):
    return systems.sample(name, key=jax.random.key(seed), num=num)


@pytest.fixture(scope="module")
def plants():
    return unknown.problem_of([sampled(name, 2) for name in FAMILIES], noise=0.02)


def test_first_contact_is_the_loop_of_numpy_episode_by_episode(plants):
    """A gain that is not the best, pushed, and then on reversed inputs; the reference is told the new plant."""
    K = np.asarray(plants.K) * 1.1
    contact = first_contact(lambda _: ConstantGain(jnp.asarray(K)), plants.disturbed(), key=KEY, num_steps=30)
    first, pushes, _ = jax.random.split(KEY, 3)
    mask = np.asarray(plants.coordinates.state_mask, float)
    x0 = np.asarray(jax.random.normal(first, mask.shape, float)) * mask
    pushes = np.asarray(jax.random.normal(pushes, (2, *mask.shape), float)) * mask
    pushes = [0 * x0, *(pushes / np.linalg.norm(pushes, axis=-1, keepdims=True))]
    for i in range(len(plants)):
        A, B, P, optimal = (np.asarray(getattr(plants, name))[i] for name in "ABPK")
        x = np.stack([x0[i], x0[i]])
        for episode, sign in enumerate((1, 1, -1)):
            x, paid = x + pushes[episode][i], np.zeros(2)
            for _ in range(30):
                u = np.clip(np.stack([-K[i] @ x[0], -sign * optimal @ x[1]]), -20, 20)
                paid += (x**2).sum(1) + (u**2).sum(1)
                x = x @ A.T + sign * u @ B.T
            ratio = np.divide(*(paid + np.einsum("bi,ij,bj->b", x, P, x)))
            if ratio < 10:
                np.testing.assert_allclose(contact.ratio[episode, i], ratio, rtol=1e-9)
            else:
                assert contact.failed[episode, i]
    assert not contact.failed[1].any()
    assert contact.failed[2].all()  # both families fall over
    assert contact.summary()["another plant"]["failed"] == 100


@pytree
@dataclasses.dataclass(frozen=True)
class LateLearner:
    """Inputs at random for ten steps, then the gain."""

    K: jax.Array

    def init(self, batch_shape):
        return jnp.zeros(())

    def __call__(self, t, x):
        u = -(self.K @ x[..., None])[..., 0]
        return t + 1, jnp.where(t < 10, u + 20.0 * jnp.cos(jnp.pi * t), u)


def test_a_loop_that_failed_has_failed_even_if_it_recovers(plants):
    met = first_contact(lambda _: LateLearner(plants.K), plants, plants, key=KEY)
    assert met.failed.all()
    assert np.isinf(met.ratio).all()
    fine = first_contact(lambda _: ConstantGain(plants.K), plants, plants, key=KEY)
    np.testing.assert_allclose(fine.ratio, 1.0, rtol=1e-9)


def test_the_regulator_survives_a_push_another_plant_and_noise_of_which_it_was_told_nothing():
    quiet = unknown.problem_of([sampled(name, 4) for name in FAMILIES])
    regulator = partial(unknown.adaptive, prior=unknown.wide())
    pushed = first_contact(regulator, quiet, key=KEY)
    assert not pushed.failed.any()
    assert np.median(pushed.ratio[1]) < 1.1  # as if it had not been pushed
    noisy = first_contact(regulator, quiet, key=KEY, noise=0.03)
    assert not noisy.failed[:2].any()
