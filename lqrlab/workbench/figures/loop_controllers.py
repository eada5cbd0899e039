"""Controllers of the designer: the optimal gain, placed poles, integral action, output feedback; sampled and delayed.

A controller here is u = −Kx x − Kz z with z[t+1] = F z + G x + E u, where x is the plant's state at a sample and z the
controller's memory: inputs that are on their way, the sum of an error, an estimate.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, Complex, Float, Int

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.simulation import Held, LinearController
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
        A, B, K: the loop opened at the plant's input and closed by u = −Ks; s begins with the plant's state.
        memory: F, G, E, Kz, Kx of the controller, see the module.
        back: what the memory takes of an input that is cut, beyond E.
        design: what ``control`` returned for it.
        spread: standard deviation of each input under the noise it is designed for; None where there is none.
    """

    A: Float[np.ndarray, "s s"]
    B: Float[np.ndarray, "s m"]
    K: Float[np.ndarray, "m s"]
    memory: tuple[np.ndarray, ...]
    back: Float[np.ndarray, "k m"]
    design: object
    spread: Float[np.ndarray, " m"] | None = None

    @property
    def on_state(self) -> Float[np.ndarray, "m n"]:
        """The gain on the plant's state where nothing is on its way, the sum is zero and the estimate is right."""
        n = self.memory[1].shape[1]
        direct = self.K[:, :n]
        return direct if not isinstance(self.design, control.LQG) else np.asarray(self.design.regulator.K)[:, :n]

    @property
    def opened(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, B, K."""
        return self.A, self.B, self.K

    @property
    def closed(self) -> Float[np.ndarray, "s s"]:
        """A − BK."""
        return self.A - self.B @ self.K

    def rest(self, x: Float[np.ndarray, " n"], u: Float[np.ndarray, " m"]) -> Float[np.ndarray, " s"]:
        """The state of the loop when the plant rests at x under u: its sum brings u about, its estimate is right."""
        memory = {control.Integral: 1, control.LQG: len(self.memory[0])}.get(type(self.design), 0)
        plant = np.concatenate([x, np.tile(u, (len(self.A) - memory - len(x)) // len(u))])
        if not isinstance(self.design, control.Integral):
            return np.concatenate([plant, plant[:memory]])
        lacks = -(u + self.K[:, :-1] @ plant)
        return np.append(plant, np.linalg.lstsq(self.K[:, -1:], lacks, rcond=None)[0])

    def on_plant(self, A: Float[np.ndarray, "w w"], B: Float[np.ndarray, "w m"]) -> tuple[np.ndarray, np.ndarray]:
        """The closed loop of the same controller on another plant, and the gain on its state (plant's, memory)."""
        F, G, E, Kz, Kx = self.memory
        wide = ((0, 0), (0, len(A) - G.shape[1]))
        G, Kx = np.pad(G, wide), np.pad(Kx, wide)
        return np.block([[A - B @ Kx, -B @ Kz], [G - E @ Kx, F - E @ Kz]]), np.hstack([Kx, Kz])

    def price(self, sampled: control.Sampled) -> Float[np.ndarray, "n n"]:
        """Π of a plant without delay and limits, on which the controller pays x0ᵀΠx0 from rest; inf if unstable."""
        A, B, Q, R, N = (np.asarray(a) for a in sampled)
        closed, gain = self.on_plant(A, B)
        if np.abs(np.linalg.eigvals(closed)).max() >= 1:
            return np.full(A.shape, np.inf)
        more = (0, len(closed) - len(A))
        weight = np.asarray(control.stage_weight(np.pad(Q, (more, more)), R, np.pad(N, (more, (0, 0))), gain))
        return scipy.linalg.solve_discrete_lyapunov(closed.T, weight)[: len(A), : len(A)]

    def policy(self, size: int, limits: Float[np.ndarray, " m"]) -> LinearController:
        """The controller with its memory padded to one size, so that all kinds run one program."""
        F, G, E, Kz, Kx = self.memory
        more = (0, size - len(F))
        F, G, E, back = (
            np.pad(a, (more, last)) for a, last in ((F, more), (G, (0, 0)), (E, (0, 0)), (self.back, (0, 0)))
        )
        Kz = np.pad(Kz, ((0, 0), more))
        system = F - E @ Kz, G - E @ Kx, -Kz, -Kx
        rest = E + back, np.zeros(size), -limits, limits
        system, rest = jax.tree.map(lambda a: jnp.asarray(a, float), (system, rest))
        return LinearController(control.StateSpace(*system), *rest)


def designed(
    choice: ControllerChoice, plant: Plant, problem: control.Sampled, dt: float, optimum: control.LQR
) -> np.ndarray | control.Integral | control.LQG:
    """The controller of a sampled problem whose first states are the plant's.

    Args:
        choice: what is wanted.
        plant: whose outputs are held or measured.
        problem: dynamics and weights of a sample; may have the inputs on their way among its states.
        dt: sample time [s].
        optimum: the optimum of the plant without delay.

    Raises:
        ValueError: there is none, in control terms.
    """
    A, B, Q, R, N = (np.asarray(a) for a in problem)
    C = np.pad(np.asarray(plant.output_matrix()), ((0, 0), (0, len(A) - plant.n)))
    match choice.kind:
        case "LQR":
            return np.asarray(optimum.K)
        case "pole placement":
            return np.asarray(control.place(A, B, wanted_poles(choice, optimum, dt)))
        case "integral action":
            weight = integral_weight(choice, plant, optimum, dt)
            return control.lqi(A, B, C[[choice.held]], Q, R, np.array([[weight]]), N, discrete=True)
    if not choice.measured:
        raise ValueError("LQG: expected one measured output at least; tick those that there are sensors for")
    W, V = noise(choice, plant, dt)
    W = np.pad(W, (0, len(A) - plant.n))
    return control.lqg(A, B, C[list(choice.measured)], Q, R, W, V, N, discrete=True)


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
    plant: Plant,
    sampled: control.Sampled,
    dt: float,
    optimum: control.LQR,
    wait: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    known: bool,
) -> SampledLoop:
    """The loop at samples of a controller, of which ``known`` says whether it is made for the delay.

    Args:
        choice: what is wanted.
        plant: the plant.
        sampled: its dynamics and weights of a sample, without delay.
        dt: sample time [s].
        optimum: of these.
        wait: the plant with the inputs on their way, and the state that an input finds when it begins to act, as
            :func:`lqrlab.workbench.figures.loop_sampling.late` makes them.
        known: whether the controller is made for the delay.

    Raises:
        ValueError: there is none, in control terms.
    """
    A, B, ahead = wait
    (wide, m), n = B.shape, plant.n
    if choice.kind in KINDS[:2]:
        gain = designed(choice, plant, sampled, dt, optimum)
        assert isinstance(gain, np.ndarray)
        K = gain @ ahead if known else np.pad(gain, ((0, 0), (0, wide - n)))
        sent = np.eye(wide - n, m)
        memory = np.eye(wide - n, k=-m), np.zeros((wide - n, n)), sent, K[:, n:], K[:, :n]
        return SampledLoop(A, B, K, memory, np.zeros_like(sent), gain)
    _, _, Q, R, N = (np.asarray(a) for a in sampled)
    model = control.Sampled(*map(jnp.asarray, (A, B, ahead.T @ Q @ ahead, R, ahead.T @ N))) if known else sampled
    design = designed(choice, plant, model, dt, optimum)
    if isinstance(design, control.Integral):
        return _with_sum(A, B, design, n)
    assert isinstance(design, control.LQG)
    return _with_estimate(A, B, design, *noise(choice, plant, dt))


def _with_sum(A: np.ndarray, B: np.ndarray, design: control.Integral, n: int) -> SampledLoop:
    """Integral action: the memory is the inputs on their way that the design knows of, and the sum of the error."""
    (wide, m), K, Ki = B.shape, np.asarray(design.K), np.asarray(design.Ki)
    kept, C = K.shape[1] - n, np.asarray(design.C)[:, :n]
    c = np.pad(C, ((0, 0), (0, wide - n)))
    joint = np.block([[A, np.zeros((wide, 1))], [c, np.eye(1)]])
    gain = np.hstack([np.pad(K, ((0, 0), (0, wide - n - kept))), Ki])
    F = scipy.linalg.block_diag(np.eye(kept, k=-m), np.eye(1))
    G, E = np.vstack([np.zeros((kept, n)), C]), np.vstack([np.eye(kept, m), np.zeros((1, m))])
    back = np.vstack([np.zeros((kept, m)), -np.linalg.pinv(Ki)])  # the sum gives back what was cut
    return SampledLoop(
        joint, np.vstack([B, np.zeros((1, m))]), gain, (F, G, E, np.hstack([K[:, n:], Ki]), K[:, :n]), back, design
    )


def _with_estimate(A: np.ndarray, B: np.ndarray, design: control.LQG, W: np.ndarray, V: np.ndarray) -> SampledLoop:
    """Output feedback: the memory is the estimate of the state that the design knows of."""
    n = len(W)
    a, b, c = (np.asarray(p) for p in design.plant)
    K, L, (wide, m) = np.asarray(design.regulator.K), np.asarray(design.estimator.L), B.shape
    F, G = a - L @ c, L @ c[:, :n]
    joint = np.block([[A, np.zeros((wide, len(a)))], [np.pad(G, ((0, 0), (0, wide - n))), F - b @ K]])
    port, gain = np.vstack([B, np.zeros_like(b)]), np.hstack([np.zeros((m, wide)), K])
    memory = F, G, b, K, np.zeros((m, n))
    closed, spread = joint - port @ gain, np.full(m, np.inf)
    if np.abs(np.linalg.eigvals(closed)).max() < 1:
        drives = scipy.linalg.block_diag(np.pad(W, (0, wide - n)), L @ V @ L.T)
        spread = np.sqrt(np.diagonal(gain @ scipy.linalg.solve_discrete_lyapunov(closed, drives) @ gain.T))
    return SampledLoop(joint, port, gain, memory, np.zeros_like(b), design, spread)


@pytree
@dataclasses.dataclass(frozen=True)
class HeldController(Held):
    """A held policy whose sample time is an argument of the program: moving its slider compiles nothing."""

    every: Int[Array, ""]  # type: ignore[assignment]


@pytree
@dataclasses.dataclass(frozen=True)
class LateController:
    """A controller whose inputs arrive some ticks late, with a load; both are arguments of the program.

    Attributes:
        policy: the controller.
        delay: ticks.
        load: what is added to the input ``[m]``.
        longest: ticks of delay, at most.
    """

    policy: HeldController
    delay: Int[Array, ""]
    load: Float[Array, " m"]
    longest: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[object, Array]:
        """The controller's memory, and no input on its way."""
        return self.policy.init(batch_shape), jnp.zeros((*batch_shape, self.longest + 1, self.policy.m))

    def __call__(self, carry: tuple[object, Array], x: Array) -> tuple[tuple[object, Array], Array]:
        """The input that arrives now, and the load."""
        memory, u = self.policy(carry[0], x)  # type: ignore[arg-type]
        queue = jnp.concatenate([u[..., None, :], carry[1][..., :-1, :]], axis=-2)
        return (memory, queue), jnp.take(queue, self.delay, axis=-2) + self.load
