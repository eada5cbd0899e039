"""A plant under a sampled controller as a pure function: one sample time a step."""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from lqrlab import control
from lqrlab.compute import checks, pytree
from lqrlab.compute.differentiation import derivative
from lqrlab.compute.integration import rk4
from lqrlab.compute.linalg import expand_batch, matvec, quadratic
from lqrlab.simulation.noise import Correlated, drawn, spread
from lqrlab.simulation.problem import SampledProblem
from lqrlab.systems import Plant, check_plant

MOST_SUBSTEPS = 10_000
"""Runge-Kutta steps in a sample time, at most: a mode 2500 times as fast as the sampling."""
_ANGLE = 0.25  # rad that the fastest mode turns or decays by in a Runge-Kutta step


@pytree
@dataclasses.dataclass(frozen=True)
class Env:
    """Deviations x, u of a plant (or a batch) from its equilibrium, one sample time a step.

    Attributes:
        plant: the plant or plants; None for a sampled problem alone (:meth:`of_problem`).
        x_eq, u_eq: equilibrium ``[*batch, n]``, ``[*batch, m]``.
        Q, R: continuous weights (of a sampled problem alone the sampled ones).
        sampled: the exact sampled problem of the linearised plant.
        dt: sample time [s], scalar or ``[*batch]``.
        low, high: what the actuators can do, as deviations from u_eq ``[*batch, m]``.
        noise: standard deviation of the disturbance that each step adds to the state ``[n]`` or ``[*batch, n]``, or
            what is correlated; None for none.
        linear: step the linearised plant by exact zero-order hold; else the nonlinear one by Runge-Kutta 4.
        substeps: Runge-Kutta steps in a sample time.
    """

    plant: Plant | None
    x_eq: Float[Array, "*#batch n"]
    u_eq: Float[Array, "*#batch m"]
    Q: Float[Array, "*#batch n n"]
    R: Float[Array, "*#batch m m"]
    sampled: control.Sampled
    dt: Float[Array, "*times"]
    low: Float[Array, "*#batch m"]
    high: Float[Array, "*#batch m"]
    noise: Float[Array, "*#batch n"] | Correlated | None
    linear: bool = dataclasses.field(metadata={"static": True})
    substeps: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of_problem(cls, problem: SampledProblem, *, limit: ArrayLike = np.inf) -> Self:
        """Step sampled problems of which nothing else is known, in whatever coordinates they are.

        Args:
            problem: ``[*batch, …]``.
            limit: of the inputs, as deviations: ±, scalar or ``[*batch, m]``.
        """
        *lead, n, m = problem.B.shape
        dtype = problem.A.dtype
        high = jnp.broadcast_to(jnp.asarray(limit, dtype), (*lead, m))
        return cls(
            plant=None,
            x_eq=jnp.zeros(n, dtype),
            u_eq=jnp.zeros(m, dtype),
            Q=problem.Q,
            R=problem.R,
            sampled=problem.sampled,
            dt=jnp.ones((), dtype),
            low=-high,
            high=high,
            noise=None,
            linear=True,
            substeps=1,
        )

    @property
    def n(self) -> int:
        """Number of states."""
        return self.sampled.B.shape[-2]

    @property
    def m(self) -> int:
        """Number of inputs."""
        return self.sampled.B.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of the plants."""
        return self.sampled.B.shape[:-2] if self.plant is None else self.plant.batch_shape

    def astype(self, dtype: np.dtype) -> Self:
        """The same with all floating numbers of this type."""
        return jax.tree.map(
            lambda a: jnp.asarray(a, dtype) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a, self
        )

    def saturate(self, u: Float[Array, "*loops m"]) -> Float[Array, "*loops m"]:
        """u ``[*batch, *extra, m]`` within what the actuators can do."""
        low, high = (expand_batch(a, u.ndim).astype(u.dtype) for a in (self.low, self.high))
        return jnp.clip(u, low, high)

    def step(
        self, x: Float[Array, "*loops n"], u: Float[Array, "*loops m"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "*loops n"], Float[Array, "*loops"]]:
        """Hold u for one sample time.

        Args:
            x: deviation ``[*batch, *extra, n]``.
            u: deviation ``[*batch, *extra, m]``; saturated first.
            key: for the disturbance; none without it.

        Returns:
            Next deviation, and the continuous cost ∫ xᵀQx + uᵀRu dt of the step ``[*batch, *extra]``.
        """
        u = self.saturate(u)
        after, cost = self._hold(x, u) if self.linear else self._integrate(x, u)
        if key is not None and self.noise is not None:
            after = after + drawn(key, self.noise, x)
        return after.astype(x.dtype), cost.astype(x.dtype)

    def linearised(
        self, x: Float[Array, "*loops n"], u: Float[Array, "*loops m"]
    ) -> tuple[Float[Array, "*loops n n"], Float[Array, "*loops n m"], Float[Array, "*loops n"]]:
        """A, B of one step about (x, u), by exact differentiation, and the next deviation; u is not saturated.

        x[t+1] ≈ next + A (x[t] − x) + B (u[t] − u). Along a trajectory ``xs[..., :-1, :], us`` these are the matrices
        of a time-varying design, such as :func:`lqrlab.control.lq_tracking`.
        """
        move = self._hold if self.linear else self._integrate
        return (
            derivative(lambda x: move(x, u)[0], x),
            derivative(lambda u: move(x, u)[0], u),
            move(x, u)[0],
        )

    def _hold(self, x: Array, u: Array) -> tuple[Array, Array]:
        """The linearised plant by exact zero-order hold."""
        A, B, Q, R, N = self.sampled
        cost = quadratic(Q, x) + 2 * jnp.sum(x * matvec(N, u), -1) + quadratic(R, u)
        return matvec(A, x) + matvec(B, u), cost

    def _integrate(self, x: Array, u: Array) -> tuple[Array, Array]:
        """The plant's own equations by Runge-Kutta 4, the cost integrated along."""
        plant = self.plant
        assert plant is not None, "a sampled problem alone is linear"
        x_eq, u_eq = (expand_batch(a, x.ndim) for a in (self.x_eq, self.u_eq))
        u_abs = u + u_eq
        h = self.dt / self.substeps
        # the axes of dt lead, those of the plants first
        h = h.reshape(h.shape + (1,) * (x.ndim - 1 - h.ndim)) if h.ndim else h
        effort = quadratic(self.R, u)

        def rates(state: tuple[Array, Array]) -> tuple[Array, Array]:
            x, _ = state
            flow = plant.dynamics(x + x_eq, u_abs).astype(x.dtype)
            return flow, quadratic(self.Q, x) + effort

        start = (x, jnp.zeros(x.shape[:-1], x.dtype))
        h = jnp.broadcast_to(h, x.shape[:-1])
        return rk4(rates, start, (h[..., None], h), self.substeps)


def env(
    plant: Plant,
    *,
    dt: ArrayLike | None = None,
    linear: bool = False,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    noise: ArrayLike = 0.0,
    substeps: int | None = None,
) -> Env:
    """Build an environment: the plant is linearised and sampled once, here.

    Args:
        plant: one plant or a batch.
        dt: sample time [s]; the plant's own if left out.
        linear: simulate the linearised plant exactly instead of the nonlinear one.
        limits: ``(low, high)``, each a scalar or ``[m]``: what the actuators can do, in absolute units.
        noise: standard deviation of the disturbance added to the state at each step, scalar, ``[n]``, ``[*batch, n]``;
            or its covariance ``[*batch, n, n]``, as :func:`lqrlab.control.sampled_noise` makes it and Kalman filters
            take it (one for all of a batch: ``W[None]``).
        substeps: Runge-Kutta steps in a sample time; if left out, enough for the plant's fastest mode. Inside
            ``jit`` or ``vmap`` over the plant's parameters or dt that mode is not known, so they have to be given.

    Raises:
        ValueError: dt not above 0, limits that cross or do not contain the equilibrium input, more than
            :data:`MOST_SUBSTEPS` Runge-Kutta steps in a sample time.

    >>> world = simulation.env(systems.make("pendulum"), linear=True, limits=(-1.0, 1.0))
    >>> x, cost = world.step(jnp.zeros(2), jnp.array([5.0]))  # saturated
    >>> world.saturate(jnp.array([5.0])).tolist(), x.shape, cost.shape
    ([1.0], (2,), ())
    """
    check_plant(plant)
    checks.flag("linear", linear)
    if substeps is not None:
        checks.whole("substeps", substeps, 1, MOST_SUBSTEPS)
    x_eq, u_eq = plant.equilibrium()
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    dt = plant.dt if dt is None else dt
    step = control.checks.sample_time(dt, A.dtype)
    _one_of_each(step.shape, plant.batch_shape)
    low, high = input_limits(limits, u_eq)
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
        noise=spread("noise", noise, plant.n, A.dtype, plant.batch_shape),
        linear=linear,
        substeps=1 if linear else _substeps(plant, A, dt) if substeps is None else substeps,
    )


def _one_of_each(times: tuple[int, ...], batch: tuple[int, ...]) -> None:
    """Refuse sample times that do not fit the plants."""
    try:
        np.broadcast_shapes(times, batch)
    except ValueError:
        raise ValueError(
            f"dt: expected one sample time, or one for each plant of the batch {batch}, but found shape {times}"
        ) from None


def input_limits(limits: tuple[ArrayLike, ArrayLike] | None, u_eq: Array) -> tuple[Array, Array]:
    """Limits as deviations from the equilibrium input ``[*batch, m]``."""
    if limits is None:
        return jnp.full(u_eq.shape, -jnp.inf, u_eq.dtype), jnp.full(u_eq.shape, jnp.inf, u_eq.dtype)
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        raise ValueError(f"limits: expected a pair (low, high), but found {limits!r}")
    ends = [jnp.asarray(checks.real("limits", a), u_eq.dtype) for a in limits]
    if any(a.ndim and a.shape[-1] not in (1, u_eq.shape[-1]) for a in ends):
        raise ValueError(
            f"limits: expected numbers, or one for each of {u_eq.shape[-1]} inputs, but found {limits!r}"
        )
    low, high = (jnp.broadcast_to(a, u_eq.shape) - u_eq for a in ends)
    if not checks.traced(low, high) and not bool(jnp.all((low <= 0) & (high >= 0))):
        raise ValueError(
            f"limits: expected a range around the equilibrium input {np.asarray(u_eq)}, but found {limits}: "
            "the actuator could not even hold the operating point"
        )
    return low, high


def _substeps(plant: Plant, A: Array, dt: ArrayLike) -> int:
    """So many that the fastest mode turns or decays by at most a quarter radian in each."""
    if checks.traced(A) and not checks.traced(plant):  # a known plant in the trace of something else
        with jax.ensure_compile_time_eval():
            A = plant.matrices()[0]
    if checks.traced(A, dt):  # of what is differentiated, and no more, the numbers are known
        A, dt = jax.lax.stop_gradient((A, dt))
    if checks.traced(A, dt):
        raise ValueError(
            "substeps: inside jit or vmap over the plant's parameters or dt its fastest mode is not known, and with "
            "it how many Runge-Kutta steps a sample time needs; pass substeps=, such as simulation.env(plant).substeps "
            "of the fastest plant outside, or give a batch of plants as it is instead of vmap"
        )
    if not np.all(np.isfinite(A)):
        raise ValueError(f"plant: expected a finite linearisation, but found A = {np.asarray(A)}")
    turns = float(np.max(np.abs(np.linalg.eigvals(np.asarray(A))).max(-1) * np.asarray(dt)))
    if turns > MOST_SUBSTEPS * _ANGLE:
        raise ValueError(
            f"dt: the fastest mode of the plant turns or decays by {turns:.3g} rad in a sample time, and Runge-Kutta "
            f"would need more than {MOST_SUBSTEPS} steps for that; take a shorter dt, or linear=True, which is exact"
        )
    return max(2, math.ceil(turns / _ANGLE))
