"""Tables in memory and in files that anyone may have written: what a file unpacks to is limited before it is read."""

import codecs
import collections
import contextlib
import csv
import functools
import io
import re
import statistics
import zipfile
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lqrlab.compute import checks
from lqrlab.compute.array_files import read_arrays
from lqrlab.compute.files import not_now, require_readable
from lqrlab.extensions.identification import units
from lqrlab.extensions.identification.log import signals_of
from lqrlab.installation import of_extra

_MOST_BYTES = 1 << 30
_SMALL = 32 << 20  # bytes that any file may unpack to
_SHRINKS = 16  # largest believable ratio of compression of what is more than that
_MOST_COLUMNS = 10_000
_LONGEST_LINE = 1 << 20
_LOOKED_AT = 1000  # rows in which heading, units and separator are looked for
_SEPARATORS = (";", "\t", "|", ",", r"\s+")
_DATA = re.compile(r"\s*[-+]?[.,]?\d")  # numbers and times begin so
_MISSING = "", "-", "--", "---", ".", "?", "na", "n/a", "nan", "-nan", "nat", "none", "null", "<na>", "<nat>"


def table(source: Any, names: Sequence[str]) -> tuple[str, pd.DataFrame]:
    """Origin of the data in words, and the data; columns without headings get ``names``."""
    if isinstance(source, pd.DataFrame):
        index = source.index
        if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) or (index.name and index.name not in source):
            source = source.reset_index(names=index.name or "time")
        return "the DataFrame", numeric(source)
    if isinstance(source, Mapping):
        return "the dictionary", numeric(_of_arrays("the dictionary", source))
    if not isinstance(source, str | Path):
        array = np.atleast_2d(np.asarray(checks.real("source", source), float))
        if array.ndim > 2:
            raise ValueError(f"source: expected an array of samples by signals, but found shape {array.shape}")
        return "the array", _called("the array", pd.DataFrame(array), names)
    path = checks.path("source", source)
    require_readable(path, _READERS, _MOST_BYTES)
    try:
        frame = _READERS[path.suffix.lower()](path)
        _check_size(path, 8 * frame.size)  # bytes and bits become numbers of eight bytes
        return str(path), _called(str(path), numeric(frame), names)
    except Exception as error:
        if isinstance(error, ImportError) or str(error).startswith(str(path)):
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())
        why = not_now(error) or f"cannot be read as {path.suffix} ({words})"
        raise ValueError(f"{path}: {why}") from error


def _called(where: str, frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
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
    columns, left = list[tuple[str, np.ndarray]](), list[str]()
    for name, value in arrays.items():
        checks.text(where, name, "the names of columns")
        try:
            a = np.ma.filled(np.ma.asarray(value, float), np.nan) if np.ma.is_masked(value) else np.asarray(value)
        except ValueError:
            raise ValueError(f"{where}: expected an array of numbers, but {name} has rows of several lengths") from None
        if a.ndim not in (1, 2) or a.dtype.kind not in "fiubcmMUSO":
            left.append(name)
            continue
        a = np.char.decode(a) if a.dtype.kind == "S" else a.astype(a.dtype.newbyteorder("="))
        vectors = [a.ravel()] if a.ndim == 1 or 1 in a.shape else a.T
        _check_columns(where, len(vectors))
        columns += [(name if len(vectors) == 1 else f"{name}{i + 1}", vector) for i, vector in enumerate(vectors)]
    lengths = [len(a) for _, a in columns if a.dtype.kind in "fiubcmM"]
    if not lengths:
        raise ValueError(f"{where}: expected arrays of numbers, but found none")
    if twice := [n for n, count in collections.Counter(name for name, _ in columns).items() if count > 1]:
        raise ValueError(f"{where}: two columns are called {twice[0]}; give each a name of its own")
    most = statistics.mode([k for k in lengths if k > 1] or lengths)
    frame = pd.DataFrame({name: a for name, a in columns if len(a) == most})
    frame.attrs["left"] = [*left, *(name for name, a in columns if len(a) != most)]
    return frame


def _most(path: Path) -> int:
    return min(_MOST_BYTES, max(_SMALL, _SHRINKS * path.stat().st_size))


def _check_size(path: Path, held: float) -> None:
    if held > (most := _most(path)):
        raise ValueError(f"{path}: unpacks to more than its limit of {most >> 20} MiB; keep only the signals")


def _check_columns(where: object, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise ValueError(f"{where}: expected at most {_MOST_COLUMNS} columns, but found {columns}")


def _pattern(mark: str, other: str) -> str:
    """Numbers with a decimal mark, and another one or a blank between groups of three digits."""
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?:[{other}'’\s]\d{{3}})+|(?=[{mark}]\d))"
    return rf"[-+−]?(?:{whole}(?:[{mark}]\d*)?(?:[eEdD][-+]?\d+)?|[iI][nN][fF]\w*)"


_NUMBERS = {".": _pattern(".", ","), ",": _pattern(",", ".")}


def numeric(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of words that are numbers, as numbers: with a decimal comma, marks of thousands, samples missing.

    Words such as ``1,234`` may be either: they go by the decimal mark of the other columns, or the usual one of the
    file (``attrs``), which is noted; without either they stay words.
    """
    fits, notes, frame = _fits(frame), list[str](frame.attrs.get("notes", ())), frame.copy(deep=False)
    sure = {marks for _, marks in fits.values() if len(marks) == 1}
    floats = (a.to_numpy(float, na_value=np.nan) for _, a in frame.items() if a.dtype.kind == "f")
    sure |= {frame.attrs.get("decimal", ".") for a in floats if (np.abs(np.modf(a)[0]) > 0).any()}
    either = sure.pop() if len(sure) == 1 else "" if sure else frame.attrs.get("usual", "")
    for i, (words, marks) in fits.items():
        open_ = words[words.str.contains("[.,]", na=False)] if len(marks) > 1 else words[:0]
        if mark := (either if len(open_) else marks[:1]):
            plain = words.str.replace(rf"[^\w+−{mark}-]", "", regex=True).str.replace(mark, ".").str.replace("−", "-")
            made = pd.to_numeric(plain.str.replace("[dD]", "e", regex=True))
            frame.isetitem(i, made.fillna(pd.to_numeric(frame.iloc[:, i], errors="coerce")))
            if len(open_):
                notes.append(f"{frame.columns[i]}: {open_.iloc[0]} is taken as {frame.iloc[:, i][open_.index[0]]:.10g}")
    frame.attrs["notes"] = notes
    return frame


def _fits(frame: pd.DataFrame) -> dict[int, tuple[pd.Series, str]]:
    """Columns of words, without those that say that nothing was measured, and the decimal marks that they may have."""
    found = {}
    for i, kind in enumerate(frame.dtypes):
        if kind.kind not in "iufbcmM":
            column = frame.iloc[:, i]
            words = column.mask(column.map(type).isin([int, float, np.float64, Decimal])).astype(str).str.strip()
            words = words.mask(column.isna() | words.str.lower().isin(_MISSING) | words.str.startswith("#"))
            said = words.dropna()
            found[i] = words, "".join(m for m, pattern in _NUMBERS.items() if said.str.fullmatch(pattern).all())
    return found


def _layout(rows: Sequence[Sequence[str]]) -> tuple[list[str], int, int]:
    """Headings with units (empty if there are none), the number of columns, and the row at which the data begin."""
    last = [row for row in rows[-max(len(rows) // 4, 3) :] if any(row)]
    width = statistics.mode(len(row) for row in last) if last else 0
    numbers = [j for j in range(width) if 2 * sum(any(map(_DATA.match, row[j : j + 1])) for row in last) >= len(last)]
    for first, row in enumerate(rows):  # noqa: B007
        known = [any(map(_DATA.match, row[j : j + 1])) for j in numbers]
        blank = [not row[j : j + 1] or row[j].lower() in _MISSING for j in numbers]
        if 2 * sum(known) > len(known) == sum(known) + sum(blank):
            break
    else:
        raise ValueError("expected rows of numbers, but found none")
    above = [[cell.strip() for cell in row] for row in rows[:first] if any(row)]
    words = [row for row in above if len(row) >= min(width, 2) and not any(map(_DATA.match, row))] or above[-1:]
    if not words:
        return [], width, first
    named, told = words[-1], [""] * len(words[-1])
    bare = [u.strip("[]()") for u in named]
    if len(words) > 1 and 2 * sum(units.unit(u) is not None for u in bare if u) >= sum(map(bool, bare)) > 0:
        named, told = words[-2], bare + [""] * len(words[-2])
    named[0] = named[0].lstrip("#%/ ")
    names = [name or f"column {i + 1}" for i, name in enumerate(named)]
    return [f"{n} [{unit}]" if unit and "[" not in n else n for n, unit in zip(names, told)], width, first


def _headed(where: Path, frame: pd.DataFrame, headings: list[str]) -> pd.DataFrame:
    """The columns by their headings, of which lines that end with separators have fewer."""
    width = len(headings) or frame.shape[1]
    if frame.iloc[:, width:].notna().any(axis=None):
        raise ValueError(f"{where}: expected a value for each of {width} headings, but found {frame.shape[1]}")
    return frame.iloc[:, :width].set_axis(headings or range(width), axis=1)


def _text(path: Path) -> pd.DataFrame:
    """Any separator; comments, headings and units above the data or not; packed or not. pandas reads the rows."""
    with pd.io.common.get_handle(path, "rb", compression="infer", is_text=False) as file:
        content = file.handle.read(_most(path) + 1)
    _check_size(path, len(content))
    encoding = _encoding(content[:_LONGEST_LINE])
    lines = list(io.StringIO(content[:_LONGEST_LINE].decode(encoding, errors="replace"), newline=None))
    if len(content) >= _LONGEST_LINE and len(lines) < 4:
        raise ValueError(f"{path}: expected rows of numbers, but found one of more than 1 MiB")
    separator, rows = _cut(lines[: min(_LOOKED_AT, len(lines) - (len(content) > _LONGEST_LINE))])
    headings, found, first = _layout(rows)
    width = max(found, len(headings))
    if width > found and separator == r"\s+":
        raise ValueError(f"{path}: expected a value for each of {len(headings)} headings, but found {found}")
    _check_columns(path, width)
    _check_size(path, 8 * width * max(content.count(b"\n"), content.count(b"\r")))
    remarks = content.count(b"\n#") + content.startswith(b"#") > sum(line[0] == "#" for line in lines[:first])
    for mark in _NUMBERS:  # with a decimal comma too where a column has one, and no other has a point
        read = pd.read_csv(
            io.BytesIO(content),
            sep=separator,
            header=None,
            names=range(width),
            skiprows=first,
            index_col=False,
            skipinitialspace=True,
            encoding=encoding,
            encoding_errors="replace",
            decimal=mark,
            low_memory=False,
            comment="#" if remarks else None,
        )
        marks = {marks for _, marks in _fits(read[:: 1 + len(read) // _LOOKED_AT]).values()}
        if mark == "." or "." not in marks:
            frame, decimal = read, mark
        if "," not in marks:
            break
    frame.attrs.update(decimal=decimal, usual="." if separator == "," else ",")
    return _headed(path, frame, headings)


def _encoding(head: bytes) -> str:
    """UTF-8, or UTF-16 by its mark or zeros; else Latin-1, in which many a logger and spreadsheet writes ° and µ."""
    if b"\0" in head[:64] or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16" if head[0] >= 0xFE else "utf-16-le" if head[1] == 0 else "utf-16-be"
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return "utf-8-sig"
    return "latin-1"


def _cut(lines: list[str]) -> tuple[str, list[list[str]]]:
    """The separator that cuts most of the last lines into as many cells, and the rows that it makes of all lines."""
    number = re.compile(f"(?:{'|'.join(_NUMBERS.values())})(?<!,)")
    apart = [line.split() for line in lines[-9:] if line.strip()]
    blanks = [len(words) > 1 and all(number.fullmatch(w) or w.lower() in _MISSING for w in words) for words in apart]
    for separator in (s for s in _SEPARATORS if len(s) > 1 or any(s in line for line in lines)):
        rows = _rows(lines, separator)
        sizes = [len(row) for row in rows[-max(len(rows) // 4, 3) :] if any(row)]
        size, count = collections.Counter(sizes).most_common(1)[0] if sizes else (0, 0)
        if size > 1 and 2 * count > len(sizes) and not (separator == "," and all(blanks)):
            return separator, rows
    return ",", _rows(lines, ",")


def _rows(lines: list[str], separator: str) -> list[list[str]]:
    if separator == r"\s+":  # "angle [deg]" is one heading
        return [re.findall(r"[^\s\[(]+(?:\s*[\[(][^\])]*[\])])?", line.lstrip("#%/ ")) for line in lines]
    return list(csv.reader(lines, delimiter=separator, skipinitialspace=True))


def _excel(path: Path) -> pd.DataFrame:
    """The sheet with the most rows."""
    of_extra("openpyxl", "[identification]", str(path))
    with zipfile.ZipFile(path) as parts:
        _check_size(path, sum(part.file_size for part in parts.infolist()))
        for name in (name for name in parts.namelist() if name.startswith("xl/worksheets/")):
            at = re.findall(rb'\br="([A-Z]*)(\d+)"', parts.read(name))  # cells that are far apart have all between them
            width = max((functools.reduce(lambda n, c: 26 * n + c - 64, letters, 0) for letters, _ in at), default=0)
            _check_columns(path, width)
            _check_size(path, 8 * width * max((int(row) for _, row in at), default=0))
    sheets = pd.read_excel(path, sheet_name=None, header=None, na_values=_MISSING)
    name, sheet = max(((name, sheet.dropna(how="all")) for name, sheet in sheets.items()), key=lambda one: len(one[1]))
    if len(sheets) > 1:
        sheet.attrs["notes"] = [f"of the sheets {', '.join(sheets)} the longest is read, {name}"]
    headings, _, first = _layout(sheet[:_LOOKED_AT].astype(object).fillna("").astype(str).to_numpy().tolist())
    return _headed(path, sheet[first:].infer_objects(), headings)


def _arrays(path: Path) -> pd.DataFrame:
    return _of_arrays(str(path), read_arrays(path, _most(path)))


def _parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    about, columns = file.metadata, [file.schema.column(j) for j in range(file.metadata.num_columns)]
    _check_columns(path, about.num_row_groups * len(columns))
    held = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    _check_size(path, max(held, 8 * about.num_rows * len(columns)))
    flat = [c.path for c in columns if c.max_repetition_level == 0 and c.physical_type != "BYTE_ARRAY"]
    return file.read(columns=flat).to_pandas(ignore_metadata=True)


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    **dict.fromkeys((".csv", ".txt", ".dat", ".tsv", ".log", ".gz", ".zip"), _text), ".xlsx": _excel, ".xlsm": _excel,
    ".parquet": _parquet, **dict.fromkeys((".h5", ".hdf5", ".mat", ".npz"), _arrays),
}  # fmt: skip
