"""The figures of a sweep's page: each number over the parameters that differ between the runs."""

import base64
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lqrlab.workbench.figures import plots
from lqrlab.workbench.runs.terminal import cell

_RUN, _TREND = plots.MAIN, plots.SECOND
_CLOUD = 60  # runs from which on their middle half is drawn


def figures(
    frame: pd.DataFrame, varying: Sequence[str], numbers: Sequence[str], units: Mapping[str, str]
) -> list[tuple[str, str]]:
    """A figure for each number: PNG in base64, and the words that stand for it."""
    made, varying = [], varying[:6]
    for number in numbers if varying else ():
        finite = frame[np.isfinite(frame[number].astype(float))]
        if len(finite) >= 2:
            dropped = int(frame[number].notna().sum()) - len(finite)
            note = f"{dropped} of {dropped + len(finite)} not finite, not drawn" if dropped else ""
            figure = _figure(finite, number, varying, units, note)
            made.append((figure, _words(finite, number, varying, note)))
    return made


def _figure(frame: pd.DataFrame, number: str, varying: Sequence[str], units: Mapping[str, str], note: str) -> str:
    def label(name: str) -> str:
        return f"{name} [{units[name]}]" if name in units else name

    columns = 2 if len(varying) in (2, 4) else 3
    figure, panels = plots.grid(len(varying), columns, 2.3, sharey=True)
    y, notes = frame[number].astype(float), dict[str, None]()
    for axis, parameter in zip(panels, varying):
        x = _places(axis, frame[parameter])
        notes[_trend(axis, x, y)] = None
        many = len(x) > 200
        axis.plot(x, y, "o", ms=2 if many else 4, color=_RUN, alpha=0.25 if many else 0.75, mew=0)
        axis.set_xlabel(label(parameter))
        if y.min() > 0 and y.max() > 30 * y.min():
            axis.set_yscale("log")
    for axis in panels[::columns]:
        axis.set_ylabel(label(number) if len(number) < 30 else "")  # a longer one stands in the title alone
    words = "; ".join(filter(None, (*notes, note)))
    title = f"{number}   ({words})" if words else number
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    picture = base64.b64encode(plots.png(figure, dpi=150)).decode()
    plt.close(figure)
    return picture


def _places(axis: Axes, x: pd.Series) -> pd.Series:
    """Places of a parameter's values on the axis, which gets its scale and ticks."""
    if pd.api.types.is_numeric_dtype(x) and x.dtype != bool:
        places = x.astype(float)
        if places.min() > 0 and places.max() > 15 * places.min():
            axis.set_xscale("log")
        if places.nunique() <= 6:
            axis.set_xticks(sorted(places.unique()), [f"{v:g}" for v in sorted(places.unique())])
            axis.minorticks_off()
        return places
    labels = list(dict.fromkeys(x.astype(str)))
    axis.set_xticks(range(len(labels)), labels)
    axis.set_xlim(-0.5, len(labels) - 0.5)
    return x.astype(str).map(labels.index).astype(float)


def _trend(axis: Axes, x: pd.Series, y: pd.Series) -> str:
    """The median where several runs stand at most places; of a cloud its median and middle half in slices."""
    if len(x) > _CLOUD and x.nunique() > 12:
        slices = pd.qcut(x, 12, duplicates="drop")
        at = x.groupby(slices, observed=True).median()
        low, median, high = (y.groupby(slices, observed=True).quantile(q) for q in (0.25, 0.5, 0.75))
        axis.fill_between(at, low, high, color=_TREND, alpha=0.25, lw=0, zorder=3)
        axis.plot(at, median, color=_TREND, lw=1.6, zorder=4)
        return "line and band: median and middle half"
    if 2 * x.nunique() <= len(x):
        median = y.groupby(x).median()
        axis.plot(median.index, median, "_", ms=14, mew=1.6, color=_TREND)
        return "bar: median"
    return ""


def _words(frame: pd.DataFrame, number: str, varying: Sequence[str], note: str) -> str:
    y = frame[number].astype(float)
    ends = []
    for word, at in (("lowest", y.idxmin()), ("highest", y.idxmax())):
        row = frame.loc[at]
        where = ", ".join(f"{name} = {cell(row[name])}" for name in varying)
        ends.append(f"{word} {float(row[number]):.4g} at {where}")
    aside = f" ({note})" if note else ""
    return f"{number} of {len(y)} runs over {', '.join(varying)}{aside}: {'; '.join(ends)}"
