"""The work of a panel: a thread computes the answer to the newest question, and says what goes wrong."""

import atexit
import contextlib
import html
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import ipywidgets

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Check = Callable[[], None]
"""Raises :class:`Stopped` when nobody waits for the answer any longer; slow work calls it now and then."""
_SOON = 0.25  # seconds within which an answer needs no announcement


class Stopped(Exception):
    """Raised inside work whose answer nobody waits for any longer."""


class Live(Generic[Question, Answer]):
    """A panel's work in threads: for the newest question, one at a time, with a button to stop it.

    ``work(question, check)`` answers a question that has stood for ``settle`` seconds, ``show(answer)`` puts it into
    the panel. A newer question, or the button, ends work where it calls the check; other work is finished and, unless
    it was stopped, shown: a picture follows a slider that is still being dragged.
    """

    def __init__(
        self, work: Callable[[Question, Check], Answer], show: Callable[[Answer], None], *, settle: float = 0.0
    ) -> None:
        self._work, self._show, self._settle = work, show, settle
        self.status = ipywidgets.HTML()
        self.stop = ipywidgets.Button(description="stop", icon="stop", layout={"display": "none"})
        self.bar = ipywidgets.HBox([self.status, self.stop], layout={"min_height": "2rem"})
        self.stop.on_click(lambda _: self.interrupt())
        self._asking, self._turn = threading.Lock(), threading.Lock()
        self._newest = self._stopped = 0  # numbers of questions
        self._thread = threading.Thread()
        self.error: Exception | None = None  # that the newest work ended with
        _LIVING.add(self)

    def ask(self, question: Question) -> None:
        """Have the work done for a question; returns at once."""
        with self._asking:
            self._newest += 1
            self._thread = threading.Thread(target=self._answer, args=(question, self._newest), daemon=True)
            self._thread.start()

    def interrupt(self) -> None:
        """Stop what is going on; the last answer stays."""
        with self._asking:
            if self._thread.is_alive() and self._stopped < self._newest:
                self._stopped = self._newest
                self._write("<i>stopped; what is shown is from before</i>")

    def wait(self, timeout: float = 60.0) -> None:
        """Until the newest question is answered, in a script or a test; a ``TimeoutError`` after so many seconds."""
        if self._newest:
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the panel was still computing after {timeout:g} s")

    def say(self, words: str) -> None:
        """Show a sentence where the panel says what is going on."""
        self._write(f"<b>{html.escape(words)}</b>" if words else "")

    def _write(self, markup: str, *, button: bool = False) -> None:
        self.status.value, self.stop.layout.display = markup, "" if button else "none"

    def _answer(self, question: Question, number: int) -> None:
        def check() -> None:
            if number < self._newest or number == self._stopped:
                raise Stopped

        def announce() -> None:
            with self._asking:
                if not done.is_set() and self._stopped < number:
                    self._write("<i>computing…</i>", button=True)

        time.sleep(self._settle)
        with self._turn:
            if number < self._newest or number == self._stopped:
                return
            done, trouble, self.error = threading.Event(), "", None
            timer = threading.Timer(_SOON, announce)
            timer.daemon = True
            timer.start()
            try:
                answer = self._work(question, check)
                if self._stopped < number:
                    self._show(answer)
            except Stopped:
                return
            except Exception as error:  # whatever it is, the panel says it and stays alive
                trouble, self.error = sentence(error), error
            finally:
                with self._asking:
                    done.set()
                timer.cancel()
                timer.join()  # it holds the panel
            with self._asking:
                if self._stopped < number:
                    self.say(trouble)


_LIVING: weakref.WeakSet[Live] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """A thread that computes while Python goes down takes the process with it."""
    for live in list(_LIVING):
        live.interrupt()
    for live in list(_LIVING):
        with contextlib.suppress(TimeoutError):
            live.wait(10)


def sentence(error: Exception) -> str:
    """An error in one sentence."""
    first = (str(error).strip().splitlines() or [""])[0]
    first = first if len(first) < 400 else first[:400] + "…"
    return first if isinstance(error, ValueError) and first else f"{type(error).__name__}: {first}"
