"""The regulator problem of plants: sampled, with their optimum, units, limits and noise; and one step of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from lqrlab import control
from lqrlab.compute import as_jax, checks, one_program, pytree
from lqrlab.compute.calculus import derivative, rk4
from lqrlab.compute.linalg import expand_batch, matvec, quadratic
from lqrlab.simulation import sampling, scaling
from lqrlab.simulation.limits import Limits, Pair, carried
from lqrlab.simulation.noise import NONE, Noise, drawn, mean_size, spread
from lqrlab.simulation.quadratic_regulator import QuadraticRegulator
from lqrlab.simulation.sampling import Continuous, Part
from lqrlab.simulation.scaling import Told
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant, check_plant
from lqrlab.systems.coordinates import widened
from lqrlab.systems.plant import is_linear, typical


@pytree
@dataclasses.dataclass(frozen=True)
class Problem(QuadraticRegulator):
    """Regulate these plants: x[t+1] = A x[t] + B u[t] at the cost Σ xᵀQx + uᵀRu + 2xᵀNu, whose optimum is u = −Kx.

    States x and inputs u are deviations from the equilibrium, in SI units; a problem that is :meth:`scaled` counts them
    in units of their scales. All arrays have the axes of the batch in front.

    Attributes:
        plant: the plant or plants; None for matrices alone.
        coordinates, dt, A, B, Q, R, N, K, P, in_scales: see :class:`QuadraticRegulator`.
        continuous: A, B of the linearised plant and the weights of the continuous cost; None for matrices alone.
        x_eq, u_eq: equilibrium; None for matrices alone.
        limits: of inputs (what the actuators can do), states, outputs and changes of inputs, as deviations; or None.
        noise: standard deviations of what disturbs the loop.
        linear: step the linearised plant by exact zero-order hold; else the nonlinear one by Runge-Kutta 4.
        substeps: Runge-Kutta steps in a sample time.

    >>> problem = simulation.Problem.of(systems.make("pendulum"), limits=(-1.0, 1.0))
    >>> problem.K.shape, bool(problem.optimal_cost(jnp.array([0.1, 0.0])) > 0)
    ((1, 2), True)
    """

    plant: Plant | None = None
    continuous: Continuous | None = None
    x_eq: Float[Array, "*batch n"] = None  # type: ignore[assignment]
    u_eq: Float[Array, "*batch m"] = None  # type: ignore[assignment]
    limits: Limits | None = None
    noise: Noise = NONE
    linear: bool = dataclasses.field(default=True, metadata={"static": True})
    substeps: int = dataclasses.field(default=1, metadata={"static": True})

    @classmethod
    def of(
        cls,
        plants: Plant | Sequence[Plant],
        *,
        dt: ArrayLike | None = None,
        limits: Limits | Pair | None = None,
        noise: ArrayLike = 0.0,
        sensor_noise: ArrayLike = 0.0,
        excitation: ArrayLike = 0.0,
        linear: bool = False,
        substeps: int | None = None,
        weights: tuple[ArrayLike, ArrayLike] | None = None,
        N: ArrayLike | None = None,
        optimum: bool = True,
    ) -> Self:
        """The problem of a plant or of many: linearised, sampled and solved once, here.

        Args:
            plants: one plant or a batch; or several batches of any families in a list, which become one batch of
                linear problems, padded to 12 states and 6 inputs, or the most that one has.
            dt: sample time [s], one, or one for each plant of the batch; the plant's if left out. Several for one plant
                make a batch of it.
            limits: ``(low, high)`` of the actuators, absolute, scalars or ``[m]``; or :class:`Limits`, absolute.
            noise: standard deviation of the disturbance of the state at each step, scalar, ``[n]``, ``[*batch, n]``; or
                its covariance ``[*batch, n, n]``, as :func:`lqrlab.control.sampled_noise` makes it.
            sensor_noise: the same of what a policy sees of the state.
            excitation: the same of what is added to its input, scalar, ``[m]`` or ``[*batch, m]``.
            linear: the linearised plant under exact zero-order hold, instead of the nonlinear one by Runge-Kutta 4. A
                plant whose equations are linear is held exactly in either case.
            substeps: Runge-Kutta steps in a sample time; if left out, enough for the plant's fastest mode. Inside
                ``jit`` or ``vmap`` over the plant's parameters or dt that mode is not known, so they have to be given.
            weights: Q and R of ∫ xᵀQx + uᵀRu dt instead of the plant's.
            N: cross weight of the cost, + 2xᵀNu; with ``linear=True``.
            optimum: whether K and P are designed.

        Raises:
            ValueError: what is wrong, in control terms; for a single plant outside a trace also that there is no
                stabilizing optimum, and why. In a batch K and P are NaN there.
        """
        disturbed = {"noise": noise, "sensor_noise": sensor_noise, "excitation": excitation}
        if not isinstance(plants, Plant):
            if weights is not None or N is not None:
                raise ValueError("weights, N: expected those of one plant or batch, but found a list of plants")
            return cls._of_list(sampling.listed(plants), dt, limits, optimum).disturbed(**disturbed)
        check_plant(plants)
        checks.flag("linear", linear)
        (plant, part), (x_eq, u_eq) = sampling.linearised(plants, dt, weights, N)
        found, best = sampling.sample(part, design=optimum)
        linear = is_linear(plants) or linear
        if not linear and N is not None:
            raise ValueError("N: a cross weight needs the linearised plant; pass linear=True")
        steps = sampling.substeps_of(plants, part.plant.A, plants.dt if dt is None else dt, substeps, linear)
        K, P = best or (None, None)
        problem = cls(
            part.coordinates,
            part.dt,
            *found,
            plant=plant,
            K=K,  # type: ignore[arg-type]
            P=P,  # type: ignore[arg-type]
            continuous=part.plant,
            x_eq=x_eq,
            u_eq=u_eq,
            linear=linear,
            substeps=steps,
        )
        return problem.limited(limits).disturbed(**disturbed)

    @classmethod
    def _of_list(
        cls, plants: Sequence[Plant], dt: ArrayLike | None, limits: Limits | Pair | None, optimum: bool
    ) -> Self:
        made = [sampling.linearised(plant, dt, model=at) for plant, at in zip(plants, sampling.models(list(plants)))]
        problem = cls.together([part for (_, part), _ in made], optimum=optimum)
        inputs = [widened(np.asarray(u).reshape(-1, u.shape[-1]), problem.m, 0.0) for _, (_, u) in made]
        held = as_jax(np.concatenate(inputs))  # absolute limits are around these
        limited = dataclasses.replace(problem, u_eq=held).limited(limits)
        return dataclasses.replace(limited, u_eq=None)  # type: ignore[arg-type]

    @classmethod
    def together(cls, parts: Sequence[Part], *, optimum: bool = True) -> Self:
        """The linear problem of plants one after another, each part's in its own units, padded to one size."""
        (plant, coordinates, times), found, best = sampling.sample_together(parts, design=optimum)
        K, P = best or (None, None)
        return cls(coordinates, times, *found, K=K, P=P, continuous=plant)  # type: ignore[arg-type]

    @classmethod
    def from_matrices(
        cls,
        A: ArrayLike,
        B: ArrayLike,
        Q: ArrayLike,
        R: ArrayLike,
        N: ArrayLike | None = None,
        *,
        dt: ArrayLike = 1.0,
        limits: Limits | Pair | None = None,
        optimum: bool = True,
    ) -> Self:
        """The problem of sampled matrices of which nothing else is known.

        Args:
            A, B, Q, R, N: x[t+1] = A x[t] + B u[t] and the weights of a step ``[*batch, …]``.
            dt: sample time [s].
            limits: as in :meth:`of`, deviations here.
            optimum: whether K and P are designed.
        """
        sampled = control.Sampled(*control.matrix_checks.arguments(A, B, Q, R, N))
        lead = np.broadcast_shapes(*(a.shape[:-2] for a in sampled))
        sampled = jax.tree.map(lambda a: jnp.broadcast_to(a, (*lead, *a.shape[-2:])), sampled)
        (n, m), dtype = sampled.B.shape[-2:], sampled.A.dtype
        ones = jnp.ones((*lead, n), dtype), jnp.ones((*lead, m), dtype)
        coordinates = Coordinates.from_scales(*ones, n_max=max(n, N_MAX), m_max=max(m, M_MAX))
        times = control.matrix_checks.sample_time(dt, dtype, *sampled)
        if times.ndim > len(lead):
            raise ValueError(f"dt: expected one sample time, or one for each of {lead}, but found {times.shape}")
        times = jnp.broadcast_to(times, lead)
        problem = cls(coordinates, times, *sampled).limited(limits)
        if not optimum:
            return problem
        with sampling.or_without():
            return problem.solved(check=False)

    @property
    def name(self) -> str:
        """The plant's, for messages."""
        return "the plant" if self.plant is None else self.plant.name

    @property
    def low(self) -> Any:
        """The least that the actuators can do ``[*batch, m]``, as a deviation; None for no limits."""
        return None if self.limits is None or self.limits.u is None else self.limits.u[0][..., 0, :]

    @property
    def high(self) -> Any:
        """The most that they can do ``[*batch, m]``."""
        return None if self.limits is None or self.limits.u is None else self.limits.u[1][..., 0, :]

    def __getitem__(self, index: Any) -> Self:
        """Some members of the batch: a whole number, a slice, a mask, an array."""
        inside = checks.traced(self, index)

        def chosen(a: Array) -> Array:  # on the host nothing is compiled for each size
            return a[index] if inside else jnp.asarray(np.asarray(a)[index])

        bare = jax.tree.map(chosen, dataclasses.replace(self, plant=None))
        return dataclasses.replace(bare, plant=None if self.plant is None else self.plant[index])

    def told(self, what: str = "everything") -> Told:
        """The view that a controller is given: ``"everything"``, or only ``"units"``, sample time and noise."""
        checks.choice("what", what, ("everything", "units"))
        exists = self.coordinates.state_mask[..., : self.n]
        noise, sensor_noise = (mean_size(a, self.scale_x, exists) for a in self.noise[:2])
        limit: ArrayLike = np.inf
        if self.low is not None:
            limit = jnp.min(jnp.minimum(-self.low, self.high) / self.scale_u, axis=-1)
        known = Told.units(
            self.units, self.dt, noise=noise, sensor_noise=sensor_noise, limit=limit, unit=self.coordinates
        )
        if what == "units":
            return known
        return dataclasses.replace(known, **self.scaled().sampled._asdict())

    def scaled(self) -> Self:
        """The same in units of the signals' scales, padded to 12 states and 6 inputs, or its own; linear."""
        return self if self.in_scales else scaling.scaled(self)

    def hidden(self) -> Self:
        """A copy with NaN matrices, for controllers that must not know the plant: units, noise and limits stay."""
        there = [name for name in "ABQRNKP" if getattr(self, name) is not None]
        told: Any = {name: jnp.full_like(getattr(self, name), jnp.nan) for name in there}
        nothing: Any = dict.fromkeys(("plant", "continuous", "x_eq", "u_eq"))
        return dataclasses.replace(self, **told, **nothing, linear=True, substeps=1)

    def limited(self, limits: Limits | Pair | None) -> Self:
        """The same with other limits, absolute, as in :meth:`of`; None for none."""
        return dataclasses.replace(self, limits=None if limits is None else carried(limits, self))

    def disturbed(self, *, noise: ArrayLike = 0.0, sensor_noise: ArrayLike = 0.0, excitation: ArrayLike = 0.0) -> Self:
        """The same under other noise, see :meth:`of`."""
        x, u = (self.n, self.coordinates.state_mask), (self.m, self.coordinates.input_mask)
        given = (("noise", noise, *x), ("sensor_noise", sensor_noise, *x), ("excitation", excitation, *u))
        drawn = (spread(*one, self.A.dtype, self.batch_shape) for one in given)
        return dataclasses.replace(self, noise=Noise(*drawn))

    def initial_state(self, *, key: PRNGKeyArray, num: int | None = None) -> Float[Array, "*loops n"]:
        """Typical initial deviations ``[*batch, n]`` or ``[*batch, num, n]``: normal, with the scales of states."""
        if self.plant is not None:
            return self.plant.initial_state(key=key, num=num)
        return typical(key, self.scale_x, self.coordinates.state_mask, self.batch_shape, num, self.A.dtype)

    def check_step(self, dt: Array) -> None:
        """Refuse another sample time than its own, outside a trace: a policy that predicts with it would be wrong."""
        whose = "the sample time of the policy's problem, {:g} s, with which it predicts the state,"
        check_step(self.dt, dt, whose, "make its problem with Problem.of(plant, dt={:g})")

    def saturate(self, u: ArrayLike) -> Float[Array, "*loops m"]:
        """u ``[*batch, *extra, m]`` within what the actuators can do."""
        u = checks.floating("u", u)
        if self.low is None:
            return u
        low, high = (expand_batch(a, u.ndim).astype(u.dtype) for a in (self.low, self.high))
        return jnp.clip(u, low, high)

    @one_program
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
        if key is not None and self.noise.state is not None:
            after = after + drawn(key, self.noise.state, x)
        return after.astype(x.dtype), cost.astype(x.dtype)

    @one_program
    def linearised(
        self, x: Float[Array, "*loops n"], u: Float[Array, "*loops m"]
    ) -> tuple[Float[Array, "*loops n n"], Float[Array, "*loops n m"], Float[Array, "*loops n"]]:
        """A, B of one step about (x, u), by exact differentiation, and the next deviation; u is not saturated.

        x[t+1] ≈ next + A (x[t] − x) + B (u[t] − u). Along a trajectory ``xs[..., :-1, :], us`` these are the matrices
        of a time-varying design, such as :func:`lqrlab.control.lq_tracking`.
        """
        move = self._hold if self.linear else self._integrate
        return (derivative(lambda x: move(x, u)[0], x), derivative(lambda u: move(x, u)[0], u), move(x, u)[0])

    def _hold(self, x: Array, u: Array) -> tuple[Array, Array]:
        """The linearised plant by exact zero-order hold."""
        cost = quadratic(self.Q, x) + 2 * jnp.sum(x * matvec(self.N, u), -1) + quadratic(self.R, u)
        return matvec(self.A, x) + matvec(self.B, u), cost

    def _integrate(self, x: Array, u: Array) -> tuple[Array, Array]:
        """The plant's own equations by Runge-Kutta 4, the cost integrated along."""
        plant, weights = self.plant, self.continuous
        assert plant is not None, "matrices alone are linear"
        assert weights is not None
        x_eq, u_eq = (expand_batch(a, x.ndim) for a in (self.x_eq, self.u_eq))
        u_abs, effort = u + u_eq, quadratic(weights.R, u)
        h = jnp.broadcast_to(expand_batch(self.dt / self.substeps, x.ndim - 1, 0), x.shape[:-1])

        def rates(state: tuple[Array, Array]) -> tuple[Array, Array]:
            x, _ = state
            flow = plant.dynamics(x + x_eq, u_abs).astype(x.dtype)
            return flow, quadratic(weights.Q, x) + effort

        start = (x, jnp.zeros(x.shape[:-1], x.dtype))
        return rk4(rates, start, (h[..., None], h), self.substeps)


def check_step(own: Array, dt: Array, whose: str, advice: str) -> None:
    """Refuse another step ``dt`` than ``own``, outside a trace; both texts may name the steps."""
    if checks.traced(own, dt):
        return
    expected, found = (np.array([np.min(a), np.max(a)]) for a in (own, dt))
    if not np.allclose(expected, found, rtol=1e-6, atol=0):
        raise ValueError(
            f"dt: expected {whose.format(expected[0])} but found {found[0]:g} s; {advice.format(found[0])}"
        )
