"""What all panels share: slow work runs beside the notebook, once per settled value, and can be told to stop."""

import atexit
import contextlib
import dataclasses
import html
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import ipywidgets
import jax.numpy as jnp
import numpy as np

from lqrlab import systems
from lqrlab.systems import Plant

_SOON = 0.25  # seconds within which an answer needs no announcement
WIDE: dict[str, Any] = {"style": {"description_width": "11rem"}, "layout": {"width": "24rem"}}


class Stopped(Exception):
    """Raised inside work whose answer nobody waits for any longer."""


class Live:
    """Work of a panel: asked for as often as its sliders move, done for the newest values, one at a time.

    It runs in a thread of its own, so the notebook stays responsive and a button can stop it: the panel is free at
    once, and work that calls the check it is given ends there too. A newer question ends it in the same way, but work
    that does not check is finished and shown, so that a picture follows a slider that is still being dragged.

    Args:
        work: ``work(asked, check)`` → what ``show`` is given. ``check()`` raises :class:`Stopped` when there is no
            reason to go on; slow work calls it now and then.
        show: puts an answer into the panel.
        settle: seconds that a value has to stand still before it is worked on.

    Attributes:
        bar: what is going on, in words, and the button that stops it; a part of the panel.
        status, stop: its two parts.
    """

    def __init__(
        self,
        work: Callable[[Any, Callable[[], None]], Any],
        show: Callable[[Any], None],
        *,
        settle: float = 0.0,
    ) -> None:
        self._work, self._show, self._settle = work, show, settle
        self.status = ipywidgets.HTML()
        self.stop = ipywidgets.Button(description="stop", icon="stop", layout={"display": "none"})
        self.bar = ipywidgets.HBox([self.status, self.stop], layout={"min_height": "2rem"})
        self.stop.on_click(lambda _: self.interrupt())
        self._changed = threading.Condition()
        self._asked: Any = None
        self._newest = self._taken = 0  # numbers of questions
        self._due = 0.0
        self._stopped = False  # the one at work, by the user
        self._running = False
        _LIVING.add(self)

    def ask(self, asked: Any) -> None:
        """Have the work done for ``asked``; returns at once."""
        with self._changed:
            self._asked, self._newest = asked, self._newest + 1
            self._due = time.monotonic() + self._settle
            if not self._running:
                self._running = True
                threading.Thread(target=self._loop, daemon=True).start()
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Stop what is going on; what is shown stays."""
        with self._changed:
            if not self._running or self._stopped:
                return
            self._stopped, self._taken = True, self._newest
            self._say("stopped; what is shown is from before")
            self._changed.notify_all()

    def wait(self, timeout: float = 60.0) -> None:
        """Until everything asked for is shown, in a script or a test.

        Raises:
            TimeoutError: it takes longer than ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._running, timeout):
                raise TimeoutError(f"the panel was still computing after {timeout:g} s")

    def _loop(self) -> None:
        while True:
            with self._changed:
                while self._taken < self._newest and (left := self._due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._taken == self._newest:
                    self._running = False
                    self._changed.notify_all()
                    return
                asked, self._taken, self._stopped = self._asked, self._newest, False
                number = self._taken
            self._one(asked, number)

    def _one(self, asked: Any, number: int) -> None:
        def check() -> None:
            if self._stopped or self._newest != number:
                raise Stopped

        def announce() -> None:
            with self._changed:
                if self._running and self._taken == number and not self._stopped and not done.is_set():
                    self._say("computing…", button=True)

        done = threading.Event()
        timer = threading.Timer(_SOON, announce)
        timer.daemon = True
        timer.start()
        trouble, answer = "", None
        try:
            answer = self._work(asked, check)
        except Stopped:
            return
        except Exception as error:  # whatever it is, the panel says it, and goes on
            trouble = sentence(error)
        finally:
            done.set()
            timer.cancel()
        with self._changed:
            if self._stopped:
                return
        try:
            if not trouble:
                self._show(answer)
        except Exception as error:
            trouble = sentence(error)
        with self._changed:
            if not self._stopped:
                self._say(trouble, bold=True)

    def say(self, words: str) -> None:
        """Put a sentence where the panel says what is going on."""
        with self._changed:
            self._say(words, bold=True)

    def _say(self, words: str, *, button: bool = False, bold: bool = False) -> None:
        said = html.escape(words)
        self.status.value = f"<b>{said}</b>" if bold and words else f"<i>{said}</i>" if words else ""
        self.stop.layout.display = "" if button else "none"


_LIVING: weakref.WeakSet[Live] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """A thread that computes while Python goes down takes the process with it."""
    for panel in list(_LIVING):
        panel.interrupt()
    for panel in list(_LIVING):
        with contextlib.suppress(TimeoutError):
            panel.wait(10)


def sentence(error: Exception) -> str:
    """What went wrong, in one sentence."""
    first = (str(error).strip().splitlines() or [""])[0]
    first = first if len(first) < 400 else first[:400] + "…"
    return first if isinstance(error, ValueError) and first else f"{type(error).__name__}: {first}"


# What panels are asked for -----------------------------------------------------------------------------------


def one_plant(plant: Any) -> Plant:
    """A family at its defaults, or one plant of your own.

    Raises:
        ValueError: it is neither, or a batch.
    """
    if isinstance(plant, str):
        return systems.make(plant)
    if not isinstance(plant, Plant):
        raise ValueError(
            "plant: expected the name of a family, as 'cart_pole', or one plant, as of systems.make or "
            f"systems.from_matrices, but found {type(plant).__name__}"
        )
    if plant.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
    return plant


def whole(name: str, value: Any, low: int = 1) -> int:
    """A whole number from ``low`` on.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name}: expected a whole number from {low} on, but found {value!r}")
    return int(value)


def above_zero(name: str, value: Any) -> float:
    """A number above 0, which may be inf.

    Raises:
        ValueError: it is none.
    """
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "iuf" or not number > 0:
        raise ValueError(f"{name}: expected a number above 0, but found {value!r}")
    return float(number)


# Sliders -----------------------------------------------------------------------------------------------------


def slider(label: str, value: float, low: float, high: float, **options: Any) -> ipywidgets.FloatSlider:
    """A slider with its label beside it, in about 200 steps, one of which is its value."""
    value, step = min(max(value, low), high), (high - low) / 200
    if value > low:  # a browser moves what is off the grid onto it, and says that it has changed
        step = (value - low) / max(round((value - low) / step), 1)
    return ipywidgets.FloatSlider(
        value, min=low, max=high, readout_format=".3g", description=label, **{"step": step, **WIDE, **options}
    )


def button(label: str) -> ipywidgets.Button:
    """A button as wide as its words."""
    return ipywidgets.Button(description=label, layout={"width": "auto"})


def parameter_sliders(plant: Plant, **options: Any) -> dict[str, ipywidgets.FloatSlider]:
    """A slider a parameter, from a third to three times its value within its range, or over its whole range."""
    sliders = {}
    for name, f in systems.parameter_fields(type(plant)).items():
        value, low, high = float(getattr(plant, name)), f.metadata["low"], f.metadata["high"]
        if value:
            near = sorted((value / 3, 3 * value))
            low, high = max(low, near[0]), min(high, near[1])
        label = f"{name.replace('_', ' ')} [{f.metadata['unit']}]"
        sliders[name] = slider(label, value, low, high, **options)
        sliders[name].tooltip = f.metadata["about"]
    return sliders


def moved(sliders: dict[str, ipywidgets.FloatSlider], plant: Plant) -> dict[str, float]:
    """The parameters whose sliders do not stand where the plant's own values are."""
    values = {name: slider.value for name, slider in sliders.items()}
    own = {name: float(getattr(plant, name)) for name in sliders}
    return {k: v for k, v in values.items() if abs(v - own[k]) > 1e-9 * abs(sliders[k].max - sliders[k].min)}


def altered(plant: Plant, values: dict[str, float]) -> Plant:
    """The plant with other parameters; one of the catalogue is checked against its ranges."""
    if not values:
        return plant
    if plant.name in systems.names() and type(plant) is systems.family(plant.name):
        return systems.make(plant.name, **{k: float(v) for k, v in plant.parameters.items()} | values)
    return dataclasses.replace(plant, **{k: jnp.asarray(v, float) for k, v in values.items()})  # type: ignore[type-var]
