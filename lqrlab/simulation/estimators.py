"""Policies that act on the estimate of a nonlinear, time-varying Kalman filter."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lqrlab import control
from lqrlab.compute import checks, linalg, one_program, pytree
from lqrlab.compute.calculus import derivative
from lqrlab.compute.linalg import expand_batch
from lqrlab.simulation.binding import bind
from lqrlab.simulation.memory_policies import Measured, Outputs, measure
from lqrlab.simulation.noise import root
from lqrlab.simulation.policies import Policy
from lqrlab.simulation.problem import Problem
from lqrlab.systems.declaration import check_slopes

Memory = tuple[PyTree, Array, Array]
"""What the policy remembers; the estimate of the state and its covariance, before the next measurement."""


@pytree
@dataclasses.dataclass(frozen=True)
class ExtendedKalmanFilter:
    """A policy on the estimate of a Kalman filter of the plant linearised about each estimate, exactly.

    On a linear problem it is the time-varying Kalman filter, whose gain ends as that of
    :func:`lqrlab.control.dlqe`; :func:`extended_kalman` checks its arguments.

    Attributes:
        policy: of the state.
        problem: the plants, with their sample time and limits.
        sensor: matrix C or :class:`Outputs`.
        W, V: covariances of the disturbance of a step ``[*batch, n, n]`` and of the sensors ``[*batch, p, p]``.
        P0: of the initial deviation, ``[*batch, n, n]``.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Filtering (1979), sections 3.1 and 8.2.
    """

    policy: Policy
    problem: Problem
    sensor: Array | Outputs
    W: Float[Array, "*#batch n n"]
    V: Float[Array, "*#batch p p"]
    P0: Float[Array, "*#batch n n"]

    def init(self, batch_shape: tuple[int, ...]) -> Memory:
        """At the equilibrium, as uncertain as P0 says."""
        n, P0 = self.problem.n, expand_batch(self.P0, len(batch_shape) + 2, 2)
        nothing = jnp.zeros((*batch_shape, n), P0.dtype)
        return self.policy.init(batch_shape), nothing, jnp.broadcast_to(P0, (*batch_shape, n, n))

    @one_program
    def __call__(self, carry: Memory, x: Array) -> tuple[Memory, Array]:
        """The policy's input for the estimate that the outputs ``x`` lead to; those not finite say nothing."""
        own, guess, P = carry
        expected, HP, S = self._shown(guess, P)
        surprise = x.astype(guess.dtype) - expected
        seen = jnp.isfinite(surprise)
        both = seen[..., :, None] & seen[..., None, :]
        Y = jnp.where(both, S + expand_batch(self.V, S.ndim, 2), jnp.eye(S.shape[-1], dtype=S.dtype))
        HP, surprise = jnp.where(seen[..., None], HP, 0.0), jnp.where(seen, surprise, 0.0)
        gain = linalg.solve_many(Y, HP).mT
        guess, P = guess + (gain @ surprise[..., None])[..., 0], linalg.symmetric(P - gain @ HP)
        own, u = self.policy(own, guess)
        guess, P = self._moved(guess, P, u.astype(guess.dtype), expand_batch(self.W, P.ndim, 2))
        return (own, guess, P), u.astype(x.dtype)

    def _shown(self, x: Array, P: Array) -> tuple[Array, Array, Array]:
        """The outputs expected, and their covariances with the state and with each other without noise."""
        H = derivative(lambda x: measure(self.sensor, x), x)
        return measure(self.sensor, x), H @ P, H @ P @ H.mT

    def _moved(self, x: Array, P: Array, u: Array, W: Array) -> tuple[Array, Array]:
        """x̂ and P a sample later."""
        A, _, after = self.problem.linearised(x, self.problem.saturate(u))
        return after, linalg.symmetric(A @ P @ A.mT + W)


@pytree
@dataclasses.dataclass(frozen=True)
class UnscentedKalmanFilter(ExtendedKalmanFilter):
    """Mean and covariance carried by 2n + 1 states around the estimate, each moved by the plant itself.

    The middle one has the weight 1/(n + 1); the others lie √(n + 1) standard deviations away.

    Source: S. J. Julier and J. K. Uhlmann, Unscented filtering and nonlinear estimation, Proc. IEEE 92 (2004).
    """

    def _shown(self, x: Array, P: Array) -> tuple[Array, Array, Array]:
        points = self._points(x, P)
        (_, off), (mean, shown) = self._mean(points), self._mean(measure(self.sensor, points))
        weighted = self._weights(shown) * shown
        return mean, weighted.mT @ off, weighted.mT @ shown

    def _moved(self, x: Array, P: Array, u: Array, W: Array) -> tuple[Array, Array]:
        points = self._points(x, P)
        held = jnp.broadcast_to(u[..., None, :], (*points.shape[:-1], u.shape[-1]))
        mean, off = self._mean(self.problem.step(points, held)[0])
        return mean, linalg.symmetric(off.mT @ (self._weights(off) * off) + W)

    def _weights(self, points: Array) -> Array:
        n = self.problem.n
        each = jnp.full((2 * n + 1, 1), 0.5 / (n + 1), points.dtype)
        return expand_batch(each.at[0].set(1 / (n + 1)), points.ndim, 2)

    def _points(self, x: Array, P: Array) -> Array:
        """The states ``[*loops, 2n + 1, n]`` that stand for the distribution."""
        off = jnp.sqrt(x.shape[-1] + 1) * root(P).mT
        return x[..., None, :] + jnp.concatenate([jnp.zeros_like(off[..., :1, :]), off, -off], axis=-2)

    def _mean(self, points: Array) -> tuple[Array, Array]:
        mean = jnp.sum(self._weights(points) * points, axis=-2, keepdims=True)
        return mean[..., 0, :], points - mean


def extended_kalman(
    controller: object, problem: Problem, sensor: ArrayLike | Outputs, W: ArrayLike, V: ArrayLike, P0: ArrayLike
) -> Measured:
    """A controller with the estimate of an :class:`ExtendedKalmanFilter` from the measurements of ``sensor``.

    Args:
        controller: of the state, of any kind that :func:`bind` takes: a gain, linear or nonlinear MPC.
        problem: what the filter takes the plant for, with the loop's sample time and limits.
        sensor: matrix C ``[p, n]``, or :func:`outputs` of the plant.
        W, V, P0: covariances of the disturbance of a step ``[n, n]``, of the sensors' noise ``[p, p]`` and of the
            initial deviation ``[n, n]``.
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
    if isinstance(sensor, Outputs) and kind is ExtendedKalmanFilter and not checks.traced(sensor):
        check_slopes("sensor", np.asarray(sensor.plant.output_matrix()), sensor.plant.outputs)
    p = sensor.shape[-2]
    covariances = {}
    for name, a, size in zip(("W", "V", "P0"), noise, (problem.n, p, problem.n)):
        covariances[name] = a = jnp.asarray(checks.real(name, a), problem.A.dtype)
        if a.shape[-2:] != (size, size):
            raise ValueError(f"{name}: expected a covariance of shape ({size}, {size}), but found {a.shape}")
        control.matrix_checks.weight(name, a)
    return Measured(kind(bind(controller, problem), problem, sensor, **covariances), sensor)
