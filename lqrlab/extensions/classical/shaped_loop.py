"""A loop shaped by hand: its frequency responses, its step, its margins, and its cost beside the optimum's."""

import dataclasses
import functools
import html
import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Complex, Float

from lqrlab import control
from lqrlab.control.analysis import transmission_zeros
from lqrlab.control.analysis.frequency import response_at
from lqrlab.extensions import classical
from lqrlab.extensions.classical.channels import Channel
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.svg import Picture, Stroke

SIDE, _WIDTH = 330.0, 560.0  # widths of Bode plot and root locus, and of the charts beside them [px]
BODE, LOCUS = 276.0, 172.0  # heights of the first two [px]; a laptop's screen has to hold all
_TALL = 172.0  # of the gain in it; the phase stands below [px]
_DECADES = 3.0, 1.5  # of the loop gain that are shown above and below one
_POINTS, _LONGEST = 400, 600
_FACTORS = np.geomspace(1e-2, 1e2, 161)  # of the gain, along the root locus


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
        a, b, c, d, _ = (np.asarray(m) for m in self.compensator.sampled(float(self.plant.dt), **more))
        return a, b, c[[self.input]], d[[self.input]]

    @functools.cached_property
    def channel(self) -> Channel:
        """From the input to the output."""
        A, B = (np.asarray(a) for a in self.plant.matrices())
        return Channel(A, B[:, [self.input]], np.asarray(self.compensator.C), self.delay, float(self.plant.dt))

    @functools.cached_property
    def late_plant(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, b, c of the sampled plant, with the inputs that are on their way among its states."""
        return self.channel.sampled()

    @functools.cached_property
    def frequencies(self) -> Float[np.ndarray, " w"]:
        """ω [rad/s], up to Nyquist's."""
        w = self.channel.frequencies()
        return np.geomspace(w[0], 0.999 * w[-1], _POINTS)

    @functools.cached_property
    def gain(self) -> Complex[np.ndarray, " w"]:
        """The loop gain, GK."""
        return self._gains(self.frequencies)

    def _gains(self, w: Float[np.ndarray, " w"]) -> Complex[np.ndarray, " w"]:
        z = np.exp(1j * w * float(self.plant.dt))
        a, b, c, d = self.sampled
        return -(response_at(a, b, c, z)[:, 0, 0] + d[0, 0]) * response_at(*self.late_plant, z)[:, 0, 0]

    def gain_at(self, w: float) -> complex:
        """The loop gain at a frequency [rad/s]."""
        return complex(self._gains(np.array([w]))[0])

    @functools.cached_property
    def joint(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, b, K of the plant's and the compensator's states, u = −K [x; z]."""
        A, b, c = self.late_plant
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
        z = np.linalg.eigvals(A - factors[:, None, None] * (b @ K))
        return np.log(np.where(np.abs(z) > 1e-12, z, 1e-12).astype(complex)) / float(self.plant.dt)

    @property
    def zeros(self) -> Complex[np.ndarray, " z"]:
        """Zeros s = log(z)/dt [rad/s] of the open loop, which the poles end in."""
        A, b, K = self.joint
        z = transmission_zeros.zeros(A, b, K)
        return np.log(z[np.abs(z) > 1e-12].astype(complex)) / float(self.plant.dt)

    @functools.cached_property
    def stable(self) -> bool:
        """True if all modes of the loop decay."""
        return bool(np.abs(np.linalg.eigvals(self.closed)).max() < 1)

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
        optimum = np.diagonal(control.lqrd_delayed(*problem).P)[: plant.n]
        return float((P @ squares) / (optimum @ squares))

    @functools.cached_property
    def margins(self) -> control.Margins:
        """Of the loop broken at the input."""
        (found,) = control.margins(*self.joint, float(self.plant.dt))
        return found

    def step(self) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Times [s] and the output after a unit step of its reference; at half of the time a load steps as well.

        The load adds to the input; it is as large in units of the input's scale as the reference is in the output's.
        """
        dt, (A, b, _) = float(self.plant.dt), self.joint
        _, into, _, through = self.sampled
        slowest = np.abs(np.linalg.eigvals(self.closed)).max()
        num = int(np.clip(8 / -math.log(slowest), 40, _LONGEST)) if 0 < slowest < 1 else 100
        s, c = np.zeros(len(A)), np.pad(np.asarray(self.compensator.C)[0], (0, len(A) - self.plant.n))
        reference = -b[:, 0] * through[0, 0]
        reference[len(A) - len(into) :] -= into[:, 0]
        (x, u), ys = (np.asarray(scale) for scale in self.plant.scales), np.zeros(num)
        load = b[:, 0] * u[self.input] / max(float(np.abs(c[: self.plant.n]) @ x), 1e-300)
        for t in range(num):
            ys[t] = c @ s
            s = self.closed @ s + reference + (load if t >= num // 2 else 0.0)
        return dt * np.arange(num), ys

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
        below = self.frequencies[np.abs(self.gain) < 1]
        if len(below) and below[0] < wanted.crossover:
            said.append(
                f"The loop gain is below one at {below[0]:.3g} rad/s already, not only from {wanted.crossover:g} on."
            )
        return said


def words(loop: ShapedLoop, wanted: LoopRequirements) -> str:
    """Margins, cost and broken requirements."""
    broken = " ".join(f"<b>{html.escape(said)}</b>" for said in loop.broken(wanted))
    if not loop.stable:
        return f"{broken} Change the gain, or move the lead to where the loop gain passes one."
    m = loop.margins
    said = (
        f"Gain margin {m.gain_down:.2g}–{m.gain_up:.3g}, phase margin ±{math.degrees(m.phase):.3g}°, Ms "
        f"{1 / m.modulus_margin:.3g}, delay margin {charts.duration(m.delay_margin)}. "
        f"Cost <b>{loop.cost:.3g} times</b> the optimum of a regulator that sees all states."
    )
    gains = None if isinstance(loop.compensator, classical.PID) else loop.compensator.as_pid()
    if gains:
        kp, ki, kd, late = gains
        said += f" As a PID: kp {kp:.3g}, ki {ki:.3g}, kd {kd:.3g}, filter time {charts.duration(late)}."
    return f"{said}<br>{broken or 'All requirements are kept.'}"


def _beside(name: str, loop: ShapedLoop) -> str:
    """A stored design in a line."""
    if not loop.stable:
        return f"<br>{html.escape(name)}: not stable"
    m = loop.margins
    return (
        f"<br>{html.escape(name)}: Ms {1 / m.modulus_margin:.3g}, phase margin ±{math.degrees(m.phase):.3g}°, "
        f"cost {loop.cost:.3g} times the optimum"
    )


def bode_plane(w: Float[np.ndarray, " w"]) -> Axes:
    """The plane of frequency and loop gain, both as log10."""
    return Axes((0.0, 0.0, SIDE, _TALL), (math.log10(w[0]), math.log10(w[-1])), (-_DECADES[1], _DECADES[0]), logs="xy")


def bode(loops: Mapping[str, ShapedLoop], wanted: LoopRequirements, corners: Sequence[tuple[float, str]] = ()) -> str:
    """The loop gains' size and phase over frequency, with where the size is to be above one.

    ``corners`` are frequencies [rad/s] of the newest loop with a mark, ○ or ×, that can be taken hold of.
    """
    newest = next(iter(loops.values()))
    alt = f"{newest.plant.name}: size and phase of the loop gain over frequency"
    axes, looks = bode_plane(newest.frequencies), svg.strokes(loops)
    phases = Axes((0.0, _TALL, SIDE, BODE - _TALL), axes.x, (-360.0, 0.0), logs="x")
    body, below = axes.cross(axes.x[0], 0.0), phases.cross(axes.x[0], -180.0)
    if wanted.crossover:
        body += axes.region((axes.x[0], math.log10(wanted.crossover)), (axes.y[0], 0.0))
    for name, loop in loops.items():
        x = np.log10(loop.frequencies)
        body += axes.curve(x, np.log10(np.abs(loop.gain) + 1e-300), looks[name])
        below += phases.curve(x, np.rad2deg(_downwards(np.angle(loop.gain))), looks[name])
    for at, mark in corners:
        level = float(np.clip(math.log10(abs(newest.gain_at(at)) + 1e-300), *axes.y))
        body += axes.marks(np.array([math.log10(at)]), np.array([level]), mark, next(iter(looks.values())))
    drawn = axes.frame("", "loop gain |L|", body)
    drawn += phases.frame("frequency [rad/s]", "phase of L [°]", below)
    return svg.document(drawn, SIDE, BODE, alt)


def locus_plane(far: float) -> Axes:
    """The s-plane about the origin, so far up and down [rad/s]."""
    at = (0.0, 0.0, SIDE, LOCUS)
    across = far * Axes(at, (0.0, 1.0), (0.0, 1.0)).aspect
    return Axes(at, (-1.4 * across, 0.6 * across), (-far, far))


def reach(loop: ShapedLoop) -> float:
    """Size of the root locus worth seeing: three times the crossover, else the fastest pole of the loop [rad/s]."""
    crossed = loop.frequencies[:-1][np.diff(np.abs(loop.gain) > 1)]
    return float(3 * crossed[-1] if len(crossed) else np.abs(loop.locus(np.ones(1))).max())


def locus(loops: Mapping[str, ShapedLoop], far: float, roots: Sequence[tuple[complex, str]] = ()) -> str:
    """Poles of the newest loop for gains a hundredth to a hundred times as large; those of all loops as they are now.

    ``roots`` are the compensator's, with a mark, ○ or ×, that can be taken hold of.
    """
    newest, looks, axes = next(iter(loops.values())), svg.strokes(loops), locus_plane(far)
    alt = f"{newest.plant.name}: root locus, and the poles of the loop"
    look = next(iter(looks.values()))
    body = _root_locus(axes, newest, Stroke(3))
    for s, mark in roots:
        body += axes.marks(*_split(np.unique([s, s.conjugate()])), mark, look)
    for name, loop in loops.items():
        body += axes.marks(*_split(loop.locus(np.ones(1))[0]), "+", looks[name])
    drawn = axes.frame("Re s [rad/s]", "root locus, Im s [rad/s]; poles now +", body)
    return svg.document(drawn, SIDE, LOCUS, alt)


def picture(loops: Mapping[str, ShapedLoop], wanted: LoopRequirements) -> Picture:
    """Sensitivities, Nyquist curve and step of loops by name, the newest first, with words on that."""
    newest, looks = next(iter(loops.values())), svg.strokes(loops)
    wide, tall, logs = (_WIDTH - 10) / 2, 210.0, np.log10(newest.frequencies)
    places = [(0.0, 18.0, wide, tall), (wide + 10, 18.0, wide, tall), (0.0, tall + 24, _WIDTH, tall)]
    sensitive = Axes(places[0], (logs[0], logs[-1]), (-2.0, 1.0), logs="xy")
    nyquist = Axes(places[1], (-1 - 2 * sensitive.aspect, -1 + 2 * sensitive.aspect), (-2.0, 2.0))
    bodies = [sensitive.region(sensitive.x, (math.log10(wanted.ms), sensitive.y[1])), ""]
    bodies[1] = nyquist.circle(-1.0, 0.0, 1 / wanted.ms).replace('class="lq-axis"', 'class="lq-forbidden"')
    bodies[1] += nyquist.cross(-1.0, 0.0) + nyquist.circle(0.0, 0.0, 1.0, "2 3")
    steps = []
    for name, loop in loops.items():
        L, x, look = loop.gain, np.log10(loop.frequencies), looks[name]
        with np.errstate(divide="ignore", invalid="ignore"):
            S, T = 1 / (1 + L), L / (1 + L)
        bodies[0] += sensitive.curve(x, np.log10(np.abs(S)), look)
        bodies[0] += sensitive.curve(x, np.log10(np.abs(T)), Stroke(look.colour, "2 3"))
        near = np.abs(L) < 50
        bodies[1] += nyquist.curve(L.real[near], L.imag[near], look)
        steps.append((*loop.step(), look))
    drawn = [
        sensitive.frame("frequency [rad/s]", "|S|, and |T| (dotted)", bodies[0]),
        nyquist.frame("Re L", "Nyquist curve, Im L", bodies[1]),
        charts.over_time(places[2], steps, "output: reference, then load", "1", float(steps[0][0][-1]))[0],
    ]
    alt = f"{newest.plant.name}: sensitivities, Nyquist curve and step response of a loop shaped by hand"
    height = places[2][1] + tall + 4
    body = svg.legend(2, 12, looks) + "".join(drawn)
    said = words(newest, wanted) + "".join(_beside(name, loop) for name, loop in list(loops.items())[1:])
    return Picture(svg.document(body, _WIDTH, height, alt), alt, said)


def _root_locus(axes: Axes, loop: ShapedLoop, look: Stroke) -> str:
    """Poles for gains a hundredth to a hundred times as large, with the open loop's poles (×) and zeros (○)."""
    (left, right, top, bottom), (x, y) = axes.edges, axes.place(*_split(loop.locus(_FACTORS).ravel()))
    seen = (x > left) & (x < right) & (y > top) & (y < bottom)
    dots = "".join(f"M{svg.px(a)} {svg.px(b)}h.01" for a, b in zip(x[seen], y[seen]))
    body = axes.cross(0.0, 0.0)
    body += svg.element("path", {"class": "lq-soft", "d": dots, "stroke-width": "2", "stroke-linecap": "round"})
    body += axes.marks(*_split(loop.locus(np.zeros(1))[0]), "×", look)
    return body + axes.marks(*_split(loop.zeros), "○", look)


def _split(s: Complex[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    return s.real, s.imag


def _downwards(phase: Float[np.ndarray, " w"]) -> Float[np.ndarray, " w"]:
    """Without jumps, beginning between −360° and 0°."""
    phase = np.unwrap(phase)
    return phase - 2 * np.pi * np.ceil(phase[0] / (2 * np.pi) - 1e-9)
