"""Random linear systems of all sizes, so that a network does not only learn its families by heart."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.simulation import Problem
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Linear

_AT_ONCE = 500
_SMALLEST_GAIN, _LARGEST_GAIN, _LARGEST_COST = 1e-2, 1e3, 1e6
_UNIFORM, _NORMAL = 850, 950  # random numbers a system
_FARTHER = 10.0  # gains, where dense systems are wanted
_SLOWEST = 1 - 2e-4  # mode of an optimal loop, a sample time


def random_systems(key: PRNGKeyArray, num: int, *, full_weights: bool = False, dense: bool = False) -> Problem:
    """Random linear plants with their optimum, stable and unstable, of 1 to 12 states and 1 to 6 inputs.

    In equal shares of four kinds, one sample taking one unit of time: first-order systems coupled at random;
    positions and rates with forces between them; chains of masses on springs, some upside down; and modes of all kinds
    mixed by a random change of coordinates. Rates, units and strengths of inputs are drawn over orders of magnitude.

    Args:
        key: of all that is drawn.
        num: how many.
        full_weights: half of them have random weights: Q often singular, R full, some with a cross weight. Else Q and R
            are the identity, as the units of signals make them.
        dense: a third are of normal entries, half of whose modes grow; then gains up to 10,000 are kept.

    Returns:
        The scaled, padded problem ``[num, …]``; plants with gains above 1000 or without an optimum are left out.
    """
    checks.random_key(key)
    checks.whole("num", num)
    with jax.enable_x64(True):
        kept: list[Problem] = []
        while sum(map(len, kept)) < num:  # the same numbers are drawn, whatever num is
            drawn = _candidates(jax.random.fold_in(key, len(kept)), _AT_ONCE, *map(jnp.asarray, (full_weights, dense)))
            problem, good = jax.tree.map(np.asarray, drawn)
            kept.append(jax.tree.map(lambda a, good=good: a[good], problem))
        return jax.tree.map(lambda *a: jnp.asarray(np.concatenate(a)[:num]), *kept)


@partial(jax.jit, static_argnums=1)
def _candidates(key: PRNGKeyArray, num: int, full_weights: Array, dense: Array) -> tuple[Problem, Array]:
    """Sampled plants with their optimum, and whether a plant is kept.

    Compiled as one, so that a design that does not converge is left out; outside, slower methods would be tried.
    """
    plants, N, coordinates = _drawn(key, num, full_weights, dense)
    A, B, Q, R, N = control.discretize(plants.A, plants.B, plants.Q, plants.R, plants.dt, N)
    masked = coordinates.zero_padding
    A, B, Q, N = masked(A, "x", "x"), masked(B, "x", "u"), masked(Q, "x", "x"), masked(N, "x", "u")
    design = control.dlqr(A, B, Q, R, N)
    size, cost = jnp.sqrt(jnp.sum(design.K**2, axis=(-1, -2))), jnp.trace(design.P, axis1=-2, axis2=-1)
    far = jnp.where(dense, _FARTHER, 1.0)
    moderate = (size > _SMALLEST_GAIN) & (size < far * _LARGEST_GAIN) & (cost < far**2 * _LARGEST_COST)
    settles = control.spectral_radius(A - B @ design.K, squarings=16) < _SLOWEST
    P = masked(design.P, "x", "x")
    problem = Problem(coordinates, jnp.asarray(plants.dt), A, B, Q, R, N, K=design.K, P=P, in_scales=True)
    return problem, design.stabilizing & moderate & settles


class _Draw:
    """Independent random numbers for ``num`` systems: pieces of two arrays, which compile sooner than many arrays."""

    def __init__(self, key: PRNGKeyArray, num: int):
        uniform, normal = jax.random.split(key)
        self.num, self.used = num, [0, 0]
        self.drawn = (
            jax.random.uniform(uniform, (num, _UNIFORM), float),
            jax.random.normal(normal, (num, _NORMAL), float),
        )

    def _next(self, which: int, shape: tuple[int, ...]) -> Array:
        first, count = self.used[which], math.prod(shape)
        self.used[which] += count
        assert self.used[which] <= self.drawn[which].shape[1], "too few random numbers were drawn"
        return self.drawn[which][:, first : first + count].reshape(self.num, *shape)

    def uniform(self, low: float, high: float | Array, *shape: int) -> Array:
        return low + (high - low) * self._next(0, shape)

    def log_uniform(self, low: float, high: float, *shape: int) -> Array:
        return jnp.exp(self.uniform(math.log(low), math.log(high), *shape))

    def normal(self, *shape: int) -> Array:
        return self._next(1, shape)

    def integer(self, low: int, high: int | Array, *shape: int) -> Array:
        return jnp.floor(self.uniform(low, high, *shape)).astype(int)

    def happens(self, share: float, *shape: int) -> Array:
        return self.uniform(0, 1, *shape) < share


_X, _U = np.eye(N_MAX)[None], np.eye(M_MAX)[None]
_I, _J = np.arange(N_MAX)[None, :, None], np.arange(N_MAX)[None, None, :]


def _sizes(draw: _Draw) -> tuple[Array, Array]:
    """Numbers of states and inputs ``[num, 1]``."""
    n = draw.integer(1, N_MAX + 1, 1)
    most = jnp.minimum(n, M_MAX)
    single = draw.happens(0.4, 1)
    return n, jnp.where(single, 1, 1 + jnp.floor(draw.uniform(0, 1, 1) * most.astype(float)).astype(int))


def _sparse(draw: _Draw, low: float, high: float, rows: int = 1) -> Array:
    """Entries of one size each row, a random share of them zero."""
    present = draw.uniform(0, 1, N_MAX, N_MAX) < draw.uniform(0, 1, 1, 1)
    return draw.normal(N_MAX, N_MAX) * draw.log_uniform(low, high, rows, 1) * present.astype(float)


def _first_order(draw: _Draw) -> Array:
    """A of states that decay (or grow slowly) and are coupled at random."""
    decays = draw.happens(0.8, N_MAX, 1)
    rate = jnp.where(decays, -draw.log_uniform(1e-3, 1.0, N_MAX, 1), draw.uniform(0, 0.15, N_MAX, 1))
    return jnp.where(_I == _J, rate, _sparse(draw, 0.005, 0.5, N_MAX))


def _mechanical(draw: _Draw, half: Array) -> Array:
    """A of positions, their rates with springs and dampers between them, and an actuator's lag if n is odd."""
    position, rate = half > _I, (half <= _I) & (2 * half > _I)
    moves = jnp.where(position & (half + _I == _J), draw.log_uniform(0.02, 0.5, N_MAX, 1), 0.0)
    springs = _sparse(draw, 0.005, 0.5)
    damped = jnp.where(draw.happens(0.7, 1, 1), -draw.log_uniform(1e-3, 0.3, N_MAX, 1), 0.0)
    lag = jnp.where(2 * half <= _I, -draw.log_uniform(0.01, 1.0, N_MAX, 1), 0.0)
    pushed = rate & ((half > _J) | (2 * half <= _J))
    return moves + jnp.where(pushed, springs, 0.0) + jnp.where(_I == _J, jnp.where(rate, damped, lag), 0.0)


def _masses(draw: _Draw, half: Array) -> Array:
    """A of masses in a row on springs, lightly damped, some pushed away from where they stand; scaled rates."""
    position, rate = half > _I, (half <= _I) & (2 * half > _I)
    # link k joins mass k to the next; anchor k joins it to the ground
    stiff = draw.log_uniform(0.02, 1.4, 1, 1) ** 2
    link = jnp.where(half - 1 > _I, draw.log_uniform(0.1, 1.0, N_MAX, 1), 0.0)
    anchor = jnp.where(draw.happens(0.4, N_MAX, 1), draw.log_uniform(0.01, 1.0, N_MAX, 1), 0.0)
    anchor = jnp.where(draw.happens(0.3, N_MAX, 1), -0.1 * anchor, anchor)
    before = jnp.roll(link, 1, axis=1)
    own = link + before + anchor
    spring = jnp.where(_I == _J, own, 0.0) - jnp.where(_J == _I + 1, link, 0.0) - jnp.where(_J + 1 == _I, before, 0.0)
    spring = stiff * spring / draw.log_uniform(0.5, 4.0, N_MAX, 1)
    damping = draw.log_uniform(1e-3, 0.5, 1, 1) * spring / jnp.sqrt(stiff)
    shift = jax.nn.one_hot(_I[..., 0] - half[..., 0], N_MAX)  # row of a mass's rate → that of its position
    force, brake = -shift @ spring, -shift @ damping @ jnp.swapaxes(shift, -1, -2)
    unit = draw.log_uniform(0.05, 20.0, 1, 1)  # of a rate over that of a position
    moves = jnp.where(position & (half + _I == _J), unit, 0.0)
    lag = jnp.where((_I == _J) & (2 * half <= _I), -draw.log_uniform(0.01, 1.0, N_MAX, 1), 0.0)
    lagged = jnp.where(rate & (2 * half <= _J), draw.normal(N_MAX, N_MAX), 0.0)
    return moves + jnp.where(rate & (half > _J), force, 0.0) / unit + jnp.where(rate, brake, 0.0) + lag + lagged


def _modes(draw: _Draw, exists: Array) -> Array:
    """A of modes, two by two, some of which drive the next ones, in other coordinates."""
    first = (_I % 2 == 0) & (_J == _I + 1)
    second = (_I % 2 == 1) & (_J == _I - 1)
    pair = lambda a: jnp.repeat(a, 2, axis=1)  # noqa: E731
    turn = pair(jnp.where(draw.happens(0.5, N_MAX // 2, 1), draw.log_uniform(0.01, 2.0, N_MAX // 2, 1), 0.0))
    decay = draw.log_uniform(1e-3, 1.0, N_MAX, 1)
    decay = jnp.where(turn > 0, pair(draw.log_uniform(1e-3, 0.7, N_MAX // 2, 1)) * turn, decay)
    growing = pair(draw.happens(0.15, N_MAX // 2, 1))
    still = pair(draw.happens(0.2, N_MAX // 2, 1))
    rate = jnp.where(still, 0.0, jnp.where(growing, jnp.minimum(decay, 0.3), -decay))
    chain = still & (turn == 0) & (_J == _I + 1)
    A = jnp.where(_I == _J, rate, 0.0) + jnp.where(first, turn, 0.0) - jnp.where(second, turn, 0.0)
    A = A + jnp.where(chain, draw.log_uniform(0.02, 0.5, N_MAX, 1), 0.0)
    drives = draw.happens(0.5, 1, 1) & (_J > _I + 1)
    A = A + jnp.where(drives, 0.3 * _sparse(draw, 0.01, 1.0), 0.0)
    turned = back = jnp.asarray(_X)
    for _ in range(3):
        v = draw.normal(N_MAX, 1) * exists[..., None]
        mirror = _X - 2 * v @ jnp.swapaxes(v, -1, -2) / jnp.sum(v * v, axis=1, keepdims=True)
        size = draw.log_uniform(0.5, 2.0, N_MAX, 1)
        turned, back = size * (mirror @ turned), back @ mirror / jnp.swapaxes(size, -1, -2)
    return turned @ A @ back


def _dense(key: PRNGKeyArray, n: Array) -> Array:
    """A of normal entries, whose eigenvalues fill a disk around 0."""
    entries, radius = jax.random.split(key)
    radii = jnp.exp(jax.random.uniform(radius, (len(n), 1, 1), float, *np.log([0.03, 0.5])))
    return radii * jax.random.normal(entries, (len(n), N_MAX, N_MAX), float) / jnp.sqrt(n[..., None].astype(float))


def _weights(draw: _Draw, coordinates: Coordinates, full: Array) -> tuple[Array, Array, Array]:
    """Q, R and N: the identity; where ``full``, of half of them diagonal or full ones, Q often singular."""
    given, diagonal = draw.happens(0.5, 1, 1) & full, draw.happens(0.3, 1, 1)
    # a Gram matrix of x and u is a weight without a direction of negative cost
    x = draw.normal(N_MAX, N_MAX) * draw.log_uniform(0.1, 3.0, 1, N_MAX)
    x = jnp.where(draw.uniform(0, 1, N_MAX, 1) < draw.uniform(0.2, 1, 1, 1), x, 0.0)
    u = jnp.where(draw.happens(0.4, 1, 1), draw.normal(N_MAX, M_MAX), 0.0)
    mixed = draw.normal(M_MAX, M_MAX)
    each = jnp.where(draw.happens(0.7, N_MAX, 1), draw.log_uniform(0.05, 5.0, N_MAX, 1), 0.0)
    own = draw.log_uniform(0.1, 3.0, M_MAX, 1) * _U
    Q = jnp.where(diagonal, each * _X, jnp.swapaxes(x, -1, -2) @ x / N_MAX)
    both = jnp.swapaxes(mixed, -1, -2) @ mixed + jnp.swapaxes(u, -1, -2) @ u
    R = own + jnp.where(diagonal, 0.0, both / N_MAX)
    N = jnp.where(given & ~diagonal, jnp.swapaxes(x, -1, -2) @ u / N_MAX, 0.0)
    masked, padded = coordinates.zero_padding, jnp.asarray(1 - coordinates.input_mask)
    Q, R = jnp.where(given, Q, _X), jnp.where(given, R, _U)
    return masked(Q, "x", "x"), masked(R, "u", "u") + padded[:, None] * _U, masked(N, "x", "u")


def _drawn(key: PRNGKeyArray, num: int, full_weights: Array, dense: Array) -> tuple[Linear, Array, Coordinates]:
    """Padded plants, whose scales are 1, their cross weights, and the masks of their states and inputs."""
    draw = _Draw(key, num)
    n, m = _sizes(draw)
    masks = ((jnp.arange(size)[None] < count).astype(float) for size, count in ((N_MAX, n), (M_MAX, m)))
    coordinates = Coordinates(jnp.ones((num, N_MAX)), jnp.ones((num, M_MAX)), *masks)
    half = n[..., None] // 2
    kind = jnp.where(n[..., None] > 1, draw.integer(0, jnp.where(dense, 6, 4), 1, 1), 0)
    kinds = (_first_order(draw), _mechanical(draw, half), _masses(draw, half), _modes(draw, coordinates.state_mask))
    A = sum((jnp.where(kind == k, made, 0.0) for k, made in enumerate(kinds)), jnp.zeros(()))
    force = draw.normal(N_MAX, M_MAX) * draw.log_uniform(0.02, 5.0, 1, M_MAX) * draw.log_uniform(0.2, 3.0, 1, 1)
    force = force * (draw.uniform(0, 1, N_MAX, M_MAX) < draw.uniform(0.1, 1, 1, 1)).astype(float)
    pushes = ((kind == 1) | (kind == 2)) & (half > _I)
    B = jnp.where(pushes[..., :1], 0.0, force)
    unit = jnp.where(draw.happens(0.3, 1, 1), draw.log_uniform(0.2, 5.0, N_MAX, 1), 1.0)
    Q, R, N = _weights(draw, coordinates, full_weights)
    A = jnp.where(kind >= len(kinds), _dense(jax.random.fold_in(key, 1), n), A)
    A, B = unit * A / jnp.swapaxes(unit, -1, -2), unit * B
    exists = coordinates.state_mask[:, None, :]
    plants = Linear(
        # padded states decay, so that the Riccati equation has a solution
        A=coordinates.zero_padding(A, "x", "x") - _X * (1 - exists),
        B=coordinates.zero_padding(B, "x", "u"),
        Q=Q,
        R=R,
        dt=jnp.ones(num),
    )
    return plants, N, coordinates
