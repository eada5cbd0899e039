"""From a log to a plant: reading, linear models, physical parameters, and what is said of them."""

import dataclasses
import gzip
import inspect
import json
import re
import sys
from types import SimpleNamespace

import control as python_control
import hostile_files
import jax
import numpy as np
import pandas as pd
import pytest
import scipy.constants
import scipy.integrate
import scipy.io
import scipy.linalg
import scipy.optimize
import scipy.signal
import scipy.stats
from click.testing import CliRunner
from refusals import refused
from scipy_oracle import gain

from benchmarks.identification import closed_loop_log, told
from lqrlab import control, robust, simulation, systems
from lqrlab.extensions import identification
from lqrlab.extensions.identification import Log, fitted_plant, shooting
from lqrlab.systems import Signal
from lqrlab.workbench import widgets
from lqrlab.workbench.cli import main


def signals(letter, count):
    return tuple(Signal(f"{letter}{i + 1}", "1") for i in range(count))


def linear_log(A, B, C, K, samples=1000, sigma=0.05, seed=0, records=1):
    """Records of x[t+1] = Ax + Bu + Ke, y = Cx + e under white inputs."""
    random, m, p = np.random.default_rng(seed), B.shape[1], len(C)
    us = random.normal(size=(records, samples, m))
    e = sigma * random.normal(size=(records, samples, p))
    plant = A, np.hstack([B, K]), C, np.eye(p, m + p, m), 1
    ys = np.concatenate([scipy.signal.dlsim(plant, pushed)[1] for pushed in np.concatenate([us, e], -1)])
    first = tuple(range(0, records * samples, samples))
    return Log(us.reshape(-1, m), ys, 0.1, signals("u", m), signals("y", p), first)


A = np.array([[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1], [0.0, 0.0, 0.6]])
B = np.array([[0.0], [0.5], [1.0]])
C = np.array([[1.0, 0.0, 0.0]])
K = np.array([[0.3], [0.1], [0.0]])


TRUTH = SimpleNamespace(A=A, B=B, C=C)


def pulses(model, num=20):
    return np.stack([model.C @ np.linalg.matrix_power(model.A, k) @ model.B for k in range(num - 1)])


# Logs -------------------------------------------------------------------------------------------------------------


def table(rows=40):
    t = 0.1 * np.arange(rows)
    return pd.DataFrame({"time": t, "force [N]": np.sin(t), "angle [deg]": 180 * np.cos(t)})


def write(frame, path):
    columns = {c.partition(" ")[0]: frame[c].to_numpy() for c in frame}
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".mat":
        scipy.io.savemat(path, columns)
    elif path.suffix == ".h5":
        import h5py

        with h5py.File(path, "w") as file:
            for name, values in columns.items():
                file[name] = values
    elif path.suffix == ".txt":
        np.savetxt(path, frame.to_numpy()[:, 1:])
    else:
        frame.to_csv(path, index=False, sep=";" if path.stem == "semicolons" else ",")
    return path


@pytest.mark.parametrize("name", ["a.csv", "semicolons.csv", "a.parquet", "a.mat", "a.h5", "a.txt"])
def test_each_kind_of_file_gives_the_same_log(name, tmp_path):
    path = write(table(), tmp_path / name)
    dt = 0.1 if name == "a.txt" else None
    log = identification.read(path, ["force"], ["angle [deg]"], dt)
    assert log.dt == pytest.approx(0.1)
    assert np.allclose(log.us[:, 0], np.sin(0.1 * np.arange(40)))
    assert np.allclose(log.ys[:, 0], np.pi * np.cos(0.1 * np.arange(40)))
    assert log.outputs[0] == Signal("angle", "rad")
    assert any("converted from deg to rad" in note for note in log.notes)
    twice = identification.read([path, path], ["force"], ["angle"], dt)
    assert twice.first == (0, 40)


def test_gaps_and_rows_without_numbers_begin_new_records_and_jitter_is_named():
    frame = table().drop(index=[10, 11, 12]).reset_index(drop=True)
    frame.loc[20, "force [N]"] = np.nan
    frame.loc[30, "time"] += 0.02
    log = identification.read(frame, ["force"], ["angle"])
    assert log.first == (0, 10, 20)
    assert len(log) == 36
    said = " ".join(log.notes)
    assert "1 gap in" in said
    assert "jitters by up to 20.0%" in said
    assert "1 of 37 rows" in said


def test_the_clock_of_a_log_is_right_on_average_and_its_faults_are_said():
    k, noise = np.arange(1200), np.random.default_rng(0).uniform(-0.05, 0.05, 1200)
    late, lost = 0.85 * (k % 50 == 7), k[k % 100 != 3]
    for stamps, dt, records, said in (
        (0.1 * (k + late), 0.1, 1, "jitters by up to 85"),
        (0.1 * (k + noise), 0.1, 1, "jitters by up to (9|10).*: taken"),
        (0.1 * (lost + noise[lost]), 0.1, 13, "12 gaps .* jitters by up to (9|10)"),
        (np.round(0.0123 * k, 3), 0.0123, 1, "jitters by up to"),
        (np.floor(1.25 * k) / 1000, 1.25e-3, 1, "jitters by up to"),
        (0.1 * (k + k**2 / 1.2e5), 0.101, 1, "jitters by up to 1.0% of 0.101 s, which adds up to 2.97 samples"),
        (0.1005 * k, None, 1, "jitters by up to 0.5% of 0.1 s, which adds up to 5.9. samples"),
    ):
        columns = {"t": stamps, "u": np.sin(stamps), "y": np.cos(stamps)}
        log = identification.read(columns, ["u"], ["y"], None if dt else 0.1)
        assert log.dt == pytest.approx(dt or 0.1, rel=1e-3)
        assert len(log.first) == records
        assert re.search(said, " ".join(log.notes)), log.notes


DEGREES = {"t": 0.1 * np.arange(5), "force": np.arange(5.0), "angle [deg]": 180 * np.arange(5.0)}


@pytest.mark.parametrize(
    ("heading", "asked", "expected", "unit"),
    [
        ("angle [deg]", "angle", np.pi, "rad"),
        ("angle [deg]", "angle [rad]", np.pi, "rad"),  # the file's own unit counts
        ("angle [deg]", "angle [degrees]", np.pi, "rad"),
        ("angle", "angle [Degrees]", np.pi, "rad"),
        ("angle", "angle [°]", np.pi, "rad"),
        ("speed [rev/min]", "speed", 6 * np.pi, "rad/s"),
        ("speed (RPM)", "speed", 6 * np.pi, "rad/s"),
        ("speed [deg/s²]", "speed", np.pi, "rad/s²"),
        ("speed [km/h]", "speed", 50.0, "m/s"),
        ("torque [kN m]", "torque", 180e3, "N·m"),
        ("torque [Nm]", "torque [N*m]", 180.0, "N·m"),
        ("flow [L/min]", "flow", 3e-3, "m³/s"),
        ("pressure [mbar]", "pressure", 18e3, "Pa"),
        ("duty [%]", "duty", 1.8, "1"),
        ("heat [°C]", "heat [K]", 453.15, "K"),
        ("heat [deg C]", "heat", 453.15, "K"),
        ("angle [Grad]", "angle", 180.0, "Grad"),
        ("level [counts]", "level", 180.0, "counts"),
        ("energy [kWh]", "energy", 180e3 * scipy.constants.hour, "J"),
        ("charge [Ah]", "charge", 180 * scipy.constants.hour, "C"),
        ("mass [lb]", "mass", 180 * scipy.constants.lb, "kg"),
        ("thrust [lbf]", "thrust", 180 * scipy.constants.lbf, "N"),
        ("pressure [psi]", "pressure", 180 * scipy.constants.psi, "Pa"),
        ("speed [mph]", "speed", 180 * scipy.constants.mph, "m/s"),
    ],
)
def test_units_are_converted_to_those_of_the_si_whoever_says_them(heading, asked, expected, unit):
    table = DEGREES | {heading: DEGREES["angle [deg]"]}
    if not heading.startswith("angle [deg"):
        del table["angle [deg]"]
    log = identification.read(table, ["force"], [asked])
    assert log.ys[1, 0] == pytest.approx(expected, rel=1e-12)
    assert log.outputs[0].unit == unit
    said = f"{unit!r} is not known" if unit in ("counts", "Grad") else f"to {unit}"
    assert any(said in note for note in log.notes) == (expected != 180.0 or unit in ("counts", "Grad"))


@pytest.mark.parametrize(
    ("heading", "unit"),
    [("angle_deg", "deg"), ("angle / deg", "deg"), ("angle, deg", "deg"), ("v_km/h", "km/h"), ("speed {rpm}", "rpm")],
)
def test_a_unit_that_a_name_ends_in_without_brackets_is_remarked_on_and_named(heading, unit):
    t = 0.1 * np.arange(5)
    frame = {"t": t, "force_N": t, "x_1": t, "flow_in": t, "y_bar": t, heading: t}
    log = identification.read(frame, ["force_N", "x_1"], ["flow_in", "y_bar", heading])
    assert log.notes == (
        f"{heading}: its name ends in {unit}, but values are taken as they are; the name '{heading} [{unit}]' "
        "converts them",
        "1 of 1 records have fewer than 20 samples, 5 in all: too short for most models",
    )
    said = identification.read(frame, ["force_N"], [f"{heading} [{unit}]"])
    assert np.allclose(said.ys[:, 0], t * {"deg": np.pi / 180, "km/h": 1 / 3.6, "rpm": np.pi / 30}[unit])
    assert not any("ends in" in note for note in said.notes)
    clock = identification.read({"t_ms": t, "u": t, "y": t}, ["u"], ["y"], time="t_ms")
    assert "t_ms: its name ends in ms, but values are taken in s; the name 't_ms [ms]' converts them" in clock.notes
    said = identification.read({"t_ms": t, "u": t, "y": t}, ["u"], ["y"], time="t_ms [ms]")
    assert said.dt == pytest.approx(1e-4)


def test_the_column_of_the_very_heading_is_taken_and_of_two_that_fit_none():
    both = DEGREES | {"angle [rad]": np.arange(5.0)}
    for asked, expected in (("angle [rad]", 1.0), ("angle [radians]", 1.0), ("angle [deg]", pytest.approx(np.pi))):
        assert identification.read(both, ["force"], [asked]).ys[1, 0] == expected
    words = r"2 columns, 'angle \[deg\]' and 'angle \[rad\]'; choose one"
    refused(words, identification.read, both, ["force"], ["angle"])


WRONG = [
    ({"inputs": ["forse"]}, "has no column 'forse'; did you mean force"),
    ({"inputs": None}, "inputs: expected a list of column names, such as .*, but found None"),
    ({"outputs": []}, "outputs: expected a list of column names"),
    ({"dt": 0.2}, "the time column steps by 0.1"),
    ({"time": 3}, "time: expected the name of the time column, but found 3"),
    ({"source": table().iloc[::-1]}, "time does not increase"),
    ({"source": table().assign(**{"force [N]": "1,5 N"})}, "found '1,5 N' in it; is the decimal mark a comma"),
    ({"source": table().round(0).assign(**{"force [N]": "1,500"})}, "found '1,500' in it; is the decimal mark a comma"),
    ({"source": np.zeros((5, 3))}, "has no headings and 3 columns"),
    ({"source": "log.xyz"}, "expected a file ending in .csv"),
    ({"source": table().drop(columns="time")}, "has no time column; name it"),
    ({"outputs": ["angle [V]"]}, r"angle: expected V, but found 'angle \[deg\]' in deg"),
    ({"inputs": ["force [newtn]"]}, "force: expected a unit, but found 'newtn'.*did you mean newton"),
    ({"outputs": ["force"]}, "expected each signal once and with a name, but found 'force'"),
    ({"source": pd.DataFrame(DEGREES).assign(force=np.array([1j] * 5, object))}, "force: expected .*complex128"),
    ({"source": pd.DataFrame(DEGREES).assign(force=np.array([0, 1, True, 2, 3], object))}, "'True' in it; .* row 3"),
    ({"source": DEGREES | {"t [V]": DEGREES["t"]}, "time": "t [V]"}, r"a unit of time, but found 't \[V\]' in V"),
    ({"source": DEGREES | {"t [ms]": DEGREES["t"]}}, r"has the time columns t and t \[ms\]; choose one"),
    ({"source": DEGREES | {"a": np.ones((5, 2)), "a1": np.ones(5)}}, "two columns are called a1"),
    ({"source": DEGREES | {3: np.ones(5)}}, "the names of columns, but found 3"),
    ({"source": DEGREES | {"a": [[1], [1, 2]]}}, "a has rows of several lengths"),
    ({"source": np.ones((5, 2, 2)), "dt": 0.1}, r"samples by signals, but found shape \(5, 2, 2\)"),
    ({"source": np.ma.array(np.ones((9, 2)), mask=np.eye(9, 2))}, "source: expected numbers, but found 2 masked"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_log_that_is_wrong_or_contradicts_itself_is_refused_in_words(change, message):
    source = table() if "dt" in change and "source" not in change else DEGREES
    with pytest.raises(ValueError, match=message):  # without the tests' own check of types
        inspect.unwrap(identification.read)(**{"source": source, "inputs": ["force"], "outputs": ["angle"]} | change)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_a_csv_means_the_same_however_its_letters_are_written(encoding, tmp_path):
    rows = "".join(f"{t / 10},{t},{180 * t},à\n" for t in range(5))
    (tmp_path / "a.csv").write_bytes(f"t,force,angle [°],note\n{rows}".encode(encoding))
    log = identification.read(tmp_path / "a.csv", ["force"], ["angle"])
    assert log.outputs[0].unit == "rad"
    assert log.ys[1, 0] == pytest.approx(np.pi)


def test_an_hdf5_files_attributes_say_units(tmp_path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, unit in (("t", "ms since 2026-01-01"), ("force", np.array([b"kN"])), ("angle", "deg")):
            file[name] = np.arange(5.0)
            file[name].attrs["units"] = unit
    log = identification.read(tmp_path / "a.h5", ["force"], ["angle"])
    assert log.dt == pytest.approx(1e-3)
    assert [log.us[1, 0], log.ys[1, 0]] == pytest.approx([1000, np.pi / 180])
    refused("angle: expected V, but found", identification.read, tmp_path / "a.h5", ["force"], ["angle [V]"])


def stamped(form):
    """A record of 6 s about a midnight between two months, its times in this form."""
    times = pd.date_range("2026-01-31 23:59:57", periods=60, freq="100ms", tz="Europe/Berlin")
    made = form(times) if callable(form) else times.strftime(form)
    force = 1e4 * np.sin(0.1 * np.arange(60)).round(3)
    return pd.DataFrame({"time": made, "force": force, "angle": np.cos(0.1 * np.arange(60)).round(4)})


def epoch(unit):
    return lambda times: times.tz_convert(None).astype("M8[ns]").astype("int64") // unit


STAMPS = {
    "ISO": "%Y-%m-%dT%H:%M:%S.%f", "blank": "%Y-%m-%d %H:%M:%S.%f", "Z": "%Y-%m-%dT%H:%M:%S.%fZ",
    "offset": "%Y-%m-%d %H:%M:%S.%f%z", "basic": "%Y%m%dT%H%M%S.%f", "comma": "%Y-%m-%d %H:%M:%S,%f",
    "mixed": lambda times: [time.isoformat() for time in times],  # whole seconds without a fraction
    "day first": "%d.%m.%Y %H:%M:%S.%f", "month first": "%m/%d/%Y %H:%M:%S.%f", "month": "%d-%b-%Y %H:%M:%S.%f",
    "half days": "%m/%d/%y %I:%M:%S.%f %p", "clock": "%H:%M:%S.%f", "colon": "%H:%M:%S:%f",
    "clock pm": "%I:%M:%S.%f %p", "minutes": "%M:%S.%f", "bare": "%Y%m%d %H%M%S.%f",
    "duration": lambda times: [str(time - times[0]) for time in times],
    "s": lambda times: epoch(1)(times) / 1e9, "ms": epoch(10**6), "µs": epoch(10**3), "ns": epoch(1),
}  # fmt: skip


@pytest.mark.parametrize("form", STAMPS)
def test_a_logs_clock_is_read_as_people_write_it(form, tmp_path):
    frame = stamped(STAMPS[form])
    if form == "minutes":  # which pass an hour
        frame["time"] = [f"{59 + (57 + k // 10) // 60}:{(57 + k // 10) % 60:02}.{k % 10}" for k in range(60)]
    frame.to_csv(tmp_path / "a.csv", index=False, sep=";")
    for source in (tmp_path / "a.csv", frame, frame.to_dict("list")):
        log = identification.read(source, ["force"], ["angle"])
        assert log.dt == pytest.approx(0.1, rel=1e-7)
        assert log.first == (0,)
        assert np.array_equal(log.us[:, 0], frame["force"])
        taken = f"time: taken in {form} since 1970 (2026-01-31); time='time [s]' overrides this"
        assert (taken in log.notes) == (form in ("ms", "µs", "ns"))
    if form == "ns":
        fine = frame.assign(time=frame["time"][0] + 1000 * np.arange(60))  # of which a double holds every 256th
        assert identification.read(fine, ["force"], ["angle"]).dt == pytest.approx(1e-6, rel=1e-9)


def test_an_index_of_times_is_the_clock_and_the_only_column_of_dates_too():
    frame = stamped(lambda times: times)
    for source in (
        frame.set_index("time"), frame.set_index("time").rename_axis(None), frame.rename(columns={"time": "when"}),
        frame.assign(time=frame["time"] - frame["time"][0]).set_index("time").rename_axis(None),
        frame.assign(t=0.1 * np.arange(60)).set_index("t").drop(columns="time"), frame.convert_dtypes(),
    ):  # fmt: skip
        assert identification.read(source, ["force"], ["angle"]).dt == pytest.approx(0.1, rel=1e-9)
    assert list(frame) == ["time", "force", "angle"]  # the caller's table is as it was
    log = identification.read(frame.assign(time=frame["time"].where(frame.index > 0)), ["force"], ["angle"])
    assert (log.dt, len(log)) == (pytest.approx(0.1), 59)  # one of the times is missing
    back = frame["time"].where(frame.index < 30, frame["time"] - pd.Timedelta("1h"))
    for words, time in (
        ("a clock set back an hour needs UTC", back),
        ("coarser than the sample time; leave that column out, and set dt", frame["time"].dt.floor("s")),
        ("dates or times of day of one form", ["2026-01-31 12:00", "31st, at noon"] * 30),
        ("time: expected a column of numbers, but found 'end' in it; first in row 60", [*0.1 * np.arange(59), "end"]),
        ("time: expected seconds, but found", 46085.5 + np.arange(60) / 864000),
        ("time: expected seconds, but found", 638 * 10**15 + 10**6 * np.arange(60)),
        ("dates or times of day of one form", [f"063:10:20:{k:02}" for k in range(60)]),
    ):
        refused(words, identification.read, frame.assign(time=time), ["force"], ["angle"])


def shown(number, mark, group):
    """A number with marks of thousands."""
    return f"{number:,.4f}".translate(str.maketrans({",": group, ".": mark}))


def rows_of(separator, mark=".", group="", quote="", head="time{0}force{0}angle\n"):
    """The file as text: its heading, then its numbers."""
    frame = stamped(lambda times: 0.1 * np.arange(60))
    cells = ([quote + shown(a, mark, group) + quote for a in row] for row in frame.to_numpy())
    return head.format(separator) + "".join(separator.join(row) + "\n" for row in cells)


PREAMBLE = "Logger v1.2\nSerial,1234\n\nDate,2026-01-31\n# Operator: Smith, A.\n2026-01-31 10:00\n"
PLAIN = rows_of(",")
LAYOUTS = {
    "decimal comma": rows_of(";", ","), "tabs and commas": rows_of("\t", ","), "blanks and commas": rows_of("  ", ","),
    "1.234,5": rows_of(";", ",", "."), "1 234,5": rows_of(";", ",", " "), "1'234.5": rows_of(";", ".", "'"),
    "narrow blank": rows_of("\t", ",", "\u202f"), '"1,234.5"': rows_of(",", ".", ",", '"'), "bars": rows_of("|"),
    "above": PREAMBLE + PLAIN, "comments": "# a, b\n% c\n" + PLAIN + "# end\n", "blank lines": "\n" + PLAIN + "\n\n",
    "units": rows_of(";", ",", "", "", "time{0}force{0}angle\ns{0}N{0}rad\n"), "old Mac": PLAIN.replace("\n", "\r"),
    "units in brackets": PREAMBLE + rows_of(",", head="time{0}force{0}angle\n[s]{0}[N]{0}[rad]\n"),
    "UTF-16": PLAIN.encode("utf-16"), "UTF-16 without a mark": PLAIN.encode("utf-16-le"),
    "packed": gzip.compress(PLAIN.encode()), "lines in cells": rows_of(",", head='time{0}"force\n(N)"{0}angle\n'),
    "bars and commas": rows_of("|", ","), "blanks and 1,234.5": rows_of(" ", ".", ","),
    "blanks, none in the last row": rows_of(" ", ",") + "6,0 NaN -\n\n",
    "1.0D+03": re.sub(r"(\.\d+)", r"\1D+00", PLAIN),
    "an index": "".join(f"{i},{line}\n" for i, line in enumerate(PLAIN.splitlines())).replace("0", "", 1),
    "words": PLAIN.replace("\n", ',"run, ""a""",NA\n').replace('angle,"run, ""a""",NA', "angle,mode,mode"),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_is_read_as_loggers_and_spreadsheets_write_it(layout, tmp_path):
    content, path = LAYOUTS[layout], tmp_path / ("a.csv.gz" if layout == "packed" else "a.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    log = identification.read(path, ["force"], ["angle"])
    assert log.dt == pytest.approx(0.1)
    assert np.allclose(np.hstack([log.us, log.ys]), stamped("%c")[["force", "angle"]], atol=1e-9)
    assert (log.outputs[0].unit == "rad") == layout.startswith("units")


def test_words_that_may_mean_two_numbers_go_by_the_others_and_are_noted(tmp_path):
    def log(*columns):
        rows = ["t;u;y", *(";".join(words) for words in zip(*([w] * 3 if isinstance(w, str) else w for w in columns)))]
        (tmp_path / "a.csv").write_text("\n".join(rows))
        return identification.read(tmp_path / "a.csv", ["u"], ["y"])

    point, comma, missing = ("0.5", "1.0", "1.5"), ("0,5", "1,0", "1,5"), ("-", "2", "#N/A")
    assert log(point, "1,234", "1").us[0, 0] == 1234
    assert log(comma, "1,234", "1").us[0, 0] == 1.234 == log(comma, "1.234,0", "1").us[0, 0] / 1000
    assert log(comma, "1.234", "1").us[0, 0] == 1234
    assert log(comma, "0.5", "1").us[0, 0] == 0.5  # which no mark of thousands is
    assert "u: 1,234 is taken as 1.234" in log(("1", "2", "3"), "1,234", "1").notes
    assert "u: 1.234 is taken as 1234" in log(comma, "1.234", "1").notes
    refused("u: expected a column of numbers, but found '1,234'", log, point, "1,234", comma)
    refused("two rows of finite numbers, but found 1", log, point, missing, "1")
    cells = pd.DataFrame({"t": [0, 1], "u": ["0,5", "1,5"], "y": pd.Series([1.234, 2.0], dtype=object)})
    assert identification.read(cells, ["u"], ["y"]).ys[0, 0] == 1.234  # a number of a workbook stays what it is


def test_a_workbook_is_read_with_its_dates_and_needs_a_package_that_is_named(tmp_path, monkeypatch):
    path, frame = tmp_path / "a.xlsx", stamped(lambda times: times.tz_localize(None)).astype(object)
    clock = frame.assign(time=[time.time() for time in frame["time"]])
    frame.loc[-1] = ["clock", "kN", "deg"]
    clock["force"] = [f"{a:.3f}".replace(".", ",") for a in clock["force"]]
    for table in (frame.sort_index(), clock):
        with pd.ExcelWriter(path) as writer:
            pd.DataFrame({"about": ["Logger", "v1"]}).to_excel(writer, sheet_name="about")
            table.to_excel(writer, sheet_name="data", startrow=3, index=table is clock)
        log = identification.read(path, ["force [kN]"], ["angle"])
        assert log.dt == pytest.approx(0.1)
        assert log.notes[0] == "of the sheets about, data the longest is read, data"
        assert np.allclose(log.us[:, 0], 1000 * frame["force"][:60].astype(float))
    pd.DataFrame({"force": [0, 0, 7], "angle": [0, 5, 0]}).to_excel(path, index=False)
    assert identification.read(path, ["force"], ["angle"], dt=1.0).us[:, 0].tolist() == [0, 0, 7]
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r"a.xlsx: needs the package openpyxl.*pip install .*\[identification\]"):
        identification.read(path, ["force"], ["angle"])


def test_samples_that_are_masked_or_of_another_byte_order_are_what_they_say():
    t = np.arange(40) / 10
    masked = np.ma.masked_greater(t, 3.0)
    log = identification.read({"t": t.astype(">f8"), "u": masked, "y": t.astype(">i4")}, ["u"], ["y"])
    assert (len(log), log.us.max()) == (31, 3.0)
    assert log.ys.max() == 3


def test_reading_remarks_on_outputs_that_drift_and_on_records_that_are_short():
    u, t = np.random.default_rng(0).normal(size=1000), np.arange(1000) / 100
    y = scipy.signal.lfilter([0.1], [1, -0.9], u)
    table = {"t": t, "u": u, "y": y + 0.2 * t, "z": y, "step": np.sign(t - 2), "lag": 1 - np.exp(-t / 5)}
    log = identification.read(table, ["u"], ["y [V]", "z"])
    assert [note.partition(",")[0] for note in log.notes] == ["y: drifts by 1.66 V"]
    assert not identification.read(table, ["step"], ["lag", "z"]).notes  # a slow answer to a step is none
    assert "z: is -9999" in identification.read(table | {"z": np.where(t == 5, -9999, y)}, ["u"], ["z"]).notes[0]
    lost = table | {"z": np.where(np.isin(np.arange(1000), [500, 502, 990]), np.nan, y)}
    notes = identification.read(lost, ["u"], ["z"]).notes
    assert "2 of 4 records have fewer than 20 samples, 10 in all: too short for most models" in notes


def test_rows_of_a_csv_may_end_with_separators(tmp_path):
    path, rows = tmp_path / "a.csv", [f"{t / 10},{t},{10 * t}" for t in range(5)]
    for end in (",", ",,"):
        path.write_text("\n".join(["t,force,angle", *(row + end for row in rows)]))
        log = identification.read(path, ["force"], ["angle"])
        assert log.us[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert log.ys[:, 0].tolist() == [0, 10, 20, 30, 40]


def test_headings_of_a_table_with_blanks_may_have_units(tmp_path):
    path = tmp_path / "a.txt"
    rows = "".join(f"{t / 10} {t} {180 * t}\n" for t in range(5))
    for mark in ("", "# ", "%"):
        path.write_text(f"{mark}t force [N]  angle (deg)\n{rows}")
        log = identification.read(path, ["force"], ["angle"])
        assert [(s.name, s.unit) for s in (*log.inputs, *log.outputs)] == [("force", "N"), ("angle", "rad")]
        assert np.allclose(log.ys[:, 0], np.pi * log.us[:, 0])
    path.write_text(f"t force angle speed\n{rows}")
    refused("a value for each of 4 headings, but found 3", identification.read, path, ["force"], ["angle"])


@pytest.mark.parametrize("slow", [30, 70])
def test_a_sample_time_that_changes_is_refused_and_samples_that_are_lost_change_none(slow):
    steps = np.repeat([0.01, 0.02], [100 - slow, slow])
    table = {"t": np.cumsum(steps), "force": np.sin(np.arange(100)), "angle": np.cos(np.arange(100))}
    refused(r"the sample time changes: it is 0.01 s and 0.02 s", identification.read, table, ["force"], ["angle"])
    random = np.random.default_rng(slow)
    kept = np.flatnonzero(random.uniform(size=500) > 0.3)  # a third of the messages lost
    lost = {name: np.interp(kept, np.arange(500), np.arange(500.0)) for name in ("force", "angle")}
    assert identification.read({"t": 0.01 * kept, **lost}, ["force"], ["angle"]).dt == pytest.approx(0.01)


@pytest.mark.parametrize("case", hostile_files.LOGS, ids=lambda case: case.name)
def test_a_hostile_log_ends_in_words_and_takes_neither_time_nor_memory(case, tmp_path):
    hostile_files.met("log", case, tmp_path / "place")


def test_a_log_of_a_trajectory_is_what_the_controller_saw():
    plant, gain = systems.make("pendulum"), np.array([[30.0, 8.0]])
    run = simulation.rollout(
        plant, gain, np.zeros((3, 2)), 400, excitation=0.5, key=jax.random.key(0), sensor_noise=[0.01, 0.0]
    )
    log = identification.read(run, plant=plant)
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    quiet = log.us - u_eq + (log.ys - x_eq) @ gain.T  # the excitation alone, if the gain saw what is in the log
    assert quiet.std() == pytest.approx(0.5, rel=0.1)
    noise = (log.ys - x_eq).reshape(3, 400, 2) - np.asarray(run.xs)[:, :-1]
    assert noise[..., 0].std() == pytest.approx(0.01, rel=0.1)
    assert np.all(noise[..., 1] == 0)
    assert simulation.rollout(plant, gain, np.zeros(2), 5).seen is None
    names = identification.read(run, ["torque"], ["angular_velocity"], plant=plant)
    assert [s.name for s in (*names.inputs, *names.outputs)] == ["torque", "angular_velocity"]
    for words, change in (("time", {"time": "t"}), ("inputs", {"inputs": ["force"]})):
        refused(words, identification.read, run, plant=plant, **change)
    refused("2 states and 1 inputs, but found cart_pole", identification.read, run, plant=systems.make("cart_pole"))


def test_trajectories_of_several_plants_are_each_about_its_own_equilibrium():
    plants = systems.sample("coupled_tanks", key=jax.random.key(0), num=4, spread=0.3)
    x0 = 0.1 * np.ones((4, 2))
    run = simulation.rollout(plants, simulation.no_control(plants), x0, 3)
    log = identification.read(run, plant=plants)
    x_eq, u_eq = plants.equilibrium()
    assert log.first == (0, 3, 6, 9)
    assert np.allclose(log.ys[::3], x0 + x_eq)
    assert np.allclose(log.us, np.repeat(np.asarray(u_eq), 3, axis=0))
    slow = dataclasses.replace(run, ts=run.ts * np.array([[1.0], [2.0], [1.0], [1.0]]))
    refused("the loops differ in their sample time", identification.read, slow, plant=plants)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"us": np.where(np.arange(9)[:, None] == 5, np.nan, 1.0)}, "us: expected finite numbers.*in row 5"),
        ({"ys": np.full((9, 1), np.inf)}, "ys: expected finite numbers.*in row 0"),
        ({"ys": np.ones((8, 1))}, r"ys: expected samples \[9, 1\], .*found shape \(8, 1\)"),
        ({"us": np.ones((9, 1)) * 1j}, "us: expected real numbers"),
        ({"outputs": signals("u", 1)}, "expected each signal once and with a name, but found 'u1'"),
        ({"first": (0, 9)}, "first: expected the rows at which records begin"),
        ({"dt": 0.0}, "dt: expected a sample time above 0 s"),
    ],
)
def test_no_log_holds_what_no_model_comes_from(change, message):
    whole = {"us": np.ones((9, 1)), "ys": np.ones((9, 1)), "dt": 0.1, "inputs": signals("u", 1)}
    refused(message, Log, **{**whole, "outputs": signals("y", 1)} | change)


def test_resampling_filtering_detrending_and_splitting_keep_what_they_should():
    t = 0.01 * np.arange(2000)
    slow, fast = np.sin(2 * np.pi * 0.5 * t), np.sin(2 * np.pi * 30 * t)
    log = identification.read({"u": slow + 1, "y": slow + fast + 2 + t}, ["u"], ["y"], 0.01)
    inner = slice(300, -300)
    flat = log.detrended("linear").filtered(5.0)
    assert np.abs(flat.ys[inner, 0] - slow[inner]).max() < 0.15  # no phase; the line is fitted to the sine too
    coarse = log.resampled(0.05)
    assert coarse.dt == 0.05
    assert np.abs(coarse.us[20:-20, 0] - 1 - slow[::5][20:-20]).max() < 0.01
    first, last = log.split(0.25)
    assert (len(first), len(last)) == (500, 1500)
    assert np.array_equal(np.concatenate([first.ys, last.ys]), log.ys)
    refused("share: expected a share in", log.split, 1.5)


def test_a_log_says_what_a_careful_engineer_would_notice():
    random = np.random.default_rng(1)
    u, t = random.normal(size=800), 0.01 * np.arange(800)
    y = scipy.signal.lfilter([0.1], [1, -0.9], u)
    columns = {
        "u": u, "twin": 2 * u + 1, "still": 0 * u + 3, "y": np.clip(y, -0.2, 0.25), "coarse": np.round(y * 20) / 20,
        "alone": random.normal(size=800),
    }  # fmt: skip
    log = identification.read(columns | {"time": t}, ["u", "twin"], ["y", "coarse", "still", "alone"])
    said = "\n".join(log.remarks())
    assert "still: is constant" in said
    assert "y: is at its upper limit, 0.25" in said
    assert "coarse: comes in steps of 0.05" in said
    assert "u and twin move together" in said
    assert "alone: no input explains it" in said
    f, coherence = log.coherence()
    assert coherence.shape == (4, len(f))
    assert coherence[0].mean() > 0.5 > coherence[3].mean()


# Linear models --------------------------------------------------------------------------------------------------


def test_least_squares_errors_mean_what_they_say():
    """Of 60 records, the errors of A and B are as large as their standard errors say."""
    plain, push, z = A[:2, :2], B[:2], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        us, noise = random.normal(size=(200, 1)), 0.1 * random.normal(size=(200, 2))
        moved = plain, np.hstack([push, np.eye(2)]), np.eye(2), np.zeros((2, 3)), 1
        xs = scipy.signal.dlsim(moved, np.hstack([us, noise]))[1]
        found = identification.least_squares(Log(us, xs, 0.1, signals("u", 1), signals("y", 2)))
        std = np.sqrt(np.diagonal(found.covariance))[:6]
        z.append(np.concatenate([(found.A - plain).ravel(), (found.B - push).ravel()]) / std)
    z = np.array(z)
    assert 0.85 < np.sqrt(np.mean(z**2)) < 1.15
    assert np.mean(np.abs(z) < 3) > 0.98


@pytest.mark.parametrize("method", ["n4sid", "moesp", "cva"])
def test_subspace_recovers_a_plant_and_prediction_error_is_near_the_truth_with_true_errors(method):
    log = linear_log(A, B, C, K, 400, 0.0, records=2)
    model = identification.subspace(log, 3, method=method)
    # the records' means are taken off, and a plant at rest responds to that as to a step
    assert np.abs(pulses(model) - pulses(TRUTH)).max() < 0.02
    assert np.allclose(np.sort(np.abs(model.poles)), np.sort(np.abs(np.linalg.eigvals(A))), atol=0.01)
    log = linear_log(A, B, C, K, 2000, 0.3)
    model = identification.subspace(log, 3, method=method)
    assert np.abs(pulses(model) - pulses(TRUTH)).max() < 0.15
    better = identification.refine(model, log)
    assert np.abs(pulses(better) - pulses(TRUTH)).max() < 0.05
    truth = np.linalg.eigvals(A)
    for pole, std in zip(better.poles, better.pole_std):
        error = pole - truth[np.argmin(np.abs(truth - pole))]
        assert abs(error.real) < 4 * std[0]
        assert abs(error.imag) < 4 * std[1] + 1e-9
    assert better.residuals(log).white
    assert better.noise[0, 0] == pytest.approx(0.09, rel=0.1)
    # the Kalman gain comes with it: C K is free of the state's coordinates
    assert (better.C @ better.K)[0, 0] == pytest.approx((C @ K)[0, 0], abs=0.08)


def test_no_unit_of_an_input_or_an_output_changes_what_a_subspace_finds():
    B2, C2, units = np.hstack([B, -B[::-1]]), np.vstack([C, C[:, ::-1]]), np.array([1e-6, 1e6])
    log = linear_log(A, B2, C2, np.zeros((3, 2)), 600, 0.0)
    plain = pulses(identification.subspace(log, 3))
    scaled = pulses(identification.subspace(dataclasses.replace(log, us=log.us * units, ys=log.ys * units[::-1]), 3))
    assert np.abs(scaled * units / units[::-1, None] - plain).max() < 1e-3


def test_orders_name_the_true_one_and_subspace_takes_it():
    log = linear_log(A, B, C, K, 1500, 0.2)
    rows = identification.orders(log, range(1, 7))
    assert rows["BIC"].idxmin() == 3
    assert rows["predicted [%]"].idxmax() >= 3
    assert identification.subspace(log).order <= 4


@pytest.fixture(scope="module")
def lossy():
    """A log of which one row in a hundred was lost, as read; two lost rows have one between them."""
    log = linear_log(A, B, C, 0 * K, 2000, 0.02)
    lost = np.append(np.random.default_rng(5).choice(2000, 20, replace=False), [500, 502])
    ys = np.where(np.isin(np.arange(2000), lost), np.nan, log.ys[:, 0])
    return identification.read({"t": 0.1 * np.arange(2000), "u1": log.us[:, 0], "y1": ys}, ["u1"], ["y1"])


def test_a_log_of_which_rows_were_lost_is_split_filtered_and_identified_like_any(lossy):
    sizes = np.diff([*lossy.first, len(lossy)])
    assert sizes.min() == 1
    halves = lossy.split(0.7)
    assert [len(h) for h in halves] == [round(sum(np.round(0.7 * sizes))), round(sum(sizes - np.round(0.7 * sizes)))]
    assert sorted(np.concatenate([h.ys for h in halves])) == sorted(lossy.ys)
    assert len(lossy.cut(0.5)) == sum(np.maximum(sizes - 5, 0))
    assert len(lossy.filtered(1.0)) == sum(sizes[sizes > 24])
    assert "have fewer than 3 samples" in lossy.detrended("linear").notes[-1]
    for model in (identification.subspace(lossy), identification.refine(identification.subspace(lossy, 3), lossy)):
        assert np.abs(pulses(model) - pulses(TRUTH)).max() < 0.02
    refused("record of 25 samples or more, but the longest has 4", lossy.cut(0, 0.4).filtered, 1.0)
    refused("all records have ended", lossy.cut, 1e4)


def test_no_other_b_and_d_predict_records_better_each_from_its_best_initial_state(lossy):
    model = identification.subspace(lossy, 3, feedthrough=True)

    def missed(**change):
        return np.sum((lossy.ys - dataclasses.replace(model, **change).predict(lossy)) ** 2)

    for name in "BD":
        a = getattr(model, name)
        for step in 1e-4 * np.eye(a.size).reshape(-1, *a.shape):
            assert min(missed(**{name: a + step}), missed(**{name: a - step})) > missed()


@pytest.mark.parametrize(("rows", "at"), [(61, 5), (61, 30), (70, 50), (400, 250)])
def test_one_step_in_a_record_is_enough_for_a_model(rows, at):
    u = (np.arange(rows) >= at).astype(float)
    y = scipy.signal.lfilter([0, 0.2], [1, -0.8], u) + 0.001 * np.random.default_rng(at).normal(size=rows)
    log = identification.read({"u": u, "y": y}, ["u"], ["y"], 1.0)
    assert identification.subspace(log, 1).poles.real == pytest.approx([0.8], abs=0.03)
    assert np.abs(identification.subspace(log).poles - 0.8).min() < 0.03
    refused("candidates: expected an order of at most", identification.orders, log, [99])


def test_feedback_around_an_unstable_plant_does_not_bias_prediction_error():
    unstable, gain = np.array([[1.1, 0.2], [0.0, 0.9]]), np.array([[2.5, 1.0]])
    push, random = np.array([[0.1], [0.3]]), np.random.default_rng(3)
    x, us, ys = np.zeros(2), [], []
    for _ in range(2000):
        e = 0.1 * random.normal(size=2)
        ys.append(x + e)
        us.append(-gain @ ys[-1] + random.normal(size=1))
        x = unstable @ x + push @ us[-1]
    log = Log(np.array(us), np.array(ys), 0.1, signals("u", 1), signals("y", 2))
    model = identification.refine(identification.least_squares(log), log)
    assert np.sort(model.poles.real) == pytest.approx([0.9, 1.1], abs=0.02)
    assert any("made in feedback" in words for words in model.residuals(log).sentences)


def test_sampled_models_differ_as_much_as_the_standard_errors_say():
    plant = systems.make("cart_pole")
    gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    run = simulation.rollout(
        plant, simulation.LinearPolicy(gain), np.zeros(4), 360, excitation=0.4 * plant.scales[1],
        key=jax.random.key(0),
    )  # fmt: skip
    log = identification.read(run, plant=plant)
    ys = log.ys + 0.01 * log.ys.std(0) * np.random.default_rng(0).normal(size=log.ys.shape)
    log = dataclasses.replace(log, ys=ys)
    model = identification.refine(identification.subspace(log, 4), log)
    drawn = model.sample(jax.random.key(0), 300)[0]
    outer = np.array([np.abs(model.poles).argmax(), np.abs(model.poles).argmin()])  # far from the others
    spread = np.sort(np.linalg.eigvals(drawn).real, -1)[:, [-1, 0]].std(0)
    ratio = spread / model.pole_std[outer, 0]
    assert ((ratio > 0.6) & (ratio < 1.7)).all(), ratio


def test_the_jacobian_of_the_filter_is_that_of_finite_differences():
    from lqrlab.extensions.identification import refinement

    log = linear_log(A, B, C, K, 50)
    model = identification.subspace(linear_log(A, B, C, K, 400), 3)
    fixed = {name: np.asarray(getattr(model, name)) for name in "ABCDK"}
    z = np.concatenate([model.A.ravel(), model.K.ravel(), np.ones(3), [0.1]])
    samples = log.us, log.ys, np.zeros(50, int), np.arange(50) == 0
    args = ({k: jax.numpy.asarray(v) for k, v in fixed.items()}, samples, np.eye(1), ("A", "K"), (3, 1, 1))
    exact = refinement._slopes(z, *args)
    for i in range(len(z)):
        h = 1e-6 * np.eye(len(z))[i]
        numeric = (refinement._missed(z + h, *args) - refinement._missed(z - h, *args)) / 2e-6
        assert np.abs(numeric - exact[:, i]).max() < 1e-6 * (1 + np.abs(numeric).max())


def test_from_a_record_to_a_regulator():
    """Discrete to continuous and back, python-control, and an LQG loop that holds the true plant."""
    log = linear_log(A, B, C, K, 2000, 0.1)
    model = identification.refine(identification.subspace(log, 3), log)
    plant = model.plant()
    assert np.allclose(control.c2d(*plant.matrices(), plant.dt)[0], model.A, atol=1e-9)
    space = python_control.ss(model.A, model.B, model.C, model.D, model.dt)
    response = python_control.impulse_response(space, T=0.1 * np.arange(9)).outputs * 0.1
    assert np.allclose(response, [0.0, *pulses(model, 9)[:, 0, 0]])
    lqg = model.lqg(model.C.T @ model.C, np.eye(1))
    assert np.allclose(lqg.estimator.L, model.K, rtol=1e-8)  # one noise drives state and sensor
    refused("has feedthrough", dataclasses.replace(model, D=np.ones((1, 1))).lqg, np.eye(3), np.eye(1))
    loop = np.block([[A, B @ np.asarray(lqg.C)], [np.asarray(lqg.B) @ C, np.asarray(lqg.A)]])
    assert np.abs(np.linalg.eigvals(loop)).max() < 1


def test_logs_that_tell_nothing_are_refused_in_words():
    log = linear_log(A, B, C, K, 200)
    still = dataclasses.replace(log, us=0 * log.us + 3)
    tone = dataclasses.replace(log, us=np.sin(np.arange(200))[:, None])
    twins = dataclasses.replace(log, us=np.repeat(log.us, 2, 1), inputs=signals("u", 2))
    for bad, message in ((still, "u1 is constant"), (twins, "u1 and u2 move together"), (tone, "do not excite")):
        refused(message, identification.subspace, bad, 3)
    refused("record longer", identification.subspace, log.cut(0, 1.0), 8)
    words = "expected at least 13 samples for this many unknowns, but found 10"
    refused(words, identification.refine, identification.subspace(log, 3), log.cut(0, 1.0))
    feedback = dataclasses.replace(log, us=-2 * log.ys)
    refused("hides the plant", identification.least_squares, feedback)
    alternating = linear_log(np.diag([0.9, -0.5]), np.ones((2, 1)), np.eye(2), np.zeros((2, 2)), 400, 0.01)
    refused("belongs to no continuous plant", identification.least_squares(alternating).plant)


# Physical parameters --------------------------------------------------------------------------------------------


FAMILIES = ("mass_spring_damper", "pendulum", "dc_motor")


@pytest.mark.parametrize("name", FAMILIES)
def test_standard_errors_of_parameters_mean_what_they_say(name):
    """Of six variants, the errors are as large as they are said to be."""
    z = []
    for seed in range(6):
        truth, log = closed_loop_log(name, seed, 200)
        found = told(name, truth, log)
        z.append((found.values - [float(getattr(truth, k)) for k in found.names]) / found.std)
    z = np.concatenate(z)
    assert np.mean(np.abs(z) < 3) >= 0.95
    assert 0.6 < np.sqrt(np.mean(z**2)) < 1.5


def test_a_plant_is_never_fitted_to_a_log_in_another_unit():
    _, log = closed_loop_log("pendulum", 0, 120)
    degrees = log.converted({"angle": "deg"})
    assert np.allclose(degrees.ys[:, 0], np.rad2deg(log.ys[:, 0]))
    plant = systems.make("pendulum")
    volts = dataclasses.replace(degrees, outputs=(Signal("angle", "V"), *log.outputs[1:]))
    for wrong, words in ((degrees, r"deg, .* rad; log.converted\({'angle': 'rad'}\)"), (volts, "V, .* no conversion")):
        refused(f"angle is in {words}", identification.fit, plant, wrong, ["mass"], starts=1)
    refused("angle is in V, which cannot be converted to rad", volts.converted, {"angle": "rad"})
    there_and_back = degrees.converted({"angle": "rad"})
    found = identification.fit(plant, there_and_back, ["mass"], starts=1)
    assert found.values == pytest.approx(identification.fit(plant, log, ["mass"], starts=1).values, rel=1e-6)
    assert "the log has no units" not in str(found)
    unsaid = dataclasses.replace(log, outputs=(Signal("angle"), *log.outputs[1:]))
    said = str(identification.fit(plant, unsaid, ["mass"], starts=1))
    assert "the log has no units: angle in rad assumed, as in pendulum" in said
    model = identification.least_squares(log)
    refused("angle is in deg, the model's is in rad", model.simulate, degrees)


def test_a_fits_noise_counts_what_was_fitted():
    """Weighted squares add up to the samples less the unknowns, three parameters and a first state of two."""
    _, log = closed_loop_log("mass_spring_damper", 3, 12, noise=0.1)
    found = identification.fit(systems.make("mass_spring_damper"), log, starts=1)
    assert len(found.names) == 3
    squares = ((log.ys - found.predicted) / found.noise) ** 2
    assert squares.sum() == pytest.approx(2 * 12 - (3 + 2), rel=1e-9)


def test_what_a_log_cannot_tell_is_said():
    _, log = closed_loop_log("pendulum", 0, 200)
    found = identification.fit(systems.make("pendulum"), log, ["mass", "length", "friction", "gravity"], starts=1)
    assert len(found.unidentifiable) == 1
    assert "gravity" in found.unidentifiable[0]
    assert "fix one of them" in str(found)
    tanks = systems.make("coupled_tanks")
    _, log = closed_loop_log("coupled_tanks", 0, 100)
    said = "\n".join(identification.fit(tanks, log, ["area", "pump", "level"], starts=1).unidentifiable)
    assert said.startswith("level has no effect")


def test_an_unstable_plant_is_fitted_by_multiple_shooting_from_a_wrong_start():
    truth, log = closed_loop_log("cart_pole", 5, 200)
    start = dataclasses.replace(systems.make("cart_pole"), pole_inertia=truth.pole_inertia)
    found = identification.fit(start, log, ["cart_mass", "pole_mass", "pole_length", "friction"], starts=6)
    assert len(found.segments.us) > 3
    true = np.array([float(getattr(truth, name)) for name in found.names])
    assert np.all(np.abs(found.values - true) < 4 * found.std)
    assert np.all(np.abs(found.values / true - 1) < 0.1)
    assert found.r2.min() > 0.99
    assert found.residuals().white
    simulated = identification.residuals.fit_percent(log.ys, found.simulate(log))
    np.testing.assert_allclose(simulated, found.fit_percent, atol=2)


def test_a_long_record_of_integrators_in_a_row_is_fitted():
    """A quadrotor has no unstable mode, but in 30 s an error of its attitude has moved it by kilometres."""
    truth, log = closed_loop_log("quadrotor", 5, 1500)
    found = identification.fit(systems.make("quadrotor"), log, starts=1)
    assert np.all(found.fit_percent > 98)
    np.testing.assert_allclose(found.plant.mass, truth.mass, rtol=1e-4)
    gain = control.lqrd(*found.plant.matrices(), *found.plant.weights(), found.plant.dt).K
    batch = jax.tree.map(lambda a: np.asarray(a)[None], truth)
    assert identification.under_uncertainty(batch, gain).quantile(1.0) < 0.02


def test_segments_are_short_enough_for_a_plant_that_its_defaults_would_tear_away():
    """A magnet with the wrong resistance drops or catches its ball before errors of the state have grown 150-fold."""
    truth, log = closed_loop_log("magnetic_levitation", 0, 200)
    names = ("magnet", "resistance", "inductance")
    found = identification.fit(systems.make("magnetic_levitation"), log, names, starts=1)
    assert np.all(found.fit_percent > 98)
    np.testing.assert_allclose(found.values[1:], [truth.resistance, truth.inductance], rtol=3e-3)


@pytest.mark.parametrize(("method", "segment"), [("single", None), ("multiple", 13)])
def test_the_condensed_jacobian_is_that_of_finite_differences(method, segment):
    """Rotated rows: what stays is JᵀJ, Jᵀr and rᵀr."""
    given = {"starts": 1, "method": method, "segment": segment, "iterations": 3}
    _, log = closed_loop_log("pendulum", 1, 60)
    s = identification.fit(systems.make("pendulum"), log, ["mass", "friction"], **given).segments
    starts = 0.1 + 0.0 * np.zeros((len(s.us), 2))
    free = s.packed(np.array([0.1, -0.2]), np.zeros(2), starts)
    sigma = np.array([0.1, 0.2])
    r, J = s.condensed(free, sigma, 0.1)
    cost = lambda v: 0.5 * np.sum(s.condensed(v, sigma, 0.1)[0] ** 2)  # noqa: E731
    for i in range(len(free)):
        h = 1e-5 * np.eye(len(free))[i]
        assert (J.T @ r)[i] == pytest.approx((cost(free + h) - cost(free - h)) / 2e-5, rel=1e-5, abs=1e-3)
    z, _, x0 = s.unpacked(free)
    ys, ends = (np.asarray(a) for a in s.outputs(z, x0))
    gaps = (ends[:-1] - x0[1:])[s.follows[1:]] / s.scale / 0.1
    plain = np.sum((((ys - s.ys) / sigma)[s.mask]) ** 2) + np.sum(gaps**2) + np.sum((0.03 * z) ** 2)
    assert np.sum(r**2) == pytest.approx(plain, rel=1e-9)


def test_a_fit_is_validated_and_sampled():
    _, log = closed_loop_log("mass_spring_damper", 3, 300)
    first, second = log.split(0.6)
    found = identification.fit(systems.make("mass_spring_damper"), first, starts=4, offsets=["position"])
    missed = second.ys - found.simulate(second)
    assert np.all(missed.std(0) < 1.3 * found.noise)
    plants = found.sample(jax.random.key(0), 200)
    assert plants.batch_shape == (200,)
    assert np.std(plants.stiffness) == pytest.approx(found.std[found.names.index("stiffness")], rel=0.2)
    assert np.allclose(np.diagonal(found.correlation), 1)
    slopes = found.segments.coordinates.slopes(found.z)
    assert np.allclose(found.information @ (found.covariance / np.outer(slopes, slopes)), np.eye(3), atol=1e-6)
    left = np.square(first.ys - found.predicted).mean(0) / first.ys.var(0)
    assert np.allclose(1 - found.r2, left, rtol=1e-6)
    weak = dataclasses.replace(found, information=found.information / np.trace(found.information))
    values, vectors = weak.eigen
    assert np.allclose(vectors @ np.diag(values) @ vectors.T, weak.information)
    assert abs(found.offsets[0]) < 0.1


def test_the_box_that_a_log_allows_holds_as_many_draws_as_it_says():
    plant, log = closed_loop_log("mass_spring_damper", 3, 300)
    found = identification.fit(systems.make("mass_spring_damper"), log)
    uncertain, k = found.uncertain(0.8), len(found.names)
    assert uncertain.names == found.names
    ends = uncertain.moved(np.concatenate([np.eye(k), -np.eye(k)]))
    log_of = lambda plants: np.log(np.stack([np.asarray(getattr(plants, name)) for name in found.names], 1))  # noqa: E731
    axes = (log_of(ends)[:k] - log_of(ends)[k:]) / 2
    draws = (log_of(found.sample(jax.random.key(0), 4000)) - np.log(found.values)) @ np.linalg.inv(axes)
    assert np.mean(np.abs(draws).max(1) < 1) == pytest.approx(0.8, abs=0.02)
    assert np.allclose(np.corrcoef(draws.T), np.eye(k), atol=0.06)  # along the axes they are independent
    relative = found.covariance / np.outer(found.values, found.values)
    width = scipy.stats.norm.ppf((1 + 0.8 ** (1 / k)) / 2)
    assert np.allclose(axes.T @ axes, width**2 * relative, atol=0.02 * width**2 * np.trace(relative))
    K = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    assert robust.robust_stability(K, uncertain).certified
    narrow, wide = (robust.worst_case_gain(K, found.uncertain(p)) for p in (0.2, 0.999))
    assert wide.lower - wide.nominal > 2 * (narrow.lower - narrow.nominal) > 0
    refused("probability: expected a share above 0 and below 1", found.uncertain, 1.0)


def test_a_fit_is_simulated_on_its_own_outputs_and_as_finely_as_it_was_fitted():
    _, log = closed_loop_log("pendulum", 0, 30)
    found = identification.fit(systems.make("pendulum"), log, ["length"], starts=1, iterations=3, substeps=2)
    swapped = log.chosen(["torque"], [s.name for s in log.outputs][::-1])
    for other in (swapped, log.chosen(["torque"], ["angle"])):
        refused("log: expected the outputs angle, angular_velocity", found.simulate, other)
    start, slow = np.array([0.05, 0.0]), log.cut(0, 0.4)
    slow = dataclasses.replace(slow, dt=5 * log.dt)

    def rate(t, x, u):
        return np.asarray(found.plant.dynamics(x, u))

    x, truth = start, []
    for u in slow.us:
        truth.append(x)
        x = scipy.integrate.solve_ivp(rate, (0, slow.dt), x, args=(u,), rtol=1e-9, atol=1e-12).y[:, -1]
    assert np.allclose(found.simulate(slow, start), truth, rtol=1e-4, atol=1e-6)


PENDULUM = systems.make("pendulum")
UNFIT = [
    ({"parameters": []}, "parameters: expected a list of some of pendulum's parameters"),
    ({"parameters": ["mass", "mass"]}, "parameters: expected each name once, but found mass twice"),
    ({"parameters": ["masse"]}, "but found 'masse'; did you mean mass"),
    ({"offsets": ["angle", "angle"]}, "offsets: expected each name once, but found angle twice"),
    ({"defect": -1.0}, "defect: expected a share of the states' scales above 0"),
    ({"segment": 0}, "segment: expected a whole number ≥ 1"),
    ({"iterations": float("nan")}, "iterations: expected a whole number ≥ 1"),
    ({"log": lambda log: None}, "log: expected a log, as identification.read makes"),
    ({"log": lambda log: log.renamed({"torque": "moment"})}, "the input torque of pendulum, but found moment"),
    ({"log": lambda log: log.renamed({"angle": "angel"})}, "angel is neither a state nor an output of pendulum"),
    ({"log": lambda log: dataclasses.replace(log, ys=1e6 * log.ys)}, "is it in another unit"),
    ({"log": lambda log: dataclasses.replace(log, us=0 * log.us)}, "torque is constant"),
]


@pytest.mark.parametrize(("settings", "message"), UNFIT)
def test_what_does_not_fit_a_plant_is_refused_in_words(settings, message):
    _, log = closed_loop_log("pendulum", 0, 30)
    given = {"plant": PENDULUM} | settings | {"log": settings.get("log", lambda log: log)(log)}
    with pytest.raises(ValueError, match=message):  # without the tests' own check of types
        inspect.unwrap(identification.fit)(**given)


# Design under doubt, straight from data, experiments -------------------------------------------------------------


def test_a_gain_is_judged_on_all_plants_and_made_for_all():
    plants = systems.sample("cart_pole", key=jax.random.key(0), num=40, spread=0.5)
    nominal = systems.make("cart_pole")
    K = control.lqrd(*nominal.matrices(), *nominal.weights(), nominal.dt).K
    doubt = identification.under_uncertainty(plants, K)
    one = plants[3]
    A, B, Q, R, N = sampled = control.discretize(*one.matrices(), *one.weights(), one.dt)
    P = control.dlyap((A - B @ K).T, Q + K.T @ R @ K - N @ K - K.T @ N.T)
    start = np.diag(np.asarray(one.scales[0]) ** 2)
    best = control.dlqr(*sampled).P
    assert doubt.excess[3] == pytest.approx(np.trace(P @ start) / np.trace(best @ start) - 1, rel=1e-6)
    assert 0 < doubt.stable <= 1
    better = identification.under_uncertainty(plants, identification.robust_gain(plants, K=K, iterations=20))
    assert better.stable >= doubt.stable
    assert better.mean < doubt.mean
    assert "% of 40 plants are stable" in str(better)
    assert identification.under_uncertainty(plants, 0 * K).stable == 0


@pytest.mark.parametrize("objective", ["mean", "p95"])
def test_a_robust_gain_is_the_one_that_a_plain_search_finds(objective):
    plants = systems.sample("pendulum", key=jax.random.key(1), num=20, spread=0.4)
    start = np.diag(np.asarray(plants[0].scales[0]) ** 2)
    sampled = control.discretize(*plants.matrices(), *plants.weights(), plants.dt)
    problems = [[np.asarray(a[i]) for a in sampled] for i in range(20)]
    least = [np.trace(gain(*problem)[1] @ start) for problem in problems]

    def score(K):
        excess = []
        for (A, B, Q, R, N), paid in zip(problems, least):
            loop = A - B @ K[None]
            if np.abs(np.linalg.eigvals(loop)).max() >= 1:
                return np.inf
            stage = np.block([np.eye(2), -K[:, None]]) @ np.block([[Q, N], [N.T, R]]) @ np.vstack([np.eye(2), -K])
            excess.append(np.trace(scipy.linalg.solve_discrete_lyapunov(loop.T, stage) @ start) / paid - 1)
        return np.mean(excess) if objective == "mean" else np.sort(excess)[-2:].mean()  # about the 95th percentile

    first = gain(*problems[0])[0][0]
    best = scipy.optimize.minimize(score, first, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    found = np.asarray(identification.robust_gain(plants, objective))[0]
    assert score(found) == pytest.approx(best.fun, rel=1e-3)
    assert score(first) > 1.05 * best.fun
    for low in (0.05 * first, 0.0 * first):  # all loops fall over: what they count shows the way back
        assert not np.isfinite(score(low))
        assert np.isfinite(score(np.asarray(identification.robust_gain(plants, objective, K=low[None]))[0]))


def test_more_data_buy_less_regret():
    _, log = closed_loop_log("mass_spring_damper", 2, 400, noise=0.05)
    rows = identification.regret(
        systems.make("mass_spring_damper"), log, [len(log) * log.dt / 4, len(log) * log.dt], key=jax.random.key(0)
    )
    assert rows["mean"].iloc[0] > 1.5 * rows["mean"].iloc[1] > 0
    assert rows["c/T"].iloc[0] == pytest.approx(4 * rows["mean"].iloc[1])


@pytest.mark.parametrize("robustness", [0.0, 1e-9])
def test_the_regulator_comes_straight_from_a_record_without_noise(robustness):
    log = linear_log(A, B, np.eye(3), np.zeros((3, 3)), 40, 0.0)
    Q, R = np.diag([1.0, 2.0, 0.5]), np.array([[0.7]])
    K = identification.direct_lqr(log, Q, R, robustness=robustness)
    assert np.abs(K - control.dlqr(A, B, Q, R).K).max() < 1e-5
    same = dataclasses.replace(log, us=log.ys[:, :1] * 2)
    refused("not persistently exciting", identification.direct_lqr, same, Q, R)


def test_the_direct_regulator_with_noise_is_certainty_equivalence_or_more_careful():
    log = linear_log(A, B, np.eye(3), np.zeros((3, 3)), 60, 0.05)
    rows, after = np.concatenate([log.ys, log.us], 1)[:-1], log.ys[1:]
    AB = np.linalg.lstsq(rows, after, rcond=None)[0].T
    K = control.dlqr(AB[:, :3], AB[:, 3:], np.eye(3), np.eye(1)).K
    assert np.abs(identification.direct_lqr(log, np.eye(3), np.eye(1)) - K).max() < 1e-8
    careful = identification.direct_lqr(log, np.eye(3), np.eye(1), robustness=10.0)
    assert np.abs(np.linalg.eigvals(A - B @ careful)).max() < 1


@pytest.mark.parametrize("kind", ["prbs", "multisine", "chirp", "steps"])
def test_excitations_keep_their_limits_and_excite(kind):
    us = identification.excitation(kind, 300, 0.01, amplitude=[2.0, 0.5], seed=1, hold=2)
    assert us.shape == (300, 2)
    assert np.allclose(np.abs(us).max(0), [2.0, 0.5])
    assert np.linalg.cond(us) < 100
    if kind in ("prbs", "steps"):
        np.testing.assert_array_equal(us[::2], us[1::2])
    for T in (15, 16, 31, 127) if kind == "prbs" else ():
        s = np.fft.fft(identification.excitation(kind, T, 0.1)[:, 0])
        whole = [T, *[-1.0] * (T - 1)]  # of a sequence of maximal length, circular
        assert np.allclose(np.fft.ifft(np.abs(s) ** 2), whole) == (T % 2 == 1)
    for bad in (np.nan, np.inf):
        refused("band: expected a finite number", identification.excitation, kind, 20, 0.1, band=(bad, 1.0))
        refused("amplitude: expected finite", identification.excitation, kind, 20, 0.1, amplitude=[1.0, bad])


def test_parameters_are_scaled_onto_their_ranges():
    plant = systems.make("cart_pole")
    fields = systems.parameter_fields(type(plant))
    scaled = shooting.ScaledParameters.of(plant, tuple(fields))
    logarithms = [(low, field.metadata["low"] > 0) for low, field in zip((scaled.span == 0).tolist(), fields.values())]
    assert {*logarithms} == {(True, True), (False, False)}
    for end, z in (("low", scaled.low), ("high", scaled.high), ("default", 0 * scaled.low)):
        expected = [plant.parameters[name] if end == "default" else f.metadata[end] for name, f in fields.items()]
        np.testing.assert_allclose(scaled.values(z), expected, rtol=1e-12)
        assert np.isfinite(z).all()
    slopes = (scaled.values(z + 1e-6) - scaled.values(z - 1e-6)) / 2e-6
    np.testing.assert_allclose(scaled.slopes(z), slopes, rtol=1e-6)


def test_predicted_errors_are_those_of_fits_and_designs_tell_more():
    plant = systems.make("mass_spring_damper")
    sigma, u_eq = np.array([0.01, 0.01]), np.asarray(plant.equilibrium()[1])
    states = [s.name for s in plant.states]
    us = identification.excitation("prbs", 200, float(plant.dt), amplitude=2.0, hold=5)
    plain = identification.experiment(plant, us, sigma, outputs=states)
    best = identification.design(plant, 200, sigma, amplitude=2.0, outputs=states, num_lines=6, iterations=15)
    assert best.logdet > plain.logdet
    refused("us: expected finite", identification.experiment, plant, np.nan * us, sigma, outputs=states)
    assert np.abs(best.us).max() <= 2.0 + 1e-9
    tape = simulation.TrackingPolicy(np.zeros((201, 2)), us, np.zeros((200, 1, 2)))
    run = simulation.rollout(plant, tape, np.zeros(2), 200)
    log = identification.read(run, plant=plant)
    assert np.allclose(log.us, us + u_eq)
    ys = log.ys + sigma * np.random.default_rng(0).normal(size=log.ys.shape)
    found = identification.fit(plant, dataclasses.replace(log, ys=ys), starts=1)
    assert found.std / found.values == pytest.approx(plain.std, rel=0.2)


def test_inputs_are_designed_to_keep_the_states_within_their_limits():
    plant, limits = systems.make("mass_spring_damper"), np.array([0.6, 0.95])
    names = [s.name for s in plant.states]
    best = identification.design(
        plant, 100, 0.01, amplitude=2.0, outputs=names, num_lines=4, iterations=30, state_limits=limits
    )
    assert np.abs(best.us).max() == pytest.approx(2.0)
    flow = np.block([[*plant.matrices()], [np.zeros((1, 3))]])
    flow, x, largest = scipy.linalg.expm(flow * float(plant.dt)), np.zeros(2), np.zeros(2)
    for u in best.us:
        x = flow[:2] @ np.append(x, u)
        largest = np.maximum(largest, np.abs(x))
    assert np.all(largest < 1.2 * limits)  # a penalty; without it they are twice as large
    assert largest.max() > 0.5


def test_the_command_writes_a_plant_that_other_commands_read(tmp_path, catalogue_as_before):
    truth, log = closed_loop_log("mass_spring_damper", 0, 200)
    t = log.dt * np.arange(len(log))
    columns = {"t": t, "force": log.us[:, 0], "position": 1000 * log.ys[:, 0], "velocity": log.ys[:, 1]}
    pd.DataFrame(columns).to_csv(tmp_path / "log.csv", index=False)
    signals = ["--input", "force [N]", "--output", "position [mm],velocity"]
    call = ["identify", str(tmp_path / "log.csv"), *signals]
    done = CliRunner().invoke(main, [*call, "--plant", "mass_spring_damper", "-o", str(tmp_path / "plant.json")])
    assert done.exit_code == 0, done.output
    assert "position: converted from mm to m" in done.output
    plant = systems.load(tmp_path / "plant.json")
    assert float(plant.stiffness) == pytest.approx(float(truth.stiffness), rel=0.02)
    shown = CliRunner().invoke(main, ["systems", str(tmp_path / "plant.json"), "--json"])
    assert json.loads(shown.output)["name"] == "mass_spring_damper"
    done = CliRunner().invoke(main, [*call, "--order", "2", "-o", str(tmp_path / "linear.json"), "--json"])
    assert done.exit_code == 0, done.output
    assert min(json.loads(done.output)["fit on the held-out part [%]"].values()) > 90
    linear = systems.load(tmp_path / "linear.json")
    assert linear.n == 2
    assert (linear.inputs[0].name, linear.inputs[0].unit) == ("force", "N")
    shown = CliRunner().invoke(main, ["systems", "plant", "--json", "--plants", str(tmp_path / "plant.json")])
    assert shown.exit_code == 0, shown.output
    assert float(systems.make("plant").stiffness) == float(plant.stiffness)
    assert systems.register_file(tmp_path / "linear.json") == ["linear"]
    done = CliRunner().invoke(main, [*call[:2], "--input", "forse", "--output", "position"])
    assert done.exit_code == 2
    assert "did you mean force" in done.output


@pytest.fixture(scope="module")
def identifier():
    """The panel of a linear plant of order 3, at order 2, with an input that does nothing."""
    log = linear_log(A, B, C, K, samples=300)
    idle = Signal("idle", "1")
    log = dataclasses.replace(log, us=log.us.repeat(2, 1) * [1.0, 0.0], inputs=(*log.inputs, idle))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JPY_SESSION_NAME", "x")
        patch.delenv("LQRLAB_HEADLESS", raising=False)
        panel = widgets.identify(log, values={"inputs.idle": False})
        panel.live.wait()
        yield panel
        panel.close()


def test_the_panel_shows_what_a_model_of_another_order_does_beside_the_one_before(identifier):
    log, before = identifier._log.chosen(["u1"], ["y1"]), identifier._now.percent
    identifier.set({"order": 3})
    identifier.live.wait()
    assert not identifier.live.error
    model = identification.refine(identification.subspace(log.cut(0, 21), 3), log.cut(0, 21))
    expected = model.fit_percent(log.cut(21, 30))
    np.testing.assert_allclose(identifier._now.percent, expected, rtol=1e-6)
    assert expected[0] > before[0] + 2
    assert f"{expected[0]:.1f} % (before {before[0]:.1f} %)" in identifier.words.value
    spreads = np.sqrt(np.diagonal(identifier._now.spreads, axis1=1, axis2=2))
    order = np.argsort(-np.abs(identifier._now.poles), kind="stable")
    np.testing.assert_allclose(spreads[order].sum(), model.pole_std.sum(), rtol=0.3)
    middle, low, high = identifier._now.steps[:, :20, 0]
    true = np.cumsum(pulses(TRUTH)[:, 0, 0])
    assert np.all(np.abs(true - middle[1:]) <= 1.25 * (high - low)[1:])  # five standard errors
    assert np.all(low[1:] < middle[1:])
    assert np.all(middle[1:] < high[1:])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"inputs.u1": False, "inputs.idle": False}, "inputs: expected one or more of u1, idle, but found none"),
        ({"inputs.idle": True}, "idle is constant"),
        ({"estimation": (0.0, 0.6)}, "estimation: expected a range of at least 20 samples, 2 s, but found 6"),
        ({"estimation": (0.0, 4.5), "order": 8}, "needs records of"),
    ],
)
def test_what_cannot_be_identified_is_said_in_the_panel(identifier, values, said):
    shown, start = identifier.picture.value, identifier.values
    identifier.set(values)
    identifier.live.wait()
    assert said in identifier.live.status.value
    assert identifier.picture.value == shown
    identifier.set(start)
    identifier.live.wait()
    assert identifier.live.status.value == ""


def test_the_panel_of_a_plant_is_a_picture_without_a_person(monkeypatch):
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    truth, log = closed_loop_log("mass_spring_damper", 0, 200)
    values = {"model": "mass_spring_damper", "parameters.mass": False}
    still = widgets.identify(log, "mass_spring_damper", values=values)
    stiffness = float(re.search(r"stiffness = ([\d.]+)", still.words)[1])
    held = systems.make("mass_spring_damper").mass / truth.mass
    assert stiffness == pytest.approx(float(truth.stiffness) * float(held), rel=0.1)
    assert "fit" in still.svg
    with pytest.raises(ValueError, match=r"log: expected a log, as identification\.read makes, but found"):
        inspect.unwrap(widgets.identify)(np.eye(3))  # without the tests' own check of types
    nothing = values | {"parameters.stiffness": False, "parameters.damping": False}
    refused("parameters: expected one or more", widgets.identify, log, "mass_spring_damper", values=nothing)


def test_a_chaotic_plant_is_fitted_because_segments_need_not_meet_at_first():
    truth, log = closed_loop_log("double_pendulum", 0, 200)
    found = identification.fit(systems.make("double_pendulum"), log, starts=1)
    assert np.all(found.noise < 1.15 * 0.01 * log.ys.std(0))
    assert not found.unidentifiable
    assert np.all(np.abs(found.values - [float(getattr(truth, k)) for k in found.names]) < 3.5 * found.std)


@pytest.mark.parametrize(
    ("along", "said"),
    [
        ([1.0, -1.0, 0.0], "a and b enter only as their product"),
        ([0.0, 0.7, 0.7], "b and c enter only as their ratio"),
        ([0.0, 0.0, -1.0], "c has no effect"),
        ([1.0, -2.0, 0.5], "a, b and c are indistinguishable: a -5 %, b \\+10 %, c -2 %"),
    ],
)
def test_a_combination_that_changes_nothing_is_put_into_words(along, said):
    words = fitted_plant.in_words("abc", -np.array(along), np.ones(3, bool))
    words_of_other_sign = fitted_plant.in_words("abc", np.array(along), np.ones(3, bool))
    assert any(re.match(said, w) for w in (words, words_of_other_sign))
