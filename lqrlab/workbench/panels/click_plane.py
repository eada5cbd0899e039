"""A picture that tells where it is clicked or dragged."""

from pathlib import Path
from typing import Any

import anywidget
import traitlets


class ClickPlane(anywidget.AnyWidget):
    """An SVG picture around a plane that tells where it is clicked or dragged, in any front end that shows widgets.

    Attributes:
        svg: the picture.
        frame: where in it the plane is: left, right, top, bottom as shares of its width and height.
        point: where it was clicked or dragged to last, across and up in the plane, 0 … 1; what a test sets.
        start: where the button was pressed, and when [ms]; set before ``point``.
    """

    # as a path, anywidget would watch the file and hold every plane for ever
    _esm = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    svg: Any = traitlets.Unicode("").tag(sync=True)
    frame: Any = traitlets.List([0.0, 1.0, 0.0, 1.0]).tag(sync=True)
    point: Any = traitlets.List([]).tag(sync=True)
    start: Any = traitlets.List([]).tag(sync=True)
