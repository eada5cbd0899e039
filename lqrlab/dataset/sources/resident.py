"""Windows that are all on a device, or all in host memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.dataset import windows
from lqrlab.dataset.sources.protocol import BatchSpec, Source
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.windows import Windows, WindowSet


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ResidentSource(Source):
    """All windows on the device (or in host memory, which on a CPU is the same): shuffled and gathered there.

    Attributes:
        held: all windows of the split.
        on_host: whether they are kept in host memory and batches are put on the device.
    """

    held: WindowSet
    on_host: bool = False

    def _gather(self, first: int, count: int) -> Windows:
        """See :class:`Source`."""
        epoch, start = (np.uint32(i) for i in divmod(first, self.num_windows))
        taken = windows.shuffled(self.held, start, epoch, count, np.uint32(self.spec.seed))
        return jax.device_put(taken, _device(self.spec)) if self.on_host else taken

    def of_split(self, split: str) -> Source:
        """See :class:`Source`."""
        return resident_source(self.data, dataclasses.replace(self.spec, split=split), on_host=self.on_host)


def resident_source(data: Dataset, spec: BatchSpec, *, on_host: bool = False) -> ResidentSource:
    """Read a split; see :func:`lqrlab.dataset.source`."""
    rows, variant = windows.read(data, spec.window, windows.blocks(data, spec.split, chunks=False))
    home = _cpu() if on_host else spec.device
    # on a CPU host memory is the device's: the arrays are taken over, not copied
    signals, of = jax.device_put((rows, variant), home)
    held = WindowSet(signals=signals, variant=of, window=spec.window, num_steps=data.config.row_steps)
    return ResidentSource(
        data=data,
        spec=spec,
        table=jax.device_put(data.table(), spec.device),
        num_windows=held.num_windows,
        held=held,
        on_host=on_host and _device(spec) != home,
    )


def _device(spec: BatchSpec) -> jax.Device:
    return spec.device or next(iter(jnp.zeros(()).devices()))


def _cpu() -> jax.Device:
    """JAX's CPU, which computes on host memory."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ValueError(
            f"kind: 'memory' gathers windows on the host, but JAX was told to leave the CPU out ({error}); "
            "set JAX_PLATFORMS=cuda,cpu or leave it unset"
        ) from None
