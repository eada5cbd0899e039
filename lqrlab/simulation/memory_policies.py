"""Policies with a memory; sensors, delayed inputs and slow sampling between plant and policy.

Designs are output feedback, integral action, and inputs that are on their way; which kinds of controllers there are:
:mod:`lqrlab.simulation.binding`.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from lqrlab.compute import checks, linalg, one_program, pytree
from lqrlab.compute.linalg import expand_batch, matvec
from lqrlab.control import LQG, LQR, Integral, StateSpace
from lqrlab.simulation.policies import DelayedPolicy, LinearPolicy, Policy, measured_or
from lqrlab.simulation.problem import Problem
from lqrlab.systems import Plant, check_plant


@pytree
@dataclasses.dataclass(frozen=True)
class Outputs:
    """The plant's own measurements y = h(x), as deviations from those at the equilibrium; :func:`outputs` makes it."""

    plant: Plant
    x_eq: Float[Array, "*batch n"]
    y_eq: Float[Array, "*batch p"]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an output matrix: ``(…, p, n)``."""
        return (*self.y_eq.shape, self.x_eq.shape[-1])

    def __call__(self, x: ArrayLike) -> Float[Array, "*loops p"]:
        """y of deviations x ``[*loops, n]``."""
        x = checks.floating("x", x)
        x_eq, y_eq = (expand_batch(a.astype(x.dtype), x.ndim) for a in (self.x_eq, self.y_eq))
        return self.plant.output(x + x_eq).astype(x.dtype) - y_eq


def outputs(plant: Plant) -> Outputs:
    """The sensors that the plant declares, possibly nonlinear; a matrix C is a sensor too.

    >>> simulation.outputs(systems.make("pendulum"))(jnp.array([0.1, 0.0])).shape
    (1,)
    """
    check_plant(plant)
    x_eq, _ = plant.equilibrium()
    return Outputs(plant, x_eq, plant.output(x_eq))


def measure(sensor: Array | Outputs, x: Float[Array, "*loops n"]) -> Float[Array, "*loops p"]:
    """Sensor output y of deviations x: Cx of a matrix C ``[*batch, p, n]``."""
    return sensor(x) if isinstance(sensor, Outputs) else matvec(jnp.asarray(sensor, x.dtype), x)


@pytree
@dataclasses.dataclass(frozen=True)
class Measured:
    """A policy of measured outputs instead of states.

    Noise of the sensors is ``rollout``'s ``sensor_noise``, on the states before they are measured.

    Attributes:
        policy: a policy of outputs, such as :class:`LinearController`.
        sensor: matrix C ``[*batch, p, n]`` or :class:`Outputs`.
    """

    policy: Policy
    sensor: Array | Outputs

    def __post_init__(self) -> None:
        if not isinstance(self.sensor, Outputs):
            checks.real("sensor", self.sensor, finite=True)

    def init(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The policy's memory."""
        return self.policy.init(batch_shape)

    @one_program
    def __call__(self, carry: PyTree, x: Array) -> tuple[PyTree, Array]:
        """The policy's input for what the sensors show of x."""
        return self.policy(carry, measure(self.sensor, x))


@pytree
@dataclasses.dataclass(frozen=True)
class LinearController:
    """u = Cz + Dy with z[t+1] = Az + By + b + E (v − u), where v is u within what the actuators can do.

    The term E (v − u) tells the controller what the plant really got: without it an integrator winds up, and an
    estimator believes in inputs that never were.

    Attributes:
        system: A, B, C, D: ``[*batch, k, k]``, ``[*batch, k, p]``, ``[*batch, m, k]``, ``[*batch, m, p]``.
        E: ``[*batch, k, m]``.
        b: constant input of the controller, such as minus the set-point of an integrator ``[*batch, k]``.
        low, high: limits as deviations from the equilibrium input ``[*batch, m]``; ∓inf for none.
        H: y that z predicts, Hz, which stands in for a measurement that is not finite ``[*batch, p, k]``; zero if left
            out.
        start: z at the beginning ``[*batch, k]``; zero if left out.

    Source: K. J. Åström and B. Wittenmark, Computer-Controlled Systems, 3rd ed. (1997), section 9.4 (anti-windup).
    """

    system: StateSpace
    E: Float[Array, "*batch k m"]
    b: Float[Array, "*batch k"]
    low: Float[Array, "*batch m"]
    high: Float[Array, "*batch m"]
    H: Float[Array, "*batch p k"] | None = None
    start: Float[Array, "*batch k"] | None = None

    @classmethod
    def of(cls, system: StateSpace, problem: Problem, **more: Array) -> "LinearController":
        """That of a system u = K(z) y on a problem: sampled at its step, with its limits; E and b zero if left out.

        >>> problem = simulation.Problem.of(systems.make("pendulum"))
        >>> lag = control.StateSpace([[-9.0]], [[1.0]], [[0.0]], [[-20.0]])
        >>> policy = simulation.Measured(simulation.LinearController.of(lag, problem), jnp.array([[1.0, 0.2]]))
        >>> float(policy(policy.init(()), jnp.array([0.1, 0.0]))[1][0])
        -2.0
        """
        A, B, C, D = system.matrices
        if not system.order:  # a policy's memory cannot be empty: one state that stays zero
            p, m = np.shape(D)[-1], np.shape(D)[-2]
            A, B, C = np.zeros((1, 1)), np.zeros((1, p)), np.zeros((m, 1))
        held = StateSpace(A, B, C, D, system.dt).sampled(problem.dt)
        A, B, C, D = (jnp.asarray(a, problem.A.dtype) for a in held.matrices)
        more.setdefault("E", jnp.zeros((*A.shape[:-1], D.shape[-2]), A.dtype))
        more.setdefault("b", jnp.zeros(A.shape[:-1], A.dtype))
        low, high = limits_of(problem)
        return cls(StateSpace(A, B, C, D, problem.dt), low=low, high=high, **more)

    def init(self, batch_shape: tuple[int, ...]) -> Array:
        """z of the start."""
        A = self.system.A
        z = jnp.zeros((*batch_shape, A.shape[-1]), A.dtype)
        return z if self.start is None else jnp.broadcast_to(expand_batch(self.start, z.ndim), z.shape)

    @one_program
    def __call__(self, carry: Array, x: Array) -> tuple[Array, Array]:
        """v of the outputs (or states) that it is given."""
        y = x.astype(carry.dtype)
        y = measured_or(jnp.zeros_like(y) if self.H is None else matvec(self.H, carry), y)
        A, B, C, D = self.system.matrices
        u = matvec(C, carry) + matvec(D, y)
        v = jnp.clip(u, *(expand_batch(a, u.ndim) for a in (self.low, self.high)))
        z = matvec(A, carry) + matvec(B, y) + expand_batch(self.b, y.ndim) + matvec(self.E, v - u)
        return z, v.astype(x.dtype)


def estimated(plant: Plant | Problem, design: LQG) -> Measured:
    """The policy of an LQG design on a linear or nonlinear plant: measures y = Cx, estimates the state.

    Args:
        plant: one plant, or the batch that the design is of; or a problem of them, whose limits its estimator knows.
        design: of :func:`lqrlab.control.lqg` with ``discrete=True``, for the sampled plant, in either form.

    >>> plant = systems.make("pendulum")
    >>> A, B, Q, R, N = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
    >>> design = control.lqg(A, B, [[1.0, 0.0]], Q, R, 1e-4 * np.eye(2), [[1e-4]], N, discrete=True)
    >>> run = simulation.rollout(plant, design, jnp.array([0.2, 0.0]), 600)
    >>> bool(jnp.abs(run.xs[-1]).max() < 1e-3)  # the rate was never measured
    True
    """
    problem = problem_of(plant)
    checks.instance("design", design, LQG, "an LQG design, as control.lqg makes")
    _check_sampled(design.discrete)
    _, B, C = design.plant
    check_sizes(problem, C.shape[-1], B.shape[-1])
    return Measured(LinearController.of(design.controller(problem.dt), problem, E=B, H=C), C)


def measuring(problem: Problem, system: StateSpace) -> Measured:
    """The policy of a system u = K(z) y, or K(s) sampled at the problem's step, of what the plant's sensors show."""
    if problem.plant is None:
        raise ValueError("controller: expected a problem with a plant, whose outputs a StateSpace measures")
    shown = outputs(problem.plant)
    found, expected = np.shape(system.D)[-2:], (problem.m, shown.shape[-2])
    if found != expected:
        raise ValueError(
            f"controller: expected a StateSpace of {expected[0]} inputs by {expected[1]} outputs of {problem.name}, "
            f"but found {found[0]} by {found[1]}; other measurements Cx of yours: simulation.Measured("
            "simulation.LinearController.of(system, problem), C)"
        )
    return Measured(LinearController.of(system, problem), shown)


def integrating(plant: Plant | Problem, design: Integral, r: ArrayLike | None = None) -> LinearController:
    """The policy of a regulator with integral action, which holds Cx = r; it sees the state.

    Within limits the integrals do not wind up: at each sample they give back what was cut off of the input.

    Args:
        plant: one plant, or the batch that the design is of; or a problem of them, with its limits.
        design: of :func:`lqrlab.control.lqi` with ``discrete=True``, for the sampled plant.
        r: set-point ``[*batch, p]``, as a deviation from the equilibrium; zero if left out.
    """
    problem = problem_of(plant)
    checks.instance("design", design, Integral, "a regulator with integral action, as control.lqi makes")
    _check_sampled(design.discrete)
    check_sizes(problem, design.K.shape[-1], design.K.shape[-2])
    Ki, p, n = design.Ki, design.C.shape[-2], problem.n
    set_point = jnp.zeros(p) if r is None else jnp.asarray(checks.real("r", r, finite=True), Ki.dtype)
    if set_point.shape[-1:] != (p,):
        raise ValueError(f"r: expected {p} numbers, one for each output, but found shape {set_point.shape}")
    # Ki times this is the identity on what the integrals can do to the inputs
    back = -linalg.solve_many(Ki.mT @ Ki, Ki.mT)
    low, high = limits_of(problem)
    # z holds the integrals and, for a measurement that is missing, the state that the model expects: Ay + Bv, of a
    # plant that is hidden y
    A = jnp.where(jnp.isfinite(problem.A), problem.A, jnp.eye(n, dtype=problem.A.dtype))
    B, lead = jnp.nan_to_num(problem.B, nan=0.0), jnp.broadcast_shapes(design.C.shape[:-2], problem.batch_shape)

    def rows(of_integrals: Array, of_state: Array) -> Array:
        parts = (jnp.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (of_integrals, of_state))
        return jnp.concatenate([a.astype(Ki.dtype) for a in parts], axis=-2)

    integrals = jnp.eye(p, p + n, dtype=Ki.dtype)
    u_of_z = -Ki @ jnp.broadcast_to(integrals, (*Ki.shape[:-2], p, p + n))
    nowhere = jnp.zeros((*set_point.shape[:-1], n), Ki.dtype)
    system = StateSpace(rows(integrals, B @ u_of_z), rows(design.C, A - B @ design.K), u_of_z, -design.K, problem.dt)
    return LinearController(
        system,
        E=rows(back, B),
        b=jnp.concatenate([-set_point, nowhere], axis=-1),
        low=low,
        high=high,
        H=jnp.eye(n, p + n, p, dtype=Ki.dtype),
    )


def delayed(
    plant: Plant | Problem, design: LQR, delay: float | Sequence[float], *, ticks: int = 1, limit: ArrayLike = np.inf
) -> DelayedPolicy:
    """The policy of a delay-aware design: its inputs act late, and delayed inputs are in its memory.

    Args:
        plant: one plant, or the batch that the design is of; or a problem of them.
        design: of :func:`lqrlab.control.lqrd_delayed` for this ``delay`` and the plant's sample time.
        delay: in sample times, one for all inputs or one each.
        ticks: steps of the simulation in a sample time, so many that ``delay * ticks`` is a whole number: roll it out
            with ``dt / ticks``, or it is refused.
        limit: magnitude at which an input is cut, as a deviation, scalar or ``[m]``.
    """
    problem = problem_of(plant)
    checks.instance("design", design, LQR, "a regulator, as control.lqrd_delayed makes")
    words = "a number of sample times ≥ 0, one for all inputs or one each"
    each = list(delay) if isinstance(delay, Sequence | np.ndarray) and np.ndim(delay) else [delay]
    waits = np.array([checks.number("delay", d, words, low=0) for d in each])
    if len(waits) not in (1, problem.m):
        raise ValueError(f"delay: expected {words}, but found {len(waits)} for {problem.m} inputs")
    steps = waits * checks.whole("ticks", ticks)
    if (off := np.abs(steps - np.round(steps))).max() > 1e-9:
        i = int(np.argmax(off))
        raise ValueError(
            f"ticks: expected so many that delay * ticks is whole, but found {waits[i]:g} * {ticks} = {steps[i]:g}"
        )
    memory = int(np.ceil(waits.max()))
    check_sizes(problem, design.K.shape[-1] - memory * problem.m, design.K.shape[-2])
    cut = jnp.asarray(checks.real("limit", limit, low=0), design.K.dtype)
    if cut.shape not in ((), (1,), (problem.m,)):
        raise ValueError(f"limit: expected one number or {problem.m}, one an input, but found shape {cut.shape}")
    cut = jnp.broadcast_to(cut, (problem.m,))
    step = problem.dt / ticks
    late = jnp.asarray(np.round(steps).astype(int))
    return DelayedPolicy(LinearPolicy(design.K), jnp.asarray(ticks), late, cut, memory, True, step)


def problem_of(plant: Plant | Problem) -> Problem:
    """The problem that a policy is made for."""
    return plant if isinstance(plant, Problem) else Problem.of(plant, optimum=False)


def limits_of(problem: Problem) -> tuple[Array, Array]:
    """Ends of the inputs ``[*batch, m]``; ∓inf for none."""
    if problem.low is None or problem.high is None:
        free = jnp.full((*problem.batch_shape, problem.m), jnp.inf, problem.A.dtype)
        return -free, free
    return problem.low, problem.high


def _check_sampled(discrete: bool) -> None:
    if not discrete:
        raise ValueError(
            "design: expected one for the sampled plant, but found a continuous one; design it with discrete=True for "
            "the matrices of control.discretize"
        )


def check_sizes(problem: Problem, n: int, m: int) -> None:
    """Refuse a design whose states and inputs are not as many as the problem's."""
    if (n, m) != (problem.n, problem.m):
        raise ValueError(
            f"design: expected {problem.n} states and {problem.m} inputs, as {problem.name} has, but found {n} and {m}"
        )
