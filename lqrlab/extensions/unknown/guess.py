"""A small network that estimates A and B of an unknown plant from what the regression of its history has found."""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lqrlab.compute import pytree
from lqrlab.simulation import Told
from lqrlab.systems import M_MAX, N_MAX

Z = N_MAX + M_MAX
"""Entries of z = [x; u]; a plant is θ ``[Z, N_MAX]`` with x⁺ = θᵀz."""

SEEN, SAID = 2 * Z * N_MAX + 3 * Z + 2 * N_MAX + 6, Z * N_MAX + 2 * Z + 1
"""Numbers that the network sees and says."""
_RESERVED = -3.0  # log of how certain an untrained network's guess is, in units of the prior
_SURE = 3.0  # the same, on average over columns, from which on nothing is in doubt any more


class Seen(NamedTuple):
    """A regression's findings about a plant: of its likeliest kind the mean and variances before any data, the mean
    and covariances now; the probability that it is kinematic, the variance of the noise, steps taken."""

    mean: Float[Array, "z n"]
    before: Float[Array, "2 z"]
    theta: Float[Array, "z n"]
    spread: Float[Array, "2 z z"]
    kinematic: Float[Array, ""]
    variance: Float[Array, ""]
    t: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Guess:
    """A perceptron that guesses each entry of [A B] and how certain that is.

    Its guesses are taken into the regression as if each column of [A B] had been measured once, so they count as far as
    the data leave doubt. It also says by what factor the covariances are larger or smaller than the regression's. Of
    rows of which it is certain, e³ times as certain as the prior on average, none are left: such a plant counts as
    known.

    Attributes:
        first, second, last: weights of the layers, the last row of each its biases: ``[SEEN + 1, w]``,
            ``[w + 1, w]``, ``[w + 1, SAID]``. The second is added to what it sees.
    """

    first: Float[Array, "seen w"]
    second: Float[Array, "h w"]
    last: Float[Array, "h said"]

    @classmethod
    def untrained(cls, key: PRNGKeyArray, width: int) -> Self:
        """One that says almost nothing."""

        def layer(key: PRNGKeyArray, size: int, to: int, gain: float) -> Array:
            kernel = gain * jax.random.normal(key, (size, to), jnp.float32) / size**0.5
            return jnp.concatenate([kernel, jnp.zeros((1, to), jnp.float32)])

        one, two, three = jax.random.split(key, 3)
        return cls(layer(one, SEEN, width, 1.4), layer(two, width, width, 1.4), layer(three, width, SAID, 0.01))

    def __call__(self, told: Told, position: Array, seen: Seen) -> tuple[Float[Array, "z n"], Float[Array, "2 z z"]]:
        """θ and covariances of its rows with the guesses; ``position`` tells which rows are positions."""
        guess, certain, doubt = self.said(told, position, seen)
        rows = jnp.stack([position, told.state_mask.astype(float) - position])

        def taken(z: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
            theta, spread = found
            of_z, sure = spread[:, :, z], certain[:, z]
            gain = of_z * (sure / (1 + sure * of_z[:, z]))[:, None]
            theta = theta + jnp.einsum("gz,gn->zn", gain, rows) * (guess[z] - theta[z])[None]
            return theta, spread - gain[:, :, None] * of_z[:, None, :]

        theta, spread = jax.lax.fori_loop(0, Z, taken, (seen.theta, seen.spread))
        return theta, doubt[:, None, None] * spread

    def said(
        self, told: Told, position: Array, seen: Seen
    ) -> tuple[Float[Array, "z n"], Float[Array, "2 z"], Float[Array, " 2"]]:
        """The guess itself; 1 / variance of its columns, and a factor of what is then left open, in rows of positions
        and in others."""
        exists = told.state_mask.astype(float)
        still = jnp.concatenate([jnp.diag(exists), jnp.zeros((M_MAX, N_MAX))])
        moved = (seen.theta - still).ravel()
        left = jnp.diagonal(seen.spread, axis1=1, axis2=2) * _inverse(seen.before)
        steps = jnp.sum(jnp.where(pairs(jnp.sum(position).astype(int)), told.steps, 0.0), axis=1)
        sizes = jnp.log10(seen.before[1, jnp.array([0, N_MAX])] + 1e-6) / 4
        times = jnp.exp(-seen.t.astype(float) / jnp.array([10.0, 40.0]))
        rest = jnp.stack([seen.kinematic, jnp.log10(seen.variance) / 4 + 1])
        shorter = jnp.sqrt(jnp.maximum(left, 0.0) + 1e-8).ravel()
        entries = [3 * moved, jnp.arcsinh(30 * moved), shorter, jnp.arcsinh(10 * steps), position]
        entries += [exists, told.input_mask.astype(float), sizes, rest, times]
        x = jnp.concatenate(entries).astype(self.first.dtype)
        x = jax.nn.gelu(x @ self.first[:-1] + self.first[-1])
        x = x + jax.nn.gelu(x @ self.second[:-1] + self.second[-1])
        said = (x @ self.last[:-1] + self.last[-1]).astype(float)
        size = jnp.einsum("gz,gn->zn", jnp.sqrt(seen.before), jnp.stack([position, exists - position]))
        guess = said[: Z * N_MAX].reshape(Z, N_MAX) * size + seen.mean
        firm = _held(said[Z * N_MAX : -1] + _RESERVED, -8.0, 6.0).reshape(2, Z)
        columns = jnp.concatenate([exists, told.input_mask.astype(float)])
        doubt = jnp.where(firm @ columns > _SURE * jnp.sum(columns), 0.0, jnp.exp(_held(said[-1], -3.0, 1.0)))
        return guess, jnp.exp(firm) * _inverse(seen.before), doubt


def pairs(half: Array) -> Bool[Array, "n n"]:
    """Positions, the first ``half`` of the states, and their rates."""
    i = jnp.arange(N_MAX)
    return (i[None, :] == i[:, None] + half) & (i[:, None] < half)


def _held(value: Array, low: float, high: float) -> Array:
    """The value within limits, with a slope beyond them too: without one, training could not bring it back."""
    held = jnp.clip(value, low, high)
    return held + 0.1 * ((value - held) - jax.lax.stop_gradient(value - held))


def _inverse(variance: Array) -> Array:
    """1 / variance, zero where nothing is unknown."""
    return jnp.where(variance > 0, 1 / jnp.where(variance > 0, variance, 1.0), 0.0)
