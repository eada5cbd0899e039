"""The base of all panels: controls, and a picture with words that a thread computes for their newest values."""

import contextlib
import dataclasses
import html
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self

import anywidget
import ipywidgets
import traitlets

import lqrlab
from lqrlab import compute, systems
from lqrlab.simulation import Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures.svg import Axis, Picture, Strip
from lqrlab.workbench.panels import controls as kinds
from lqrlab.workbench.panels.controls import KeptDesigns, Said, button, guarded, rows
from lqrlab.workbench.panels.live_panel import Answer, Check, Live, Question
from lqrlab.workbench.runs.session import headless

_EMPTY = "display:grid;place-items:center;min-height:16rem;border:1px dashed;opacity:.7"  # where a picture comes
_POSITIONS, _SLOW = 5, 10.0  # of a control in a page; seconds of the processor after which three are enough


class _Accessible(anywidget.AnyWidget):
    """Nothing to be seen: the names of sliders for screen readers, the keys of controls for keyboards."""

    _esm = Path(__file__).with_name("accessible.js").read_text(encoding="utf-8")


class Panel(ipywidgets.Box, Generic[Question, Answer]):
    """Controls, and a picture with words that follows them.

    A subclass makes its controls, lays them out by calling ``__init__``, names those whose values are its state
    (:meth:`track`) and says in ``_question`` what they stand at and in ``_compute`` what answers it: a picture, or what
    ``_show`` puts into the panel. Controls stand in rows above the picture, the last of them ``tools``, ``beside`` to
    its left, ``beneath`` and the words below it: a laptop's screen holds them together. ``call`` is the function that
    makes the panel and its arguments. ``moving`` names the controls, or groups, that are sliders in a report too;
    ``does`` says below a still picture what the live panel does; ``first`` how long the first picture takes, in
    processor seconds; ``slim`` is the width of what stands ``beside`` over its height.
    """

    canvas: Any = ipywidgets.HTML  # of the picture
    moving: tuple[str, ...] = ()
    does, first, slim = "its controls redraw the picture", "about 1 s", 1.0

    def __init__(
        self,
        controls: Sequence[ipywidgets.Widget],
        *,
        call: tuple[str, Mapping[str, object]],
        beside: Sequence[ipywidgets.Widget] = (),
        beneath: Sequence[ipywidgets.Widget] = (),
        tools: Sequence[ipywidgets.Widget] = (),
        settle: float = 0.0,
    ) -> None:
        compute.setup()
        self.picture, self.words, self.code = self.canvas(), ipywidgets.HTML(), ipywidgets.HTML()
        self.live = Live(self._compute, self._show, settle=settle)
        self.reset = button("back to the defaults", self._guarded(self._reset))
        self._quiet, self._call, self._drawn = False, call, Picture("", "")
        self._kept: dict[str, ipywidgets.Widget] = {}
        self._defaults: dict[str, Any] = {}
        self.designs = KeptDesigns(code(*call, {}).splitlines()[-1], lambda: self.values, self.set)
        pages: dict[str, ipywidgets.Widget] = {"copy as code": self.code}
        pages |= {"keep designs": self.designs} if controls else {}
        if writers := self._writers():
            pages["export"] = self._exporting(writers)
        folded = ipywidgets.Accordion(list(pages.values()), titles=tuple(pages))
        bar = ipywidgets.HBox([self.reset, *tools, self.live.bar])
        groups = itertools.groupby(controls, lambda control: isinstance(control, ipywidgets.Box))
        shown = [part for boxes, group in groups for part in (group if boxes else [rows(list(group))])]
        middle: ipywidgets.Widget = self.picture
        self.picture.value = f'<div style="{_EMPTY}">The first picture: {self.first}.</div>'
        if beside:
            self.picture.layout.flex, self.picture.layout.min_width = "3 1 24rem", "0"  # as large as there is room for
            at_left = {"flex": "2 1 18rem", "min_width": "0", "max_width": f"calc({self.slim} * (100vh - 23rem))"}
            middle = rows([ipywidgets.VBox(list(beside), layout=at_left), self.picture])
        children = [*shown, bar, middle, *beneath, self.words, folded, _Accessible()]
        super().__init__(children, layout={"flex_flow": "column"})
        self.add_class("lq-panel")
        self.code.value = _copied(code(*call, {}))

    def _question(self) -> Question:
        return self.values  # type: ignore[return-value]

    def _compute(self, question: Question, check: Check) -> Answer:
        raise NotImplementedError

    def _show(self, answer: Answer) -> None:
        self.draw(answer)  # type: ignore[arg-type]

    def draw(self, picture: Picture) -> None:
        """Put a picture and its words into the panel."""
        self._drawn = picture
        if found := re.search(r'viewBox="0 0 ([\d.]+)', picture.drawing):  # letters are large enough at half more
            self.picture.layout.max_width = f"{1.5 * float(found[1]):.0f}px"
        self.picture.value, self.words.value = picture.drawing, picture.words

    def close(self) -> None:
        """Stop the work and close all widgets in the panel: ipywidgets keeps those that are not closed."""
        if not hasattr(self, "live"):  # what it was given was refused
            return
        self.live.interrupt()
        close_all((*self.children, self.designs))  # which a panel without controls does not show
        self.layout.close()
        super().close()

    def ask(self) -> None:
        """Have the picture made that the controls now stand for."""
        if self._quiet:
            return

        def asked() -> None:
            question = self._question()
            self.code.value = "".join(map(_copied, self._codes(question)))
            self.live.ask(question)

        self._guarded(asked)()

    def _guarded(self, then: Callable[[], None]) -> Callable[..., None]:
        """The same, with what goes wrong said in the panel."""
        return guarded(then, lambda words: self.live.say(words))

    def pinning(self, now: Callable[[], tuple[str, Any]], most: Callable[[], int]) -> list[ipywidgets.Widget]:
        """Two buttons: one puts what is shown, as ``now()`` names it, into ``pinned``, the other empties that."""
        self.pinned: dict[str, Any] = {}

        def keep() -> None:
            if len(self.pinned) >= most():
                raise ValueError(f"at most {most()} designs can be pinned; unpin one first")
            name, design = now()
            self.pinned[f"design {len(self.pinned) + 1}{name}"] = design
            self.ask()

        def let_go() -> None:
            self.pinned.clear()
            self.ask()

        self.pin, self.unpin = (
            button(label, self._guarded(then)) for label, then in (("pin this design", keep), ("unpin all", let_go))
        )
        return [self.pin, self.unpin]

    # What the controls stand at --------------------------------------------------------------------------

    def track(
        self, then: Callable[[], None] | None = None, **controls: ipywidgets.Widget | Mapping[str, ipywidgets.Widget]
    ) -> None:
        """Watch controls whose values are the panel's state, groups as ``group.name``; those with a ``then`` first."""
        for group, given in controls.items():
            named = {f"{group}.{k}": c for k, c in given.items()} if isinstance(given, Mapping) else {group: given}
            gone = [name for name in self._kept if name.partition(".")[0] == group]
            for name in gone:
                del self._kept[name], self._defaults[name]
            self._kept |= named
            self._defaults |= {name: control.value for name, control in named.items()}
            for control in named.values():
                control.observe(self._guarded(then or self.ask), names="value")

    @property
    def values(self) -> dict[str, Any]:
        """Values of the controls, by name."""
        return {name: control.value for name, control in self._kept.items()}

    def set(self, values: Mapping[str, Any]) -> None:
        """Move controls, as named in :attr:`values`, in one step; a ``ValueError`` if one is not there or cannot."""
        if not isinstance(values, Mapping):
            raise ValueError(f"values: expected {{control: value}}, but found {type(values).__name__}")
        with self.quietly():
            for name in [name for name in self._kept if name in values] + [n for n in values if n not in self._kept]:
                _move(self._kept, name, values[name])
        self.ask()

    def at(self, values: Mapping[str, Any] | None) -> Self | Picture:
        """The panel with its controls at such values; without a person what it then shows."""
        if values is not None:
            self.set(values)
        if not headless():
            return self
        self.live.wait(600)
        if self.live.error:
            raise self.live.error
        still = self._strip() if self.moving else self._still()
        self.close()
        return dataclasses.replace(still, note=self.note(still))

    @classmethod
    def note(cls, still: Picture | None = None) -> str:
        """The live panel: its purpose, how to open it, and the controls that a page without a kernel has."""
        moved = [html.escape(axis.label) for axis in getattr(still, "axes", ())]
        more = f" Without a kernel, in a report, sliders move {', '.join(moved)}." if moved else ""
        return f"<small>Live in JupyterLab (<code>make lab</code>): {cls.does}.{more}</small>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """The panel; where a page shows no widgets, the words that stand below a still picture."""
        return super()._repr_mimebundle_(**kwargs) | {"text/html": f"<p>{self.note()}</p>"}

    def _strip(self) -> Strip:
        """The picture, and those at other positions of the controls that a page without a kernel moves."""
        begin, first, values = time.process_time(), self._still(), self.values
        axes, most = [], _POSITIONS
        for name in [name for name in values if name in self.moving or name.partition(".")[0] in self.moving]:
            if self._kept[name].disabled:
                continue
            places, pictures = kinds.positions(self._kept[name], most), []
            for value in places.values():
                pictures.append(None if _same(value, values[name]) else self._at(name, value))
                if time.process_time() - begin > _SLOW:
                    most = 3  # the others are as slow
            self.set({name: values[name]})
            kept = [(word, p) for (word, v), p in zip(places.items(), pictures) if p or _same(v, values[name])]
            label = self._kept[name].description
            axes.append(Axis(label, [word for word, _ in kept], [picture for _, picture in kept]))
        return Strip(first.svg, first.alt, first.words, axes)

    def _at(self, name: str, value: Any) -> Picture | None:
        """The picture with one control elsewhere; None where that cannot be shown."""
        self.set({name: value})
        self.live.wait(600)
        return None if self.live.error else self._still()

    def _still(self) -> Picture:
        """All that the panel shows in one picture."""
        return self._drawn

    def _codes(self, question: Question) -> list[str]:
        """Lines to copy: those that make the panel as it stands; a subclass may know more."""
        return [code(*self._call, _moved(self._defaults, self.values))]

    # Export ----------------------------------------------------------------------------------------------

    def _exported(self, question: Question) -> tuple[object, Problem]:
        """The controller that is shown, and what it is for; a panel without one has no *export*."""
        raise NotImplementedError

    def _writers(self) -> dict[str, Callable[[Path], Path]]:
        """Functions that *export* has buttons for, by their words: each writes at a path and returns it."""
        if type(self)._exported is Panel._exported:
            return {}
        return {"write C code": lambda path: lqrlab.deployment.to_c(*self._exported(self._question()), str(path))}

    def _exporting(self, writers: Mapping[str, Callable[[Path], Path]]) -> ipywidgets.Widget:
        """A name, and buttons that write what is shown there."""
        self.folder = ipywidgets.Text("firmware", description="write to", layout={"width": "20rem"})
        self.exported = Said()
        self.export = {
            label: button(label, guarded(partial(self._export, write), self.exported.say))
            for label, write in writers.items()
        }
        return ipywidgets.VBox([rows([self.folder, *self.export.values()]), self.exported])

    def _export(self, write: Callable[[Path], Path]) -> None:
        self.exported.say("writing …")
        written = write(Path(self.folder.value))
        more = "; its README.md says what is in it" if written.is_dir() else ""
        self.exported.value = f"Written to <code>{html.escape(str(written))}</code>{more}."

    def _reset(self) -> None:
        self.set(self._defaults)

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Within this, controls change without a question."""
        self._quiet, before = True, self._quiet
        try:
            yield
        finally:
            self._quiet = before


def _move(kept: Mapping[str, ipywidgets.Widget], name: str, value: Any) -> None:
    """Set a control, or say what it can be."""
    if name not in kept:
        raise ValueError(f"values: expected some of {', '.join(kept)}, but found {name!r}")
    control, range_ = kept[name], ""
    with contextlib.suppress(traitlets.TraitError, TypeError):
        control.value = value
        if _same(control.value, value):
            return
    if options := getattr(control, "options", ()):
        range_ = f"one of {', '.join(repr(o[1] if isinstance(o, tuple) else o) for o in options)}"
    elif hasattr(control, "min"):
        base = getattr(control, "base", None)
        low, high = (base**a if base else a for a in (control.min, control.max))
        range_ = f"a number from {low:.4g} to {high:.4g}"
    raise ValueError(f"values: {name}: expected {range_ or 'True or False'}, but found {value!r}")


def _moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Values that are not as before; not those that a browser has only rounded when it first showed it."""
    return {name: value for name, value in after.items() if not _same(value, before.get(name))}


def _same(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-9)
    return value == other


def _copied(code: str) -> str:
    """Code with a button that copies it."""
    return (
        '<button class="jupyter-button" onclick="navigator.clipboard.writeText('
        "this.nextElementSibling.textContent);this.textContent='copied'\">copy</button>"
        f'<pre style="user-select:all;white-space:pre-wrap;line-height:1.35">{html.escape(code)}</pre>'
    )


def close_all(widgets: Sequence[ipywidgets.Widget]) -> None:
    """Close widgets and all that they are made of."""
    for widget in widgets:
        close_all(getattr(widget, "children", ()))
        for part in ("layout", "style"):
            if hasattr(widget, part):
                getattr(widget, part).close()
        widget.close()


def code(function: str, arguments: Mapping[str, object], values: Mapping[str, object]) -> str:
    """Code that makes a panel with its controls at such values; an object that cannot be written goes by its name."""
    given = {name: value for name, value in arguments.items() if value is not None}
    written = [f"{name}={literal(value) or name}" for name, value in given.items()]
    if values:
        # ten digits: a browser moves what is off a slider's grid onto it
        numbers = {k: float(f"{v:.10g}") if isinstance(v, float) else v for k, v in values.items()}
        written.append("values={" + ", ".join(f"{k!r}: {v!r}" for k, v in numbers.items()) + "}")
    makes = any(part.partition("=")[2].startswith("systems.") for part in written)
    lines = ["from lqrlab import systems"] * makes + ["from lqrlab.workbench import widgets", ""]
    return "\n".join([*lines, f"widgets.{function}({', '.join(written)})"])


def literal(value: object) -> str:
    """A value as code; nothing for what has none."""
    if isinstance(value, Plant):
        if value.name not in systems.names() or type(value) is not systems.family(value.name):
            return ""
        usual = systems.make(value.name).parameters
        moved = {k: float(v) for k, v in value.parameters.items() if float(v) != float(usual[k])}
        return f"systems.make({value.name!r}{''.join(f', {k}={v!r}' for k, v in moved.items())})"
    if isinstance(value, Path):
        return repr(str(value))
    return repr(value) if isinstance(value, str | int | float | list | tuple) else ""
