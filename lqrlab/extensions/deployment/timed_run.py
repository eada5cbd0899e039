"""The record of a real-time loop: its trajectory, and when each sample was taken and answered."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from lqrlab.simulation import Trajectory
from lqrlab.systems import Signal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TIMES = {"period": "periods", "jitter": "lateness", "computation": "computation"}


@dataclasses.dataclass(frozen=True, eq=False)
class TimedRun:
    """A run of :func:`realtime`: its samples, and their times on the clock since the first tick was due.

    Attributes:
        dt: sample time [s].
        ticks: numbers of the ticks at which samples were taken; those that are missing were skipped.
        began: when a sample was begun [s].
        sent: when its input was out [s].
        ys, us: measurements and inputs, absolute, in SI units; NaN where a measurement did not arrive.
        arrived: whether it did.
        outputs, inputs: names and units of the two.
        trajectory: of a simulated plant, or of one whose states are measured: as :func:`lqrlab.simulation.rollout`
            gives it, at the ticks that were not skipped; else None.
        clock: ``"real"`` or ``"simulated"``.
        due: number of ticks that were due.
    """

    dt: float
    ticks: Int[np.ndarray, " T"]
    began: Float[np.ndarray, " T"]
    sent: Float[np.ndarray, " T"]
    ys: Float[np.ndarray, "T p"]
    us: Float[np.ndarray, "T m"]
    arrived: Bool[np.ndarray, " T"]
    outputs: tuple[Signal, ...]
    inputs: tuple[Signal, ...]
    trajectory: Trajectory | None
    clock: str
    due: int

    @property
    def periods(self) -> Float[np.ndarray, " periods"]:
        """From one sample to the next [s]."""
        return np.diff(self.began)

    @property
    def computation(self) -> Float[np.ndarray, " T"]:
        """From the beginning of a sample until its input was out [s]."""
        return self.sent - self.began

    @property
    def lateness(self) -> Float[np.ndarray, " T"]:
        """From when a sample was due until it was begun [s]: the jitter."""
        return self.began - self.ticks * self.dt

    @property
    def missed(self) -> Bool[np.ndarray, " T"]:
        """True for samples whose input was out only after the next tick was due."""
        return self.sent > (self.ticks + 1) * self.dt if self.clock == "real" else np.zeros(len(self.ticks), bool)

    @property
    def skipped(self) -> int:
        """Number of ticks at which no sample was taken."""
        return self.due - len(self.ticks)

    @property
    def misses(self) -> int:
        """Number of deadlines missed: inputs that were late, and ticks that were skipped."""
        return int(self.missed.sum()) + self.skipped

    @property
    def lost(self) -> int:
        """Number of measurements that did not arrive."""
        return int((~self.arrived).sum())

    def summary(self) -> dict[str, float]:
        """Counts, and median, 99th percentile and maximum of period, jitter and computation, in microseconds."""
        found: dict[str, float] = {"samples": len(self.ticks), "misses": self.misses, "skipped": self.skipped}
        found["lost"] = self.lost
        for name in _TIMES:
            values = getattr(self, _TIMES[name])
            for key, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                found[f"{name}_{key}_us"] = float(np.quantile(values, share)) * 1e6 if len(values) else 0.0
        return found

    def __str__(self) -> str:
        s = self.summary()
        lines = [
            f"{s['samples']:.0f} samples at {1 / self.dt:g} Hz, {self.clock} time: {s['misses']:.0f} deadlines missed "
            f"({s['skipped']:.0f} ticks skipped), {s['lost']:.0f} measurements lost"
        ]
        for name in _TIMES:
            values = ", ".join(f"{key} {s[f'{name}_{key}_us']:.0f}" for key in ("p50", "p99", "max"))
            lines.append(f"{name} [µs]: {values}")
        return "\n".join(lines)

    def columns(self) -> dict[str, np.ndarray]:
        """Time, inputs and measurements by headings with units: ``identification.read(run.columns(), inputs, …)``.

        Where ticks were skipped the time jumps, and a record ends there.
        """
        table = {"t": self.ticks * self.dt}
        for signals, values in ((self.inputs, self.us), (self.outputs, self.ys)):
            table |= {f"{s.name} [{s.unit}]" if s.unit else s.name: a for s, a in zip(signals, values.T)}
        return table

    def figure(self) -> "Figure":
        """Histograms of period and computation, the deadline marked."""
        from lqrlab.workbench.figures import plots

        figure, axes = plots.grid(2, 2, 2.4)
        for axis, name, values, at in (
            (axes[0], "period [µs]", self.periods, self.dt),
            (axes[1], "computation [µs]", self.computation, self.dt),
        ):
            axis.hist(values * 1e6, bins=60, log=True, color=plots.MAIN)
            axis.axvline(at * 1e6, color=plots.LINE, lw=0.8)
            axis.set(xlabel=name, ylabel="samples")
        figure.suptitle(f"{self.misses} of {self.due} deadlines missed", x=0.01, ha="left", fontsize=10)
        return figure
