"""Arrays by name in MATLAB, NumPy and HDF5 files: atomic writing, limited reading of untrusted files."""

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lqrlab.compute.files import write_atomic

_MATRIX, _COMPRESSED = 14, 15  # MATLAB's numbers of a variable and of one that went through zlib
_TOO_MANY = 5_000, "expected at most 5000 variables, fields and cells, but found more"
_UNREAD = "object", "function", "opaque", "unknown", "sparse"  # kinds of variables
_SHRINKS = 64  # largest believable ratio of compression of HDF5


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Arrays, numbers, texts and lists of texts as ``.mat`` (vectors are columns) or ``.npz``, by the path's ending."""
    packed, content = io.BytesIO(), {k: np.array(a) if isinstance(a, list | str) else a for k, a in arrays.items()}
    if path.suffix == ".mat":
        import scipy.io  # 0.2 s that only this format costs

        scipy.io.savemat(packed, content, oned_as="column", do_compression=True)  # for zlib's checksums
    else:
        np.savez_compressed(packed, allow_pickle=False, **content)
    return write_atomic(path, packed.getvalue())


def read_arrays(path: Path, most: int) -> dict[str, Any]:
    """The arrays of a ``.npz`` file without pickles, of a ``.mat`` file of any version, or of any HDF5 file.

    What is in structures, cells and groups gets a name of its own: ``sys.A``; of several, ``parts1.A``, ``parts2.A``.
    A cell of texts is an array of them. Where an HDF5 array says its unit, so does its name: ``angle [deg]``. Objects,
    such as MATLAB's tables and functions, are None.

    Refused is what unpacks to more than ``most`` bytes, has two arrays of one name, or is HDF5 that leads out of the
    file or claims more bytes than it has. Of what is damaged other errors come.
    """
    if path.suffix.lower() == ".npz":
        return _numpy(path, most)
    with path.open("rb") as file:
        packed_in_zlib = path.suffix.lower() == ".mat" and not file.read(128).startswith((b"MATLAB 7.3", b"\x89HDF"))
    return (_matlab if packed_in_zlib else _hdf5)(path, most)


def _check_size(size: float, most: int, instead: str = "") -> None:
    if size > most:
        raise ValueError(instead or f"it unpacks to more than {most >> 20} MiB")


def _check_names(names: Sequence[str]) -> None:
    if len({*names}) < len(names):
        raise ValueError("two of its arrays have the same name; give each a name of its own")


def _numpy(path: Path, most: int) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    _check_size(sum(member.file_size for member in members), most)
    _check_names([member.filename for member in members])
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _named(content: Mapping[str, Any], inside: Callable[[Any], dict[str, Any] | None]) -> dict[str, Any]:
    """All that is ``inside`` of containers, by names that tell where; None of what holds nothing else."""
    found, waiting, count = {}, list(content.items())[::-1], 0
    while waiting:
        name, value = waiting.pop()
        _check_size(count := count + 1, *_TOO_MANY)
        parts = inside(value)
        if parts is not None:
            waiting += [(name + part, other) for part, other in parts.items()][::-1]
        elif name in found:
            raise ValueError(f"two of its arrays are called {name.strip('.')}; give each a name of its own")
        else:
            found[name] = value
    return found


def _matlab(path: Path, most: int) -> dict[str, Any]:
    import scipy.io

    _check_unpacked(path, most)
    there = scipy.io.whosmat(path)
    _check_names([name for name, *_ in there])
    sizes = {name: 8 * math.prod(shape) for name, shape, kind in there if kind not in _UNREAD}
    _check_size(sum(sizes.values()), most)
    read = scipy.io.loadmat(path, variable_names=[*sizes]) if sizes else {}
    return _named({name: read.get(name) for name, *_ in there}, _inside)


def _inside(value: Any) -> dict[str, Any] | None:
    """Fields of a structure, and what is in a cell."""
    if type(value) is not np.ndarray or value.dtype.kind not in "OV":  # objects are arrays of their own kinds
        return None
    if value.dtype.names and value.size == 1:
        return {f".{name}": part for name, part in zip(value.dtype.names, value.item())}
    return _cells([value.ravel()[[i]] if value.dtype.names else value.ravel()[i] for i in range(value.size)])


def _cells(parts: Sequence[Any]) -> dict[str, Any]:
    """Cells by their number; texts as one array."""
    if all(isinstance(part, np.ndarray) and part.dtype.kind == "U" and part.size == 1 for part in parts):
        return {"": np.array([part.item() for part in parts], str)}
    return {str(k + 1) * (len(parts) > 1): part for k, part in enumerate(parts)}


def _check_unpacked(path: Path, most: int) -> None:
    """Refuse a MATLAB file whose variables unpack to more, or are in one another deeper than SciPy can follow."""
    size, tags = 0, 0
    with path.open("rb") as file:
        order = {b"IM": "<II", b"MI": ">II"}.get(file.read(128)[126:])
        while order and len(tag := file.read(8)) == 8:  # in version 4 nothing is packed, nothing in anything
            kind, length = struct.unpack(order, tag)
            content = file.read(length)
            if kind == _COMPRESSED:
                content = zlib.decompressobj().decompress(content, most - size + 1)
            _check_size(size := size + len(content), most)
            at = 0
            while at + 8 <= len(content) and tags <= 6 * _TOO_MANY[0]:
                kind, length = struct.unpack_from(order, content, at)
                at += 8 if kind == _MATRIX or kind >> 16 else 8 + length + -length % 8  # a short one is its own tag
                tags += 1
            _check_size((tags := tags + 1) / 6, *_TOO_MANY)


def _hdf5(path: Path, most: int) -> dict[str, Any]:
    """Groups and arrays; MATLAB's of version 7.3 as MATLAB has them: transposed, cells behind references."""
    import h5py

    matlab, size, held = path.suffix.lower() == ".mat", path.stat().st_size, 0
    with h5py.File(path, "r") as file:

        def inside(item: Any) -> dict[str, Any] | None:
            if isinstance(item, np.ndarray):
                return {f".{field}": item[field] for field in item.dtype.names or ()} or None
            if isinstance(item, h5py.Group):
                _check_size(len(item), *_TOO_MANY)
                if linked := [key for key in item if not isinstance(item.get(key, getlink=True), h5py.HardLink)]:
                    raise ValueError(f"{linked[0]} is a link; links are not followed, as they can lead to other files")
                return {f".{key}": item[key] for key in item if not key.startswith("#")}
            if item is None or not isinstance(item, h5py.Dataset) or "MATLAB_object_decode" in item.attrs:
                return None
            if h5py.check_ref_dtype(item.dtype) is h5py.Reference:
                _check_size(item.size, *_TOO_MANY)
                parts = [file[ref] for ref in values(item).ravel()]
                return _cells([values(p) if p.attrs.get("MATLAB_class") == b"char" else p for p in parts])
            texts = h5py.check_string_dtype(item.dtype) and item.ndim == 1
            plain = item.shape is not None and (item.dtype.kind in "iufcbSV" or texts)
            return {_unit(item): values(item) if plain else None}

        def values(item: Any) -> np.ndarray:
            nonlocal held
            factor = next((name for name in ("scale_factor", "add_offset") if name in item.attrs), "")
            packed = f"is packed, see its {factor}: unpack it, as xarray does" * bool(factor)
            if why := packed or unbelievable(item, size):
                raise ValueError(f"{item.name.strip('/')} {why}")
            _check_size(held := held + item.nbytes, most)
            if "MATLAB_empty" in item.attrs:
                return np.zeros((0, 0))
            if item.dtype.kind == "O" and h5py.check_string_dtype(
                item.dtype
            ):  # each text may be as long as the file, and many of them one
                texts, found, rows = item.asstr(errors="replace"), list[str](), max(1, most // size)
                for at in range(0, item.size, rows):
                    found += [*texts[at : at + rows]]
                    _check_size(held := held + sum(map(len, found[at:])), most)
                return np.array(found, object)
            array = item[()].T if matlab else item[()]
            fill = [a for name in ("_FillValue", "missing_value") for a in np.ravel(item.attrs.get(name, ()))]
            if array.dtype.kind in "iuf" and (hidden := np.isin(array, fill)).any():
                array = np.where(hidden, np.nan, array)
            text = matlab and item.attrs.get("MATLAB_class") == b"char"
            return np.array(["".join(map(chr, row)) for row in array]) if text else array

        return {name[1:]: a if isinstance(a, np.ndarray) else None for name, a in _named({"": file}, inside).items()}


def unbelievable(item: Any, size: int) -> str:
    """Why an array of an HDF5 file that has so many bytes for it is not read; empty if nothing is wrong."""
    if item.is_virtual or item.external:
        return "keeps its values in another file, which is not read"
    compressed = item.id.get_create_plist().get_nfilters() > item.fletcher32
    if item.nbytes > size * (_SHRINKS if compressed else 1):
        return f"claims {item.nbytes} bytes of shape {item.shape}, but the file has {size} for it"
    return ""


def _unit(item: Any) -> str:
    """``" [deg]"`` of an HDF5 array that says so in an attribute; ``" [s]"`` of ``"s since 2026-01-01"``."""
    said = next((text for k in item.attrs if k.lower() in ("unit", "units") for text in np.ravel(item.attrs[k])), "")
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    said = said.partition(" since ")[0].strip() if isinstance(said, str) else ""
    return f" [{said}]" if said and "[" not in item.name else ""
