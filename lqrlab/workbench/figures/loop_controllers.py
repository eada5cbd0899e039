"""Controllers of the designer: the optimal gain, placed poles, integral action, output feedback; sampled and delayed.

A controller here is u = K(z) s, where s is the plant's state at a sample and the inputs that are on their way.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.simulation import LinearController, Problem
from lqrlab.systems import Plant

KINDS = ("LQR", "pole placement", "integral action", "LQG")
"""Ways to design a loop."""


@dataclasses.dataclass(frozen=True)
class ControllerChoice:
    """A way to design a loop, and its settings.

    Attributes:
        kind: one of :data:`KINDS`.
        faster: factor on the poles of the optimum, which are placed.
        damping: at least so much of each pair of them.
        held: number of the output that integral action brings back to zero.
        integral: factor on the weight of its error's integral.
        measured: numbers of the outputs that an estimator sees.
        disturbance: standard deviation of what disturbs each state in a second, in its scales.
        sensor: of each measurement's noise, in the output's scale.
    """

    kind: str = KINDS[0]
    faster: float = 1.0
    damping: float = 0.0
    held: int = 0
    integral: float = 1.0
    measured: tuple[int, ...] = ()
    disturbance: float = 0.1
    sensor: float = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class SampledLoop:
    """A plant and its controller at samples.

    Attributes:
        plant: A, B of the plant's state and the inputs on their way.
        controller: u = K(z) s of that state s.
        design: what ``control`` returned for it.
        back: what the controller's memory takes of an input that is cut ``[k, m]``.
        spread: standard deviation of each input under the noise it is designed for; None where there is none.
    """

    plant: tuple[Float[np.ndarray, "s s"], Float[np.ndarray, "s m"]]
    controller: control.StateSpace
    design: object
    back: Float[np.ndarray, "k m"]
    spread: Float[np.ndarray, " m"] | None = None

    @property
    def K(self) -> Float[np.ndarray, "m s+k"]:
        """The gain on the state of the loop: the plant's, the inputs on their way, the controller's memory."""
        return -np.hstack([self.controller.D, self.controller.C])

    @property
    def opened(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, B, K of the loop opened at the plant's input and closed by u = −Ks."""
        return *self.on_plant(*self.plant), self.K

    @property
    def closed(self) -> Float[np.ndarray, "s+k s+k"]:
        """A − BK."""
        A, B, K = self.opened
        return A - B @ K

    @functools.cached_property
    def margins(self) -> list[control.Margins]:
        """At each input; none of a loop that is not stable."""
        stable = np.abs(np.linalg.eigvals(self.closed)).max() < 1
        return control.margins(*self.opened, self.controller.dt) if stable else []

    def on_plant(self, A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The opened loop of the same controller on other plants ``[*batch, s, s]``, ``[*batch, s, m]``."""
        (F, G), lead = self.controller.matrices[:2], A.shape[:-2]
        right, below = (np.zeros((*lead, *shape)) for shape in ((A.shape[-1], len(F)), (len(F), B.shape[-1])))
        own = np.broadcast_to(np.hstack([G, F]), (*lead, len(F), A.shape[-1] + len(F)))
        return np.concatenate([np.concatenate([A, right], -1), own], -2), np.concatenate([B, below], -2)

    def price(self, sampled: control.Sampled) -> Float[np.ndarray, "*batch n n"]:
        """Π of plants without delay and limits, on which the controller pays x0ᵀΠx0 from rest; inf if unstable."""
        A, B, Q, R, N = (np.asarray(a) for a in sampled)
        more, still = (0, len(self.controller.A)), [(0, 0)] * (A.ndim - 2)
        wide = np.pad(Q, [*still, more, more]), R, np.pad(N, [*still, more, (0, 0)])
        K = np.broadcast_to(self.K, (*A.shape[:-2], *self.K.shape))
        paid = np.asarray(control.cost_to_go(control.Sampled(*self.on_plant(A, B), *wide), K))
        return np.nan_to_num(paid[..., : A.shape[-1], : A.shape[-1]], nan=np.inf)

    def rest(self, x: Float[np.ndarray, " n"], u: Float[np.ndarray, " m"]) -> Float[np.ndarray, " s"]:
        """The state of the loop when the plant rests at x under u: its sum brings u about, its estimate is right."""
        plant = np.concatenate([x, np.tile(u, (len(self.plant[0]) - len(x)) // len(u))])
        if not isinstance(self.design, control.Integral):
            return np.concatenate([plant, plant[: len(self.controller.A)]])
        lacks = -(u + self.K[:, :-1] @ plant)
        return np.append(plant, np.linalg.lstsq(self.K[:, -1:], lacks, rcond=None)[0])

    def policy(self, n: int, late: int, limits: Float[np.ndarray, " m"]) -> LinearController:
        """The controller of the plant's n states and ``late`` inputs, padded so that all kinds run one program."""
        m = len(limits)
        seen, memory = n + late * m, n + late * m
        A, B, C, D = self.controller.matrices
        more, wide = (0, memory - len(A)), (0, seen - B.shape[1])
        system = np.pad(A, more), np.pad(B, (more, wide)), np.pad(C, ((0, 0), more)), np.pad(D, ((0, 0), wide))
        rest = np.pad(self.back, (more, (0, 0))), np.zeros(memory), -limits, limits
        return LinearController(control.StateSpace(*system), *rest)  # type: ignore[arg-type]


def noise(
    choice: ControllerChoice, plant: Plant, dt: float
) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "p p"]]:
    """Covariances of what disturbs the state from sample to sample, and of the measurements' noise."""
    states, sensors = np.asarray(plant.scales[0]), np.array([plant.outputs[i].scale for i in choice.measured])
    return np.diag((choice.disturbance * states) ** 2 * dt), np.diag((choice.sensor * sensors) ** 2)


def wanted_poles(choice: ControllerChoice, optimum: control.LQR, dt: float) -> Complex[np.ndarray, " n"]:
    """The optimum's poles, faster and damped; those at and left of the origin stay, for they are no continuous ones."""
    z = np.asarray(optimum.poles, complex)
    moves = (np.abs(z.imag) > 1e-9 * np.abs(z)) | (z.real > 0)
    s = choice.faster * np.log(np.where(moves, z, 0.5)) / dt
    short = (np.abs(s.imag) > 0) & (-s.real < choice.damping * np.abs(s))
    damped = np.abs(s) * (-choice.damping + 1j * np.sign(s.imag) * np.sqrt(1 - choice.damping**2))
    return np.where(moves, np.exp(np.where(short, damped, s) * dt), z)


def integral_weight(choice: ControllerChoice, plant: Plant, optimum: control.LQR, dt: float) -> float:
    """The weight of the sum of y = cx; at the factor 1 the integral settles about as fast as the optimum does.

    A deviation y costs y²p at the optimum; its integral over a time constant T is yT, and the sum of it yT/dt, which
    cost as much when they are paid over T.
    """
    c = np.asarray(plant.output_matrix())[choice.held]
    p = float(c @ np.asarray(optimum.P) @ c) / float(c @ c) ** 2
    lasts = control.settling_time(np.asarray(optimum.poles), dt, within=np.exp(-1.0))
    return choice.integral * p * (dt / max(float(lasts), dt)) ** 3


def sampled_loop(
    choice: ControllerChoice,
    problem: Problem,
    sampled: control.Sampled,
    dt: float,
    optimum: control.LQR,
    delay: float,
    *,
    known: bool,
) -> SampledLoop:
    """The loop at samples of a controller, of which ``known`` says whether it is made for the delay.

    Args:
        choice: what is wanted.
        problem: the plant's.
        sampled: its dynamics and weights of a sample, without delay.
        dt: sample time [s].
        optimum: of these.
        delay: of the inputs, in sample times.
        known: whether the controller is made for the delay.

    Raises:
        ValueError: there is none, in control terms.
    """
    A, B, Q, R, N = (np.asarray(a) for a in sampled)
    plant, continuous, late = problem.plant, problem.continuous, (A, B)
    assert plant is not None, "matrices alone have no outputs"
    assert continuous is not None
    if delay:
        extended = control.delayed(*continuous[:4], dt, delay)
        late = np.asarray(extended.A), np.asarray(extended.B)
    (wide, m), n, ahead = late[1].shape, plant.n, np.eye(plant.n, len(late[0]))
    if known:
        ahead = arriving(continuous.A, continuous.B, dt, delay)
        A, B, Q, N = *late, ahead.T @ Q @ ahead, ahead.T @ N
    C = np.asarray(plant.output_matrix())
    nothing = np.zeros((0, 0)), np.zeros((0, wide)), np.zeros((m, 0))
    if choice.kind in KINDS[:2]:
        gain = np.asarray(optimum.K)
        if choice.kind == "pole placement":
            gain = np.asarray(control.place(sampled.A, sampled.B, wanted_poles(choice, optimum, dt)))
        return SampledLoop(late, control.StateSpace(*nothing, -gain @ ahead, dt), gain, np.zeros((0, m)))
    if choice.kind == "integral action":
        weight = integral_weight(choice, plant, optimum, dt)
        c = np.pad(C[[choice.held]], ((0, 0), (0, len(A) - n)))
        sums = control.lqi(A, B, c, Q, R, np.array([[weight]]), N, discrete=True)
        K, Ki = (np.pad(np.asarray(a), ((0, 0), (0, more))) for a, more in ((sums.K, wide - len(A)), (sums.Ki, 0)))
        system = control.StateSpace(np.eye(1), np.pad(C[[choice.held]], ((0, 0), (0, wide - n))), -Ki, -K, dt)
        return SampledLoop(late, system, sums, -np.linalg.pinv(Ki))  # the sum gives back what was cut
    if not choice.measured:
        raise ValueError("LQG: expected one measured output at least; tick those that there are sensors for")
    W, V = noise(choice, plant, dt)
    c = np.pad(C[list(choice.measured)], ((0, 0), (0, len(A) - n)))
    output = control.lqg(A, B, c, Q, R, np.pad(W, (0, len(A) - n)), V, N, discrete=True)
    F, L, gain, _ = (np.asarray(a) for a in output.controller(dt).matrices)
    G = np.pad(L @ c[:, :n], ((0, 0), (0, wide - n)))
    loop = SampledLoop(late, control.StateSpace(F, G, gain, np.zeros((m, wide)), dt), output, B)
    drives = np.zeros((wide + len(F), wide + len(F)))
    drives[:n, :n], drives[wide:, wide:] = W, L @ V @ L.T
    spread = np.diagonal(loop.K @ np.asarray(control.dlyap(loop.closed, drives)) @ loop.K.T)
    return dataclasses.replace(loop, spread=np.sqrt(np.nan_to_num(spread, nan=np.inf)))


def arriving(A: Array, B: Array, dt: float, delay: float) -> Float[np.ndarray, "n s"]:
    """The plant's state when an input of now begins to act, of the state of now and the inputs on their way."""
    (n, m), late = B.shape, math.ceil(delay)
    x, *sent = np.split(np.eye(n + m * late), [n + m * i for i in range(late)])
    for age in range(late, 0, -1):  # the oldest acts until the next arrives
        a, b = (np.asarray(f) for f in control.c2d(A, B, dt * (delay - late + 1 if age == late else 1.0)))
        x = a @ x + b @ sent[age - 1]
    return x


@pytree
@dataclasses.dataclass(frozen=True)
class LateController:
    """A controller that is slower than the simulation, whose inputs arrive late, with a load: all are arguments.

    Attributes:
        controller: of the state and the inputs sent before, the newest first.
        hold: steps of the simulation from one input to the next.
        delay: steps until an input acts, at most ``late * hold``.
        load: what is added to the input ``[m]``.
        late: inputs sent before that are remembered.
    """

    controller: LinearController
    hold: int | Int[Array, ""]
    delay: int | Int[Array, ""]
    load: Float[Array | np.ndarray, " m"]
    late: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, object, Array]:
        """No step taken, the controller's memory, nothing sent."""
        sent = jnp.zeros((*batch_shape, self.late + 1, len(self.load)), self.load.dtype)
        return jnp.zeros((), int), self.controller.init(batch_shape), sent

    def __call__(self, carry: tuple[Array, Array, Array], x: Array) -> tuple[tuple[Array, object, Array], Array]:
        """The input that arrives now, and the load."""
        step, *before = carry

        def sampled() -> tuple[Array, Array]:
            memory, sent = before
            known = sent[..., :-1, :].reshape(*x.shape[:-1], -1)
            memory, u = self.controller(memory, jnp.concatenate([x, known.astype(x.dtype)], axis=-1))
            return memory, jnp.concatenate([u[..., None, :].astype(sent.dtype), sent[..., :-1, :]], axis=-2)

        memory, sent = jax.lax.cond(step % self.hold == 0, sampled, lambda: tuple(before))
        age = step // self.hold - (step - self.delay) // self.hold
        return (step + 1, memory, sent), jnp.take(sent, age, axis=-2).astype(x.dtype) + self.load
