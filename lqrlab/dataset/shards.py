"""One HDF5 file of a data set: written whole or not at all, read only after it has been looked over."""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lqrlab.compute.files import write_atomic

_KINDS = "iufS"  # what a data set holds: no references, no variable lengths, no Python objects
_SHRINKS = 64  # times at most that compression is believed to have made an array smaller
_CHUNK = 1 << 18


class BadFile(ValueError):
    """A file that is not what it should be; says which one and why."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = Path(path), why

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:  # it may come from another process
        return type(self), (self.path, self.why)


@dataclasses.dataclass(frozen=True)
class Content:
    """What a file holds.

    Attributes:
        arrays: name with its groups (``"variants/A"``) → array.
        units: the same names → unit, where there is one.
        attributes: of the file as a whole: numbers and strings.
        compression: of what is kept in chunks; see :class:`lqrlab.dataset.DataConfig`.
    """

    arrays: dict[str, np.ndarray]
    units: dict[str, str]
    attributes: dict[str, Any]
    compression: str | None = None

    def digests(self) -> dict[str, str]:
        """SHA-256 of each array's bytes in C order, and under ``""`` that of all units and attributes."""
        found = {
            name: hashlib.sha256(np.ascontiguousarray(a).data).hexdigest() for name, a in self.arrays.items()
        }
        words = json.dumps([sorted(self.units.items()), sorted(self.attributes.items())], default=repr)
        return found | {"": hashlib.sha256(words.encode()).hexdigest()}


def chunk_rows(shape: Sequence[int], itemsize: int) -> int:
    """Rows of an array that are kept together: a quarter of a megabyte.

    Small enough for a good shuffle, and for a reader that holds the interpreter while HDF5 tests a checksum.
    """
    return max(1, min(_CHUNK // (math.prod(shape[1:]) * itemsize), shape[0]))


class _Image(io.RawIOBase):
    """A file in memory that is used again for the next one: fresh pages cost more than filling them.

    What was never written reads as zero, whatever the file before had there.
    """

    def __init__(self) -> None:
        self._bytes, self._at, self._end = np.empty(0, np.uint8), 0, 0

    def begin(self, capacity: int) -> None:
        """Empty it, with room for so many bytes."""
        self._at = self._end = 0
        if len(self._bytes) < capacity:
            self._bytes = np.empty(capacity, np.uint8)

    def contents(self) -> memoryview:
        """All of it; good until it is begun anew."""
        return self._bytes.data[: self._end]

    def _reach(self, end: int) -> None:
        """Fill with zeros up to there."""
        if end > len(self._bytes):
            self._bytes = np.concatenate([self._bytes, np.empty(end, np.uint8)])
        self._bytes[self._end : end] = 0
        self._end = max(self._end, end)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._bytes[self._at : min(self._at + len(buffer), self._end)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def write(self, data: Any) -> int:
        end = self._at + len(data)
        if self._at > self._end:
            self._reach(self._at)
        if end > len(self._bytes):
            self._bytes = np.concatenate([self._bytes, np.empty(end, np.uint8)])
        self._bytes[self._at : end] = np.frombuffer(data, np.uint8)
        self._end = max(self._end, end)
        self._at = end
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        self._reach(size)
        self._end = size
        return size


def _packing(compression: str | None) -> dict[str, Any]:
    """What h5py has to be told; importing the package is what lets HDF5 read such a file, too."""
    if compression is None:
        return {}
    try:
        import hdf5plugin
    except ImportError:
        raise ValueError(
            f"compression: {compression!r} takes the package hdf5plugin: pip install hdf5plugin, or leave it out"
        ) from None
    return dict(hdf5plugin.Blosc(cname="zstd", clevel=3, shuffle=hdf5plugin.Blosc.SHUFFLE))


_images = threading.local()  # one of each thread that writes


def write(path: Path, content: Content) -> dict[str, str]:
    """Write a file so that it is there whole or not at all, and return its digests.

    HDF5 builds it in memory: a write that fails inside that library, on a full disk, can take the process
    with it.
    """
    digests = content.digests()
    image: _Image = _images.__dict__.setdefault("image", _Image())
    size = sum(array.nbytes for array in content.arrays.values())
    image.begin(size + size // 64 + (1 << 20))
    # everything in a fixed order, so that the same content is the same bytes
    parted = [
        n for n, a in content.arrays.items() if a.size and n.startswith("trajectories/") and a.ndim == 3
    ]
    # as many trajectories in the chunks of each, so that a block of them is whole chunks
    rows = min((chunk_rows(a.shape, a.itemsize) for a in (content.arrays[n] for n in parted)), default=1)
    before = None
    with h5py.File(image, "w", libver=("earliest", "v110")) as file:
        for name, array in sorted(content.arrays.items()):
            # what is read in parts is kept in chunks, each with a checksum that HDF5 tests; what is read
            # whole is tested by its digest
            chunks = (rows, *array.shape[1:]) if name in parted else None
            packed = _packing(content.compression) if name in parted else {}
            dataset = file.create_dataset(
                name, data=array, chunks=chunks, fletcher32=name in parted, **packed
            )
            dataset.attrs["sha256"] = digests[name]
            if name in content.units:
                dataset.attrs["unit"] = content.units[name]
            # places its chunks now, not when the last reference goes: a profiler, as in every dask worker, holds one
            if before is not None:
                before.flush()
            before = dataset
        for name, value in sorted((content.attributes | {"sha256": digests[""]}).items()):
            file.attrs[name] = value
    write_atomic(path, image.contents())
    return digests


@contextlib.contextmanager
def opened(path: Path, only: Sequence[str] | None = None) -> Iterator[dict[str, h5py.Dataset]]:
    """The arrays of a file by name, none of them read yet, after a look at all that could go wrong.

    Args:
        path: the file.
        only: names of arrays; the others are not looked at, which saves milliseconds where little is read.

    Raises:
        BadFile: missing, cut off, no HDF5; something that points out of the file or at nothing; an array that
            claims more bytes than the file has.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    with _damage(path, "is no HDF5 file, or is cut off or damaged"):
        file = h5py.File(path, "r")
    with file:
        found: dict[str, h5py.Dataset] = {}
        with _damage(path, "is damaged"):
            _look(path, file, "", size, found, only)
        yield found


@contextlib.contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """Say of which file it is that h5py complains, for which it has a dozen kinds of error."""
    try:
        yield
    except BadFile:
        raise
    except Exception as error:
        raise BadFile(path, f"{what}: {error}") from None


def _look(
    path: Path,
    group: h5py.Group,
    prefix: str,
    size: int,
    found: dict[str, h5py.Dataset],
    only: Sequence[str] | None,
) -> None:
    wanted = (
        None if only is None else {n.removeprefix(prefix).split("/")[0] for n in only if n.startswith(prefix)}
    )
    for key in group if wanted is None else sorted(wanted):
        name = prefix + key
        if key not in group:
            raise BadFile(path, f"{name} is missing")
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise BadFile(path, f"{name} is a link; links are not followed, as they can lead to other files")
        item = group[key]
        if isinstance(item, h5py.Group):
            if name.count("/") > 2:
                raise BadFile(path, f"{name}: groups are nested deeper than in a data set")
            _look(path, item, name + "/", size, found, only)
        elif not isinstance(item, h5py.Dataset):
            raise BadFile(path, f"{name} is a {type(item).__name__}, not an array")
        elif item.is_virtual or item.external:
            raise BadFile(path, f"{name} keeps its values in another file, which is not read")
        elif item.dtype.kind not in _KINDS:
            raise BadFile(path, f"{name} holds {item.dtype}, not plain numbers")
        elif item.nbytes > size * _unpacking(path, item, name):
            raise BadFile(
                path, f"{name} claims {item.nbytes} bytes of shape {item.shape}, but the file has {size}"
            )
        else:
            found[name] = item


def _unpacking(path: Path, item: h5py.Dataset, name: str) -> int:
    """How many times its place in the file an array may be; packed ones are made readable."""
    if item.id.get_create_plist().get_nfilters() <= item.fletcher32:
        return 1
    try:
        import hdf5plugin  # noqa: F401
    except ImportError:
        raise BadFile(path, f"{name} is compressed; to read it: pip install hdf5plugin") from None
    return _SHRINKS


def part(path: Path, found: dict[str, h5py.Dataset], name: str, first: int, last: int) -> np.ndarray:
    """Rows first … last − 1 of an array of an opened file; HDF5 tests the checksums of their chunks."""
    with _damage(path, f"{name}, rows {first} to {last}, is damaged"):
        rows: np.ndarray = found[name][first:last]
    return rows


def whole(path: Path, found: dict[str, h5py.Dataset], name: str) -> np.ndarray:
    """All of an array of an opened file."""
    with _damage(path, f"{name} is damaged"):
        array: np.ndarray = found[name][...]
    return array


def read(path: Path) -> tuple[Content, dict[str, str]]:
    """All of a file, and the digests that it says it has (compare them with :meth:`Content.digests`).

    Raises:
        BadFile: see :func:`opened`.
    """
    with opened(path) as found, _damage(path, "is damaged"):
        if not found:
            raise BadFile(path, "holds no arrays")
        file = next(iter(found.values())).file
        arrays = {name: item[...] for name, item in found.items()}
        units = {name: str(item.attrs["unit"]) for name, item in found.items() if "unit" in item.attrs}
        said = {name: str(item.attrs.get("sha256", "")) for name, item in found.items()}
        attributes = {key: _plain(value) for key, value in file.attrs.items()}
    said[""] = str(attributes.pop("sha256", ""))
    return Content(arrays, units, attributes), said


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def sound(path: Path) -> Content | None:
    """What a file holds if it is whole and every digest is right, else None."""
    try:
        content, said = read(path)
    except BadFile:
        return None
    return content if said == content.digests() else None
