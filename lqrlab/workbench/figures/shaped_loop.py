"""A loop shaped by hand: its frequency responses, its step, its margins, and its cost beside the optimum's."""

import dataclasses
import functools
import html
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Complex, Float

from lqrlab import control
from lqrlab.control.classical.channels import Channel
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.svg import Picture, Stroke

SIDE, _WIDTH = 330.0, 560.0  # of the Bode plot, and of the charts beside it [px]
_DECADES = 3.0, 1.5  # of the loop gain that are shown above and below one
_POINTS, _LONGEST = 400, 600


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
    """A compensator from one measured output of a plant to its input, sampled, u = −K(z) y.

    Attributes:
        plant: linearised where it stands.
        compensator: of the output and the input that it names.
    """

    plant: Plant
    compensator: control.Compensator

    @functools.cached_property
    def channel(self) -> Channel:
        """From the input to the output."""
        A, B = (np.asarray(a) for a in self.plant.matrices())
        return Channel(A, B[:, [self.compensator.input]], np.asarray(self.compensator.C), dt=float(self.plant.dt))

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
        zeros, poles, gain = self.compensator.sampled_roots(float(self.plant.dt))
        with np.errstate(divide="ignore", invalid="ignore"):
            K = gain * np.prod(z[:, None] - zeros, -1) / np.prod(z[:, None] - poles, -1)
            return K * self.channel.response(w)

    def gain_at(self, w: float) -> complex:
        """The loop gain at a frequency [rad/s]."""
        return complex(self._gains(np.array([w]))[0])

    @functools.cached_property
    def joint(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, b, K of the plant's and the compensator's states, u = −K [x; z]."""
        dt, at = float(self.plant.dt), self.compensator.input
        A, b, c = self.channel.sampled()
        a, into, out, through, _ = self.compensator.sampled(dt)
        joint = np.block([[A, np.zeros((len(A), len(a)))], [into @ c, a]])
        return joint, np.vstack([b, np.zeros((len(a), 1))]), -np.hstack([through @ c, out])[[at]]

    @property
    def closed(self) -> Float[np.ndarray, "s s"]:
        """The matrix of the closed loop."""
        A, b, K = self.joint
        return A - b @ K

    @functools.cached_property
    def stable(self) -> bool:
        """True if all modes of the loop decay."""
        return bool(np.abs(np.linalg.eigvals(self.closed)).max() < 1)

    @functools.cached_property
    def cost(self) -> float:
        """Over the regulator's from initial states as large as the scales, of the linear plant; inf if unstable."""
        if not self.stable:
            return math.inf
        plant, at, (A, b, K) = self.plant, self.compensator.input, self.joint
        sampled = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
        Q, R, N = (np.asarray(a) for a in sampled[2:])
        more = (0, len(A) - plant.n)
        weights = np.pad(Q, (more, more)), R[[at]][:, [at]], np.pad(N[:, [at]], (more, (0, 0)))
        P = np.diagonal(control.cost_to_go(control.Sampled(*map(jnp.asarray, (A, b, *weights))), K))[: plant.n]
        squares = np.asarray(plant.scales[0]) ** 2
        return float((P @ squares) / (np.diagonal(_regulator(plant)) @ squares))

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
        _, into, _, through, _ = self.compensator.sampled(dt)
        slowest = np.abs(np.linalg.eigvals(self.closed)).max()
        num = int(np.clip(8 / -math.log(slowest), 40, _LONGEST)) if 0 < slowest < 1 else 100
        s, c = np.zeros(len(A)), np.pad(np.asarray(self.compensator.C)[0], (0, len(A) - self.plant.n))
        reference = -b[:, 0] * through[self.compensator.input, 0]
        reference[len(A) - len(into) :] -= into[:, 0]
        (x, u), ys = (np.asarray(scale) for scale in self.plant.scales), np.zeros(num)
        load = b[:, 0] * u[self.compensator.input] / max(float(np.abs(c[: self.plant.n]) @ x), 1e-300)
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


def _regulator(plant: Plant) -> Float[np.ndarray, "n n"]:
    """The optimal cost to go."""
    return np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).P)


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
    return f"{said}<br>{broken or 'All requirements are kept.'}"


def bode_plane(w: Float[np.ndarray, " w"]) -> Axes:
    """The plane of log10 of frequency and of the loop gain."""
    return Axes((0.0, 0.0, SIDE, SIDE), (math.log10(w[0]), math.log10(w[-1])), (-_DECADES[1], _DECADES[0]))


def _region(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> str:
    """A rectangle that a curve is to stay out of."""
    (left, right), (bottom, top) = axes.place(np.array(x), 0.0)[0], axes.place(0.0, np.array(y))[1]
    size = {"x": svg.px(left), "y": svg.px(top), "width": svg.px(right - left), "height": svg.px(bottom - top)}
    return svg.element("rect", {"class": "lq-forbidden", **size})


FORBIDDEN = ".lq-forbidden{fill:#d55e00;fill-opacity:.13;stroke:none}"


def bode(loops: Mapping[str, ShapedLoop], wanted: LoopRequirements) -> str:
    """The loop gains' size over frequency, with where it is to be above one."""
    newest = next(iter(loops.values()))
    alt = f"{newest.plant.name}: size of the loop gain over frequency"
    axes, looks = bode_plane(newest.frequencies), svg.strokes(loops)
    body = axes.cross(axes.x[0], 0.0)
    if wanted.crossover:
        body += _region(axes, (axes.x[0], math.log10(wanted.crossover)), (axes.y[0], 0.0))
    for name, loop in loops.items():
        body += axes.curve(np.log10(loop.frequencies), np.log10(np.abs(loop.gain) + 1e-300), looks[name])
    return svg.document(
        axes.frame("log10 of frequency [rad/s]", "log10 of loop gain |L|", body), SIDE, SIDE, alt, style=FORBIDDEN
    )


def picture(loops: Mapping[str, ShapedLoop], wanted: LoopRequirements) -> Picture:
    """Sensitivities, Nyquist curve, phase and step of loops by name, the newest first, with words on that."""
    newest, looks = next(iter(loops.values())), svg.strokes(loops)
    wide, tall, logs = (_WIDTH - 10) / 2, 158.0, np.log10(newest.frequencies)
    places = [(column * (wide + 10), 18 + row * (tall + 6), wide, tall) for row in (0, 1) for column in (0, 1)]
    sensitive = Axes(places[0], (logs[0], logs[-1]), (-2.0, 1.0))
    nyquist = Axes(places[1], (-1 - 2 * sensitive.aspect, -1 + 2 * sensitive.aspect), (-2.0, 2.0))
    phases = Axes(places[2], (logs[0], logs[-1]), (-360.0, 0.0))
    bodies = [_region(sensitive, sensitive.x, (math.log10(wanted.ms), sensitive.y[1])), "", "", ""]
    bodies[1] = nyquist.circle(-1.0, 0.0, 1 / wanted.ms).replace('class="lq-axis"', 'class="lq-forbidden"')
    bodies[1] += nyquist.cross(-1.0, 0.0) + nyquist.circle(0.0, 0.0, 1.0, "2 3")
    bodies[2] = phases.cross(logs[0], -180.0)
    steps = []
    for name, loop in loops.items():
        L, x, look = loop.gain, np.log10(loop.frequencies), looks[name]
        with np.errstate(divide="ignore", invalid="ignore"):
            S, T = 1 / (1 + L), L / (1 + L)
        bodies[0] += sensitive.curve(x, np.log10(np.abs(S)), look)
        bodies[0] += sensitive.curve(x, np.log10(np.abs(T)), Stroke(look.colour, "2 3"))
        near = np.abs(L) < 50
        bodies[1] += nyquist.curve(L.real[near], L.imag[near], look)
        bodies[2] += phases.curve(x, np.rad2deg(_downwards(np.angle(L))), look)
        steps.append((*loop.step(), look))
    drawn = [
        sensitive.frame("log10 of frequency [rad/s]", "log10 of |S|, and of |T| (dotted)", bodies[0]),
        nyquist.frame("Re L", "Nyquist curve, Im L", bodies[1]),
        phases.frame("log10 of frequency [rad/s]", "phase of L [°]", bodies[2]),
        charts.over_time(places[3], steps, "output: reference, then load", "1", float(steps[0][0][-1]))[0],
    ]
    alt = f"{newest.plant.name}: sensitivities, Nyquist curve, phase and step response of a loop shaped by hand"
    height = places[3][1] + tall + 4
    body = svg.legend(2, 12, looks) + "".join(drawn)
    return Picture(svg.document(body, _WIDTH, height, alt, style=FORBIDDEN), alt, words(newest, wanted))


def _downwards(phase: Float[np.ndarray, " w"]) -> Float[np.ndarray, " w"]:
    """Without jumps, beginning between −360° and 0°."""
    phase = np.unwrap(phase)
    return phase - 2 * np.pi * np.ceil(phase[0] / (2 * np.pi) - 1e-9)
