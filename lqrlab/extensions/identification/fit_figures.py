"""Pictures of an identified model: fit, residuals, poles and step responses with their uncertainty."""

import dataclasses
import html
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Complex, Float
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lqrlab import control
from lqrlab.extensions.identification import FittedPlant, LinearModel, Log, Residuals
from lqrlab.extensions.identification.residuals import fit_percent
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, plots, svg
from lqrlab.workbench.figures.svg import Picture, Stroke

_WIDTH, _TALL, _DRAWS = 860.0, 150.0, 200
_MODEL, _BEFORE, _MEASURED = Stroke(0), Stroke(3, "5 3"), Stroke(7)
_MANY = 4  # outputs that are drawn
_ELLIPSE = 5.99**0.5  # half-axes, in standard errors, of what holds 95 % of two normal variables
_GROWTH = 20.0  # of an error within the validation range, from which on a simulation says nothing
Sampled = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""A, B, C, D, with or without a leading axis of draws."""


@dataclasses.dataclass(frozen=True, eq=False)
class FitSummary:
    """A model beside the validation record; what is uncertain as 2.5 % and 97.5 % quantiles of draws."""

    validation: Log
    ys: Float[np.ndarray, "T p"]
    percent: Float[np.ndarray, " p"]
    auto: Float[np.ndarray, "lags p"]
    poles: Complex[np.ndarray, " n"]
    spreads: Float[np.ndarray, "n 2 2"]  # covariances of the poles' real and imaginary parts
    steps: Float[np.ndarray, "3 K p"]  # after a step of the first input: estimate, lower, upper
    said: tuple[str, ...]

    @property
    def band(self) -> float:
        """Half-width of the 95 % band of the autocorrelations of white noise."""
        return 1.96 / float(np.sqrt(len(self.validation)))


def of_model(model: LinearModel, validation: Log, key: jax.Array) -> FitSummary:
    """A linear model: simulated, or predicted one step ahead where it is unstable."""
    runs_away = float(np.abs(model.poles).max()) ** len(validation) > _GROWTH
    ys = model.predict(validation) if runs_away else model.simulate(validation)
    how = "unstable, so predicted one step ahead" if runs_away else "simulated"
    said = (f"linear model of order {model.order}, {how}",)
    return _finding((model.A, model.B, model.C, model.D), model.sample(key, _DRAWS), validation, ys, said)


def of_fit(fit: FittedPlant, validation: Log, key: jax.Array) -> FitSummary:
    """A plant with fitted parameters: simulated, in segments if it was fitted in segments."""
    how = "unstable, so simulated in segments that meet" if fit.segments.follows.any() else "simulated"
    table = (f"{n} = {v:.4g} ± {s:.2g}" for n, v, s in zip(fit.names, fit.values, fit.std))
    said = (f"{fit.plant.name}, {how}", ", ".join(table), *fit.remarks)
    one, many = _sampled(fit, fit.plant), _sampled(fit, fit.sample(key, _DRAWS))
    return _finding(one, many, validation, fit.simulate(validation), said)


def _sampled(fit: FittedPlant, plant: Plant) -> Sampled:
    """The plant, or each of many, linearised and sampled as the log is."""
    A, B = control.c2d(*plant.matrices(), fit.log.dt)

    def seen(plant: Plant, x: jax.Array) -> jax.Array:
        return jax.jacfwd(lambda x: fit.segments.seen(plant, x))(x)

    x_eq = jnp.asarray(plant.equilibrium()[0])
    C = jax.vmap(seen)(plant, x_eq) if A.ndim == 3 else seen(plant, x_eq)
    return np.asarray(A), np.asarray(B), np.asarray(C), np.zeros((*C.shape[:-1], B.shape[-1]))


def _finding(
    one: Sampled, many: Sampled, validation: Log, ys: Float[np.ndarray, "T p"], said: Sequence[str]
) -> FitSummary:
    poles = np.linalg.eigvals(one[0]).astype(complex)
    drawn = np.linalg.eigvals(many[0])
    away = np.take_along_axis(drawn, np.argmin(np.abs(drawn[:, None] - poles[None, :, None]), -1), 1) - poles
    parts = np.stack([away.real, away.imag], -1)
    num = _samples(np.abs(poles), len(validation))
    steps = np.stack([_steps(one, num), *np.nanquantile(_steps(many, num), (0.025, 0.975), axis=0)])
    percent, residuals = fit_percent(validation.ys, ys), Residuals.of(validation, validation.ys - ys)
    spreads = np.einsum("dni,dnj->nij", parts, parts) / len(parts)
    return FitSummary(validation, ys, percent, residuals.auto, poles, spreads, steps, tuple(said))


def _samples(sizes: Float[np.ndarray, " n"], most: int) -> int:
    """Until the slowest mode has settled, or the fastest that grows has grown twentyfold."""
    rates = np.log(np.maximum(sizes, 1e-6))
    until = np.log(_GROWTH) / max(float(rates.max()), 1e-9) if rates.max() > 0 else 5 / max(-rates.max(), 1e-9)
    return int(np.clip(until, 10, max(most, 10)))


def _steps(sampled: Sampled, num: int) -> Float[np.ndarray, "*draws num p"]:
    """Outputs after a unit step of the first input, from rest."""
    A, B, C, D = sampled
    x, out = np.zeros((*A.shape[:-1], 1)), []
    for _ in range(num):
        out.append((C @ x + D[..., :1])[..., 0])
        x = A @ x + B[..., :1]
    return np.stack(out, -2)


def picture(found: FitSummary, before: FitSummary | None = None) -> Picture:
    """Measured and modelled outputs, residuals, poles, step responses; in grey those of the finding before."""
    outputs = found.validation.outputs
    if before is not None and before.validation.outputs != outputs:
        before = None
    num = min(len(outputs), _MANY)
    body = svg.legend(2, 14, {"measured": _MEASURED, "model": _MODEL, **({"before": _BEFORE} if before else {})})
    places = charts.cells(num, (0, 22, _WIDTH, _TALL * ((num + 1) // 2)), 2)
    body += "".join(_measured(at, i, found, before) for i, at in enumerate(places))
    top, columns = sum(places[-1][1::2]) + 28, 2 if num == 2 else 3
    body += svg.text(2, top - 6, "residuals of") + svg.legend(80, top - 6, _looks(found))
    first, second, *places = charts.cells(num + 2, (0, top, _WIDTH, height := 200 if num == 1 else 360), columns)
    body += _whiteness(first, found, before) + _pole_plane(second, found, before)
    body += "".join(_step_chart(at, i, found, before) for i, at in enumerate(places))
    alt = (
        "Measured and modelled outputs on the validation range, the residuals' autocorrelation, the poles with 95 % "
        "ellipses, the step responses with 95 % bands"
    )
    return Picture(svg.document(body, _WIDTH, top + height + 4, alt), alt, _words(found, before))


def _words(found: FitSummary, before: FitSummary | None) -> str:
    fits = []
    for i, signal in enumerate(found.validation.outputs):
        was = f" (before {before.percent[i]:.1f} %)" if before else ""
        fits.append(f"{signal.name} {found.percent[i]:.1f} %{was}")
    outside = 100 * np.mean(np.abs(found.auto) > found.band)
    residuals = f"{outside:.0f} % of the residuals' autocorrelations are outside their 95 % band"
    first, *rest = (html.escape(text) for text in found.said)
    last = "<br>".join(["", *rest, residuals + ("." if outside <= 10 else ": the model lacks something.")])
    return f"<b>Fit on the validation range:</b> {html.escape(', '.join(fits))}; {first}.{last}"


def _measured(at: charts.Rectangle, i: int, found: FitSummary, before: FitSummary | None) -> str:
    log, signal = found.validation, found.validation.outputs[i]
    t = log.dt * np.arange(len(log))
    curves = [(t, log.ys[:, i], _MEASURED)]
    if before is not None and len(before.ys) == len(t):
        curves.append((t, before.ys[:, i], _BEFORE))
    curves.append((t, found.ys[:, i], _MODEL))
    percent = svg.text(at[0] + at[2] - 8, at[1] + 10, f"fit {found.percent[i]:.1f} %", anchor="end", look="lq-b")
    name = signal.name.replace("_", " ")
    return percent + charts.over_time(at, curves, name, signal.unit or "1", float(t[-1]), lead=1)[0]


def _looks(found: FitSummary) -> dict[str, Stroke]:
    return svg.strokes(s.name.replace("_", " ") for s in found.validation.outputs)


def _whiteness(at: charts.Rectangle, found: FitSummary, before: FitSummary | None) -> str:
    lags, high = np.arange(1.0, len(found.auto) + 1), max(0.25, 1.1 * float(np.abs(found.auto).max()))
    axes = charts.Axes(at, (0.0, lags[-1] + 0.5), (-high, high))
    body = "".join(axes.curve(lags, a, look) for a, look in zip(found.auto.T, _looks(found).values()))
    if before is not None:
        was = before.auto[: len(lags)]
        body = "".join(axes.curve(lags[: len(was)], a, _BEFORE) for a in was.T) + body
    edges = np.array([0.0, lags[-1] + 0.5])
    body += "".join(axes.curve(edges, np.full(2, side * found.band), Stroke(7, "2 2")) for side in (-1, 1))
    return axes.frame("lag [samples]", "residuals' autocorrelation and its 95 % band", body)


def _pole_plane(at: charts.Rectangle, found: FitSummary, before: FitSummary | None) -> str:
    turn = np.linspace(0, 2 * np.pi, 49)
    rings = []
    for pole, spread in zip(found.poles, found.spreads):
        values, vectors = np.linalg.eigh(spread)
        half = _ELLIPSE * vectors * np.sqrt(np.maximum(values, 0))
        ring = half @ np.stack([np.cos(turn), np.sin(turn)])
        rings.append((pole.real + ring[0], pole.imag + ring[1]))
    real = np.concatenate([found.poles.real, [1.0]])
    wide = max(float(np.ptp(real)), 0.02)
    tall = max(float(np.abs(found.poles.imag).max()), 0.3 * wide)
    axes = charts.Axes(at, (real.min() - 0.25 * wide, real.max() + 0.25 * wide), (-1.5 * tall, 1.5 * tall))
    body = axes.circle(0.0, 0.0, 1.0) + "".join(axes.curve(x, y, Stroke(0, "2 2")) for x, y in rings)
    if before is not None:
        body += axes.marks(before.poles.real, before.poles.imag, "+", Stroke(3))
    body += axes.marks(found.poles.real, found.poles.imag, "×", _MODEL)
    return axes.frame("Re z", "poles, Im z, with 95 % ellipses", body)


def _step_chart(at: charts.Rectangle, i: int, found: FitSummary, before: FitSummary | None) -> str:
    log, signal = found.validation, found.validation.outputs[i]
    t = log.dt * np.arange(found.steps.shape[1])
    looks = (_MODEL, Stroke(0, "2 2"), Stroke(0, "2 2"))
    curves = [(t, values, stroke) for values, stroke in zip(found.steps[..., i], looks)]
    if before is not None and before.validation.inputs == log.inputs:
        was = before.steps[0, : len(t), i]
        curves.append((before.validation.dt * np.arange(len(was)), was, _BEFORE))
    title = f"{signal.name.replace('_', ' ')} after a step of {log.inputs[0].name.replace('_', ' ')}"
    return charts.over_time(at, curves, title, signal.unit or "1", float(t[-1]), lead=3)[0]


def log(recorded: Log, title: str = "") -> Figure:
    """The signals of a log over time, their power densities, and how much of each output the inputs explain."""
    pairs = list(recorded.signals)
    figure, axes = plots.grid(len(pairs) + 2, 2, 1.8)
    t, ends = recorded.dt * np.arange(len(recorded)), recorded.first[1:]
    f, power = recorded.spectra()
    for axis, (signal, values) in zip(axes, pairs):
        axis.plot(t, values, lw=0.8)
        for end in ends:  # a new record
            axis.axvline(recorded.dt * end, color="#7F7F7F", lw=0.6)
        axis.set(xlabel="time [s]", ylabel=signal.label)
    spectra, coherence = axes[-2:]
    for (signal, _), line in zip(pairs, power):
        spectra.loglog(f[1:], np.maximum(line[1:] / max(line[1:].max(), 1e-300), 1e-12), label=signal.name)
    spectra.set(xlabel="frequency [Hz]", ylabel="power, relative [1]")
    spectra.legend(fontsize=7)
    for signal, line in zip(recorded.outputs, recorded.coherence()[1]):
        coherence.semilogx(f[1:], line[1:], label=signal.name)
    coherence.set(xlabel="frequency [Hz]", ylabel="coherence [1]", ylim=(0, 1.05))
    coherence.legend(fontsize=7)
    for axis in (spectra, coherence):  # less than a decade would be labelled 2 × 10⁰, 3 × 10⁰, …
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
    figure.suptitle(title)
    return figure
