"""A child after ``fork`` has JAX's memory but none of its threads, and would wait for them for ever: it is told so."""

import contextlib
import os
import sys


class _LostDevice:
    """Stands for the device in a child after ``fork``: whatever JAX asks of it is answered with the reason.

    JAX takes for a device what has that word in its name.
    """

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(
            "this process was made by fork from one in which JAX had computed, and JAX's threads, which it would wait "
            "for, are not in it; make processes by 'spawn' (multiprocessing.get_context('spawn'), or "
            "ProcessPoolExecutor(mp_context=…)), or by subprocess"
        )


def _after_in_child() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    with contextlib.suppress(Exception):  # another JAX: then it hangs, as it would without this
        if bridge is not None and bridge.backends_are_initialized():
            sys.modules["jax"].config.update("jax_default_device", _LostDevice())


def refuse_in_children() -> None:
    """Let the first computation in a child after ``fork`` raise a ``RuntimeError``; one of ``exec`` is not touched."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_in_child)
