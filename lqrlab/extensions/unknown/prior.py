"""Prior belief about a plant before its first step: known families, plants at large, and a network that guesses."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.learning import weight_files
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
    rows of which it is certain, e³ times as certain as the prior on average, none are left.

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


@pytree
@dataclasses.dataclass(frozen=True)
class Families:
    """Families of plants as Gaussians: θ = mean + Σ w direction, w ~ N(0, variance).

    Attributes:
        mean: ``[F, Z, 12]``.
        directions: orthonormal ``[F, r, Z, 12]``.
        variance: of w ``[F, r]``.
        rest: mean squared deviation per row that the directions leave ``[F]``.
        sizes: numbers of states and inputs ``[F, 2]``; a plant of another size is of another family.
        cost: optimal cost to go of the mean ``[F, 12, 12]``, with Q = R = I.
        most: so many families are of one size, at most.
    """

    mean: Float[Array, "F z n"]
    directions: Float[Array, "F r z n"]
    variance: Float[Array, "F r"]
    rest: Float[Array, " F"]
    sizes: Float[Array, "F 2"]
    cost: Float[Array, "F n n"]
    most: int = dataclasses.field(metadata={"static": True})

    def __len__(self) -> int:
        return len(self.mean)


def transition(d: Told) -> np.ndarray:
    """θ of plants whose matrices are known ``[*batch, Z, 12]``, float64."""
    A, B = (np.swapaxes(np.asarray(a, float), -1, -2) for a in (d.A, d.B))
    return np.concatenate([A, B], axis=-2)


def families(plants: Sequence[Told], *, rank: int = 6) -> Families:
    """Fit a Gaussian to each of some batches of plants, one a family.

    Args:
        plants: scaled plants ``[num, …]``, at least two variants a family, all of one size.
        rank: directions kept of a family.
    """
    columns = [np.stack(column) for column in zip(*(_family(d, rank) for d in plants))]
    mean, directions, variance, rest, sizes, cost = (jnp.asarray(column) for column in columns)
    return Families(mean, directions, variance, rest, sizes, cost, _most(columns[4]))


def _family(d: Told, rank: int) -> tuple[np.ndarray, ...]:
    """The columns of :class:`Families` for one family."""
    theta, (n, m) = transition(d), (int(np.sum(np.asarray(a)[0])) for a in (d.state_mask, d.input_mask))
    mean = theta.mean(0)
    flat = (theta - mean).reshape(len(theta), -1)
    kept = min(rank, len(theta) - 1, flat.shape[1])
    _, size, directions = np.linalg.svd(flat, full_matrices=False)
    directions, size = directions[:kept], size[:kept]
    w = flat @ directions.T
    rest = ((flat - w @ directions) ** 2).mean(0).reshape(Z, N_MAX).sum(0).max()
    fill = ((0, rank - kept), (0, 0))
    return (
        mean,
        np.pad(directions, fill).reshape(rank, Z, N_MAX),
        np.pad(size**2 / len(theta), fill[0]),
        np.asarray(rest),
        np.array([n, m], float),
        _cost(mean, n),
    )


def _cost(theta: np.ndarray, n: int) -> np.ndarray:
    """P of one plant with Q = R = I, zero in padding."""
    P = np.asarray(control.dlqr(theta[:N_MAX].T, theta[N_MAX:].T, np.eye(N_MAX), np.eye(M_MAX)).P)
    exists = (np.arange(N_MAX) < n).astype(float)
    return P * exists[:, None] * exists


def _most(sizes: np.ndarray) -> int:
    """Largest number of families that share a size."""
    return int(np.unique(sizes, axis=0, return_counts=True)[1].max())


@pytree
@dataclasses.dataclass(frozen=True)
class Prior:
    """Prior of the adaptive regulator, its caution and probing. The numbers are learned: :mod:`.training_episodes`.

    Two kinds of plants at large: *dense* ones, whose A − I and B are Gaussian entry by entry, and *kinematic* ones, in
    which the first half of the states are positions and the second half their rates, so that
    x⁺ᵢ = xᵢ + (dt · unit of the rate / unit of the position) x_{i+n/2} is known from the units, and the rates' rows are
    Gaussian. Several of each stand for several sizes of the entries; what the plant does tells them apart.

    Attributes:
        dense: standard deviations of the entries of A − I and of B, log prior odds ``[k, 3]``.
        kinematic: standard deviations of the rates' rows: positions' and rates' columns, B; log prior odds ``[l, 4]``.
        half: standard deviation of a position's row in units of that of its rate's, times half the time step.
        caution: weight of what is not known of a plant at large, in the design.
        probe: amplitude of the probing input: constant, per unit of the noise; decay in units of n + m steps ``[3]``.
        start: cost to go per unit of the state's square that a design starts from.
        inflate: factor on the families' variances.
        known: the families; None for no prior knowledge.
        guess: a network that estimates A and B of plants at large (``python -m benchmarks.pretrain student``); None:
            what is believed of them are the numbers above alone.

    Source: the prior is in the spirit of H. Jeffreys' hypothesis mixtures as in D. Lainiotis, Optimal adaptive
    estimation: structure and parameter adaptation, IEEE TAC 16 (1971).
    """

    dense: Float[Array, "k 3"]
    kinematic: Float[Array, "l 4"]
    half: Float[Array, ""]
    caution: Float[Array, ""]
    probe: Float[Array, " 3"]
    start: Float[Array, ""]
    inflate: Float[Array, ""]
    known: Families | None
    guess: Guess | None = None

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Name → array, for a file; those of the families as ``families/…``, of the network as ``guess/…``."""
        parts = {"": self, "families/": self.known, "guess/": self.guess}
        return {
            prefix + f.name: np.asarray(getattr(part, f.name))
            for prefix, part in parts.items()
            if part is not None
            for f in dataclasses.fields(part)
            if f.name not in ("known", "guess", "most")
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """The prior from what :meth:`to_arrays` returned."""
        parts: dict[str, dict[str, Array]] = {"": {}, "families": {}, "guess": {}}
        for name, a in arrays.items():
            part, _, own = name.rpartition("/")
            parts[part][own] = a
        families, guess = parts["families"], parts["guess"]
        known = Families(**families, most=_most(np.asarray(families["sizes"]))) if families else None
        network = Guess(**{name: a.astype(jnp.float32) for name, a in guess.items()}) if guess else None
        return cls(**parts[""], known=known, guess=network)

    def components(self, told: Told) -> tuple[Array, Array, Array, Array]:
        """The plants at large for one plant: θ ``[K, Z, 12]``, covariances ``[K, 2, Z, Z]`` of rows of positions and of
        others, log weights ``[K]``, and which rows are positions ``[12]``."""
        exists, inputs = told.state_mask.astype(float), told.input_mask.astype(float)
        half = (jnp.sum(exists) // 2).astype(int)
        position = (jnp.arange(N_MAX) < half).astype(float)
        step = jnp.where(pairs(half), told.steps, 0.0)
        still = jnp.concatenate([jnp.eye(N_MAX), jnp.zeros((M_MAX, N_MAX))]) * exists[None]
        moving = still.at[:N_MAX].add(step.T)
        ones, force = jnp.ones(N_MAX), jnp.ones(M_MAX)
        a, b, odds = self.dense.T
        free = jnp.concatenate([a[:, None] * ones[None], b[:, None] * force[None]], axis=-1)
        q, v, push, kinematic_odds = self.kinematic.T
        rate = jnp.concatenate(
            [q[:, None] * position[None] + v[:, None] * (ones - position)[None], push[:, None] * force[None]], axis=-1
        )
        shorter = 0.5 * jnp.sum(step) / jnp.maximum(half, 1).astype(float) * self.half
        size = jnp.concatenate([jnp.stack([free, free], 1), jnp.stack([rate * shorter + 1e-4, rate], 1)])
        size = size * jnp.concatenate([exists, inputs])[None, None]
        theta = jnp.concatenate(
            [jnp.broadcast_to(mean, (k, Z, N_MAX)) for mean, k in ((still, len(a)), (moving, len(q)))]
        )
        odds = jnp.concatenate([odds, jnp.where(half >= 1, kinematic_odds, -jnp.inf)])
        return theta, size[..., None] ** 2 * jnp.eye(Z)[None, None], odds, position


def wide(known: Families | None = None) -> Prior:
    """The prior with untrained hyperparameters."""
    return Prior(
        dense=jnp.array([[0.05, 0.05, -6.0], [0.3, 0.5, -6.0]]),
        kinematic=jnp.array([[0.03, 0.02, 0.1, -4.0], [0.15, 0.1, 0.3, -4.0], [0.15, 0.1, 1.5, -4.0]]),
        half=jnp.array(1.0),
        caution=jnp.array(0.1),
        probe=jnp.array([0.05, 2.0, 1.0]),
        start=jnp.array(10.0),
        inflate=jnp.array(2.0),
        known=known,
    )


def ridge(*, size: float = 0.3, input_size: float | None = None, caution: float = 0.0, probe: float = 0.15) -> Prior:
    """Prior without information: ridge regression towards x⁺ = x. ``caution`` 0 is certainty equivalence.

    ``size`` is the standard deviation of the entries of A − I, ``input_size`` of those of B, the same if left out.
    """
    base = wide()
    return dataclasses.replace(
        base,
        dense=jnp.array([[size, size if input_size is None else input_size, 0.0]]),
        kinematic=base.kinematic[:0],
        caution=jnp.asarray(caution),
        probe=jnp.array([probe, 0.0, 1.0]),
    )


_SHAPES: dict[str, tuple[str | int, ...]] = {"dense": ("k", 3), "kinematic": ("l", 4), "probe": (3,)}
_SHAPES |= dict.fromkeys(("half", "caution", "start", "inflate"), ())
_FAMILIES = {
    "families/mean": ("F", Z, N_MAX),
    "families/directions": ("F", "r", Z, N_MAX),
    "families/variance": ("F", "r"),
    "families/rest": ("F",),
    "families/sizes": ("F", 2),
    "families/cost": ("F", N_MAX, N_MAX),
}
_GUESS = {"guess/first": (SEEN + 1, "w"), "guess/second": ("h", "w"), "guess/last": ("h", SAID)}
"""Shapes of the arrays of a prior, of one that knows families of plants, and of its network; a letter is one number
throughout."""


def _read(arrays: Mapping[str, np.ndarray]) -> Prior:
    """The prior of a file, whose arrays may be a stranger's."""
    parts = {name.partition("/")[0] for name in arrays if "/" in name}
    expected = _SHAPES | (_FAMILIES if "families" in parts else {}) | (_GUESS if "guess" in parts else {})
    sizes: dict[str, int] = {}
    for name in sorted(expected.keys() | arrays.keys()):
        wanted, found = expected.get(name), arrays[name].shape if name in arrays else None
        if wanted is not None and found is not None and len(wanted) == len(found):
            known = (sizes.setdefault(a, size) if isinstance(a, str) else a for a, size in zip(wanted, found))
            if tuple(known) == found and 0 not in found:
                continue
        raise ValueError(
            f"{name}: expected {'no such array' if wanted is None else f'shape {wanted}'} in a prior, but found "
            f"{'none' if found is None else f'shape {found}'}"
        )
    if "guess" in parts and sizes["h"] != sizes["w"] + 1:
        raise ValueError(f"guess/second: expected {sizes['w'] + 1} rows, the last of biases, but found {sizes['h']}")
    return Prior.of_arrays({k: jnp.asarray(a) for k, a in arrays.items()})


weight_files.register("prior", weight_files.WeightKind(Prior, _read, Prior.to_arrays))
