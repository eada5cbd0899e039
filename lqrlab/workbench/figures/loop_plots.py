"""Pictures of linear loops from their matrices: Bode, Nyquist, root locus, poles and zeros, step, phase plane."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import numpy as np
from jaxtyping import ArrayLike, Complex, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lqrlab import control
from lqrlab.workbench.figures import plots

System = tuple[ArrayLike, ...]
"""``(A, B, C)`` or ``(A, B, C, D)``; a loop u = −Kx is ``(A, B, K)``."""


def bode(systems: Mapping[str, System], dt: float | None = None, *, margins: bool = False) -> Figure:
    """Magnitude and phase of the first input and output over frequency, a line for each system.

    Args:
        systems: label → (A, B, C[, D]).
        dt: sample time [s] of discrete systems.
        margins: mark how far the first, a loop gain, is from −1 in gain and phase.
    """
    figure, (above, below) = _axes(2, 2.0, sharex=True)
    w = _frequencies(systems, dt)
    for system, look in zip(systems.values(), plots.looks(systems).values()):
        response = _response(system, w, dt)
        above.semilogx(w, 20 * np.log10(np.abs(response)), **look)
        below.semilogx(w, np.rad2deg(np.unwrap(np.angle(response))), **look)
    above.set_ylabel("magnitude [dB]")
    below.set(ylabel="phase [°]", xlabel="frequency [rad/s]")
    if dt is not None:
        for axis in (above, below):
            axis.axvline(np.pi / dt, color=plots.LINE, ls=":", lw=0.8)
    if margins:
        _mark_margins(above, below, w, _response(next(iter(systems.values())), w, dt))
    return _named(figure, above, systems)


def _mark_margins(above: Axes, below: Axes, w: Float[np.ndarray, " f"], L: Complex[np.ndarray, " f"]) -> None:
    """Phase margins where |L| is one, and gain margins where L is negative, each where a line shows it."""
    size, along, across = np.log(np.abs(L)), np.real(L), np.imag(L)
    turned = np.rad2deg(np.unwrap(np.angle(L)))
    for i in np.flatnonzero(np.diff(np.sign(size)) != 0):
        share = size[i] / (size[i] - size[i + 1])
        at, angle = w[i] * (w[i + 1] / w[i]) ** share, turned[i] + share * (turned[i + 1] - turned[i])
        turns = 360 * np.round((angle - 180) / 360) + 180  # the nearest of ±180°, ±540° …
        below.plot([at, at], [turns, angle], color=plots.SECOND, lw=1.4)
        below.annotate(f"{angle - turns:+.0f}°", (at, angle), (4, 4), textcoords="offset points", fontsize=8)
    for i in np.flatnonzero((np.diff(np.sign(across)) != 0) & (along[:-1] < 0) & (along[1:] < 0)):
        share = across[i] / (across[i] - across[i + 1])
        at = w[i] * (w[i + 1] / w[i]) ** share
        level = 20 * np.log10(-(along[i] + share * (along[i + 1] - along[i])))
        above.plot([at, at], [0, level], color=plots.SECOND, lw=1.4)
        above.annotate(f"×{10 ** (-level / 20):.3g}", (at, level), (4, 4), textcoords="offset points", fontsize=8)


def nyquist(systems: Mapping[str, System], dt: float | None = None) -> Figure:
    """Loop gains in the complex plane with the point −1 and the unit circle; arguments as in :func:`bode`.

    Frequencies below zero are thin; the plane is cut at four units from the origin.
    """
    figure, (axis,) = _axes(1, 4.2)
    w = _frequencies(systems, dt)
    for system, look in zip(systems.values(), plots.looks(systems).values()):
        L = _response(system, w, dt)
        L = np.where(np.abs(L) < 100, L, np.nan)
        axis.plot(L.real, L.imag, **look)
        axis.plot(L.real, -L.imag, **look | {"label": None, "lw": 0.6})
    _circle(axis)
    axis.plot([-1], [0], "+", color=plots.SECOND, ms=10, mew=2)
    low, high = axis.get_xlim(), axis.get_ylim()
    axis.set(xlim=np.clip(low, -4, 4), ylim=np.clip(high, -4, 4), xlabel="Re L", ylabel="Im L", aspect="equal")
    return _named(figure, axis, systems)


def root_locus(
    A: ArrayLike, B: ArrayLike, K: ArrayLike, dt: float | None = None, *, cursor: float = 1.0, zoom: float = 1.0
) -> Figure:
    """The poles of A − g BK over the factor g on the gain, 0 to 10: crosses at g = 0, dots at the design, g = 1.

    Args:
        A, B, K: ``[n, n]``, ``[n, m]``, ``[m, n]``.
        dt: sample time [s] of a discrete loop.
        cursor: a further value of g whose poles are marked.
        zoom: of the axes, about what the slowest poles are nearest to: z = 1, or s = 0.
    """
    A, B, K = (np.asarray(a, float) for a in (A, B, K))
    g = np.concatenate([[0.0], np.geomspace(1e-3, 10.0, 600)])
    poles = np.linalg.eigvals(A - g[:, None, None] * (B @ K))
    figure, (axis,) = _axes(1, 4.2)
    axis.plot(poles.real.ravel(), poles.imag.ravel(), ".", ms=1.5, color=plots.palette(["locus"])[0])
    _poles(axis, np.linalg.eigvals(A), "x", "open, g = 0")
    _poles(axis, np.linalg.eigvals(A - B @ K), "o", "as designed, g = 1")
    if cursor != 1.0:
        at = np.linalg.eigvals(A - cursor * B @ K)
        axis.plot(at.real, at.imag, "s", color=plots.MAIN, mfc="none", ms=7, label=f"g = {cursor:.3g}")
    axis.legend(fontsize=8)
    made = _plane(figure, axis, dt, np.concatenate([np.linalg.eigvals(A), np.linalg.eigvals(A - B @ K)]))
    middle = 1.0 if dt is not None else 0.0
    (left, right), high = axis.get_xlim(), axis.get_ylim()[1]
    axis.set(xlim=(middle + (left - middle) / zoom, middle + (right - middle) / zoom), ylim=(-high / zoom, high / zoom))
    return made


def pole_zero(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None) -> Figure:
    """Poles (crosses) and transmission zeros (rings) of one system; matrices as in :func:`lqrlab.control.zeros`."""
    poles, zeros = np.linalg.eigvals(np.asarray(A, float)), control.zeros(A, B, C, D, dt)
    figure, (axis,) = _axes(1, 4.2)
    _poles(axis, poles, "x", "poles")
    _poles(axis, zeros, "o", "zeros")
    axis.legend(fontsize=8)
    return _plane(figure, axis, dt, np.concatenate([poles, zeros]))


def phase_plane(
    rates: Callable[[np.ndarray], ArrayLike],
    box: tuple[tuple[float, float], tuple[float, float]],
    *,
    labels: tuple[str, str] = ("state 1", "state 2"),
    runs: Sequence[ArrayLike] = (),
) -> Figure:
    """The flow of two states, and trajectories in it.

    Args:
        rates: states ``[k, 2]`` → their derivatives ``[k, 2]``, closed loop or open.
        box: ``((low, high), (low, high))`` of both states.
        labels: of the axes, with units.
        runs: trajectories ``[T, 2]`` drawn over the flow.
    """
    figure, (axis,) = _axes(1, 4.2)
    x, y = (np.linspace(*ends, 41) for ends in box)
    grid = np.stack(np.meshgrid(x, y), axis=-1)
    flow = np.asarray(rates(grid.reshape(-1, 2)), float).reshape(grid.shape)
    u, v = flow[..., 0], flow[..., 1]
    axis.streamplot(x, y, u, v, color="#9A9A9A", linewidth=0.6, density=1.2, arrowsize=0.8)
    for run, colour in zip(runs, cycle(plots.palette(range(7)))):
        path = np.asarray(run)
        axis.plot(path[:, 0], path[:, 1], color=colour)
        axis.plot(path[:1, 0], path[:1, 1], "o", color=colour, ms=4)
    axis.set(xlim=box[0], ylim=box[1], xlabel=labels[0], ylabel=labels[1])
    return figure


def _axes(count: int, height: float, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """Axes one above the other in a figure that pyplot does not know: a panel draws in a thread of its own."""
    plots.style()
    figure = Figure(figsize=(6.0, height * count), layout="constrained")
    return figure, list(figure.subplots(count, 1, squeeze=False, sharex=sharex).flat)


def _named(figure: Figure, axis: Axes, labels: Mapping[str, object]) -> Figure:
    if len(labels) > 1:
        axis.legend(fontsize=8)
    return figure


def _frequencies(systems: Mapping[str, System], dt: float | None) -> Float[np.ndarray, " f"]:
    """From a hundredth of the slowest pole to a hundred times the fastest, or the Nyquist frequency."""
    poles = np.concatenate([np.linalg.eigvals(np.asarray(s[0], float)) for s in systems.values()]).astype(complex)
    if dt is not None:
        poles = np.log(poles[np.abs(poles) > 1e-6]) / dt
    sizes = np.abs(poles)[np.abs(poles) > 1e-6]
    low, high = (sizes.min() / 100, sizes.max() * 100) if sizes.size else (1e-2, 1e2)
    high = high if dt is None else np.pi / dt
    return np.geomspace(min(low, high / 100), high, 800)


def _response(system: System, w: Float[np.ndarray, " f"], dt: float | None) -> Complex[np.ndarray, " f"]:
    (A, B, C), D = system[:3], system[3] if len(system) > 3 else None
    return np.asarray(control.frequency_response(A, B, C, w, D, dt))[:, 0, 0]


def _poles(axis: Axes, values: Complex[np.ndarray, " k"] | Float[np.ndarray, " k"], mark: str, label: str) -> None:
    colour = {"x": plots.MAIN, "o": plots.SECOND}[mark]
    axis.plot(values.real, values.imag, mark, color=colour, mfc="none", ms=8, mew=1.6, ls="none", label=label)


def _circle(axis: Axes) -> None:
    turn = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    axis.plot(turn.real, turn.imag, ":", color=plots.LINE, lw=0.8)


def _plane(figure: Figure, axis: Axes, dt: float | None, points: np.ndarray) -> Figure:
    """The boundary of stability, and axes that hold the points."""
    name = "s" if dt is None else "z"
    if dt is None:
        axis.axvline(0, color=plots.LINE, ls=":", lw=0.8)
    else:
        _circle(axis)
        axis.set_aspect("equal")
    size = 1.3 * max(float(np.abs(points).max(initial=0.0)), 1.0 if dt is not None else 1e-3)
    low = -size if dt is not None else 1.3 * min(float(points.real.min()), -0.1 * size)
    right = size if dt is not None else 1.3 * max(float(points.real.max()), 0.1 * size)
    axis.set(xlim=(low, right), ylim=(-size, size), xlabel=f"Re {name}", ylabel=f"Im {name}")
    return figure
