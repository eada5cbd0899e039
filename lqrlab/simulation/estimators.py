"""State estimators in a loop: policies that act on the estimate of a nonlinear, time-varying Kalman filter."""

import dataclasses
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from lqrlab import control
from lqrlab.compute import checks, linalg, pytree
from lqrlab.compute.calculus import derivative
from lqrlab.compute.linalg import expand_batch
from lqrlab.control.estimation import measurement_update, time_update
from lqrlab.simulation.binding import bind
from lqrlab.simulation.noise import root
from lqrlab.simulation.policies import Policy
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.sensors import Measured, Outputs, measure


class StateEstimator(Protocol):
    """Estimates states from outputs and inputs; ``[*loops, …]`` throughout, deviations from the equilibrium."""

    def init(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The memory that it starts with."""

    def update(self, memory: PyTree, y: Array) -> tuple[PyTree, Array]:
        """The memory and the estimate x̂[t|t], once y[t] is known."""

    def predict(self, memory: PyTree, u: Array) -> PyTree:
        """The memory for the next sample, with u held until then."""


@pytree
@dataclasses.dataclass(frozen=True)
class OutputFeedback:
    """A policy of the state that is given an estimate instead: u[t] follows from y[0 … t]."""

    policy: Policy
    estimator: StateEstimator

    def init(self, batch_shape: tuple[int, ...]) -> tuple[PyTree, PyTree]:
        """Both begin."""
        return self.policy.init(batch_shape), self.estimator.init(batch_shape)

    def __call__(self, carry: tuple[PyTree, PyTree], x: Array) -> tuple[tuple[PyTree, PyTree], Array]:
        """The policy's input for the estimate that the output ``x`` leads to."""
        own, memory = carry
        memory, guess = self.estimator.update(memory, x)
        own, u = self.policy(own, guess)
        return (own, self.estimator.predict(memory, u)), u.astype(x.dtype)


@pytree
@dataclasses.dataclass(frozen=True)
class ExtendedKalmanFilter:
    """The Kalman filter of the plant linearised about each estimate, by exact differentiation of its step.

    On a linear problem it is the time-varying Kalman filter, whose gain ends as that of
    :func:`lqrlab.control.dlqe`; :func:`extended_kalman` checks its arguments.

    Attributes:
        problem: the plants, with their sample time and limits.
        sensor: matrix C or :class:`Outputs`.
        W, V: covariances of the disturbance of a step ``[*batch, n, n]`` and of the sensors ``[*batch, p, p]``.
        P0: of the initial deviation, ``[*batch, n, n]``.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Filtering (1979), section 8.2.
    """

    problem: Problem
    sensor: Array | Outputs
    W: Float[Array, "*#batch n n"]
    V: Float[Array, "*#batch p p"]
    P0: Float[Array, "*#batch n n"]

    def check_step(self, dt: Array) -> None:
        """Refuse samples that are not a sample time of its problem apart, outside a trace."""
        self.problem.check_step(dt)

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, Array]:
        """At the equilibrium, as uncertain as P0 says."""
        n = self.problem.n
        P0 = expand_batch(self.P0, len(batch_shape) + 2, 2)
        return jnp.zeros((*batch_shape, n), P0.dtype), jnp.broadcast_to(P0, (*batch_shape, n, n))

    def update(self, memory: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        """x̂ and P with y taken into account."""
        x, P = memory
        H = derivative(lambda x: measure(self.sensor, x), x)
        HP = H @ P
        return self._corrected(x, P, HP, HP @ H.mT, y.astype(x.dtype) - measure(self.sensor, x))

    def predict(self, memory: tuple[Array, Array], u: Array) -> tuple[Array, Array]:
        """x̂ and P a sample later."""
        x, P = memory
        A, _, after = self.problem.linearised(x, self.problem.saturate(u.astype(x.dtype)))
        return after, time_update(A, P, self._w(x))

    def _corrected(self, x: Array, P: Array, HP: Array, S: Array, surprise: Array) -> tuple[tuple[Array, Array], Array]:
        """x̂ and P with the outputs taken into account that are finite; the others say nothing."""
        seen = jnp.isfinite(surprise)
        both = seen[..., :, None] & seen[..., None, :]
        Y = jnp.where(both, S + self._v(x), expand_batch(jnp.eye(S.shape[-1], dtype=S.dtype), S.ndim, 2))
        HP, surprise = jnp.where(seen[..., None], HP, 0.0), jnp.where(seen, surprise, 0.0)
        memory = measurement_update(x, P, HP, Y, surprise)
        return memory, memory[0]

    def _v(self, x: Array) -> Array:
        return expand_batch(self.V, x.ndim + 1, 2)

    def _w(self, x: Array) -> Array:
        return expand_batch(self.W, x.ndim + 1, 2)


@pytree
@dataclasses.dataclass(frozen=True)
class UnscentedKalmanFilter(ExtendedKalmanFilter):
    """Mean and covariance carried by 2n + 1 states around the estimate, each moved by the plant itself.

    Attributes:
        kappa: weight κ ≥ 0 of the middle one, κ/(n + κ); the others lie √(n + κ) standard deviations away. 3 − n, for
            n < 3, is exact to the fourth moment of a normal distribution.

    Source: S. J. Julier and J. K. Uhlmann, Unscented filtering and nonlinear estimation, Proc. IEEE 92 (2004).
    """

    kappa: float = dataclasses.field(default=1.0, metadata={"static": True})

    def update(self, memory: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        """x̂ and P with y taken into account."""
        x, P = memory
        points = self._points(x, P)
        mean, shown = self._mean(measure(self.sensor, points))
        _, off = self._mean(points)
        weighted = self._weights(shown) * shown
        return self._corrected(x, P, weighted.mT @ off, weighted.mT @ shown, y.astype(x.dtype) - mean)

    def predict(self, memory: tuple[Array, Array], u: Array) -> tuple[Array, Array]:
        """x̂ and P a sample later."""
        x, P = memory
        points = self._points(x, P)
        held = jnp.broadcast_to(u.astype(x.dtype)[..., None, :], (*points.shape[:-1], u.shape[-1]))
        mean, off = self._mean(self.problem.step(points, held)[0])
        return mean, linalg.symmetric(off.mT @ (self._weights(off) * off) + self._w(x))

    def _weights(self, points: Array) -> Array:
        n = self.problem.n
        each = jnp.full((2 * n + 1, 1), 0.5 / (n + self.kappa), points.dtype)
        return expand_batch(each.at[0].set(self.kappa / (n + self.kappa)), points.ndim, 2)

    def _points(self, x: Array, P: Array) -> Array:
        """The states ``[*loops, 2n + 1, n]`` that stand for the distribution."""
        off = jnp.sqrt(x.shape[-1] + self.kappa) * root(P).mT
        return x[..., None, :] + jnp.concatenate([jnp.zeros_like(off[..., :1, :]), off, -off], axis=-2)

    def _mean(self, points: Array) -> tuple[Array, Array]:
        mean = jnp.sum(self._weights(points) * points, axis=-2, keepdims=True)
        return mean[..., 0, :], points - mean


def extended_kalman(
    controller: object, problem: Problem, sensor: ArrayLike | Outputs, W: ArrayLike, V: ArrayLike, P0: ArrayLike
) -> Measured:
    """A controller on the estimate of an :class:`ExtendedKalmanFilter`, of what ``sensor`` shows.

    Args:
        controller: of the state, of any kind that :func:`bind` takes: a gain, linear or nonlinear MPC.
        problem: what the filter takes the plant for, with the loop's sample time and limits.
        sensor: matrix C ``[p, n]``, or :func:`outputs` of the plant.
        W, V, P0: covariances of the disturbance of a step ``[n, n]``, of the sensors' noise ``[p, p]`` and of the
            initial deviation ``[n, n]``.

    >>> plant = systems.make("cart_pole")
    >>> problem, C = simulation.Problem.of(plant), np.eye(4)[:2]  # the rates are not measured
    >>> policy = simulation.extended_kalman(problem.K, problem, C, 1e-6 * np.eye(4), 1e-6 * np.eye(2), 0.1 * np.eye(4))
    >>> run = simulation.rollout(problem, policy, jnp.array([0.0, 0.3, 0.0, 0.0]), 300)
    >>> bool(jnp.abs(run.xs[-1]).max() < 1e-2)
    True
    """
    return _filtered(ExtendedKalmanFilter, controller, problem, sensor, W, V, P0)


def unscented_kalman(
    controller: object, problem: Problem, sensor: ArrayLike | Outputs, W: ArrayLike, V: ArrayLike, P0: ArrayLike
) -> Measured:
    """A controller on the estimate of an :class:`UnscentedKalmanFilter`; arguments as in :func:`extended_kalman`."""
    return _filtered(UnscentedKalmanFilter, controller, problem, sensor, W, V, P0)


def _filtered(
    kind: type[ExtendedKalmanFilter],
    controller: object,
    problem: Problem,
    sensor: ArrayLike | Outputs,
    *noise: ArrayLike,
) -> Measured:
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    eye = jnp.eye(problem.n)
    sensor = (
        sensor if isinstance(sensor, Outputs) else control.matrix_checks.matrices(C=(sensor, "pn"), I=(eye, "nn"))[0]
    )
    p = sensor.shape[-2]
    covariances = {}
    for name, a, size in zip(("W", "V", "P0"), noise, (problem.n, p, problem.n)):
        covariances[name] = a = jnp.asarray(checks.real(name, a), problem.A.dtype)
        if a.shape[-2:] != (size, size):
            raise ValueError(f"{name}: expected a covariance of shape ({size}, {size}), but found {a.shape}")
        control.matrix_checks.weight(name, a)
    estimator = kind(problem, sensor, **covariances)
    return Measured(OutputFeedback(bind(controller, problem), estimator), sensor)
