"""A function of your own with sliders: what it draws follows them."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from lqrlab.workbench.figures import plots
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel

Range = Sequence[Any]
"""``(lowest, at first, highest)`` of a number, or the values to choose from, as a list, the first of them at first."""


def live_figure(
    draw: Callable[..., "Figure | Picture"], *, values: Mapping[str, Any] | None = None, **ranges: Range
) -> "LiveFigure | Picture":
    """A panel that draws what a function makes of a few numbers, on sliders: ``draw(limit=…)`` for ``limit=(0, 1, 5)``.

    The function returns a figure of Matplotlib's, or a picture of lqrlab's such as an animation. It is called in a
    thread for the newest values alone, however slow it is. A range is ``(lowest, at first, highest)``, of whole numbers
    where all three are, or a list of values. ``values`` is what the controls begin at, as *copy as code* writes it.
    Without a person it is the picture.
    """
    return LiveFigure(draw, ranges).at(values)


class LiveFigure(Panel[dict[str, Any], Picture]):
    """The panel; ``sliders`` are its controls by name."""

    does = "its sliders draw the figure anew"
    first = "as long as your function takes"

    def __init__(self, draw: Callable[..., "Figure | Picture"], ranges: Mapping[str, Range]) -> None:
        if not callable(draw):
            raise ValueError(f"draw: expected a function that returns a figure, but found {type(draw).__name__}")
        self._of = draw
        self.sliders = {name: _control(name, given) for name, given in ranges.items()}
        called = {"draw": draw} | {
            name: [*given] if isinstance(given, list) else given for name, given in ranges.items()
        }
        super().__init__([*self.sliders.values()], call=("live_figure", called), settle=0.1)
        self.track(**self.sliders)
        self.moving = tuple(self.sliders)
        self.ask()

    def _compute(self, question: dict[str, Any], check: Check) -> Picture:
        made = self._of(**question)
        if isinstance(made, Picture):
            return made
        if not isinstance(made, Figure):
            raise ValueError(f"draw: expected it to return a figure or a picture, but found {type(made).__name__}")
        at = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in question.items())
        says = made.get_suptitle() or (self._of.__doc__ or "A figure").strip().splitlines()[0].rstrip(".")
        return plots.picture(made, f"{says}; {at}")


def _control(name: str, given: Range) -> ipywidgets.Widget:
    label = html.escape(name.replace("_", " "))
    if isinstance(given, list) and given:
        options = [(str(value), value) for value in given]
        return ipywidgets.Dropdown(options=options, description=label, **controls.WIDE)
    numbers = isinstance(given, tuple) and len(given) == 3 and all(isinstance(v, int | float) for v in given)
    if not numbers or not given[0] <= given[1] <= given[2] or given[0] == given[2]:
        raise ValueError(
            f"{name}: expected (lowest, at first, highest) of a slider, or a list to choose from, but found {given!r}"
        )
    low, value, high = given
    if all(isinstance(v, int) for v in given):
        return ipywidgets.IntSlider(value, low, high, description=label, **controls.WIDE)
    return controls.slider(label, float(value), float(low), float(high))
