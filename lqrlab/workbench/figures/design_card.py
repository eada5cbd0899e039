"""A regulator's design as a card: its responses, bill, margins and poles, drawn and in words."""

import math

import numpy as np

from lqrlab import control
from lqrlab.workbench.figures import animation, svg
from lqrlab.workbench.panels.regulator import FREE, Design, Setting, design

_WIDTH = 860.0
_BEST, _BUILT = "optimal", "as built"


def picture(setting: Setting) -> svg.Picture:
    """Responses, effort, what was paid, margins and poles as one drawing, with the words above it."""
    found = design(setting)
    stable = np.abs(found.poles).max() < 1
    margins = control.margins(found.A, found.B, found.K, setting.dt) if stable else []
    plant, until = setting.plant, setting.ticks * setting.tick
    runs = {_BEST: found.best, _BUILT: found.built}
    shown = [(label, svg.colour(label, k), svg.DASHES[k]) for k, label in enumerate(runs)]
    body = [svg.legend(2, 14, shown)]
    signals = [(s, "xs", i) for i, s in enumerate(plant.states)] + [
        (s, "us", i) for i, s in enumerate(plant.inputs)
    ]
    curves = {label: (run.ts, run.xs, run.us) for label, run in runs.items()}
    traces, bottom = animation.charts(signals, curves, until, (22, _WIDTH), columns=3, lead=1)
    body += [traces, _bill(found, (0, bottom + 6, 370, 200), until)]
    body.append(_nyquist(found, margins, setting.dt, (390, bottom + 6, 225, 200)))
    poles = {_BEST: np.asarray(found.optimum.poles), _BUILT: found.poles}
    body.append(pole_map((635, bottom + 6, 225, 200), poles))
    alt = (
        f"{plant.title}: states, inputs, cost so far, Nyquist curve and poles of the optimum on the linear model "
        f"and of the loop as built, sampled every {quantity(setting.dt)}"
    )
    drawn = svg.picture("".join(body), _WIDTH + 8, bottom + 214, alt)
    return svg.Picture(drawn, alt, words(setting, found, margins))


def _bill(found: Design, at: tuple[float, float, float, float], until: float) -> str:
    """Cost so far of both loops; the optimum as a line across."""
    drawn = []
    for k, (label, run) in enumerate({_BEST: found.best, _BUILT: found.built}.items()):
        paid = np.concatenate([[0.0], np.cumsum(run.costs)])
        drawn.append((np.asarray(run.ts), paid, svg.colour(label, k), svg.DASHES[k]))
    drawn.append((np.array([0, until]), np.full(2, found.cost), 7, svg.DASHES[2]))
    return svg.chart(at, drawn, "cost so far; dotted: x0ᵀP x0, the least there is", "1", until, lead=1)[0]


def _weakest(margins: list[control.Margins]) -> int:
    """The input at which the loop bears least; the first where there are no margins."""
    return min(range(len(margins)), key=lambda i: margins[i].disk.alpha, default=0)


def _nyquist(
    found: Design, margins: list[control.Margins], dt: float, at: tuple[float, float, float, float]
) -> str:
    """The loop gain at the most sensitive input, the point −1, and how far the curve stays away from it."""
    i = _weakest(margins)
    w = np.pi / dt * np.append(np.geomspace(1e-4, 0.99, 299), 1.0)
    closed = np.asarray(control.sensitivity(found.A, found.B, found.K, w, dt))[:, i, i]
    with np.errstate(all="ignore"):
        L = 1 / closed - 1
    x0, x1, y0, y1 = svg.frame(at)
    wide, tall = 4.0, 4.0 * (y1 - y0) / (x1 - x0)
    L = L[np.isfinite(L)]
    far = 1e3 / np.maximum(np.abs(L), 1e3)  # what is far out leaves the picture in its direction
    x, y = (L.real * far + 3) / wide, 0.5 - L.imag * far / tall
    parts = [f'<path class="lq-axis" vector-effect="non-scaling-stroke" d="M0 .5H1M{3 / wide} 0V1"/>']
    rings = [(3 / wide, 1.0, "1.5 2.5")] + ([(2 / wide, margins[i].modulus_margin, "")] if margins else [])
    for centre, radius, dashes in rings:
        size = f'cx="{centre}" cy=".5" rx="{radius / wide:.4f}" ry="{radius / tall:.4f}" fill="none"'
        parts.append(
            f'<ellipse class="lq-axis" stroke-dasharray="{dashes}" vector-effect="non-scaling-stroke" {size}/>'
        )
    data = "M" + "L".join(f"{a:.4f} {b:.4f}" for a, b in zip(x, y))
    parts.append(f'<path class="lq-curve lq-c1" vector-effect="non-scaling-stroke" d="{data}"/>')
    cross = x0 + (x1 - x0) * 2 / wide, 0.5 * (y0 + y1)
    mark = f'<path class="lq-curve lq-c7" d="M{cross[0] - 4} {cross[1]}h8m-4 -4v8"/>'
    label = "Nyquist curve, Im L" + (f"; ring: {margins[i].modulus_margin:.2f} from −1" if margins else "")
    return svg.axes(at, (-3.0, 1.0, "Re L"), (-tall / 2, tall / 2, label), "".join(parts)) + mark


def pole_map(at: tuple[float, float, float, float], groups: dict[str, np.ndarray]) -> str:
    """Poles of sampled loops in the z-plane, one shape and colour a loop, with the unit circle."""
    every = np.concatenate([p[np.isfinite(p)] for p in groups.values()])
    x0, x1, y0, y1 = svg.frame(at)
    shape = (x1 - x0) / (y1 - y0)
    middle = 0.5 * (min(every.real.min(), 0.9) + max(every.real.max(), 1.0))
    tall = 2.3 * max(np.abs(every.imag).max(), np.abs(every.real - middle).max() / shape, 0.05)
    low, least = middle - 0.5 * tall * shape, -0.5 * tall
    circle = f'<ellipse class="lq-axis" vector-effect="non-scaling-stroke" cx="{-low / (tall * shape):.5f}" '
    circle += f'cy="0.5" rx="{1 / (tall * shape):.5f}" ry="{1 / tall:.5f}"/>'
    parts = [
        svg.axes(
            at,
            (low, low + tall * shape, "Re z"),
            (
                least,
                least + tall,
                "poles, Im z: " + ", ".join(f"{mark} {label}" for mark, label in zip("○×", groups)),
            ),
            circle,
        )
    ]
    for k, (label, poles) in enumerate(groups.items()):
        marks = []
        for z in poles[np.isfinite(poles)]:
            x = x0 + (x1 - x0) * (z.real - low) / (tall * shape)
            y = y1 - (y1 - y0) * (z.imag - least) / tall
            if k:
                marks.append(f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")
            else:
                marks.append(f"M{x - 5:.1f} {y:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0")
        parts.append(f'<path class="lq-curve lq-c{svg.colour(label, k)}" d="{"".join(marks)}"/>')
    return "".join(parts)


def words(setting: Setting, found: Design, margins: list[control.Margins]) -> str:
    """What there is to say of a design: its bill against the optimum, modes, effort and margins."""
    s, m = setting, setting.plant.m
    paid = float(np.sum(found.built.costs))
    end = found.built.xs[-1]
    scaled = np.abs(end / np.asarray(s.plant.scales[0])).max()
    lost = not np.isfinite(paid) or scaled > 3 * s.size
    bill = (
        "is <b>lost</b>"
        if lost
        else f"costs {paid:.4g}, <b>{_percent(paid / found.cost - 1)}</b> the optimum"
    )
    conditions = [f"sampled every {quantity(s.dt)}"]
    if s.delay:
        aware = "which its gain knows" if s.known else "which its gain ignores"
        conditions.append(f"its input {s.delay / s.sample:g} samples late, {aware}")
    if s.limit < FREE:
        conditions.append(f"inputs limited to {s.limit:.2g} × what counts as large")
    lines = [
        f"<b>Cost.</b> No controller of the linear plant pays less than {found.cost:.4g} from here. On the nonlinear "
        f"plant, {', '.join(conditions)}, this one {bill}."
    ]
    if (s.states != 1).any() or (s.inputs != 1).any():
        own = _own_weights(s)
        lines.append(
            f"In the plant's own weights the gain costs {_percent(own)} their optimum, without delay and limits."
        )
    size = float(np.abs(found.poles).max())
    if margins:
        lasts = -s.dt / math.log(size) if size > 0 else 0.0
        lines.append(f"<b>Poles.</b> Slowest mode |z| = {size:.4f}: time constant {quantity(lasts)}.")
        worst = margins[_weakest(margins)]
        phase = "any phase" if math.isinf(worst.phase) else f"±{math.degrees(worst.phase):.0f}° of phase"
        at = "" if m == 1 else " at its most sensitive input"
        lines.append(
            f"<b>Margins.</b> Stable{at} for a gain ×{worst.gain_down:.2g} … ×{worst.gain_up:.3g}, or {phase}; "
            f"disk margin {worst.disk.alpha:.2f}, least |1 + L| = {worst.modulus_margin:.2f}."
        )
    else:
        why = "; the delay that it does not know is too long" if s.delay and not s.known else ""
        lines.append(f"<b>Poles.</b> The loop is <b>unstable</b>: |z| = {size:.4f}{why}. It has no margins.")
    peaks = np.nanmax(np.abs(found.built.us), axis=0)
    effort = ", ".join(f"{i.name.replace('_', ' ')} {p:.3g} {i.unit}" for i, p in zip(s.plant.inputs, peaks))
    lines.append(f"<b>Effort.</b> Largest {effort}.")
    return "<br>".join(lines)


def _own_weights(setting: Setting) -> float:
    """How much more the gain costs than the optimum of the plant's own weights, from the same start; linear."""
    s = setting
    (A, B), (Q, R) = s.plant.matrices(), s.plant.weights()
    own = control.discretize(A, B, Q, R, s.dt)
    best = control.dlqr(*own).P
    K = control.lqrd(A, B, *s.weights, s.dt).K
    closed = own.A - own.B @ K
    stage = own.Q - own.N @ K - K.T @ own.N.T + K.T @ own.R @ K
    P = control.dlyap(closed.T, stage)
    return float(s.x0 @ P @ s.x0) / float(s.x0 @ best @ s.x0) - 1


def _percent(share: float) -> str:
    """``3.1 % above``, in as many digits as mean anything."""
    if not math.isfinite(share):
        return "infinitely far above"
    if abs(share) < 5e-5:
        return "exactly" if abs(share) < 1e-9 else "within 0.01 % of"
    return f"{100 * abs(share):.2g} % {'above' if share > 0 else 'below'}"


def quantity(seconds: float) -> str:
    """A time in the unit that suits it: ``20 ms``."""
    unit, size = next((u for u in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if seconds >= u[1]), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"
