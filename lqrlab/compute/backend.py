"""The settings that a run computes under, and the one place that changes JAX's own."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax

PRECISIONS = ("default", "high", "highest")


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
    """

    device: str = "auto"
    precision: str = "high"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision: expected one of {', '.join(PRECISIONS)}, but found {self.precision!r}"
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

    def put(self, tree: Any) -> Any:
        """Place every array of ``tree`` on this backend's device."""
        return jax.device_put(tree, self.jax_device)
