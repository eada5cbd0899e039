"""Designs that a person keeps: a panel's values by name, in a file beside the run that is found again."""

import contextlib
import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets

from lqrlab.compute import files
from lqrlab.workbench.panels.controls import button, rows
from lqrlab.workbench.runs import session
from lqrlab.workbench.runs.session import DESIGNS

_LONGEST = 60  # letters of a name


class KeptDesigns(ipywidgets.VBox):
    """A name and a button that keeps what a panel stands at, and a list of what was kept, to go back to or forget.

    ``values()`` is what the panel stands at, ``go(values)`` moves it. The file is ``designs.json`` of the run that was
    begun last, else of this folder; ``call``, the code that makes the panel, tells its designs from those of others.
    """

    def __init__(self, call: str, values: Callable[[], Mapping[str, Any]], go: Callable[[Mapping[str, Any]], None]):
        self._call, self._folder, self._values, self._go = call, session.begun() or Path.cwd(), values, go
        self.name = ipywidgets.Text(placeholder="a name", layout={"width": "14rem"})
        self.list = ipywidgets.Dropdown(options=[], layout={"width": "14rem"})
        self.keep, self.take, self.forget = (
            button(label, self._guarded(then))
            for label, then in (("keep", self._keep), ("go to it", self._take), ("forget it", self._forget))
        )
        self.said = ipywidgets.HTML()
        super().__init__([rows([self.name, self.keep, self.list, self.take, self.forget]), self.said])
        with contextlib.suppress(ValueError, OSError):  # said when it is used
            self._listed()

    def _guarded(self, then: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            self.said.value = ""
            try:
                then()
            except (ValueError, OSError) as error:
                self.said.value = html.escape(str(error))

        return guarded

    def _read(self) -> dict[str, Mapping[str, Any]]:
        """The designs of this panel by name; a ``ValueError`` for a file that somebody broke."""
        path = self._folder / DESIGNS
        mine = files.read_object(path).get(self._call, {}) if path.exists() else {}
        if not isinstance(mine, dict) or not all(isinstance(values, dict) for values in mine.values()):
            raise ValueError(
                f"{path}: expected designs by name for {self._call}, but found something else; move it away"
            )
        return mine

    def _write(self, name: str, values: Mapping[str, Any] | None) -> None:
        """Keep a design of this name, or with None forget it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with files.locked(self._folder, patience=5.0):
            path, mine = self._folder / DESIGNS, self._read()
            others = files.read_object(path) if path.exists() else {}
            kept = {n: v for n, v in mine.items() if n != name} | ({} if values is None else {name: dict(values)})
            files.write_json(path, others | {self._call: kept}, ensure_ascii=False)

    def _listed(self, chosen: str | None = None) -> None:
        names = [*self._read()]
        self.list.options = names
        self.list.value = chosen if chosen in names else (names[-1] if names else None)

    def _keep(self) -> None:
        name = self.name.value.strip()
        if not 0 < len(name) <= _LONGEST or not name.isprintable():
            raise ValueError(f"name: expected 1 to {_LONGEST} letters to find the design by, but found {name!r}")
        self._write(name, self._values())
        self._listed(name)
        self.said.value = f"Kept in <code>{html.escape(str(self._folder / DESIGNS))}</code>."

    def _chosen(self) -> str:
        if self.list.value is None:
            raise ValueError("no design of this panel is kept yet: give a name and press keep")
        return self.list.value

    def _take(self) -> None:
        name, kept = self._chosen(), self._read()
        if name not in kept:
            raise ValueError(f"{name}: is not in {self._folder / DESIGNS} any longer")
        self._go(kept[name])

    def _forget(self) -> None:
        self._write(self._chosen(), None)
        self._listed()
