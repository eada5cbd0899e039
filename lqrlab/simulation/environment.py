"""A plant under a sampled controller as pure functions: reset and step."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.simulation.policies import matvec
from lqrlab.systems import Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Env:
    """Deviations x, u of a plant (or a batch) from its equilibrium, one sample time a step.

    Attributes:
        plant: the plant or plants.
        x_eq, u_eq: equilibrium ``[*batch, n]``, ``[*batch, m]``.
        Q, R: continuous weights.
        sampled: the exact sampled problem of the linearised plant.
        dt: sample time [s], scalar or ``[*batch]``.
        low, high: what the actuators can do, as deviations from u_eq ``[*batch, m]``.
        noise: standard deviation of the disturbance that each step adds to the state ``[n]``.
        linear: step the linearised plant by exact zero-order hold; else the nonlinear one by Runge-Kutta 4.
        substeps: Runge-Kutta steps in a sample time.
    """

    plant: Plant
    x_eq: Array
    u_eq: Array
    Q: Array
    R: Array
    sampled: control.Sampled
    dt: Array
    low: Array
    high: Array
    noise: Array
    linear: bool = dataclasses.field(metadata={"static": True})
    substeps: int = dataclasses.field(metadata={"static": True})

    def reset(self, *, key: Array, num: int | None = None) -> Array:
        """Typical initial deviations ``[*batch, (num,) n]``."""
        return self.plant.initial_state(key=key, num=num)

    def saturate(self, u: Array) -> Array:
        """What the actuators make of u ``[*batch, *extra, m]``."""
        shape = self.low.shape[:-1] + (1,) * (u.ndim - self.low.ndim) + self.low.shape[-1:]
        low, high = (
            jnp.broadcast_to(a.reshape(shape), u.shape).astype(u.dtype) for a in (self.low, self.high)
        )
        return jnp.clip(u, low, high)

    def step(self, x: Array, u: Array, *, key: Array | None = None) -> tuple[Array, Array]:
        """Hold u for one sample time.

        Args:
            x: deviation ``[*batch, *extra, n]``.
            u: deviation ``[*batch, *extra, m]``; saturated first.
            key: for the disturbance; none without it.

        Returns:
            Next deviation, and the continuous cost ∫ xᵀQx + uᵀRu dt of the step ``[*batch, *extra]``.
        """
        u = self.saturate(u)
        after, cost = self._linear_step(x, u) if self.linear else self._runge_kutta(x, u)
        if key is not None:
            after = after + jax.random.normal(key, x.shape, x.dtype) * jnp.broadcast_to(self.noise, x.shape)
        return after.astype(x.dtype), cost.astype(x.dtype)

    def _linear_step(self, x: Array, u: Array) -> tuple[Array, Array]:
        A, B, Q, R, N = self.sampled
        cost = jnp.sum(x * (matvec(Q, x) + 2 * matvec(N, u)), -1) + jnp.sum(u * matvec(R, u), -1)
        return matvec(A, x) + matvec(B, u), cost

    def _runge_kutta(self, x: Array, u: Array) -> tuple[Array, Array]:
        extra = (1,) * (x.ndim - self.x_eq.ndim)
        lead = self.x_eq.shape[:-1]
        x_eq = jnp.broadcast_to(self.x_eq.reshape(*lead, *extra, -1), x.shape)
        u_abs = u + jnp.broadcast_to(self.u_eq.reshape(*lead, *extra, -1), u.shape)
        per_step = self.dt / self.substeps
        if self.dt.ndim:  # its axes lead, those of the plants first
            per_step = per_step.reshape(self.dt.shape + (1,) * (x.ndim - 1 - self.dt.ndim))
        h = jnp.broadcast_to(per_step, x.shape[:-1])
        effort = jnp.sum(u * matvec(self.R, u), -1)

        def rates(x: Array) -> tuple[Array, Array]:
            return self.plant.dynamics(x + x_eq, u_abs).astype(x.dtype), jnp.sum(
                x * matvec(self.Q, x), -1
            ) + effort

        def substep(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            x, cost = state
            hx = h[..., None]
            k1, c1 = rates(x)
            k2, c2 = rates(x + hx / 2 * k1)
            k3, c3 = rates(x + hx / 2 * k2)
            k4, c4 = rates(x + hx * k3)
            return (
                x + hx / 6 * (k1 + 2 * k2 + 2 * k3 + k4),
                cost + h / 6 * (c1 + 2 * c2 + 2 * c3 + c4),
            ), None

        start = (x, jnp.zeros(x.shape[:-1], x.dtype))
        return jax.lax.scan(substep, start, length=self.substeps)[0]


def env(
    plant: Plant,
    *,
    dt: float | Array | None = None,
    linear: bool = False,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    noise: ArrayLike = 0.0,
    substeps: int | None = None,
) -> Env:
    """Build an environment.

    Args:
        plant: one plant or a batch.
        dt: sample time [s]; the plant's own if left out.
        linear: simulate the linearised plant exactly instead of the nonlinear one.
        limits: ``(low, high)``, each a scalar or ``[m]``: what the actuators can do, in absolute units.
        noise: standard deviation of the disturbance added to the state at each step, scalar or ``[n]``.
        substeps: Runge-Kutta steps in a sample time; if left out, enough for the plant's fastest mode.

    Raises:
        ValueError: dt not above 0, limits that cross or do not contain the equilibrium input.
    """
    if substeps is not None and substeps < 1:
        raise ValueError(f"substeps: expected at least one Runge-Kutta step, but found {substeps}")
    x_eq, u_eq = plant.equilibrium()
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    step = control.checks.sample_time(plant.dt if dt is None else dt, A.dtype)
    try:
        np.broadcast_shapes(step.shape, plant.batch_shape)
    except ValueError:
        raise ValueError(
            f"dt: expected one sample time, or one for each plant of the batch {plant.batch_shape}, but found shape "
            f"{step.shape}"
        ) from None
    infinite = jnp.full(u_eq.shape, jnp.inf, u_eq.dtype)
    low, high = -infinite, infinite
    if limits is not None:
        low, high = (jnp.broadcast_to(jnp.asarray(a, u_eq.dtype), u_eq.shape) - u_eq for a in limits)
        if not control.checks.traced(low, high) and not bool(jnp.all((low <= 0) & (high >= 0))):
            raise ValueError(
                f"limits: expected a range around the equilibrium input {np.asarray(u_eq)}, but found {limits}: "
                "the actuator could not even hold the operating point"
            )
    return Env(
        plant=plant,
        x_eq=x_eq,
        u_eq=u_eq,
        Q=Q,
        R=R,
        sampled=control.discretize(A, B, Q, R, step),
        dt=step,
        low=low,
        high=high,
        noise=jnp.broadcast_to(jnp.asarray(noise, A.dtype), (plant.n,)),
        linear=linear,
        substeps=_substeps(A, step) if substeps is None else substeps,
    )


def _substeps(A: Array, dt: Array) -> int:
    """So many that the fastest mode turns or decays by at most a quarter radian in each."""
    if control.checks.traced(A, dt):
        return 10
    fastest = np.abs(np.linalg.eigvals(np.asarray(A))).max(-1)
    return max(2, math.ceil(float(np.max(fastest * np.asarray(dt))) / 0.25))
