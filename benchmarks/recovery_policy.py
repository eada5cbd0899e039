"""A network that adds to the saturated LQR of one plant, far from the equilibrium alone: of recovery and imitation."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lqrlab import control
from lqrlab.compute import calculus, one_program, pytree
from lqrlab.compute.linalg import expand_batch, matvec, quadratic
from lqrlab.simulation import Problem

Layers = list[tuple[Array, Array]]
"""Weights ``[in, out]`` and biases ``[out]`` of a perceptron, one pair a layer."""


@pytree
@dataclasses.dataclass(frozen=True)
class Regulator:
    """The LQR of one plant in scaled coordinates, x̃ = x / scale_x and ũ = u / scale_u, and what its inputs can do.

    Attributes:
        K, P: gain and cost to go.
        root: its rows are P's eigenvectors, each times the square root of its eigenvalue.
        level: the largest c for which the gain stays within the limits wherever x̃ᵀP x̃ ≤ c.
        scale_x, scale_u: units of the signals.
        low, high: limits of the inputs, as deviations from the equilibrium, in these units.
        angles: places of the states that are angles.
    """

    K: Array
    P: Array
    root: Array
    level: Array
    scale_x: Array
    scale_u: Array
    low: Array
    high: Array
    angles: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, problem: Problem, dtype: str = "float32") -> "Regulator":
        """Of one plant with finite limits, in ``dtype``; the design itself is made in float64."""
        if problem.batch_shape or problem.plant is None:
            raise ValueError(f"problem: expected one plant, but found {problem.name} of batch {problem.batch_shape}")
        scale_x, scale_u = np.asarray(problem.scale_x), np.asarray(problem.scale_u)
        ends = [np.full(problem.m, np.inf) if a is None else np.abs(np.asarray(a)) for a in (problem.low, problem.high)]
        low, high = (end / scale_u for end in ends)
        if not np.all((low > 0) & (high > 0) & np.isfinite(low) & np.isfinite(high)):
            raise ValueError(
                f"limits: expected finite (low, high) around the equilibrium input {np.asarray(problem.u_eq)}, but "
                f"found deviations from {-ends[0]} to {ends[1]}; without limits the LQR loses little, and a "
                "network has nothing to add"
            )
        K = np.asarray(problem.K) * scale_x / scale_u[:, None]
        P = np.asarray(problem.P) * np.outer(scale_x, scale_x)
        level = control.unsaturated_level(K, P, np.minimum(low, high))
        sizes, vectors = np.linalg.eigh(P)
        root = np.sqrt(np.maximum(sizes, 0))[:, None] * vectors.T
        angles = tuple(i for i, state in enumerate(problem.plant.states) if state.unit == "rad")
        values = {"K": K, "P": P, "root": root, "level": level, "scale_x": scale_x, "scale_u": scale_u}
        arrays = {name: jnp.asarray(a, dtype) for name, a in (values | {"low": -low, "high": high}).items()}
        return cls(**arrays, angles=angles)

    @property
    def num_features(self) -> int:
        """Entries of :meth:`features`."""
        m, n = self.K.shape
        return 2 * n + 2 * len(self.angles) + m

    def scaled(self, x: Array) -> Array:
        """Deviations ``[..., n]`` in units of their scales."""
        return x.astype(self.K.dtype) / expand_batch(self.scale_x, x.ndim)

    def saturate(self, u: Array) -> Array:
        """Scaled inputs ``[..., m]`` within the limits."""
        return jnp.clip(u, expand_batch(self.low, u.ndim), expand_batch(self.high, u.ndim))

    def unscaled_input(self, u: Array) -> Array:
        """Scaled inputs ``[..., m]`` in SI units."""
        return u * expand_batch(self.scale_u, u.ndim)

    def input(self, x: Array) -> Array:
        """−K x̃ within the limits ``[..., m]``, of scaled states."""
        return self.saturate(-matvec(self.K, x))

    def features(self, x: Array) -> Array:
        """Features of scaled states ``[..., num_features]``.

        Each state, near and far alike; combinations of them whose squares sum up to x̃ᵀP x̃, because a state from
        which the loop almost diverges differs from others in a combination that costs much; angles as the plant sees
        them; the LQR's input.
        """
        angles = np.array(self.angles, int)
        turned = x[..., angles] * expand_batch(self.scale_x[angles], x.ndim)
        cost = matvec(self.root, x)
        parts = jnp.arcsinh(x), jnp.arcsinh(cost), jnp.sin(turned), jnp.cos(turned) - 1, self.input(x)
        return jnp.concatenate(parts, axis=-1)

    def beyond(self, x: Array) -> Array:
        """0 at the equilibrium, where the linear design is right, to 1 far outside of its ellipsoid ``[...]``."""
        size = quadratic(self.P, x)
        return size / (size + self.level)


@pytree
@dataclasses.dataclass(frozen=True)
class RecoveryPolicy:
    """u = sat(sat(−Kx) + w(x) v(x)): v a network, w from 0 at the equilibrium to 1 far from it; nothing remembered.

    With all of v's last layer zero it *is* the saturated LQR. Whatever v is, its linearisation at the equilibrium is
    the LQR's, because w is quadratic there, and no input exceeds the limits.

    Attributes:
        layers: of v.
        regulator: the plant's LQR and limits.
    """

    layers: Layers
    regulator: Regulator

    @classmethod
    def start(cls, regulator: Regulator, width: int, *, key: Array) -> "RecoveryPolicy":
        """As the LQR, with a network of two hidden layers."""
        return cls(perceptron(regulator, width, len(regulator.K), key=key), regulator)

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    @one_program
    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """The input within the limits, as a deviation from the equilibrium."""
        within = self.regulator.saturate(self.demand(x))
        return None, self.regulator.unscaled_input(within).astype(x.dtype)

    def demand(self, x: Array) -> Array:
        """Input before saturation, in units of the inputs' scales ``[..., m]``."""
        r = self.regulator
        scaled = r.scaled(x)
        reach = expand_batch(r.high - r.low, x.ndim) * r.beyond(scaled)[..., None]
        return r.input(scaled) + reach * applied(self.layers, r.features(scaled))


def perceptron(regulator: Regulator, width: int, outputs: int, *, key: Array) -> Layers:
    """Two hidden layers on a regulator's features; the last layer is zero."""
    sizes = [regulator.num_features, width, width, outputs]
    dtype = regulator.K.dtype

    def layer(key: Array, before: int, after: int) -> tuple[Array, Array]:
        return jax.random.normal(key, (before, after), dtype) * before**-0.5, jnp.zeros(after, dtype)

    layers = [layer(k, *pair) for k, pair in zip(jax.random.split(key, 3), itertools.pairwise(sizes))]
    return [*layers[:-1], (jnp.zeros_like(layers[-1][0]), layers[-1][1])]


def applied(layers: Layers, features: Array) -> Array:
    """A perceptron's outputs."""
    *hidden, (last, offset) = layers
    for weight, bias in hidden:
        features = jnp.tanh(features @ weight + expand_batch(bias, features.ndim))
    return features @ last + expand_batch(offset, features.ndim)


def updated(
    opt: optax.GradientTransformation, grad: Layers, state: optax.OptState, params: Layers
) -> tuple[Layers, optax.OptState]:
    """A step of Adam; none along a gradient that is not finite."""
    finite = jnp.isfinite(optax.tree.norm(grad))
    grad = jax.tree.map(lambda a: jnp.where(finite, a, jnp.zeros_like(a)), grad)
    updates, state = calculus.updates(opt, grad, state, params)
    return optax.apply_updates(params, updates), state
