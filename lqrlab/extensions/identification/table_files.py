"""Tables of numbers, in memory and in files that anyone may have written: what a file unpacks to is limited before."""

import codecs
import csv
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lqrlab.compute import checks
from lqrlab.compute.files import matlab_bytes
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
        return "the dictionary", _frame("the dictionary", source)
    if not isinstance(source, str | Path):
        array = checks.real("source", source)
        if array.ndim > 2:
            raise ValueError(f"source: expected an array of samples by signals, but found shape {array.shape}")
        return "the array", _headed("the array", pd.DataFrame(np.atleast_2d(np.asarray(array, float))), names)
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
        _require_size(path, 8 * frame.size)  # bytes and bits become numbers of eight bytes
        return str(path), _headed(str(path), frame, names)
    except Exception as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: cannot be read as {path.suffix} ({type(error).__name__}: {error})") from error


def is_number(word: str) -> bool:
    """True if a field of a file is a number, or empty."""
    try:
        float(word)
    except ValueError:
        return not word.strip()
    return True


def _headed(where: str, frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    if all(isinstance(c, str) for c in frame.columns):
        return frame
    if frame.shape[1] != len(names):
        raise ValueError(
            f"{where}: has no headings and {frame.shape[1]} columns, but {len(names)} inputs and outputs are named; "
            "name all columns in their order"
        )
    return frame.set_axis([s.name for s in signals_of(names)], axis=1)


def _frame(where: str, arrays: Mapping[str, Any]) -> pd.DataFrame:
    """One-dimensional arrays of one length as columns; of a matrix ``name`` the columns ``name1``, ``name2``, …"""
    columns: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        checks.text(where, name, "the names of columns")
        try:
            a = np.asarray(value)
        except ValueError:
            raise ValueError(f"{where}: expected an array of numbers, but {name} has rows of several lengths") from None
        if name.startswith("__") or a.dtype.kind not in "fiubcmM" or a.ndim == 0:
            continue
        a = a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a[0] if a.ndim == 2 and a.shape[0] == 1 else a
        new = {name: a} if a.ndim == 1 else {}
        if a.ndim == 2:
            _require_few(where, a.shape[1])
            new = {f"{name}{i + 1}": a[:, i] for i in range(a.shape[1])}
        if twice := sorted(new.keys() & columns.keys()):
            raise ValueError(f"{where}: two columns are called {twice[0]}; give each a name of its own")
        columns |= new
    lengths = [len(a) for a in columns.values()]
    if not columns:
        raise ValueError(f"{where}: expected arrays of numbers, but found none")
    most = max(set(lengths), key=lengths.count)
    return pd.DataFrame({k: a for k, a in columns.items() if len(a) == most})


# Limits -------------------------------------------------------------------------------------------------------


def _most(path: Path) -> int:
    return min(_MOST_BYTES, max(_SMALL, _SHRINKS * path.stat().st_size))


def _require_size(path: Path, held: float) -> None:
    if held > _most(path):
        raise ValueError(
            f"{path}: unpacks to more than {_most(path) / 2**20:.0f} MiB, which is not believed of a file of "
            f"{path.stat().st_size / 2**20:.1f} MiB; keep the signals of the log alone"
        )


def _require_few(where: object, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise ValueError(f"{where}: expected at most {_MOST_COLUMNS} columns, but found {columns}")


# Kinds of files -----------------------------------------------------------------------------------------------


def _csv(path: Path) -> pd.DataFrame:
    """With or without headings, whatever separates the columns."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, errors="replace") as file:
        head, second = file.readline(_LONGEST_LINE), file.readline(_LONGEST_LINE)
    if max(len(head), len(second)) >= _LONGEST_LINE:
        raise ValueError(f"{path}: expected rows of numbers, but found one of more than 1 MiB")
    separator = next((s for s in (";", "\t", ",") if s in head and path.suffix.lower() == ".csv"), r"\s+")
    words, values = _split(head.lstrip("#%"), separator), _split(second, separator)
    headed = not all(is_number(w) for w in words)
    columns = max(len(words), len(values))
    _require_few(path, columns)
    _require_size(path, 8 * columns * _count_lines(path))
    if headed and (twice := [w for w, count in Counter(w for w in words if w).items() if count > 1]):
        raise ValueError(f"{path}: two columns are called {twice[0]}; give each a name of its own")
    names: list[Any] = [word or f"column {i + 1}" for i, word in enumerate(words)] if headed else []
    names += range(columns - len(names))
    frame = pd.read_csv(
        path,
        sep=separator,
        header=None,
        skiprows=int(headed),
        names=names,
        index_col=False,
        skipinitialspace=True,
        encoding=encoding,
    )
    beyond = [name for name in names if headed and not isinstance(name, str)]
    lacking = separator == r"\s+" and len(values) < len(words)  # blanks hold no place
    if headed and (lacking or frame[beyond].notna().any(axis=None)):  # what ends with separators has nothing there
        raise ValueError(f"{path}: expected a value for each of {len(words)} headings, but found {len(values)}")
    return frame.drop(columns=beyond)


def _encoding(path: Path) -> str:
    """UTF-8, or UTF-16 where its mark says so; else Latin-1, in which many a logger and spreadsheet writes ° and µ."""
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block := file.read(1 << 20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "utf-8" if re.search(rb"[\0-\x08\x80-\x9f]", block) else "latin-1"  # the former is no text of either
    return "utf-8-sig"


def _split(line: str, separator: str) -> list[str]:
    if separator == r"\s+":
        return re.findall(r"[^\s\[(]+(?:\s*[\[(][^\])]*[\])])?", line)  # "angle [deg]" is one heading
    return [word.strip() for word in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]


def _count_lines(path: Path) -> int:
    count = Counter[bytes]()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count += Counter({end: block.count(end) for end in (b"\n", b"\r")})
    return 1 + max(count.values(), default=0)


def _npz(path: Path) -> pd.DataFrame:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    _require_few(path, len(members))
    _require_size(path, sum(member.file_size for member in members))
    if len({member.filename for member in members}) < len(members):
        raise ValueError(f"{path}: two of its arrays have the same name; give each a name of its own")
    with np.load(path, allow_pickle=False) as arrays:
        return _frame(str(path), arrays)


_MATLAB_NUMBERS = {"double", "single", "logical", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64))}


def _mat(path: Path) -> pd.DataFrame:
    import scipy.io  # 0.2 s that only this format costs

    if scipy.io.matlab.matfile_version(path)[0] != 1:
        raise ValueError(f"{path}: expected a file of MATLAB's versions 5 to 7; write it with save -v7")
    _require_size(path, matlab_bytes(path, _most(path)))
    # structures and cells would become objects, many times as large as what they hold
    kept = [name for name, _, kind in scipy.io.whosmat(path) if kind in _MATLAB_NUMBERS]
    return _frame(str(path), scipy.io.loadmat(path, variable_names=kept))


def _parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    about, schema = file.metadata, file.schema
    _require_few(path, about.num_columns * about.num_row_groups)
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    _require_size(path, 8 * about.num_rows * about.num_columns)
    _require_size(path, sum(g.column(j).total_uncompressed_size for g in groups for j in range(g.num_columns)))
    flat = [schema.column(j) for j in range(about.num_columns) if schema.column(j).max_repetition_level == 0]
    kept = [c.path for c in flat if c.physical_type != "BYTE_ARRAY"]
    return file.read(columns=kept).to_pandas(ignore_metadata=True)


def _hdf5(path: Path) -> pd.DataFrame:
    from lqrlab import dataset  # the only subpackage that reads HDF5

    arrays = dataset.read_arrays(path, most=_most(path), units=True)
    return _frame(str(path), {re.sub(r"^\w+/", "", k): a for k, a in arrays.items()})


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _csv, ".txt": _csv, ".dat": _csv, ".parquet": _parquet, ".h5": _hdf5, ".hdf5": _hdf5,
    ".mat": _mat, ".npz": _npz,
}  # fmt: skip
