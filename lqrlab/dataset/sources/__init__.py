"""Sources of windows for a learner: one protocol, three kinds."""

import jax

from lqrlab.compute import checks
from lqrlab.dataset.sources.protocol import BatchSpec, Source
from lqrlab.dataset.sources.resident import resident_source
from lqrlab.dataset.sources.streaming import streaming_source
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.windows import row_bytes

KINDS = ("auto", "resident", "memory", "streaming")

_RESIDENT_BYTES = 1 << 30  # of windows that "auto" keeps on a device

__all__ = ["KINDS", "BatchSpec", "Source", "source"]


def source(
    data: Dataset,
    *,
    kind: str = "auto",
    split: str = "train",
    batch_size: int,
    window: int,
    seed: int = 0,
    device: jax.Device | str | None = None,
    pool_bytes: int = 1 << 26,
) -> Source:
    """Shuffled, scaled, padded, masked windows of a split, for a learner.

    Args:
        data: an opened data set.
        kind: ``"resident"`` keeps all windows on the device, ``"memory"`` all in host memory, ``"streaming"`` reads
            pools of shuffled blocks from the disk as they are needed. ``"auto"`` is resident up to 1 GiB of windows,
            else streaming. All give the same batches; streaming only where one pool holds the whole split.
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        batch_size: windows in a batch.
        window: steps in a window. One window ends at each step of each trajectory (or segment) at which an input is
            chosen; none reaches back over its start.
        seed: of the shuffling.
        device: where batches are put, a device or its name, ``"cpu"`` or ``"gpu:1"``; JAX's default if left out.
        pool_bytes: host memory for a pool of a streaming source, which holds two.

    Raises:
        ValueError: an argument that does not fit, an empty split, a damaged file.
    """
    if not isinstance(data, Dataset):
        raise ValueError(f"data: expected an opened data set, dataset.open(path), but found {type(data).__name__}")
    checks.choice("kind", kind, KINDS)
    checks.whole("pool_bytes", pool_bytes)
    spec = BatchSpec(split=split, window=window, batch_size=batch_size, seed=seed, device=device)
    if kind == "auto":
        share = len(data.rows(split)) / max(len(data.variants), 1)
        size = share * data.num_trajectories * row_bytes(window, data.config.row_steps)
        kind = "resident" if size <= _RESIDENT_BYTES else "streaming"
    if kind == "streaming":
        return streaming_source(data, spec, pool_bytes=pool_bytes)
    return resident_source(data, spec, on_host=kind == "memory")
