"""One HDF5 file of a data set: written whole or not at all, and checked before it is read."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lqrlab.compute.files import not_now, write_atomic

_KINDS = "iufS"  # plain numbers and texts: no references, no variable lengths, no Python objects
_CHUNK = 1 << 18
_MOST = 200  # arrays of a file
_GROUPS = ("variants", "variants/parameters", "trajectories")
_PARTED = ("trajectories/states", "trajectories/controls")  # read in parts, so kept in chunks

Headers = Mapping[str, dict[str, Any]]  # name of an array → its shape, type and digest


class BadFile(ValueError):
    """A damaged or unexpected file; the message names it and the reason."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = Path(path), why

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:  # it may come from another process
        return type(self), (self.path, self.why)


class Busy(BadFile):
    """A file that cannot be read now, of which it is not known that anything is wrong with it: nothing replaces it."""


@dataclasses.dataclass(frozen=True)
class Content:
    """The contents of a file: arrays by name with groups (``"variants/A"``), their units, the file's attributes."""

    arrays: dict[str, np.ndarray]
    units: dict[str, str]
    attributes: dict[str, Any]

    @functools.cached_property
    def headers(self) -> Headers:
        """Shape, type and digest of each array, of its bytes in C order, as the manifest has them."""
        digests = {name: hashlib.sha256(np.ascontiguousarray(a).data) for name, a in sorted(self.arrays.items())}
        return {name: header(self.arrays[name]) | {"sha256": done.hexdigest()} for name, done in digests.items()}

    @functools.cached_property
    def about(self) -> str:
        """The digest of all units and attributes."""
        texts = json.dumps([sorted(self.units.items()), sorted(self.attributes.items())], default=repr)
        return hashlib.sha256(texts.encode()).hexdigest()


def header(array: Any) -> dict[str, Any]:
    """Shape and type of an array."""
    return {"shape": list(array.shape), "dtype": array.dtype.str}


def chunk_rows(headers: Headers) -> int:
    """Rows of states and controls that are kept together: a quarter of a megabyte of the larger ones.

    Small enough for a good shuffle, and for a reader that holds Python's lock while HDF5 tests a checksum. States
    and controls have the same rows in a chunk, so that a block of trajectories is whole chunks.
    """
    large = [(h["shape"], np.dtype(h["dtype"]).itemsize) for h in (headers[n] for n in _PARTED if n in headers)]
    return min((max(1, min(_CHUNK // (math.prod(s[1:]) * size), s[0])) for s, size in large), default=1)


def write(path: Path, content: Content) -> None:
    """Write a file so that it is whole or not there.

    HDF5 builds it in memory: a write that fails inside that library, on a full disk, can end the process.
    """
    image, chunks = io.BytesIO(), chunk_rows(content.headers)
    before = None
    with h5py.File(image, "w", libver=("earliest", "v110")) as file:
        # in a fixed order, so that the same content is the same bytes
        for name, array in sorted(content.arrays.items()):
            # arrays in chunks have checksums that HDF5 tests; the others are read whole and tested by their digests
            parted = {"chunks": (chunks, *array.shape[1:]), "fletcher32": True}
            dataset = file.create_dataset(name, data=array, **(parted if name in _PARTED and array.size else {}))
            dataset.attrs["sha256"] = content.headers[name]["sha256"]
            if name in content.units:
                dataset.attrs["unit"] = content.units[name]
            # places its chunks now, not when the last reference goes: a profiler, as in every dask worker, holds one
            if before is not None:
                before.flush()
            before = dataset
        for name, value in sorted((content.attributes | {"sha256": content.about}).items()):
            file.attrs[name] = value
    write_atomic(path, image.getbuffer())


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[h5py.File, dict[str, h5py.Dataset]]]:
    """A file and its arrays by name, none of them read yet, after a look at all that could go wrong.

    A :class:`BadFile` is missing, cut off, not HDF5, points out of itself, or claims more bytes than it has.
    """
    with damage(path, "cannot be read"):
        about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # a pipe would be waited for
        raise BadFile(path, "is no regular file")
    with damage(path, "is no HDF5 file, or is cut off or damaged"):
        file = h5py.File(path, "r")
    with file:
        with damage(path, "is damaged"):
            arrays = _checked(path, file, about.st_size)
        yield file, arrays


@contextlib.contextmanager
def damage(path: Path, what: str) -> Iterator[None]:
    """Name the file in errors of reading it, of which h5py has a dozen kinds."""
    try:
        yield
    except BadFile:
        raise
    except Exception as error:
        if why := not_now(error):
            raise Busy(path, why) from None
        raise BadFile(path, f"{what}: {getattr(error, 'strerror', None) or error}") from None


def _checked(path: Path, file: h5py.File, size: int) -> dict[str, h5py.Dataset]:
    """The arrays of a file of so many bytes, which they claim together at most."""
    found, groups = dict[str, h5py.Dataset](), [""]
    for group in groups:
        for name in (group + key for key in file[group or "/"]):
            item: Any = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
            if name in _GROUPS and isinstance(item, h5py.Group):
                groups.append(f"{name}/")
                continue
            if why := _refused(item, size):
                raise BadFile(path, f"{name} {why}")
            found[name], size = item, size - item.nbytes
            if len(found) > _MOST:
                raise BadFile(path, f"holds more than {_MOST} arrays, more than a data set has")
    return found


def _refused(item: Any, size: int) -> str:
    """Why an item of a file that has so many bytes for it is not read; empty if nothing is wrong."""
    if item is None:
        return "is a link; links are not followed, as they can lead to other files"
    if not isinstance(item, h5py.Dataset):
        return f"is a {type(item).__name__}, not an array of a data set"
    if item.shape is None or item.dtype.kind not in _KINDS:
        return f"holds {item.dtype}, not plain numbers"
    from lqrlab.compute.array_files import unbelievable  # not needed to make a data set

    return unbelievable(item, size)


def read(path: Path) -> Content:
    """All of a file, whose content is what was written into it.

    Raises:
        BadFile: see :func:`opened`; its bytes are not those of which the digests are written in it.
    """
    with opened(path) as (file, found), damage(path, "is damaged"):
        if over := path.stat().st_size - len(file.id.get_file_image()):
            raise BadFile(path, f"has {over} bytes after its end that are not of a data set")
        arrays = {name: item[...] for name, item in found.items()}
        units = {name: str(item.attrs["unit"]) for name, item in found.items() if "unit" in item.attrs}
        written = {name: str(item.attrs.get("sha256")) for name, item in found.items()}
        attributes = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
    about = attributes.pop("sha256", None)
    content = Content(arrays, units, attributes)
    changed = [name for name, header in content.headers.items() if header["sha256"] != written[name]]
    if changed or content.about != about:
        what = [*changed, "an attribute or unit"][0]
        raise BadFile(path, f"{what} has changed since it was written: its checksum differs")
    return content
