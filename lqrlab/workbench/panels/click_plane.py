"""A picture that tells where it was clicked, in any front end that shows widgets."""

from typing import Any

import anywidget
import traitlets

_SCRIPT = """
function render({ model, el }) {
  const box = document.createElement("div");
  const draw = () => { box.innerHTML = model.get("svg"); };
  box.style.cursor = "crosshair";
  box.addEventListener("click", (event) => {
    const seen = box.querySelector("svg").getBoundingClientRect();
    const [left, right, top, bottom] = model.get("frame");
    const x = ((event.clientX - seen.left) / seen.width - left) / (right - left);
    const y = 1 - ((event.clientY - seen.top) / seen.height - top) / (bottom - top);
    if (x >= 0 && x <= 1 && y >= 0 && y <= 1) {
      model.set("point", [x, y]);
      model.save_changes();
    }
  });
  model.on("change:svg", draw);
  draw();
  el.appendChild(box);
}
export default { render };
"""


class Plane(anywidget.AnyWidget):
    """An SVG picture around a plane.

    Attributes:
        svg: the picture.
        frame: where in it the plane is: left, right, top, bottom as shares of its width and height.
        point: where it was clicked last, across and up in the plane, 0 … 1; what a test sets.
    """

    _esm = _SCRIPT
    svg: Any = traitlets.Unicode("").tag(sync=True)
    frame: Any = traitlets.List([0.0, 1.0, 0.0, 1.0]).tag(sync=True)
    point: Any = traitlets.List([]).tag(sync=True)
