"""Controllers of the designer: the optimal gain, placed poles, integral action, output feedback; sampled and delayed.

A controller here is u = K(z) s, where s is the plant's state at a sample and the inputs that are on their way.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Array, Float

from lqrlab import control
from lqrlab.control.analysis import system_norms
from lqrlab.simulation import LinearController
from lqrlab.systems import Plant

KINDS = ("LQR", "pole placement", "integral action", "LQG")
"""Ways to design a loop."""


@dataclasses.dataclass(frozen=True)
class ControllerChoice:
    """A way to design a loop, and its settings."""

    kind: str = KINDS[0]  # one of KINDS
    poles: tuple[complex, ...] = ()  # that are placed [rad/s]
    held: int = 0  # number of the output that integral action brings back to zero
    integral: float = 1.0  # factor on the weight of its error's integral
    measured: tuple[int, ...] = ()  # numbers of the outputs that an estimator sees
    disturbance: float = 0.1  # standard deviation of what disturbs each state in a second, in its scales
    sensor: float = 0.01  # of each measurement's noise, in the output's scale


@dataclasses.dataclass(frozen=True, eq=False)
class SampledLoop:
    """A plant and its controller at samples."""

    plant: tuple[Float[np.ndarray, "s s"], Float[np.ndarray, "s m"]]  # A, B of its state and the inputs on their way
    controller: control.StateSpace  # u = K(z) s of that state s
    design: object  # what ``control`` returned for it
    back: Float[np.ndarray, "k m"]  # what the controller's memory takes of an input that is cut

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
        stable = system_norms.stable(self.closed, 1.0)
        return control.margins(*self.opened, self.controller.dt) if stable else []

    def on_plant(self, A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The opened loop of the same controller on other plants ``[*batch, s, s]``, ``[*batch, s, m]``."""
        F, G = self.controller.matrices[:2]
        own = np.broadcast_to(np.hstack([G, F]), (*A.shape[:-2], len(F), len(G.T) + len(F)))
        still = [(0, 0)] * (A.ndim - 2)
        wide = np.pad(A, [*still, (0, 0), (0, len(F))])
        return np.concatenate([wide, own], -2), np.pad(B, [*still, (0, len(F)), (0, 0)])

    def price(self, sampled: control.Sampled) -> Float[np.ndarray, "*batch n n"]:
        """Π of plants without delay and limits, on which the controller pays x0ᵀΠx0 from rest; inf if unstable."""
        A, B, Q, R, N = (np.asarray(a) for a in sampled)
        more, still = (0, len(self.controller.A)), [(0, 0)] * (A.ndim - 2)
        wide = np.pad(Q, [*still, more, more]), R, np.pad(N, [*still, more, (0, 0)])
        K = np.broadcast_to(self.K, (*A.shape[:-2], *self.K.shape))
        paid = np.asarray(control.cost_to_go(control.Sampled(*self.on_plant(A, B), *wide), K))
        return np.nan_to_num(paid[..., : A.shape[-1], : A.shape[-1]], nan=np.inf)

    def policy(self, seen: int, limits: Float[np.ndarray, " m"]) -> LinearController:
        """The controller of a longer state, of whose last numbers it takes no notice."""
        A, B, C, D = self.controller.matrices
        some, wide = (0, int(not len(A))), (0, seen - B.shape[1])  # a policy's memory cannot be empty
        B, C, D = np.pad(B, (some, wide)), np.pad(C, ((0, 0), some)), np.pad(D, ((0, 0), wide))
        system, back = control.StateSpace(np.pad(A, some), B, C, D), np.pad(self.back, (some, (0, 0)))
        return LinearController(system, back, np.zeros(len(back)), -limits, limits)  # type: ignore[arg-type]


def integral_weight(choice: ControllerChoice, plant: Plant, optimum: control.LQR, dt: float) -> float:
    """The weight of the sum of y = cx; at the factor 1 the integral settles about as fast as the optimum does.

    A deviation y costs y²p at the optimum; its integral over a time constant T is yT, the sum of it yT/dt, paid over T.
    """
    c = np.asarray(plant.output_matrix())[choice.held]
    p = float(c @ np.asarray(optimum.P) @ c) / float(c @ c) ** 2
    lasts = control.settling_time(np.asarray(optimum.poles), dt, within=np.exp(-1.0))
    return choice.integral * p * (dt / max(float(lasts), dt)) ** 3


def sampled_loop(
    choice: ControllerChoice,
    plant: Plant,
    continuous: tuple[Array, Array, Array, Array],
    sampled: control.Sampled,
    dt: float,
    optimum: control.LQR,
    delay: float,
    *,
    known: bool,
) -> SampledLoop:
    """The loop at samples of a controller, of which ``known`` says whether it is made for the delay [samples].

    ``continuous`` are A, B, Q, R of the plant, ``sampled`` those of a sample without delay, ``optimum`` is of these.
    """
    A, B, Q, R, N = (np.asarray(a) for a in sampled)
    late, n = (A, B), plant.n
    if delay:
        extended = control.delayed(*continuous, dt, delay)
        late = np.asarray(extended.A), np.asarray(extended.B)
    wide, m = late[1].shape
    ahead = arriving(*continuous[:2], dt, delay) if known else np.eye(n, wide)
    if choice.kind in KINDS[:2]:
        gain = np.asarray(optimum.K)
        if choice.kind == "pole placement":
            gain = np.asarray(control.place(A, B, np.exp(dt * np.array(choice.poles))))
        system = control.StateSpace(np.zeros((0, 0)), np.zeros((0, wide)), np.zeros((m, 0)), -gain @ ahead, dt)
        return SampledLoop(late, system, gain, np.zeros((0, m)))
    if known:
        A, B, Q, N = *late, ahead.T @ Q @ ahead, ahead.T @ N
    seen = np.eye(len(A), wide)  # of the state, by the design
    outputs = np.asarray(plant.output_matrix()) @ np.eye(n, len(A))
    design: control.Integral | control.LQG
    if choice.kind == "integral action":
        weight = np.array([[integral_weight(choice, plant, optimum, dt)]])
        design = control.lqi(A, B, outputs[[choice.held]], Q, R, weight, N, discrete=True)
        back, shown = -np.linalg.pinv(np.asarray(design.Ki)), seen  # the sum gives back what was cut
    elif choice.measured:
        scales = np.array([plant.outputs[i].scale for i in choice.measured])
        W, V = (choice.disturbance * np.asarray(plant.scales[0])) ** 2 * dt, (choice.sensor * scales) ** 2
        C = outputs[list(choice.measured)]
        design = control.lqg(A, B, C, Q, R, np.diag(np.pad(W, (0, len(A) - n))), np.diag(V), N, discrete=True)
        back, shown = B, C @ seen
    else:
        raise ValueError("LQG: expected one measured output at least; tick those that there are sensors for")
    F, G, H, D = (np.asarray(a) for a in design.controller(dt).matrices)
    return SampledLoop(late, control.StateSpace(F, G @ shown, H, D @ shown, dt), design, back)


def arriving(A: Array, B: Array, dt: float, delay: float) -> Float[np.ndarray, "n s"]:
    """The plant's state when an input of now begins to act, of the state of now and the inputs on their way."""
    (n, m), late = B.shape, math.ceil(delay)
    x, *sent = np.split(np.eye(n + m * late), [n + m * i for i in range(late)])
    for age in range(late, 0, -1):  # the oldest acts until the next arrives
        a, b = (np.asarray(f) for f in control.c2d(A, B, dt * (delay - late + 1 if age == late else 1.0)))
        x = a @ x + b @ sent[age - 1]
    return x
