"""Loop of a compensator: frequency responses, root locus, step, margins, and its cost over the optimum."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Complex, Float

from lqrlab import control
from lqrlab.control.analysis import system_norms
from lqrlab.control.state_space import response_at
from lqrlab.extensions import classical
from lqrlab.extensions.classical.channels import Channel, rates, spaced
from lqrlab.systems import Plant

_POINTS, _LONGEST = 400, 600  # frequencies; samples of a step


@dataclasses.dataclass(frozen=True)
class LoopRequirements:
    """Bounds that a loop has to keep.

    Attributes:
        ms: largest sensitivity.
        phase: least phase margin [°].
        crossover: least frequency at which the loop gain falls below one [rad/s]; 0 for none.
    """

    ms: float = 2.0
    phase: float = 30.0
    crossover: float = 0.0


@dataclasses.dataclass(frozen=True)
class ShapedLoop:
    """A compensator or a PID loop from one measured output of a plant to its input, sampled, u = −K(z) y.

    Attributes:
        plant: linearised where it stands.
        compensator: of the output and the input that it names.
        delay: dead time of the input [s], exact also between the samples.
    """

    plant: Plant
    compensator: classical.Compensator | classical.PID
    delay: float = 0.0

    @property
    def input(self) -> int:
        """The input that is driven."""
        return self.compensator.inputs[0] if isinstance(self.compensator, classical.PID) else self.compensator.input

    @functools.cached_property
    def sampled(self) -> tuple[np.ndarray, ...]:
        """A, B, C, D of z[t+1] = Az + By, u = Cz + Dy, of the input that is driven."""
        more = {"leak": True} if isinstance(self.compensator, classical.PID) else {}
        sampled, _ = self.compensator.sampled(float(self.plant.dt), **more)
        a, b, c, d = map(np.asarray, sampled.matrices)
        return a, b, c[[self.input]], d[[self.input]]

    @functools.cached_property
    def channel(self) -> Channel:
        """From the input to the output."""
        A, B = (np.asarray(a) for a in self.plant.matrices())
        return Channel(A, B[:, [self.input]], np.asarray(self.compensator.C), self.delay, float(self.plant.dt))

    @functools.cached_property
    def frequencies(self) -> Float[np.ndarray, " w"]:
        """ω [rad/s] up to Nyquist's, finer beside the poles and zeros of the loop, open and closed."""
        return spaced(*self.channel.span, _POINTS, np.append(self.locus(np.array([0.0, 1.0])), self.zeros))

    @functools.cached_property
    def gain(self) -> Complex[np.ndarray, " w"]:
        """The loop gain, GK."""
        return self._gains(self.frequencies)

    @property
    def phase(self) -> Float[np.ndarray, " w"]:
        """Of the loop gain [°], without jumps, beginning between −360° and 0°."""
        phase = np.unwrap(np.angle(self.gain))
        return np.rad2deg(phase - 2 * np.pi * np.ceil(phase[0] / (2 * np.pi) - 1e-9))

    @property
    def sensitivities(self) -> tuple[Complex[np.ndarray, " w"], Complex[np.ndarray, " w"]]:
        """1/(1 + L) and L/(1 + L)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 / (1 + self.gain), self.gain / (1 + self.gain)

    def _gains(self, w: Float[np.ndarray, " w"]) -> Complex[np.ndarray, " w"]:
        z = np.exp(1j * w * float(self.plant.dt))
        a, b, c, d = self.sampled
        return -(response_at(a, b, c, z)[:, 0, 0] + d[0, 0]) * response_at(*self.channel.matrices, z)[:, 0, 0]

    @functools.cached_property
    def crossings(self) -> tuple[Float[np.ndarray, " g"], Float[np.ndarray, " p"]]:
        """ω [rad/s] where the size of the loop gain is one, and where its phase is −180°."""
        w, size, turned = np.log(self.frequencies), np.log(np.abs(self.gain)), self.gain.imag
        found = []
        for value, there in ((size, size), (turned, self.gain.real)):
            i = np.flatnonzero((value[:-1] * value[1:] < 0) & ((value is size) | (there[1:] < 0)))
            found.append(np.exp(w[i] - value[i] * (w[i + 1] - w[i]) / (value[i + 1] - value[i])))
        return found[0], found[1]

    def gain_at(self, w: float) -> complex:
        """The loop gain at a frequency [rad/s]."""
        return complex(self._gains(np.array([w]))[0])

    @functools.cached_property
    def joint(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, b, K of the plant's and the compensator's states, u = −K [x; z]."""
        A, b, c = self.channel.matrices
        a, into, out, through = self.sampled
        joint = np.block([[A, np.zeros((len(A), len(a)))], [into @ c, a]])
        return joint, np.vstack([b, np.zeros((len(a), 1))]), -np.hstack([through @ c, out])

    @property
    def closed(self) -> Float[np.ndarray, "s s"]:
        """The matrix of the closed loop."""
        A, b, K = self.joint
        return A - b @ K

    def locus(self, factors: Float[np.ndarray, " f"]) -> Complex[np.ndarray, "f s"]:
        """Poles s = log(z)/dt [rad/s] of the closed loop whose gain is multiplied by each factor."""
        A, b, K = self.joint
        return rates(np.linalg.eigvals(A - factors[:, None, None] * (b @ K)), float(self.plant.dt))

    @functools.cached_property
    def zeros(self) -> Complex[np.ndarray, " z"]:
        """Zeros s = log(z)/dt [rad/s] of the open loop, which the poles end in."""
        z = control.zeros(*self.joint)
        return rates(z[np.abs(z) > 1e-12], float(self.plant.dt))

    @property
    def reach(self) -> float:
        """Size of the root locus worth seeing: three times the crossover, else the fastest pole of the loop [rad/s]."""
        crossed = self.frequencies[:-1][np.diff(np.abs(self.gain) > 1)]
        return float(3 * crossed[-1] if len(crossed) else np.abs(self.locus(np.ones(1))).max())

    @functools.cached_property
    def stable(self) -> bool:
        """True if all modes of the loop decay."""
        return system_norms.stable(self.closed, 1.0)

    @functools.cached_property
    def cost(self) -> float:
        """Over the regulator's that knows the dead time, from states as large as the scales; inf if unstable."""
        if not self.stable:
            return math.inf
        plant, at, (A, b, K) = self.plant, self.input, self.joint
        problem = *(np.asarray(a) for a in (*plant.matrices(), *plant.weights())), plant.dt, self.delay / plant.dt
        late = control.delayed(problem[0], problem[1][:, [at]], problem[2], problem[3][[at]][:, [at]], *problem[4:])
        Q, R, N = (np.asarray(a) for a in late[2:])
        more = (0, len(A) - len(Q))
        weights = np.pad(Q, (more, more)), R, np.pad(N, (more, (0, 0)))
        P = np.diagonal(control.cost_to_go(control.Sampled(*map(jnp.asarray, (A, b, *weights))), K))[: plant.n]
        squares = np.asarray(plant.scales[0]) ** 2
        return float((P @ squares) / (np.diagonal(control.lqrd_delayed(*problem).P)[: plant.n] @ squares))

    @functools.cached_property
    def margins(self) -> control.Margins:
        """Of the loop broken at the input."""
        return control.margins(*self.joint, float(self.plant.dt))[0]

    def step(self) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Times [s] and the output after a unit step of its reference; at half of the time a load steps as well.

        The load adds to the input; it is as large in units of the input's scale as the reference is in the output's.
        """
        dt, (A, b, _) = float(self.plant.dt), self.joint
        _, into, _, through = self.sampled
        slowest = np.abs(np.linalg.eigvals(self.closed)).max()
        num = int(np.clip(8 / -math.log(slowest), 40, _LONGEST)) if 0 < slowest < 1 else 100
        c = np.pad(np.asarray(self.compensator.C)[0], (0, len(A) - self.plant.n))
        reference = -b[:, 0] * through[0, 0]
        reference[len(A) - len(into) :] -= into[:, 0]
        x, u = (np.asarray(scale) for scale in self.plant.scales)
        load = b[:, 0] * u[self.input] / max(float(np.abs(c[: self.plant.n]) @ x), 1e-300)
        stepped = np.stack([np.ones(num), np.arange(num) >= num // 2], axis=1)
        loop = self.closed, np.stack([reference, load], axis=1), c[None], np.zeros((1, 2)), dt
        ts, ys, _ = scipy.signal.dlsim(loop, stepped)
        return ts, ys[:, 0]

    def broken(self, wanted: LoopRequirements) -> list[str]:
        """Requirements that the loop does not keep, each in a sentence."""
        if not self.stable:
            return ["The loop is not stable: a mode of it grows."]
        ms, phase = 1 / self.margins.modulus_margin, math.degrees(self.margins.phase)
        said = []
        if ms > wanted.ms:
            said.append(f"Ms is {ms:.3g}, more than {wanted.ms:g}: the loop gain comes too near to −1.")
        if phase < wanted.phase:
            said.append(f"The phase margin is {phase:.3g}°, less than {wanted.phase:g}°.")
        w, size = self.frequencies, np.log(np.abs(self.gain))
        i = np.argmax(size < 0)  # the first below one; between it and the one before it is one
        first = w[i] * (w[i - 1] / w[i]) ** (size[i] / (size[i] - size[i - 1])) if i else w[0]
        if size.min() < 0 and first < wanted.crossover:
            said.append(f"The loop gain is below one from {first:.3g} rad/s on, not only from {wanted.crossover:g}.")
        return said
