"""Arrays by name in MATLAB's and NumPy's files: written whole, and read of anyone's, as far as a limit."""

import io
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lqrlab.compute.files import write_atomic

_COMPRESSED, _MOST_VARIABLES = 15, 10_000  # MATLAB's number of what went through zlib; variables of a file
_CONTAINERS = ("struct", "cell", "object", "function", "opaque", "sparse")
"""Kinds of MATLAB's variables whose size in memory their shape does not tell."""


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Arrays, numbers, texts and lists of texts as ``.mat`` (vectors are columns) or ``.npz``, by the path's ending."""
    packed, content = io.BytesIO(), {k: np.array(a) if isinstance(a, list | str) else a for k, a in arrays.items()}
    if path.suffix == ".mat":
        import scipy.io  # 0.2 s that only this format costs

        scipy.io.savemat(packed, content, oned_as="column")
    else:
        np.savez_compressed(packed, allow_pickle=False, **content)
    return write_atomic(path, packed.getvalue())


def read_arrays(path: Path, most: int, names: Collection[str] | None = None) -> dict[str, Any]:
    """The arrays of a ``.npz`` file without pickles, or of a ``.mat`` file up to version 7.

    Args:
        path: the file.
        most: bytes that it may unpack to.
        names: those that are read of a MATLAB file: others are None, and so are its structures and cells if all are.

    Raises:
        ValueError: it unpacks to more; a name twice; a structure or a cell that was named. Others, of what is damaged.
    """
    return _matlab(path, most, names) if path.suffix.lower() == ".mat" else _numpy(path, most)


def _check_size(size: float, most: int) -> None:
    if size > most:
        raise ValueError(f"it unpacks to more than {most >> 20} MiB")


def _numpy(path: Path, most: int) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    _check_size(sum(member.file_size for member in members), most)
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two of its arrays have the same name; give each a name of its own")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _matlab(path: Path, most: int, names: Collection[str] | None) -> dict[str, Any]:
    import scipy.io

    if scipy.io.matlab.matfile_version(path)[0] > 1:
        raise ValueError("expected a file of MATLAB's versions up to 7; write it with save -v7")
    _check_size(_unpacked_bytes(path, most), most)
    there = scipy.io.whosmat(path)
    wanted = [name for name, _, kind in there if kind not in _CONTAINERS] if names is None else names
    held = [(name, shape, kind) for name, shape, kind in there if name in wanted]
    for name, _, kind in held:
        if kind in _CONTAINERS:
            raise ValueError(f"{name}: expected a full matrix, but found MATLAB's {kind}")
    _check_size(8 * sum(math.prod(shape) for _, shape, _ in held), most)
    unread: dict[str, Any] = {name: None for name, *_ in there}
    return unread | scipy.io.loadmat(path, variable_names=[name for name, *_ in held])


def _unpacked_bytes(path: Path, most: int) -> int:
    """Bytes that the variables of a MATLAB file unpack to, counted up to ``most`` and a little; none is kept."""
    size = count = 0
    with path.open("rb") as file:
        order = {b"IM": "little", b"MI": "big"}.get(file.read(128)[126:], "")
        if not order:  # of version 4, in which nothing is packed
            return path.stat().st_size
        while size <= most and len(tag := file.read(8)) == 8:
            if (count := count + 1) > _MOST_VARIABLES:
                raise ValueError(f"expected at most {_MOST_VARIABLES} variables, but found more")
            kind, length = (int.from_bytes(part, order) for part in (tag[:4], tag[4:]))  # type: ignore[arg-type]
            after, unpack = file.tell() + length, zlib.decompressobj()
            size += 0 if kind == _COMPRESSED else length
            while kind == _COMPRESSED and size <= most and (left := after - file.tell()) > 0:
                packed = file.read(min(left, 1 << 16))
                if not packed:
                    break
                while packed and size <= most:
                    size += len(unpack.decompress(packed, 1 << 20))
                    packed = unpack.unconsumed_tail
            file.seek(after)
    return size
