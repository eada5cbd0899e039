"""Logs from files, tables, arrays and our own trajectories; times, gaps and units are looked at."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, signals_of
from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant, Signal

_MOST_BYTES = 1 << 30
_SI: dict[str, tuple[float, str]] = {
    "deg": (math.pi / 180, "rad"), "°": (math.pi / 180, "rad"), "deg/s": (math.pi / 180, "rad/s"),
    "°/s": (math.pi / 180, "rad/s"), "rpm": (math.pi / 30, "rad/s"), "mm": (1e-3, "m"), "cm": (1e-2, "m"),
    "km": (1e3, "m"), "mm/s": (1e-3, "m/s"), "cm/s": (1e-2, "m/s"), "km/h": (1 / 3.6, "m/s"), "ms": (1e-3, "s"),
    "us": (1e-6, "s"), "µs": (1e-6, "s"), "min": (60.0, "s"), "mV": (1e-3, "V"), "kV": (1e3, "V"), "mA": (1e-3, "A"),
    "kN": (1e3, "N"), "mN": (1e-3, "N"), "g": (1e-3, "kg"), "bar": (1e5, "Pa"), "kPa": (1e3, "Pa"), "kW": (1e3, "W"),
}  # fmt: skip
"""Unit → (factor, SI unit)."""
Source = str | Path | np.ndarray | pd.DataFrame | Trajectory | Mapping[str, Any]


def read(
    source: Any,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    dt: float | None = None,
    time: str | None = None,
    *,
    units: Mapping[str, str] | None = None,
    plant: Plant | None = None,
    gap: float = 1.5,
) -> Log:
    """A log from a file, a table, arrays, or a trajectory; or one log of several records from a list of them.

    Columns are named by their headings, with or without a unit in brackets; those of a table without headings, and of
    an array ``[T, m + p]``, are the inputs and outputs in the order given. Values are converted to SI units. Where
    the time column jumps, or a row is not a number, a new record begins: nothing is filled in.

    Args:
        source: a path (.csv, .parquet, .h5, .hdf5, .mat, .txt, .dat, .npz), a DataFrame, a dictionary of columns, an
            array, a :class:`~lqrlab.simulation.Trajectory`, or a list of these.
        inputs, outputs: names of columns, ``"angle [deg]"`` to say a unit that the file does not.
        dt: sample time [s]; from the time column if left out.
        time: name of the time column; ``"time"`` or ``"t"`` if there is one.
        units: name → unit of what the file holds, where it does not say so itself.
        plant: names inputs and outputs that are left out (all states of a trajectory), and turns a trajectory's
            deviations into absolute values.
        gap: a step of the time column above so many sample times begins a new record.

    Raises:
        ValueError: says which file and column, what was expected, what was found.

    >>> t = np.arange(5) * 0.1
    >>> log = identification.read({"t": t, "force": t, "angle (deg)": 180 * t}, ["force"], ["angle"])
    >>> round(log.dt, 6), round(float(log.ys[1, 0] / np.pi), 6), log.outputs[0].unit
    (0.1, 0.1, 'rad')
    """
    if isinstance(source, list | tuple):
        return join([read(s, inputs, outputs, dt, time, units=units, plant=plant, gap=gap) for s in source])
    if isinstance(source, Trajectory):
        return _of_trajectory(source, plant, outputs)
    if plant is not None:
        inputs = inputs or [s.name for s in plant.inputs]
        outputs = outputs or [s.name for s in plant.outputs]
    _check_names(inputs=inputs, outputs=outputs)
    where, frame = _table(source, [*inputs, *outputs])
    columns = _columns(where, frame, units or {})
    wanted = [_found(where, columns, s.name) for s in signals_of([*inputs, *outputs])]
    said = [s.unit for s in signals_of([*inputs, *outputs])]
    notes: list[str] = []
    converted = [_in_si(s, a, unit or s.unit, notes) for (s, a), unit in zip(wanted, said)]
    clock = time or next((name for name in ("time", "t", "Time", "T") if name in columns), None)
    times = None if clock is None else _times(_found(where, columns, clock), notes)
    values = np.stack([a for _, a in converted], 1)
    step, first, rows = _sampling(where, values, times, dt, gap, notes)
    values, m = values[rows], len(inputs)
    signals = tuple(s for s, _ in converted)
    return Log(values[:, :m], values[:, m:], step, signals[:m], signals[m:], first, tuple(notes))


def _check_names(**given: Sequence[str]) -> None:
    for name, names in given.items():
        if isinstance(names, str) or not len(names):
            raise ValueError(
                f"{name}: expected a list of column names, such as ['force'], but found {names!r}"
            )


def join(logs: Sequence[Log]) -> Log:
    """Several logs of the same signals as one with several records."""
    if not logs:
        raise ValueError("source: expected at least one record, but found an empty list")
    head = logs[0]
    for log in logs[1:]:
        if (log.inputs, log.outputs) != (head.inputs, head.outputs) or not math.isclose(
            log.dt, head.dt, rel_tol=1e-3
        ):
            raise ValueError(
                "source: the records differ in their signals, units or sample time; resample, or rename"
            )
    starts = np.cumsum([0] + [len(log) for log in logs])
    first = tuple(int(at + i) for at, log in zip(starts, logs) for i in log.first)
    notes = tuple(f"record {i}: {n}" for i, log in enumerate(logs) for n in log.notes)
    us, ys = (np.concatenate([getattr(log, k) for log in logs]) for k in ("us", "ys"))
    return Log(us, ys, head.dt, head.inputs, head.outputs, first, notes)


def _of_trajectory(run: Trajectory, plant: Plant | None, outputs: Sequence[str]) -> Log:
    """A trajectory's states and inputs, each loop a record."""
    if plant is None:
        raise ValueError("plant: a trajectory holds deviations; say of which plant, read(run, plant=plant)")
    if run.xs is None or run.us is None:
        raise ValueError("source: expected a trajectory with its states and inputs, but they were not kept")
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    xs, us = np.asarray(run.xs) + x_eq, np.asarray(run.us) + u_eq
    T, n = us.shape[-2], xs.shape[-1]
    if not (np.isfinite(xs).all() and np.isfinite(us).all()):
        raise ValueError(
            "source: the trajectory is not finite: a loop diverged; take a shorter one, or a better regulator"
        )
    states = [s.name for s in plant.states]
    chosen = [checks.choice("outputs", s.name, states) for s in signals_of(outputs)] or states
    xs = xs.reshape(-1, T + 1, n)[:, :-1, [states.index(name) for name in chosen]]
    us = us.reshape(-1, T, us.shape[-1])
    first = tuple(range(0, len(us) * T, T))
    signals = tuple(plant.states[states.index(name)] for name in chosen)
    step = float(np.ravel(run.ts)[1] - np.ravel(run.ts)[0])
    us, xs = (a.reshape(-1, a.shape[-1]).astype(float) for a in (us, xs))
    return Log(us, xs, step, tuple(plant.inputs), signals, first)


# Files --------------------------------------------------------------------------------------------------------


def _table(source: Any, names: Sequence[str]) -> tuple[str, pd.DataFrame]:
    """Origin of the data in words, and the data; columns without headings get ``names``."""
    if isinstance(source, pd.DataFrame):
        return "the DataFrame", source
    if isinstance(source, Mapping):
        return "the dictionary", _frame("the dictionary", source)
    if not isinstance(source, str | Path):
        array = checks.real("source", source)
        return "the array", _headed("the array", pd.DataFrame(np.atleast_2d(np.asarray(array, float))), names)
    path = checks.path("source", source)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{path}: expected a file ending in {', '.join(_READERS)}, but found {path.suffix!r}"
        )
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(
            f"{path}: expected a log of at most 1 GiB, but found {path.stat().st_size / 2**30:.1f} GiB"
        )
    try:
        return str(path), _headed(str(path), reader(path), names)
    except MemoryError:
        raise
    except Exception as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(
            f"{path}: cannot be read as {path.suffix} ({type(error).__name__}: {error})"
        ) from error


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
        a = np.asarray(value)
        if name.startswith("__") or a.dtype.kind not in "fiub" or a.ndim == 0:
            continue
        a = a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a[0] if a.ndim == 2 and a.shape[0] == 1 else a
        if a.ndim == 1:
            columns[name] = a
        elif a.ndim == 2:
            columns |= {f"{name}{i + 1}": a[:, i] for i in range(a.shape[1])}
    lengths = [len(a) for a in columns.values()]
    if not columns:
        raise ValueError(f"{where}: expected arrays of numbers, but found none")
    most = max(set(lengths), key=lengths.count)
    return pd.DataFrame({k: a for k, a in columns.items() if len(a) == most})


def _csv(path: Path) -> pd.DataFrame:
    """With or without headings, whatever separates the columns."""
    with path.open(errors="replace") as file:
        head = file.readline()
    separator = next((s for s in (";", "\t", ",") if s in head and path.suffix.lower() == ".csv"), r"\s+")
    words = head.split(separator) if separator != r"\s+" else head.split()
    header = None if all(_is_number(w) for w in words) else 0
    return pd.read_csv(path, sep=separator, header=header, skipinitialspace=True)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return not word.strip()
    return True


def _mat(path: Path) -> pd.DataFrame:
    import scipy.io  # 0.2 s that only this format costs

    held = sum(8 * math.prod(shape) for _, shape, _ in scipy.io.whosmat(path))
    if held > _MOST_BYTES:
        raise ValueError(f"it unpacks to {held / 2**30:.1f} GiB")
    return _frame(str(path), scipy.io.loadmat(path))


def _npz(path: Path) -> pd.DataFrame:
    with np.load(path, allow_pickle=False) as arrays:
        return _frame(str(path), dict(arrays))


def _hdf5(path: Path) -> pd.DataFrame:
    from lqrlab import dataset  # the only subpackage that reads HDF5

    return _frame(str(path), {k.rpartition("/")[2]: a for k, a in dataset.read_arrays(path).items()})


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _csv, ".txt": _csv, ".dat": _csv, ".parquet": pd.read_parquet, ".h5": _hdf5, ".hdf5": _hdf5,
    ".mat": _mat, ".npz": _npz,
}  # fmt: skip


# Columns ------------------------------------------------------------------------------------------------------

Column = tuple[Signal, np.ndarray]


def _columns(where: str, frame: pd.DataFrame, units: Mapping[str, str]) -> dict[str, Column]:
    """Name → signal and samples; the unit is what the heading says, else what ``units`` does."""
    found: dict[str, Column] = {}
    for heading in frame.columns:
        (s,) = signals_of([str(heading)])
        unit = units.get(s.name, s.unit)
        found.setdefault(s.name, (Signal(s.name, unit), frame[heading].to_numpy()))
    for name in units:
        if name not in found:
            raise ValueError(f"units: {where} has no column {name!r}{checks.did_you_mean(name, found)}")
    return found


def _found(where: str, columns: dict[str, Column], name: str) -> Column:
    if name not in columns:
        hint = checks.did_you_mean(name, columns) or f"; it has {', '.join(map(str, columns))}"
        raise ValueError(f"{where}: has no column {name!r}{hint}")
    return columns[name]


def _in_si(signal: Signal, values: np.ndarray, unit: str, notes: list[str]) -> Column:
    try:
        array = values.astype(float)
    except (TypeError, ValueError):
        bad = next(v for v in values if not _is_number(str(v)))
        raise ValueError(
            f"{signal.name}: expected a column of numbers, but found {bad!r} in it; is the decimal mark a comma?"
        ) from None
    factor, base = _SI.get(unit, (1.0, unit))
    if factor != 1.0:
        notes.append(f"{signal.name}: converted from {unit} to {base}")
    return Signal(signal.name, base), array * factor


def _times(column: Column, notes: list[str]) -> np.ndarray:
    signal, values = column
    if np.issubdtype(values.dtype, np.datetime64):
        return (values - values[0]) / np.timedelta64(1, "s")
    return _in_si(signal, values, signal.unit, notes)[1]


def _sampling(
    where: str, values: np.ndarray, times: np.ndarray | None, dt: float | None, gap: float, notes: list[str]
) -> tuple[float, tuple[int, ...], np.ndarray]:
    """The sample time, the rows of the kept samples at which records begin, and which rows are kept."""
    good = np.isfinite(values).all(1)
    if times is not None:
        good &= np.isfinite(times)
    if not good.all():
        notes.append(
            f"{np.sum(~good)} of {len(good)} rows are not all finite numbers: left out, a record ends there"
        )
    if good.sum() < 2:
        raise ValueError(f"{where}: expected at least two rows of finite numbers, but found {good.sum()}")
    rows = np.flatnonzero(good)
    begins = np.diff(rows) > 1
    if dt is not None:
        checks.number("dt", dt, "a sample time above 0 s", above=0)
    if times is None and dt is None:
        raise ValueError(f"dt: {where} has no time column; say the sample time [s], read(..., dt=0.01)")
    step = float(dt or 0)
    if times is not None:
        steps = np.diff(times[rows])
        if np.any(steps <= 0):
            at = int(np.argmax(steps <= 0))
            raise ValueError(
                f"{where}: time does not increase after row {rows[at]}; sort the rows, or give each record"
            )
        step = float(np.median(steps)) if dt is None else float(dt)
        if dt is not None and abs(np.median(steps) / dt - 1) > 0.02:
            raise ValueError(
                f"dt: {dt:g} s, but the time column steps by {np.median(steps):g}; is it in another unit?"
            )
        jumps = (steps > gap * step) & ~begins  # where rows were left out, that has been said
        if jumps.any():
            lost = steps[jumps].sum()
            count = f"{jumps.sum()} gap{'s' * int(jumps.sum() > 1)}"
            notes.append(f"{count} in the time column, {lost:.3g} s in all: a record begins after each")
        begins |= jumps
        jitter = np.abs(steps[~begins] - step).max(initial=0) / step
        if jitter > 0.01:
            notes.append(f"the sample time jitters by up to {jitter:.0%} of {step:.3g} s: taken as constant")
    first = (0, *(int(i) + 1 for i in np.flatnonzero(begins)))
    return step, first, rows
