"""Arrays in files as MATLAB, NumPy and HDF5 write them, against SciPy's and h5py's own writers."""

import h5py
import numpy as np
import pytest
import scipy.io
from refusals import refused

from lqrlab import deployment, systems
from lqrlab.compute.array_files import read_arrays

A, B, C = np.array([[0.0, 1.0], [-2.0, -0.5]]), np.array([[0.0], [3.0]]), np.array([[1.0, 0.0]])
MOST = 1 << 20


def matlab73(path, content):
    """A file as MATLAB's ``save -v7.3`` writes it: a block of 512 bytes, all transposed, cells behind references."""

    def put(group, name, value):
        if isinstance(value, dict):
            item = group.create_group(name)
            for key, part in value.items():
                put(item, key, part)
            kind = "struct"
        elif isinstance(value, list):
            refs = group.file.require_group("#refs#")
            targets = [put(refs, f"r{len(refs)}", part).ref for part in value]
            item, kind = group.create_dataset(name, data=np.array([targets], h5py.ref_dtype).T), "cell"
        elif isinstance(value, str):
            item, kind = group.create_dataset(name, data=np.array([[ord(c)] for c in value], "u2")), "char"
        else:
            item, kind = group.create_dataset(name, data=np.atleast_2d(value).T), "double"
        item.attrs["MATLAB_class"] = np.bytes_(kind)
        return item

    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in content.items():
            put(file, name, value)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64, HDF5 schema 1.00 .".ljust(116))
    return path


def matlab5(path, content):
    """A file of version 5, packed as MATLAB packs it."""

    def cells(value):
        if isinstance(value, dict):
            return {key: cells(part) for key, part in value.items()}
        return np.array([*map(cells, value), None], object)[:-1] if isinstance(value, list) else value

    scipy.io.savemat(path, cells(content), do_compression=True)
    return path


WRITERS = [matlab5, matlab73]


@pytest.mark.parametrize("write", WRITERS)
def test_structures_and_cells_are_read_by_names_that_say_where_they_are(write, tmp_path):
    content = {
        "A": A, "text": "noise", "sys": {"B": B, "in": {"C": C}}, "parts": [B, {"x": A}], "names": ["angle", "speed"],
    }  # fmt: skip
    found = read_arrays(write(tmp_path / "a.mat", content), MOST)
    assert found.keys() == {"A", "text", "sys.B", "sys.in.C", "parts1", "parts2.x", "names"}
    for name, expected in {"A": A, "sys.B": B, "sys.in.C": C, "parts1": B, "parts2.x": A}.items():
        np.testing.assert_array_equal(found[name], expected)
    assert np.ravel(found["text"]).tolist() == ["noise"]
    assert found["names"].tolist() == ["angle", "speed"]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("place", ["{}", "{sys}", "{sys, small}"])
def test_a_plant_is_found_in_a_structure_and_in_lower_case(write, place, tmp_path):
    names = {"states": ["angle [rad]", "rate [rad/s]"], "dt": 0.05}
    fields = {k.lower() if "small" in place else k: v for k, v in {"A": A, "B": B, "C": C}.items()} | names
    content = fields if place == "{}" else {"about": "a pendulum", "sys": fields}
    path = write(tmp_path / "plant.mat", content)
    for plant in (systems.load(path), deployment.load(path)):
        for name, expected in {"A": A, "B": B, "C": C}.items():
            np.testing.assert_array_equal(getattr(plant, name), expected)
        assert [(s.name, s.unit) for s in plant.states] == [("angle", "rad"), ("rate", "rad/s")]
        assert float(plant.dt) == 0.05
    gain = write(tmp_path / "gain.mat", {"design": {"K": C}})
    np.testing.assert_array_equal(deployment.load(gain), C)


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_no_plant_of_a_matlab_file_is_said(write, tmp_path):
    path = write(tmp_path / "a.mat", {"one": {"A": A, "B": B}, "two": {"A": A, "B": B}})
    refused("A is missing; it holds one.A, one.B, two.A, two.B", systems.load, path)
    path = write(tmp_path / "a.mat", {"x": A, "y": {"z": B}})
    refused("A is missing; it holds x, y.z$", systems.load, path)
    path = write(tmp_path / "a.mat", {"sys": {"A": A, "B": B, "Ts": 0.1}})
    refused("expected ẋ = Ax [+] Bu, but Ts = 0.1 means a sampled model", systems.load, path)
    for name, value in (("E", 2 * np.eye(len(A))), ("InputDelay", 0.3)):
        path = write(tmp_path / "a.mat", {"sys": {"A": A, "B": B, name: value}})
        refused(f"{name}: expected", systems.load, path)
    refused("at most 5000 variables", read_arrays, write(tmp_path / "b.mat", {"x": [1.0] * 6000}), MOST)
    refused("more than 1 MiB", read_arrays, write(tmp_path / "c.mat", {"x": {"y": np.zeros(1 << 17 | 1)}}), MOST)


def test_two_variables_of_one_name_are_refused(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"A": A, "x": B})
    content = (tmp_path / "a.mat").read_bytes()
    scipy.io.savemat(tmp_path / "a.mat", {"A": 2 * A})
    (tmp_path / "a.mat").write_bytes(content + (tmp_path / "a.mat").read_bytes()[128:])
    refused("two of its arrays have the same name", read_arrays, tmp_path / "a.mat", MOST)


def test_a_structure_for_each_sample_is_read(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"s": np.array([(1.0, A), (2.0, B)], [("u", "O"), ("v", "O")])})
    found = read_arrays(tmp_path / "a.mat", MOST)
    assert found.keys() == {"s1.u", "s1.v", "s2.u", "s2.v"}
    np.testing.assert_array_equal(found["s2.v"], B)


def test_hdf5_of_anyone_is_read_where_it_is_plain_and_does_not_lead_out_of_itself(tmp_path):
    path = tmp_path / "strange.h5"
    with h5py.File(path, "w") as file:
        file["text"], file["whole"] = np.array([b"ab", b"c"]), np.array([[1, 2]], "<i4")
        file.create_dataset("small", data=np.zeros(1000), chunks=(1000,), compression="gzip")
        file["run/rows"] = np.array([(1.0, 2), (3.0, 4)], [("t", "f8"), ("u", "i4")])
        file["run/speed"] = np.array([1.0, -9.0])
        file["run/speed"].attrs["_FillValue"] = -9
        file.create_dataset("lines", data=["a", "bcd"], dtype=h5py.string_dtype())
        file["run/speed"].attrs["unit"] = "rpm"
        file["words"], file["nothing"] = "varying", h5py.Empty("f8")
    found = read_arrays(path, MOST)
    assert found["text"].tolist() == [b"ab", b"c"]
    assert found["whole"].tolist() == [[1, 2]]
    assert found["small"].shape == (1000,)
    assert found["run.rows.u"].tolist() == [2, 4]
    np.testing.assert_array_equal(found["run.speed [rpm]"], [1, np.nan])
    assert found["lines"].tolist() == ["a", "bcd"]
    assert found["words"] is None is found["nothing"]
    with h5py.File(path, "w") as file:
        file["a/b"] = file["a.b"] = np.ones(2)
    refused("two of its arrays are called a.b", read_arrays, path, MOST)
