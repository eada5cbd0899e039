"""Pictures on sliders in a page without a kernel: one control is moved at a time, from where it stood.

Where no script runs, the page shows the first picture. The one small script shows and hides pictures and does nothing
else; the report lets it run by its digest (:mod:`lqrlab.workbench.figures.safe_html`).
"""

import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lqrlab.workbench.figures import svg
from lqrlab.workbench.figures.svg import Picture

MARK = 'class="lq-strip"'
SCRIPT = (Path(__file__).parent / "strip.js").read_text(encoding="utf-8")


class Axis(NamedTuple):
    """One control: its label, and a value in words and a picture for each position; None where the first one stands."""

    label: str
    words: Sequence[str]
    pictures: Sequence[Picture | None]


@dataclasses.dataclass(frozen=True)
class Strip(Picture):
    """A picture, and those that stand for other positions of the controls that it was made with."""

    axes: Sequence[Axis] = ()

    @property
    def html(self) -> str:  # type: ignore[override]
        """The controls and all pictures; sliders are put into their places by the script."""
        if not self.axes:
            return super().html
        rows = "".join(
            f'<div class="lq-row"><span>{html.escape(axis.label)}</span><b></b><div class="lq-slot"></div></div>'
            for axis in self.axes
        )
        style = f"<style>{svg.STYLE}{svg.stylesheet('strip.css')}</style>"
        still, groups = f'<div class="lq-still">{super().html}</div>', "".join(map(_group, self.axes))
        return f'{style}<div {MARK}><div class="lq-rows">{rows}</div>{still}{groups}</div>'


def _group(axis: Axis) -> str:
    """The pictures of one control, hidden until the script shows one; an empty one stands for the first picture."""
    frames = (
        f'<div class="lq-frame" aria-label="{html.escape(word)}">{picture.html if picture else ""}</div>'
        for word, picture in zip(axis.words, axis.pictures)
    )
    return f'<div class="lq-frames">{"".join(frames)}</div>'
