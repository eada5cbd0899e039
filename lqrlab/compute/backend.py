"""The settings that a run computes under, and the one place that changes JAX's own."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from lqrlab.compute import debugging

PRECISIONS = ("default", "high", "highest")
DEBUG = ("off", "compiles", "nans")


def setup(*, x64: bool = True, cache: bool = True) -> None:
    """Set JAX up for lqrlab; notebooks, command line and tests call it first. Importing changes nothing.

    Args:
        x64: allow float64. Riccati design needs it: in float32 a few loops in a thousand come out unstable.
        cache: keep compiled programs on disk (under ``$XDG_CACHE_HOME/lqrlab``), so that the next process
            starts in a fraction of the time. What is kept there is executed later, so the folder is made
            readable by its owner alone, and is not used if it belongs to somebody else.
    """
    jax.config.update("jax_enable_x64", x64)
    if not cache or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lqrlab" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError:  # a read-only or foreign home: compile anew each time
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@dataclasses.dataclass(frozen=True)
class Backend:
    """Where a stage computes, and how exactly: hashable, recorded with a run.

    Attributes:
        device: ``"auto"`` (JAX's default), a platform (``"cpu"``, ``"gpu"``) or one device (``"gpu:1"``).
        precision: of float32 matrix products on devices that would round them (``"highest"``: not at all).
        jit: False runs everything line by line, to look into it.
        debug: ``"compiles"``: each compilation and its reason are logged; ``"nans"``: stop where one arises.

    What is drawn, and the type that a network computes in, are settings of the stages that draw and train.
    """

    device: str = "auto"
    precision: str = "high"
    jit: bool = True
    debug: str = "off"

    def __post_init__(self) -> None:
        for name, allowed in (("precision", PRECISIONS), ("debug", DEBUG), ("jit", (True, False))):
            value = getattr(self, name)
            if value not in allowed or type(value) is not type(allowed[0]):
                raise ValueError(
                    f"{name}: expected one of {', '.join(map(str, allowed))}, but found {value!r}"
                )
        platform, _, index = self.device.partition(":")
        if not platform or (index and not index.isdigit()):
            raise ValueError(f"device: expected 'auto', 'cpu', 'gpu' or 'gpu:1', but found {self.device!r}")

    @property
    def jax_device(self) -> jax.Device:
        """The device that arrays are put on; a ``ValueError`` names those there are."""
        if self.device == "auto":
            return jax.devices()[0]
        platform, _, index = self.device.partition(":")
        try:
            return jax.devices(platform)[int(index or 0)]
        except (RuntimeError, IndexError):
            there = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
            raise ValueError(f"device: {self.device!r} is not on this machine, which has {there}") from None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let all of these settings hold within a block, for any stage: ``with backend.active(): ...``."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.default_matmul_precision(self.precision))
            if self.device != "auto":
                stack.enter_context(jax.default_device(self.jax_device))
            if not self.jit:
                stack.enter_context(debugging.eager())
            if self.debug != "off":
                stack.enter_context(debugging.compiles() if self.debug == "compiles" else debugging.nans())
            yield

    def put(self, tree: Any) -> Any:
        """Place every array of ``tree`` on this backend's device."""
        return jax.device_put(tree, self.jax_device)
