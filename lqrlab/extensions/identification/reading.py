"""Logs from files, tables, arrays and our own trajectories; times, gaps and units are looked at."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.signal

from lqrlab.compute import checks
from lqrlab.compute.linalg import expand_batch
from lqrlab.extensions.identification import units as units_of
from lqrlab.extensions.identification.log import Log, check_log, signals_of
from lqrlab.extensions.identification.table_files import table
from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant, Signal, check_plant

_CLOCKS = ("time", "t", "timestamp", "datetime")
_BLOCK = 8  # steps in a row of another length are another sample time
_CLOCK_UNITS = {"ms": 1e3, "µs": 1e6, "ns": 1e9}
_FOR_NONE = 999, 9999, 99999, 999999, 999.25, 999.99, 9999.99, 1e20, 1e30, 1e35, 1e38  # or less than zero
_SHORT = 20  # samples of which most models make nothing
_GAP = 1.5  # a step of the time column above so many sample times begins a new record


class Column(NamedTuple):
    """A column of a table: its heading, the name and unit in it, its values."""

    heading: str
    name: str
    unit: str
    values: pd.Series


def read(
    source: Any,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    dt: float | None = None,
    time: str | None = None,
    *,
    plant: Plant | None = None,
) -> Log:
    """A log from a file, a table, arrays, or a trajectory; or one log of several records from a list of them.

    Values are converted to SI units; a unit that is not known is remarked on, as are outputs that drift. Where the time
    column jumps, or a row is not a number, a new record begins: nothing is filled in.

    Args:
        source: a path (.csv, .txt, .dat, .tsv, packed as .gz or .zip or not; .xlsx; .parquet; .h5; .mat; .npz), a
            DataFrame, a dictionary of columns, an array ``[T, m + p]``, a :class:`~lqrlab.simulation.Trajectory`, or a
            list of them. Text may have comments, a heading, a row of units, any separator, a decimal comma; of a
            workbook, the sheet with the most rows is read.
        inputs, outputs: names of columns, in their order if they have no headings. ``"angle [deg]"`` is the column of
            that heading; else it says the unit of a column ``angle`` that has none. The file's own unit counts.
        dt: sample time [s]; from the time column if left out.
        time: name of the time column, with its unit where the file has none; ``"time"``, ``"t"``, ``"timestamp"``,
            ``"datetime"`` or the only one of dates if left out: seconds, ms, µs or ns since 1970, dates, times of day.
        plant: names inputs and outputs that are left out, and turns a trajectory's deviations into absolute values.

    Raises:
        ValueError: says which file and column, what was expected, what was found: also a unit of another kind.

    >>> t = np.arange(5) * 0.1
    >>> log = identification.read({"t": t, "force": t, "angle (deg)": 180 * t}, ["force"], ["angle"])
    >>> round(log.dt, 6), round(float(log.ys[1, 0] / np.pi), 6), log.outputs[0].unit
    (0.1, 0.1, 'rad')
    """
    if plant is not None:
        check_plant(plant)
    if isinstance(source, list | tuple):
        return join([read(s, inputs, outputs, dt, time, plant=plant) for s in source])
    if isinstance(source, Trajectory):
        if dt is not None or time is not None:
            raise ValueError("dt, time: a trajectory has its own; leave them out")
        log = _of_trajectory(source, plant)
        return log.chosen(inputs or [s.name for s in log.inputs], outputs or [s.name for s in log.outputs])
    if plant is not None:
        inputs = inputs or [s.name for s in plant.inputs]
        outputs = outputs or [s.name for s in plant.outputs]
    for name, names in (("inputs", inputs), ("outputs", outputs)):
        if isinstance(names, str | None) or not len(names) or not all(isinstance(n, str) for n in names):
            raise ValueError(f"{name}: expected a list of column names, such as ['force'], but found {names!r}")
    if time is not None:
        checks.text("time", time, "the name of the time column")
    wanted = [*inputs, *outputs]
    where, frame = table(source, wanted)
    headings = [str(heading).strip() for heading in frame.columns]
    columns = [
        Column(h, s.name, s.unit, frame.iloc[:, i]) for i, (h, s) in enumerate(zip(headings, signals_of(headings)))
    ]
    for name in {s.name for s in signals_of(wanted)} - {c.name.rpartition(".")[2] for c in columns}:
        if name in (s.name.rpartition(".")[2] for s in signals_of(frame.attrs.get("left", ()))):
            wrong = "one for each row, but found another length or kind of array"
            raise ValueError(f"{where}: {name}: expected {len(frame)} numbers or texts, {wrong}")
    asked, notes = [_found(where, columns, text) for text in wanted], list[str](frame.attrs.get("notes", ()))
    signals, arrays = zip(*(_in_si(c._replace(name=s.name), s.unit, notes) for c, s in zip(asked, signals_of(wanted))))
    names = [column.name for column in asked]
    clock = _clock(where, [c for c in columns if time is not None or c.name not in names], time)
    times = None if clock is None else _times(clock, time, notes)
    values, m = np.stack(arrays, 1), len(inputs)
    step, first, rows = _sampling(where, values, times, dt, notes)
    values = values[rows]
    sizes = np.diff([*first, len(values)])
    if short := sizes[sizes < _SHORT].tolist():
        few = f"{len(short)} of {len(sizes)} records have fewer than {_SHORT} samples, {sum(short)} in all"
        notes.append(f"{few}: too short for most models")
    notes += _drifts(signals, values, m)
    return Log(values[:, :m], values[:, m:], step, signals[:m], signals[m:], first, tuple(notes))


def join(logs: Sequence[Log]) -> Log:
    """Several logs of the same signals as one with several records."""
    if not isinstance(logs, Sequence) or not logs:
        raise ValueError(f"source: expected at least one record, but found {logs!r}")
    for log in logs:
        check_log(log)
    head = logs[0]
    for log in logs[1:]:
        if (log.inputs, log.outputs) != (head.inputs, head.outputs) or not math.isclose(log.dt, head.dt, rel_tol=1e-3):
            raise ValueError("source: the records differ in their signals, units or sample time; resample, or rename")
    starts = np.cumsum([0] + [len(log) for log in logs])
    first = tuple(int(at + i) for at, log in zip(starts, logs) for i in log.first)
    notes = tuple(f"record {i}: {n}" for i, log in enumerate(logs) for n in log.notes)
    us, ys = (np.concatenate([getattr(log, k) for log in logs]) for k in ("us", "ys"))
    return Log(us, ys, head.dt, head.inputs, head.outputs, first, notes)


def _of_trajectory(run: Trajectory, plant: Plant | None) -> Log:
    """A trajectory's inputs, and its states as the controller saw them, each loop a record."""
    if plant is None:
        raise ValueError("plant: a trajectory holds deviations; name its plant, read(run, plant=plant)")
    if run.xs is None or run.us is None:
        raise ValueError("source: expected a trajectory with its states and inputs, but they were not kept")
    seen = run.xs[..., :-1, :] if run.seen is None else run.seen
    if (seen.shape[-1], run.us.shape[-1]) != (plant.n, plant.m):
        raise ValueError(
            f"plant: expected that of a trajectory of {seen.shape[-1]} states and {run.us.shape[-1]} inputs, but found "
            f"{plant.name}, which has {plant.n} and {plant.m}"
        )
    pairs = zip((seen, run.us), plant.equilibrium())
    xs, us = (np.asarray(a + expand_batch(at, a.ndim), float) for a, at in pairs)
    if not (np.isfinite(xs).all() and np.isfinite(us).all()):
        raise ValueError("source: a loop diverged to infinity; take a shorter trajectory, or a better regulator")
    steps = np.diff(np.asarray(run.ts, float))
    if np.ptp(steps) > 1e-3 * steps.max():
        raise ValueError("source: the loops differ in their sample time; read those of one sample time")
    first = tuple(range(0, us[..., 0].size, us.shape[-2]))
    us, xs = (a.reshape(-1, a.shape[-1]) for a in (us, xs))
    return Log(us, xs, float(steps.mean()), tuple(plant.inputs), tuple(plant.states), first)


def _drifts(signals: Sequence[Signal], values: np.ndarray, m: int) -> list[str]:
    """Remarks on outputs whose means of ten parts follow a straight line while those of the m inputs stay."""
    if len(values) < 10 * _BLOCK:
        return []
    means, spread = np.stack([part.mean(0) for part in np.array_split(values, 10)]), values.std(0)
    if (means[:, :m].std(0) > 0.3 * spread[:m]).any():
        return []
    rises, rest = 9 * np.polyfit(np.arange(10), means, 1)[0], scipy.signal.detrend(means, axis=0).var(0)
    drift = map(int, np.flatnonzero((rest < 0.2 * means.var(0)) & (np.abs(rises) > spread)))
    said = (f"{signals[i].name}: drifts by {rises[i]:.3g} {signals[i].unit}".rstrip() for i in drift if i >= m)
    return [f"{drifts}, though the inputs keep their mean: log.detrended('linear')" for drifts in said]


def _clock(where: str, columns: Sequence[Column], time: str | None) -> Column | None:
    """The time column, if there is one: ``"time"`` before ``"t"``, which may be another signal."""
    if time is not None:
        return _found(where, columns, time)
    named = [[c for c in columns if c.name.lower().rpartition(".")[2] == name] for name in _CLOCKS]
    found = next(filter(None, [*named, [c for c in columns if c.values.dtype.kind == "M"]]), [])
    if len(found) > 1:
        headings = " and ".join(c.heading for c in found)
        raise ValueError(f"time: {where} has the time columns {headings}; choose one by its heading")
    return found[0] if found else None


def _found(where: str, columns: Sequence[Column], text: str) -> Column:
    """The column of this heading; else that of its name and unit, else of its name, as of ``log.force`` force."""
    (s,) = signals_of([text])
    named = [c for c in columns if c.name == s.name] or [c for c in columns if c.name.rpartition(".")[2] == s.name]
    exact = [c for c in columns if c.heading == text.strip()]
    found = exact or [c for c in named if s.unit and units_of.same(c.unit, s.unit)] or named
    if not found:
        hint = checks.did_you_mean(s.name, [c.name for c in columns])
        raise ValueError(
            f"{where}: has no column {text!r}{hint or '; it has ' + ', '.join(c.heading for c in columns[:50])}"
        )
    if len(found) > 1:
        listed = " and ".join(repr(c.heading) for c in found)
        raise ValueError(
            f"{where}: {text!r} is the name of {len(found)} columns, {listed}; choose one by its heading, or give each "
            "another name"
        )
    return found[0]


def _in_si(column: Column, asked: str, notes: list[str]) -> tuple[Signal, np.ndarray]:
    """The signal in SI units. The file's own unit counts, and ``asked`` must be of the same kind."""
    name, unit = column.name, column.unit or asked
    if asked and not column.unit:
        units_of.require(name, asked)
    if asked and units_of.conversion(unit, asked) is None:
        raise ValueError(f"{name}: expected {asked}, but found {column.heading!r} in {unit}, which is no such unit")
    values, known = _numbers(column), units_of.unit(unit)
    none = values[np.isin(np.abs(values), _FOR_NONE)]
    if len(none) and abs(none[0]) > 5 * np.nanmedian(np.abs(values)):
        notes.append(f"{name}: is {none[0]:g} in {len(none)} rows, as loggers write for none: make it NaN if it is")
    ending = "" if column.unit else units_of.ending(name)
    if ending and not units_of.same(ending, unit or units_of.require(name, ending).si):
        notes.append(
            f"{name}: its name ends in {ending}, but values are taken {f'in {unit}' if unit else 'as they are'}; "
            f"the name '{name} [{ending}]' converts them"
        )
    if known is None:
        notes += [f"{name}: the unit {unit!r} is not known: values are taken as they are"] if unit else []
        return Signal(name, unit), values
    if (known.factor, known.zero) != (1.0, 0.0):
        notes.append(f"{name}: converted from {unit} to {known.si}")
    return Signal(name, known.si), known.zero + values * known.factor


def _numbers(column: Column) -> np.ndarray:
    """Values as real numbers."""
    values = column.values
    numbers = values if values.dtype.kind in "mM" else pd.to_numeric(values, errors="coerce")
    if numbers.dtype.kind in "cmM":
        raise ValueError(f"{column.name}: expected a column of real numbers, but found {numbers.dtype}")
    if values.dtype.kind not in "fiub":
        wrong = (numbers.isna() & values.notna()) | values.map(type).eq(bool)
        row, *more = [*np.flatnonzero(wrong).tolist(), 0]
        word, below = str(values.iloc[row]), len(more) == len(values) - row < len(values)
        hint = "; is the decimal mark a comma?" * ("," in word) + f"; first in row {row + 1} of {len(values)}"
        hint += ": remove the rows below the data" * below
        raise ValueError(f"{column.name}: expected a column of numbers, but found {word!r} in it{hint}")
    return numbers.to_numpy(float, na_value=np.nan)


def _times(column: Column, time: str | None, notes: list[str]) -> np.ndarray:
    """Seconds, of time stamps since the first."""
    values, unit = column.values, signals_of([time or ""])[0].unit
    if values.dtype.kind not in "iufbcmM" and pd.to_numeric(values, errors="coerce").isna().mean() > 0.5:
        values = _moments(values.astype("string").str.strip(), notes)
    if values.dtype.kind in "mM":
        return (values - values.min() if values.dtype.kind == "M" else values).dt.total_seconds().to_numpy()
    if values.dtype.kind in "iu":  # before they are rounded
        column = column._replace(values=values - values.min())
    middle = abs(values.median()) if values.dtype.kind in "iuf" else 0.0
    for small, each in _CLOCK_UNITS.items():
        if not (unit or column.unit) and 0.9e9 < middle / each < 2.6e9:  # from 1998 to 2052
            unit, day = small, pd.Timestamp(middle / each, unit="s").date()
            notes.append(f"{column.name}: taken in {small} since 1970 ({day}); time='{column.name} [s]' overrides this")
    days = 3e4 < middle < 1e7 and abs(values.diff().median()) < 1e-3  # since 1900, as spreadsheets count, or the year 0
    if not (unit or column.unit) and (days or middle > 1e10):
        raise ValueError(
            f"time: expected seconds, but found {middle:.10g}; set time='{column.name} [d]' for days, or '[s]'"
        )
    signal, seconds = _in_si(column, unit or "s", notes)
    if signal.unit != "s":
        raise ValueError(f"time: expected a unit of time, but found {column.heading!r} in {signal.unit}")
    return seconds


def _moments(words: pd.Series, notes: list[str]) -> pd.Series:
    """Dates, times of day or durations; of two orders of day and month, the one in which the log is shorter."""
    fourth = pd.to_numeric(words.str.extract(r"\d:\d\d:\d\d:(\d+)$")[0].fillna("0"))
    mark = "[,:]" if fourth.max() > 59 else ","  # else of days, hours, minutes, seconds; or pictures of a film
    words = words.str.replace(rf"(\d:\d\d:\d\d){mark}(\d)", r"\1.\2", regex=True)
    if words.dropna().str.fullmatch(r"\d+:\d\d").all():
        notes.append(f"time: {words.dropna().iloc[-1]} is taken as hours and minutes")
    words = words.str.replace(r"(\d:\d\d:\d\d)(?![\d.])", r"\1.0", regex=True)
    clock = words.str.replace(r"^(\d+:\d\d\.\d+)$", r"0:\1", regex=True)  # minutes and seconds
    clock = clock.str.replace(r"^(\d+:\d\d)$", r"\1:00", regex=True)
    found, why = [], ValueError()
    with warnings.catch_warnings(action="ignore"):
        spans = [None] * bool(clock.str.contains("[:a-zA-Z]", na=True).all())  # bare numbers would be nanoseconds
        for how in (*spans, {"format": "ISO8601"}, {}, {"dayfirst": True}):
            try:
                found.append(pd.to_timedelta(clock) if how is None else pd.to_datetime(words, utc=True, **how))
            except ValueError as error:
                why = error
    if not found:
        raise ValueError(f"time: expected dates or times of day of one form, such as 2026-01-31 12:00:00.5; {why}")
    moments = found[0] if found[0].dtype.kind == "m" else min(found, key=lambda moments: moments.max() - moments.min())
    if words.dropna().str.match(r"\d+:").all():  # after midnight it begins again
        moments += pd.to_timedelta((moments.diff() < -pd.Timedelta("12h")).cumsum(), unit="D")
    return moments


def _sampling(
    where: str, values: np.ndarray, times: np.ndarray | None, dt: float | None, notes: list[str]
) -> tuple[float, tuple[int, ...], np.ndarray]:
    """The sample time, the rows of the kept samples at which records begin, and which rows are kept."""
    good = np.isfinite(values if times is None else np.column_stack([values, times])).all(1)
    rows = np.flatnonzero(good)
    if len(rows) < len(good):
        lost = len(good) - len(rows)
        notes.append(f"{lost} of {len(good)} rows are not all finite numbers: left out, a record ends there")
    if len(rows) < 2:
        raise ValueError(f"{where}: expected at least two rows of finite numbers, but found {len(rows)}")
    if dt is not None:
        checks.number("dt", dt, "a sample time above 0 s", above=0)
    begins = np.diff(rows) > 1
    if times is not None:
        dt, jumps = _clocked(where, pd.Series(np.diff(times[rows]), rows[:-1]), begins, dt, notes)
        begins = begins | jumps
    if dt is None:
        raise ValueError(f"dt: {where} has no time column; name it, time='clock', or set the sample time [s], dt=0.01")
    return float(dt), (0, *(int(i) + 1 for i in np.flatnonzero(begins))), rows


def _clocked(
    where: str, steps: pd.Series, begins: np.ndarray, dt: float | None, notes: list[str]
) -> tuple[float, np.ndarray]:
    """The sample time by the clock's steps after each row, and where it jumps; refuses a time step that changes."""
    if (steps <= 0).any():
        at, repeated = steps.index[steps <= 0][0], (steps == 0).mean()
        cure = "sort the rows, or give each record; a clock set back an hour needs UTC or its time zone"
        if repeated > 0.1:
            cure = "its stamps are coarser than the sample time; leave that column out, and set dt"
        raise ValueError(f"{where}: time does not increase after row {at}; {cure}")
    step = float(steps.median())
    if dt is not None and abs(step / dt - 1) > 0.02:
        raise ValueError(f"dt: {dt:g} s, but the time column steps by {step:g}; is it in another unit?")
    block = steps.rolling(_BLOCK)
    middle = block.median()
    other = (block.max() - block.min() < 0.1 * middle) & ((middle / step - 1).abs() > 0.1)
    if other.any():
        at = other.idxmax()
        found = " s and ".join(sorted({f"{step:.3g}", f"{middle[at]:.3g}"}, key=float))
        raise ValueError(
            f"{where}: the sample time changes: it is {found} s, see the rows up to {at}; read the parts as records of "
            "their own, resample them, and join them"
        )
    both = steps.rolling(2).sum()  # a sample that is late, or stamped so, is none that is lost: the next step is short
    lost = (both.fillna(np.inf) > (1 + _GAP) * step) & (both.shift(-1, fill_value=np.inf) > (1 + _GAP) * step)
    jumps = ((steps > (_GAP + 1e-6) * step) & lost).to_numpy() & ~begins  # of rows left out, that has been said
    apart = np.diff(np.flatnonzero(jumps))  # regular: stamps of whole ticks, of which a sample takes less than 1.5
    if len(apart) >= _BLOCK and np.median(apart) < 20 and np.ptp(np.quantile(apart, [0.1, 0.9])) <= 2:
        jumps &= (steps > 2.02 * step).to_numpy()
    near = steps[~begins & ~jumps]
    step = float(dt or (near.mean() if len(near) else step))  # rounded time stamps: right on average
    if jumps.any():
        count = f"{jumps.sum()} gap{'s' * int(jumps.sum() > 1)}"
        notes.append(f"{count} in the time column, {steps[jumps].sum():.3g} s in all: a record begins after each")
    off = near / step - 1
    if (jitter := off.abs().max()) > 0.01 or np.ptp(off.cumsum()) > 1:
        adds = f", which adds up to {np.ptp(off.cumsum()):.3g} samples" * bool(np.ptp(off.cumsum()) > 1)
        notes.append(f"the sample time jitters by up to {jitter:.1%} of {step:.3g} s{adds}: taken as constant")
    return step, jumps
