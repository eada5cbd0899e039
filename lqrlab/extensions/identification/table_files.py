"""Tables of numbers, in memory and in files that anyone may have written: what a file unpacks to is limited before."""

import codecs
import collections
import csv
import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lqrlab.compute import checks
from lqrlab.compute.array_files import read_arrays
from lqrlab.extensions.identification.log import signals_of

_MOST_BYTES = 1 << 30
_SMALL = 32 << 20  # bytes that any file may unpack to
_SHRINKS = 16  # largest believable ratio of compression of what is more than that
_MOST_COLUMNS = 10_000
_LONGEST_LINE = 1 << 20


def table(source: Any, names: Sequence[str]) -> tuple[str, pd.DataFrame]:
    """Origin of the data in words, and the data; columns without headings get ``names``."""
    if isinstance(source, pd.DataFrame):
        return "the DataFrame", source
    if isinstance(source, Mapping):
        return "the dictionary", _of_arrays("the dictionary", source)
    if not isinstance(source, str | Path):
        array = np.atleast_2d(np.asarray(checks.real("source", source), float))
        if array.ndim > 2:
            raise ValueError(f"source: expected an array of samples by signals, but found shape {array.shape}")
        return "the array", _headed("the array", pd.DataFrame(array), names)
    path = checks.path("source", source)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: expected a file ending in {', '.join(_READERS)}, but found {path.suffix!r}")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path}: expected a log of at most 1 GiB, but found {path.stat().st_size / 2**30:.1f} GiB")
    try:
        frame = reader(path)
        _check_size(path, 8 * frame.size)  # bytes and bits become numbers of eight bytes
        return str(path), _headed(str(path), frame, names)
    except Exception as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: cannot be read as {path.suffix} ({type(error).__name__}: {error})") from error


def _headed(where: str, frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    if all(isinstance(c, str) for c in frame.columns):
        return frame
    if frame.shape[1] != len(names):
        raise ValueError(
            f"{where}: has no headings and {frame.shape[1]} columns, but {len(names)} inputs and outputs are named; "
            "name all columns in their order"
        )
    return frame.set_axis([s.name for s in signals_of(names)], axis=1)


def _of_arrays(where: str, arrays: Mapping[str, Any]) -> pd.DataFrame:
    """Vectors of one length as columns; of a matrix ``name`` the columns ``name1``, ``name2``, …"""
    columns: list[tuple[str, np.ndarray]] = []
    for name, value in arrays.items():
        checks.text(where, name, "the names of columns")
        if isinstance(value, np.ma.MaskedArray):  # what a mask hides was not measured: a lost sample
            times = value.dtype.kind in "mM"
            value = value.filled("NaT") if times else value.astype(np.result_type(value, float)).filled(np.nan)
        try:
            a = np.asarray(value)
        except ValueError:
            raise ValueError(f"{where}: expected an array of numbers, but {name} has rows of several lengths") from None
        if name.startswith("__") or a.dtype.kind not in "fiubcmM" or a.ndim not in (1, 2):
            continue
        vectors = [a.ravel()] if a.ndim == 1 or 1 in a.shape else a.T
        _check_columns(where, len(vectors))
        columns += [(name if len(vectors) == 1 else f"{name}{i + 1}", vector) for i, vector in enumerate(vectors)]
    if not columns:
        raise ValueError(f"{where}: expected arrays of numbers, but found none")
    _check_distinct(where, [name for name, _ in columns])
    most = statistics.mode(len(a) for _, a in columns)
    return pd.DataFrame({name: a for name, a in columns if len(a) == most})


def _most(path: Path) -> int:
    return min(_MOST_BYTES, max(_SMALL, _SHRINKS * path.stat().st_size))


def _check_size(path: Path, held: float) -> None:
    if held > _most(path):
        raise ValueError(
            f"{path}: unpacks to more than {_most(path) / 2**20:.0f} MiB, which is not believed of a file of "
            f"{path.stat().st_size / 2**20:.1f} MiB; keep the signals of the log alone"
        )


def _check_columns(where: object, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise ValueError(f"{where}: expected at most {_MOST_COLUMNS} columns, but found {columns}")


def _check_distinct(where: object, names: Sequence[str]) -> None:
    if twice := [name for name, count in collections.Counter(names).items() if name and count > 1]:
        raise ValueError(f"{where}: two columns are called {twice[0]}; give each a name of its own")


# Kinds of files -----------------------------------------------------------------------------------------------


def _text(path: Path) -> pd.DataFrame:
    """With or without headings; ``;``, tab or comma between the columns, else blanks. pandas reads the rows."""
    content = path.read_bytes()
    encoding = _encoding(content[:_LONGEST_LINE])
    first, second, *more = [*content[:_LONGEST_LINE].decode(encoding, errors="replace").splitlines(), "", ""]
    if len(content) >= _LONGEST_LINE and len(more) < 3:
        raise ValueError(f"{path}: expected rows of numbers, but found one of more than 1 MiB")
    separator = next((s for s in ";\t," if s in first and path.suffix.lower() == ".csv"), r"\s+")
    names, values = _split(first.lstrip("#%"), separator), _split(second, separator)
    width = max(len(names), len(values))
    _check_columns(path, width)
    _check_size(path, 8 * width * max(content.count(b"\n"), content.count(b"\r")))
    headed = pd.to_numeric(pd.Series(names), errors="coerce").isna().any()
    frame = pd.read_csv(
        io.BytesIO(content), sep=separator, names=range(width), skiprows=int(headed), index_col=False,
        skipinitialspace=True, encoding=encoding, encoding_errors="replace",
    )  # fmt: skip
    if not headed:
        return frame
    _check_distinct(path, names)
    beyond, lacking = frame.iloc[:, len(names) :], separator == r"\s+" and len(values) < len(names)
    if lacking or beyond.notna().any(axis=None):  # a line that ends with separators has nothing there
        raise ValueError(f"{path}: expected a value for each of {len(names)} headings, but found {len(values)}")
    return frame.iloc[:, : len(names)].set_axis([name or f"column {i + 1}" for i, name in enumerate(names)], axis=1)


def _encoding(head: bytes) -> str:
    """UTF-8, or UTF-16 where its mark says so; else Latin-1, in which many a logger and spreadsheet writes ° and µ."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        if re.search(rb"[\0-\x08\x80-\x9f]", head):  # which is no text in Latin-1 either
            raise
        return "latin-1"
    return "utf-8-sig"


def _split(line: str, separator: str) -> list[str]:
    if separator == r"\s+":
        return re.findall(r"[^\s\[(]+(?:\s*[\[(][^\])]*[\])])?", line)  # "angle [deg]" is one heading
    return [word.strip() for word in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]


def _arrays(path: Path) -> pd.DataFrame:
    arrays = {k: a for k, a in read_arrays(path, _most(path)).items() if a is not None}
    last = [re.sub(r"^[^\[]*\.", "", k) for k in arrays]  # signals.values
    return _of_arrays(str(path), {k if last.count(s) > 1 else s: a for s, (k, a) in zip(last, arrays.items())})


def _parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    about, columns = file.metadata, [file.schema.column(j) for j in range(file.metadata.num_columns)]
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    _check_columns(path, len(groups) * len(columns))
    held = sum(group.column(j).total_uncompressed_size for group in groups for j in range(len(columns)))
    _check_size(path, max(held, 8 * about.num_rows * len(columns)))
    flat = [c.path for c in columns if c.max_repetition_level == 0 and c.physical_type != "BYTE_ARRAY"]
    return file.read(columns=flat).to_pandas(ignore_metadata=True)


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _text, ".txt": _text, ".dat": _text, ".parquet": _parquet, ".h5": _arrays, ".hdf5": _arrays,
    ".mat": _arrays, ".npz": _arrays,
}  # fmt: skip
