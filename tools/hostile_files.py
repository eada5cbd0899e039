"""Files that anyone may have written, to break what reads them: for the tests and for ``torture.py``.

A case harms a copy of a good data set or of good checkpoints, or writes a file, at the path that it is given; its
words are a pattern of the sentence in which reading ends. Where they are empty, the file is read as it was written.
"""

import contextlib
import dataclasses
import gzip
import json
import os
import re
import shutil
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

DEEP = 200_000
MOST_MEMORY, MOST_SECONDS = 256 << 20, 6.0
HANGS = 60.0
"""Seconds after which something hangs, even on a machine that is busy."""
SECRET = "what only the owner of this machine may read"


@dataclasses.dataclass(frozen=True)
class Case:
    """One hostile thing; ``file`` is its name where it is a file by itself."""

    name: str
    make: Callable[[Path], object]
    words: str
    file: str = ""


def bait(path: Path) -> Path:
    """A file next to the hostile one, which links and names in it lead to."""
    place = path.parent / "elsewhere.json"
    place.write_text(json.dumps({"secret": SECRET, "A": [[0.0]], "B": [[1.0]], "step": 1}))
    return place


# What any file may be instead ------------------------------------------------------------------------------


def removed(path: Path) -> None:
    """Nothing, where something was."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fifo(path: Path) -> None:
    """A pipe, which a reader waits for."""
    removed(path)
    os.mkfifo(path)


def folder(path: Path) -> None:
    """A folder."""
    removed(path)
    path.mkdir()


def link(target: str) -> Callable[[Path], None]:
    """A symbolic link."""

    def make(path: Path) -> None:
        removed(path)
        path.symlink_to(target)

    return make


def text(content: str | bytes) -> Callable[[Path], object]:
    """A file with this content."""
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def shortened(share: float) -> Callable[[Path], object]:
    """A file that ends early."""
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def sparse(path: Path) -> None:
    """A terabyte of zeros that takes no room."""
    removed(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)


NO_FILE = {"a pipe": fifo, "a folder": folder, "endless": link("/dev/zero"), "a loop": link("loop")}
"""What is no file, or one without an end."""

NO_JSON = {
    "lists in lists": text("[" * DEEP),
    "tables in tables": text('{"a":' * DEEP),
    "a list": text("[]"),
    "nothing": text(""),
    "no text": text("\ud800".encode("utf-16", "surrogatepass")),
    "a number of 5000 digits": text('{"a": ' + "9" * 5000 + "}"),
}
"""Texts that are no JSON object."""


# Data sets -------------------------------------------------------------------------------------------------


def shard(folder: Path) -> Path:
    """The last file of a data set."""
    return folder / json.loads((folder / "manifest.json").read_text())["shards"][-1]["file"]


def agree(path: Path) -> None:
    """Let the manifest agree with the size of a file."""
    manifest = json.loads((path.parent / "manifest.json").read_text())
    next(s for s in manifest["shards"] if s["file"] == path.name)["bytes"] = path.stat().st_size
    (path.parent / "manifest.json").write_text(json.dumps(manifest))


def grown(path: Path, fill: Callable[[h5py.File], object]) -> None:
    """Change a file with h5py and let the manifest agree with its new size."""
    with h5py.File(path, "r+") as file:
        fill(file)
    agree(path)


def replaced(make: Callable[[h5py.Group], object]) -> Callable[[h5py.File], object]:
    """Put something else in the place of the costs."""

    def fill(file: h5py.File) -> None:
        del file["trajectories/cost"]
        make(file["trajectories"])

    return fill


def costs(*args: object, **options: object) -> Callable[[h5py.File], object]:
    """Another array in the place of the costs."""
    return replaced(lambda group: group.create_dataset("cost", *args, **options))


def virtual(group: h5py.Group) -> None:
    """An array that is another file's."""
    layout = h5py.VirtualLayout((12,), np.float64)
    layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (12,))
    group.create_virtual_dataset("cost", layout)


def external(group: h5py.Group) -> None:
    """An array whose values are bytes of another file."""
    group.create_dataset("cost", (12,), np.float64, external=[("/etc/hostname", 0, 96)])


def unknown_filter(group: h5py.Group) -> None:
    """An array in chunks that went through a filter of which nobody knows."""
    space, kind = h5py.h5s.create_simple((12,)), h5py.h5t.NATIVE_DOUBLE
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((12,))
    plan.set_filter(31999, h5py.h5z.FLAG_OPTIONAL)
    h5py.h5d.create(group.id, b"cost", kind, space, plan)


def nested(file: h5py.File) -> None:
    """Groups in groups."""
    group = file["variants"]
    for _ in range(1000):
        group = group.create_group("a")


def many(prefix: str, source: str, count: int) -> Callable[[h5py.File], None]:
    """Many names of one array: each would be read."""

    def fill(file: h5py.File) -> None:
        for k in range(count):
            file[f"{prefix}/{k}"] = file[source]

    return fill


def attributes(file: h5py.File) -> None:
    """More attributes than anyone needs."""
    for k in range(1000):
        file.attrs[f"a{k}"] = k


PAIR = np.dtype([("a", "f8"), ("b", "f8")])
SHARDS: list[tuple[str, Callable[[h5py.File], object], str]] = [
    ("external link", replaced(lambda g: g.__setitem__("cost", h5py.ExternalLink("/etc/hostname", "/x"))), "is a link"),
    ("soft link", replaced(lambda g: g.__setitem__("cost", h5py.SoftLink("/trajectories/x0"))), "is a link"),
    ("soft link to itself", replaced(lambda g: g.__setitem__("cost", h5py.SoftLink("cost"))), "cost is"),
    ("virtual array", replaced(virtual), "another file"),
    ("values in another file", replaced(external), "another file"),
    ("unknown filter", replaced(unknown_filter), "is compressed|is not what|damaged|has changed"),
    ("eight terabytes", replaced(lambda g: g.create_dataset("cost", (2**40,), "f8", chunks=(2**20,))), "claims 8796"),
    ("objects", replaced(lambda g: g.__setitem__("cost", np.array(["a"] * 12, h5py.string_dtype()))), "not plain"),
    ("pairs", replaced(lambda g: g.create_dataset("cost", (12,), PAIR)), "not plain numbers"),
    ("references", replaced(lambda g: g.create_dataset("cost", (12,), h5py.ref_dtype)), "not plain numbers"),
    ("nothing in it", replaced(lambda g: g.create_dataset("cost", data=h5py.Empty("f8"))), "cost|damaged"),
    ("a group", replaced(lambda g: g.create_group("cost")), "is a Group, not"),
    ("a type", replaced(lambda g: g.__setitem__("cost", np.dtype("f8"))), "is a Datatype, not an array"),
    ("without gains", lambda file: file.__delitem__("variants/K"), "variants/K"),
    ("with more", lambda file: file.create_dataset("variants/extra", data=1.0), "variants/extra"),
    ("a hundred names of one array", many("trajectories", "trajectories/states", 100), "claims"),
    ("5000 arrays", many("variants", "variants/dt", 5000), "more than a data set has"),
    ("a group in itself", lambda file: file.__setitem__("variants/again", file["/"]), "is a Group, not"),
    ("groups in groups", nested, "is a Group, not"),
    ("arrays in an array", costs((12,), np.dtype(("f8", (1 << 20,)))), "claims|not plain"),
    ("one text of a gigabyte", costs((1,), "S1073741824"), "claims 1073741824"),
    ("the other byte order", costs(data=np.ones(12, ">f8")), "not what the manifest"),
    ("truth values", costs(data=np.ones(12, bool)), "not plain numbers"),
    ("bytes without a meaning", costs(data=np.zeros(12, "V8")), "not plain numbers"),
    ("complex numbers", costs(data=np.ones(12, complex)), "not plain numbers"),
    ("half the precision", costs(data=np.ones(12, "f2")), "not what the manifest"),
    ("an unwritten array", costs((12,), "f8"), "cost|damaged"),
    ("packed zeros", costs((1 << 20,), "f8", chunks=(1 << 18,), compression="gzip"), "claims|not what"),
    ("31 axes too many", costs((12, *(1,) * 31), "f8"), "not what the manifest"),
    ("a name that turns the line", lambda file: file.create_dataset("variants/\u202eK", data=1.0), "not what the"),
    ("attributes of an array", lambda file: attributes(file["variants/K"]), ""),
    ("a digest of numbers", lambda file: file["variants/K"].attrs.__setitem__("sha256", np.arange(9)), "K has changed"),
    ("a unit of 60 kB", lambda file: file["variants/K"].attrs.create("unit", "a" * 60_000), "attribute or unit"),
    ("an attribute of nothing", lambda file: file.attrs.__setitem__("family", h5py.Empty("S10")), "attribute|damaged"),
]  # fmt: skip
"""What an HDF5 file of a data set may hold: a name, a change of the opened file, the words."""


def edited(**values: object) -> Callable[[Path], None]:
    """A manifest with other settings in its config."""
    return changed(lambda manifest: manifest["config"].update(values))


def changed(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """A manifest with anything else in it."""

    def make(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return make


def cut(share: float) -> Callable[[Path], None]:
    """A file that ends early, and a manifest that agrees with it."""

    def make(folder: Path) -> None:
        whole = shard(folder).read_bytes()
        shard(folder).write_bytes(whole[: int(share * len(whole))])
        agree(shard(folder))

    return make


def at_bait(folder: Path) -> None:
    """A link to another file, of which the manifest knows the size."""
    path = shard(folder)
    target = bait(folder)
    path.unlink()
    path.symlink_to(target.absolute())
    agree(path)


def no_hdf5(path: Path) -> None:
    """A picture, by its first bytes."""
    path.write_bytes(b"\x89PNG" * 1000)
    agree(path)


def in_shard(fill: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    return lambda folder: grown(shard(folder), fill)


def part(make: Callable[[Path], object], name: str) -> Callable[[Path], object]:
    """Something else in the place of one file of a folder."""
    return lambda folder: make(folder / name)


def as_manifest(number: str) -> Callable[[Path], None]:
    """A manifest in which a count is this number."""

    def make(folder: Path) -> None:
        text = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_text(text.replace('"bytes": ', f'"bytes": {number}, "was": ', 1))

    return make


def of_rows(number: float) -> Callable[[Path], None]:
    """A manifest that agrees with itself on a number of variants that none is."""

    def change(manifest: dict) -> None:
        entry = manifest["shards"][0]
        manifest["variants"] += number - entry["variants"]
        entry["variants"] = number
        for name, array in entry["arrays"].items():
            if name.startswith("variants/"):
                array["shape"][0] = number

    return changed(change)


def with_array(manifest: dict, name: str, header: dict | None) -> None:
    """Let the first file have another array of this name, or none."""
    arrays = manifest["shards"][0]["arrays"]
    arrays.pop(name, None) if header is None else arrays.setdefault(name, {}).update(header)


MANIFESTS = [
    *(Case(f"manifest: {name}", part(make, "manifest.json"), "is no manifest") for name, make in NO_JSON.items()),
    *(Case(f"manifest: {name}", part(make, "manifest.json"), "has no manifest") for name, make in NO_FILE.items()),
    Case("manifest: a terabyte", part(sparse, "manifest.json"), "at most 134217728 bytes"),
    *(Case(f"bytes are {n:.10}", as_manifest(n), "where the manifest says|is no manifest")
      for n in ("NaN", "1e999", "-1", "9" * 4000, "true", '"12"', "[[]]")),
    Case("twice the same file", changed(lambda m: m["shards"].append(m["shards"][0])), "expected the .* files of its"),
    Case("a billion variants", edited(variants=10**9), "variants: expected a whole number in"),
    Case("ten million files", edited(variants=10**7, variants_per_shard=1), "at most 20000 files"),
    Case("10¹² steps", edited(num_steps=10**12, keep_every=2, segment_length=1), "num_steps: expected a"),
    Case("half a million families", edited(families=["a"] * 500_000), "config: expected at most"),
    Case("a file above", changed(lambda m: m["shards"][0].update(file="../../etc/passwd")), "is no manifest"),
    Case("a file from the root", changed(lambda m: m["shards"][0].update(file="/etc/passwd")), "is no manifest"),
    Case("a name with a zero", changed(lambda m: m["shards"][0].update(file="a\0.h5")), "is no manifest"),
    *(
        Case(f"{number} variants, and arrays of as many", of_rows(number), "is no manifest")
        for number in (-1, True, 10**30)
    ),
    *(
        Case(f"left out: {wrong}, {where}", changed(lambda m, wrong=wrong, put=put: put(m, wrong)), words)
        for wrong in ({"diverged": -1}, {"diverged": 0.5}, {"bored": 1}, {"diverged": True}, [1], None)
        for where, put, words in (
            ("of a family", lambda m, wrong: m["left_out"].update(pendulum=wrong), "left_out: expected .* as in the"),
            ("of a file", lambda m, wrong: m["shards"][0].update(left_out=wrong), "is no manifest"),
        )
    ),
    *(
        Case(f"{name} is {header}", changed(lambda m, name=name, header=header: with_array(m, name, header)), words)
        for name, header, words in (
            *(
                ("variants/B", {"shape": shape}, re.escape(f"at most 12 states and 6 inputs, but found shape {shape}"))
                for shape in ([4, 2], [4, 2, 1, 1], [4, 13, 1], [4, 0, 1], [4, 2, 7], [4, 2, 0])
            ),
            ("trajectories/variant", {"shape": [3, 1]}, r"variant: expected shape \[\d+\], but found \[3, 1\]"),
            ("variants/K", {"shape": [4, 1, 5]}, r"K: expected shape .*, but found \[4, 1, 5\]"),
            ("variants/dt", {"dtype": "<f4"}, "variants/dt holds <f4, not the type of a data set"),
            ("variants/wariants", {"shape": [4], "dtype": "<f8"}, "variants/wariants is no array of a data set"),
            ("variants/R", None, "variants/R are missing"),
        )
    ),
    Case("no files", changed(lambda m: m.pop("shards")), "is no manifest"),
    Case("fewer files", changed(lambda m: m["shards"].pop()), "is no manifest"),
    Case("another format", changed(lambda m: m.update(format="lqrlab data set 99")), "is no manifest"),
    Case("a negative seed", changed(lambda m: m["config"].update(seed=-1)), "is no manifest"),
    Case("a checksum left out", changed(lambda m: m["shards"][0]["arrays"]["variants/K"].pop("sha256")),
         "variants/K is not what the manifest lists"),
    Case("an array left out", changed(lambda m: m["shards"][0]["arrays"].pop("variants/K")), "is no manifest"),
]  # fmt: skip
DATA_SETS = [
    *MANIFESTS,
    *(Case(name, in_shard(fill), words) for name, fill, words in SHARDS),
    *(Case(f"cut at {share}", cut(share), "cut off or damaged") for share in (0, 0.01, 0.3, 0.5, 0.77, 0.999)),
    Case("no HDF5", lambda folder: no_hdf5(shard(folder)), "no HDF5 file"),
    Case("a pipe", lambda folder: fifo(shard(folder)), "is no regular file"),
    Case("a folder", lambda place: folder(shard(place)), "is no regular file"),
    Case("endless", lambda folder: link("/dev/zero")(shard(folder)), "is no regular file"),
    Case("a loop", lambda folder: link("loop")(shard(folder)), "cannot be read|is missing"),
    Case("another's file", at_bait, "no HDF5 file"),
]  # fmt: skip
"""Copies of a data set that were harmed."""


# Plants ----------------------------------------------------------------------------------------------------


def arrays(**content: object) -> Callable[[Path], None]:
    """A NumPy archive."""
    return lambda path: np.savez(path, **{"A": np.eye(2), "B": np.ones((2, 1))} | content)


def member(name: str, content: bytes, size: int | None = None) -> Callable[[Path], None]:
    """A NumPy archive of which one member is these bytes."""

    def make(path: Path) -> None:
        arrays()(path)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)

    return make


def npy(shape: str, kind: str = "<f8") -> bytes:
    """A NumPy array of this shape without its values."""
    about = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(about).to_bytes(2, "little") + about


def bomb(path: Path) -> None:
    """A small archive that unpacks to 65 megabytes."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("A.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(65):
            file.write(bytes(1 << 20))


class Touch:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


def pickled(path: Path) -> None:
    """An archive with an object that runs a command."""
    arrays(A=np.array([Touch(path.parent / "ran")], object))(path)


def matlab(**content: object) -> Callable[[Path], None]:
    """A MATLAB file."""

    def make(path: Path) -> None:
        import scipy.io

        scipy.io.savemat(path, {"A": np.eye(2), "B": np.ones((2, 1))} | content)

    return make


def matlab_bomb(path: Path) -> None:
    """A small file whose matrix is of 65 megabytes."""
    import scipy.io

    scipy.io.savemat(path, {"A": np.zeros((1 << 10, 65 << 7)), "B": np.ones((2, 1))}, do_compression=True)


def plant(**content: object) -> str:
    """A plant as JSON."""
    return json.dumps({"A": [[0.0]], "B": [[1.0]]} | content)


FORMATS = ("json", "npz", "mat")
CANNOT = "cannot be read as"
PLANTS = [
    *(Case(f"json: {name}", make, CANNOT, "plant.json") for name, make in NO_JSON.items() if "digits" not in name),
    *(Case(f"{kind}: {name}", make, "there is no such file", f"plant.{kind}")
      for name, make in NO_FILE.items() for kind in FORMATS),
    *(Case(f"{kind}: a terabyte", sparse, "at most 64 MiB", f"plant.{kind}") for kind in FORMATS),
    *(Case(f"{kind}: no such thing", text(b"\x89PNG" * 100), CANNOT, f"plant.{kind}") for kind in FORMATS),
    Case("a number of 5000 digits", text('{"A": [[' + "9" * 5000 + ']], "B": [[1]]}'), CANNOT, "plant.json"),
    Case("a number of 400 digits", text(plant(A=[[10**400]])), "A: expected", "plant.json"),
    Case("not a number", text(plant(A=[[float("nan")]])), "A: expected finite numbers", "plant.json"),
    Case("words", text(plant(A="one")), "A: expected real numbers", "plant.json"),
    Case("a table", text(plant(A={"a": 1})), "A: expected", "plant.json"),
    Case("ragged rows", text(plant(A=[[1, 2], [3]])), "A: expected", "plant.json"),
    Case("lists in a list", text('{"B": [[1]], "A": ' + "[" * 99 + "1" + "]" * 99 + "}"), "A: expected", "plant.json"),
    *(Case(f"dt is {dt:.10}", text(f'{{"A": [[0]], "B": [[1]], "dt": {dt}}}'), "dt: expected", "plant.json")
      for dt in ("[]", "{}", "null", '"a"', "NaN", "-1", "[1, 2]", "1" + "0" * 400)),
    Case("names of another kind", text(plant(states=[{"a": []}])), "", "plant.json"),
    Case("more names than states", text(plant(states=["a"] * 5)), "states", "plant.json"),
    Case("A twice", text('{"A": [[1, 2, 3]], "A": [[0]], "B": [[1]]}'), "are called A", "plant.json"),
    Case("an object that runs a command", pickled, "pickle", "plant.npz"),
    Case("no values", member("C.npy", npy("(2, 2)")), CANNOT, "plant.npz"),
    Case("an exabyte", member("C.npy", npy("(1073741824, 1073741824)")), CANNOT, "plant.npz"),
    Case("a negative shape", member("C.npy", npy("(-1, 2)")), CANNOT, "plant.npz"),
    Case("a shape that is a call", member("C.npy", npy("(__import__('os').getpid(),)")), CANNOT, "plant.npz"),
    Case("a member above the folder", member("../../A.npy", npy("(0,)")), "", "plant.npz"),
    Case("unpacks to more than a plant", bomb, "it unpacks to more than 64 MiB", "plant.npz"),
    Case("complex numbers", arrays(A=1j * np.eye(2)), "A: expected real numbers", "plant.npz"),
    Case("a misfit", arrays(B=np.ones((3, 1))), r"A: expected shape \(3, 3\)", "plant.npz"),
    Case("no rows", arrays(A=np.ones((0, 0)), B=np.ones((0, 1))), "expected", "plant.npz"),
    Case("cells", matlab(A=np.array([print.__name__, 1], object)), "A is missing; it holds A1, A2", "plant.mat"),
    Case("structures", matlab(A={"a": 1}), "A is missing; it holds A.a", "plant.mat"),
    Case("unpacks to more than a plant", matlab_bomb, "it unpacks to more than 64 MiB", "plant.mat"),
]  # fmt: skip
"""Files of plants."""


# Logs ------------------------------------------------------------------------------------------------------


def saved(compressed: bool = True, **content: object) -> Callable[[Path], None]:
    """A MATLAB file of these variables."""

    def make(path: Path) -> None:
        import scipy.io

        scipy.io.savemat(path, content, do_compression=compressed)

    return make


def variable(path: Path) -> None:
    """A MATLAB file whose only variable unpacks to 256 MiB, and says that it is one number."""
    import scipy.io

    scipy.io.savemat(path, {"u": np.zeros(1)}, do_compression=True)
    whole = path.read_bytes()
    start = zlib.decompress(whole[136:])
    pack = zlib.compressobj(1)
    packed = b"".join([pack.compress(start), *(pack.compress(bytes(1 << 20)) for _ in range(256)), pack.flush()])
    path.write_bytes(whole[:128] + np.array([15, len(packed)], "<u4").tobytes() + packed)


def variables(path: Path) -> None:
    """A MATLAB file of a hundred thousand empty variables."""
    saved()(path)
    path.write_bytes(path.read_bytes() + np.array([15, 0], "<u4").tobytes() * 100_000)


def archive(rows: int, members: int = 1) -> Callable[[Path], None]:
    """A NumPy archive of zeros that takes a thousandth of its room."""
    return lambda path: np.savez_compressed(path, **{f"a{i}": np.zeros(rows) for i in range(members)})


def parquet(rows: int, columns: int = 1, **options: object) -> Callable[[Path], None]:
    """A Parquet file of zeros, which hardly take room in it."""

    def make(path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        zeros = pyarrow.array(np.zeros(rows))
        table = pyarrow.table({f"a{i}": zeros for i in range(columns)})
        pyarrow.parquet.write_table(table, path, **options)

    return make


def largest() -> dict[str, np.ndarray]:
    """A log of nearly 32 MiB, which any file may unpack to."""
    return {"u": np.zeros(2_000_000), "y": np.zeros(2_000_000)}


def largest_parquet(path: Path) -> None:
    """The same in a Parquet file of some kilobytes."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(largest()), path)


def lists(path: Path) -> None:
    """A Parquet file of one row with a list of five million zeros."""
    import pyarrow
    import pyarrow.parquet

    values = pyarrow.array(np.zeros(5_000_000))
    column = pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)], pyarrow.int32()), values)
    pyarrow.parquet.write_table(pyarrow.table({"u": column, "y": [0.0]}), path)


def packed_hdf5(path: Path) -> None:
    """An HDF5 file of 128 MiB of zeros, packed."""
    with h5py.File(path, "w") as file:
        noise = np.frombuffer(np.random.default_rng(0).bytes(5 << 20), "u1")  # with it the ratio is believable
        file.create_dataset("noise", data=noise, compression="gzip")
        file.create_dataset("u", (1 << 24,), "f8", chunks=(1 << 20,), compression="gzip")


def log_of(fill: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """An HDF5 file of an output, and of what the input is to be."""

    def make(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["y"] = np.ones(20)
            fill(file)

    return make


def repeated(path: Path) -> None:
    """An HDF5 file in which ten thousand texts are one of a megabyte."""
    log_of(lambda file: file.create_dataset("u", data=["1" * (1 << 20), *["2"] * 9_999], dtype=h5py.string_dtype()))(
        path
    )
    with h5py.File(path, "r") as file:
        start = file["u"].id.get_offset()
    whole = path.read_bytes()
    path.write_bytes(whole[:start] + 10_000 * whole[start : start + 16] + whole[start + 160_000 :])


def far_apart(*cells: str) -> Callable[[Path], None]:
    """A workbook of a few cells, between which there is much room."""

    def make(path: Path) -> None:
        import openpyxl

        book = openpyxl.Workbook()
        for cell in cells:
            book.active[cell] = 1
        book.save(path)

    return make


GOOD = "u,y\n" + "1,2\n" * 20
TOO_MUCH = "unpacks to"
NO_LOG = "cannot be read as|no HDF5 file"
LOG_FORMATS = ("csv", "txt", "dat", "parquet", "h5", "mat", "npz", "xlsx", "csv.gz")
LOGS = [
    *(Case(f"{kind}: {name}", make, "there is no such file", f"log.{kind}")
      for name, make in NO_FILE.items() for kind in ("csv", "mat", "parquet")),
    *(Case(f"{kind}: a terabyte", sparse, "at most 1024 MiB", f"log.{kind}") for kind in LOG_FORMATS),
    *(Case(f"{kind}: a picture", text(b"\x89PNG\r\n" * 100), NO_LOG, f"log.{kind}") for kind in LOG_FORMATS),
    *(Case(f"{kind}: nothing", text(""), NO_LOG, f"log.{kind}") for kind in LOG_FORMATS),
    Case("gz: fifty million rows", lambda path: path.write_bytes(gzip.compress(b"1,2\n" * 50_000_000, 1)), TOO_MUCH,
         "log.csv.gz"),
    Case("csv: one endless row", text(b"1," * (1 << 21)), "more than 1 MiB", "log.csv"),
    Case("csv: a hundred thousand columns", text("a," * 100_000 + "u,y\n1,2\n"), "at most 10000 columns", "log.csv"),
    Case("csv: two million short rows of 10⁴ columns", text("u,y" + ",a" * 4000 + "\n" + "1\n" * 2_000_000),
         TOO_MUCH, "log.csv"),
    Case("csv: a value more than headings", text("u,y\n" + "1,2,3\n" * 20), "for each of 2 headings", "log.csv"),
    Case("csv: a row too long", text(GOOD + "1,2,3\n"), "cannot be read as .csv", "log.csv"),
    Case("csv: two columns of one name", text("u,y,y\n" + "1,2,3\n" * 20), "is the name of 2 columns", "log.csv"),
    Case("csv: a quote that never ends", text(GOOD + '"1,2\n' * 1000), "log.csv|u: expected|y: expected", "log.csv"),
    Case("csv: a formula", text(GOOD + "=cmd|'/C calc'!A0,1\n"), "u: expected a column of numbers", "log.csv"),
    Case("csv: zeros without an end of line", text(bytes(1 << 22)), "more than 1 MiB", "log.csv"),
    Case("csv: infinite numbers", text("u,y\n" + "1e999,nan\n" * 20), "two rows of finite numbers", "log.csv"),
    Case("npz: an array of 128 MiB", archive(1 << 24), TOO_MUCH, "log.npz"),
    Case("npz: 100 arrays of a megabyte", archive(130_000, 100), TOO_MUCH, "log.npz"),
    Case("npz: nearly as much as is believed", lambda path: np.savez_compressed(path, **largest()), "", "log.npz"),
    Case("parquet: nearly as much as is believed", largest_parquet, "", "log.parquet"),
    Case("npz: bytes that become numbers", lambda path: np.savez_compressed(path, u=np.zeros(30 << 20, "u1")), TOO_MUCH,
         "log.npz"),
    Case("npz: objects that run a command", pickled, "cannot be read as|has no column", "log.npz"),
    Case("npz: a claim of an exabyte", member("u.npy", npy("(1073741824, 1073741824)")), CANNOT, "log.npz"),
    Case("npz: a claim of a terabyte", member("u.npy", npy("(137438953472,)")), CANNOT, "log.npz"),
    Case("npz: a negative shape", member("u.npy", npy("(-1, 2)")), CANNOT, "log.npz"),
    Case("npz: a matrix on its side", lambda path: np.savez_compressed(path, u=np.zeros((2, 1 << 20))),
         "at most 10000 columns", "log.npz"),
    Case("npz: complex numbers", lambda path: np.savez(path, u=1j * np.ones(20), y=np.ones(20)),
         "u: expected a column of real numbers", "log.npz"),
    Case("npz: dates", lambda path: np.savez(path, u=np.zeros(20, "M8[s]"), y=np.ones(20)),
         "u: expected a column of real numbers", "log.npz"),
    Case("mat: a structure of 128 MiB", saved(s={"u": np.zeros(1 << 23), "v": [np.zeros(1 << 23)]}), TOO_MUCH,
         "log.mat"),
    Case("mat: a matrix of 128 MiB", saved(u=np.zeros((1 << 14, 1 << 10))), TOO_MUCH, "log.mat"),
    Case("mat: cells in cells", saved(u=np.array([np.array([[1.0]]), {"a": 1}], object)), "no column", "log.mat"),
    Case("mat: a variable that unpacks to more than it says", variable, TOO_MUCH, "log.mat"),
    Case("mat: a hundred thousand variables", variables, "at most 5000 variables", "log.mat"),
    Case("mat: zeros", text(bytes(1 << 22)), NO_LOG, "log.mat"),
    Case("parquet: twenty million rows of zeros", parquet(20_000_000, compression="zstd"), TOO_MUCH,
         "log.parquet"),
    Case("parquet: 10⁴ columns of 10⁴ rows", parquet(10_000, 9_000), TOO_MUCH, "log.parquet"),
    Case("parquet: 20,000 columns", parquet(1, 20_000), "at most 10000 columns", "log.parquet"),
    Case("parquet: a list of five million", lists, "has no column 'u'", "log.parquet"),
    Case("xlsx: cells in the last column and row", far_apart("XFD1", "A1048576"), "at most 10000 columns", "log.xlsx"),
    Case("xlsx: a million rows of a hundred", far_apart("CV1", "A1048576"), TOO_MUCH, "log.xlsx"),
    Case("h5: 128 MiB, packed", packed_hdf5, TOO_MUCH, "log.h5"),
    *(Case(f"h5: {name}", make, words, "log.h5") for name, make, words in (
        ("texts", log_of(lambda file: file.create_dataset("u", data=["1"] * 20, dtype=h5py.string_dtype())), ""),
        ("a text of a megabyte, often", repeated, TOO_MUCH),
        ("lists", log_of(lambda file: file.create_dataset("u", (20,), h5py.vlen_dtype("f8"))), "u: expected 20 num"),
        ("regions", log_of(lambda file: file.create_dataset("u", (20,), h5py.regionref_dtype)), "u: expected 20 numb"),
        ("a cube", log_of(lambda file: file.create_dataset("u", (20, 2, 2), "f8")), "u: expected 20 numbers or texts"),
        ("another length", log_of(lambda file: file.create_dataset("u", (19,), "f8")), "expected 19 numbers"),
        ("a factor", log_of(lambda file: file.create_dataset("u", (20,), "f8").attrs.create("scale_factor", 5)),
         "u is packed, see its scale_factor"),
        ("an offset", log_of(lambda file: file.create_dataset("u", (20,), "f8").attrs.create("add_offset", 5)),
         "u is packed, see its add_offset"),
        ("a reference to nothing", log_of(lambda file: file.create_dataset("u", (2,), h5py.ref_dtype)), NO_LOG),
        ("a link", log_of(lambda file: file.__setitem__("u", h5py.SoftLink("/y"))), "u is a link"),
        ("a group in itself", log_of(lambda file: file.__setitem__("u", file["/"])), "at most 5000"),
    )),
]  # fmt: skip
"""Logs; what some of them unpack to is a thousand times their size."""


# Metrics and notebooks -------------------------------------------------------------------------------------

ROW = b'{"step": 4, "validation_efficiency": 0.5}\n'
METRICS = [
    *(Case(f"metrics: {name}", make, "metrics.jsonl", "metrics.jsonl") for name, make in NO_FILE.items()),
    Case("metrics: a terabyte", sparse, "metrics.jsonl", "metrics.jsonl"),
    *(Case(f"metrics: {name}", lambda path, line=line: path.write_bytes(line + b"\n" + ROW), "", "metrics.jsonl")
      for name, line in {"no text": b"\xff\xfe\0\0", "lists in lists": b"[" * DEEP, "tables in tables": b'{"a":' * DEEP,
                         "a number of 5000 digits": b'{"step": ' + b"9" * 5000 + b"}", "half a row": ROW[:20]}.items()),
]  # fmt: skip
"""Metrics of a training; those without words hold one good row."""

DECLARATIONS = [
    "x: __import__('pathlib').Path('MARK').touch() = 1",
    "x: (lambda: open('MARK', 'w'))() = 1",
    "x: [open('MARK', 'w') for _ in '1'] = 1",
    "x: list[open('MARK', 'w')] = []",
    "x: int | open('MARK', 'w') = 1",
    "x: ().__class__.__base__.__subclasses__() = 1",
    "x: f\"{open('MARK', 'w')}\" = 1",
    "x: \"open('MARK', 'w')\" = 1",
    "x: dict[str, exec(\"open('MARK', 'w')\")] = {}",
    "x: int = open('MARK', 'w')",
    "x: (y := open('MARK', 'w')) = 1",
    "x: " + "list[" * 3000 + "int" + "]" * 3000 + " = []",
]
"""Parameters that run code if they are evaluated: each would make the file MARK."""


def notebook(declaration: str) -> Callable[[Path], object]:
    """A notebook with a parameter that runs code."""

    def make(path: Path) -> None:
        text = "run: str = 'a'\n" + declaration.replace("MARK", str(path.parent / "ran"))
        cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": text}
        path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))

    return make


NO_NOTEBOOK = "not a notebook that can be read"
NOTEBOOKS = [
    *(Case(f"notebook: {line[:40]}", notebook(line), "a plain value and a type of|is not Python", "01_a.ipynb")
      for line in DECLARATIONS),
    *(Case(f"notebook: {name}", make, NO_NOTEBOOK, "01_a.ipynb") for name, make in (NO_FILE | NO_JSON).items()),
    Case("notebook: a terabyte", sparse, NO_NOTEBOOK, "01_a.ipynb"),
    *(Case(f"notebook: cells are {cells}", text(f'{{"cells": {cells}}}'), NO_NOTEBOOK, "01_a.ipynb")
      for cells in ("3", "[3]", '[{"metadata": 3}]', '[{"metadata": {"tags": ["parameters"]}, "source": 3}]')),
]  # fmt: skip
"""Notebooks, as they are listed, completed and swept over."""


# Checkpoints -----------------------------------------------------------------------------------------------


def steps(folder: Path) -> list[Path]:
    """The last checkpoints, oldest first."""
    return sorted((folder / "last").glob("[0-9]*"), key=lambda path: int(path.stem))


def newest(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Harm the newest checkpoint."""
    return lambda folder: make(steps(folder)[-1])


def each(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Harm all checkpoints."""

    def harm(folder: Path) -> None:
        for path in (*steps(folder), *(folder / "best").glob("[0-9]*")):
            make(path)

    return harm


def sealed(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Other settings everywhere, with checksums that agree, as a dishonest maker would."""

    def make(path: Path) -> None:
        from lqrlab.learning import weight_files

        arrays, card = weight_files.load_arrays(path)
        change(card)
        weight_files.save_arrays(path, arrays, card)
        (path.parents[1] / "settings.json").write_text(json.dumps(card.get("settings")))

    return each(make)


def other_model(**values: object) -> Callable[[Path], None]:
    """Settings of another model."""
    return sealed(lambda card: card["settings"]["model"].update(values))


def swapped(folder: Path) -> None:
    """The older checkpoint under the name of the newer one, and the other way round."""
    old, new = steps(folder)[-2:]
    old.rename(folder / "last" / "x")
    new.rename(old)
    (folder / "last" / "x").rename(new)


UNFIT = "do not fit the model"
CHECKPOINTS = [
    *(Case(f"newest: {name}", newest(make), "that of step") for name, make in (NO_FILE | NO_JSON).items()),
    *(Case(f"each: {name}", each(make), "is whole") for name, make in NO_FILE.items()),
    Case("a terabyte", newest(sparse), "expected a file of weights"),
    *(Case(f"cut at {share}", newest(shortened(share)), "that of step") for share in (0.01, 0.5, 0.999)),
    Case("steps swapped", swapped, "it is of step"),
    *(Case(f"settings: {name}", part(make, "settings.json"), "those of the checkpoint of step")
      for name, make in (NO_FILE | NO_JSON).items()),
    Case("settings that are none", sealed(lambda card: card.update(settings=[1])), "is damaged or missing"),
    Case("no settings", sealed(lambda card: card.pop("settings")), "is damaged or missing"),
    *(Case(f"metrics are {rows}", sealed(lambda card, rows=rows: card.update(metrics=rows)), "is whole")
      for rows in ("12", 3, [1], [{"step": 4}], [{"validation_efficiency": "1"}])),
    Case("settings of another model", other_model(width=64, kind="mlp"), UNFIT),
    Case("settings of a model of unknown kind", other_model(kind="__import__"), "kind: "),
    Case("a width of 10¹²", other_model(width=10**12), "width: expected"),
    Case("a depth of 10⁹", other_model(kind="transformer", depth=10**9), UNFIT),
    Case("a window of 10⁹", other_model(kind="transformer", window=10**9), UNFIT),
    Case("a hidden width of 10⁹", other_model(kind="mlp", hidden=10**9), UNFIT),
]  # fmt: skip
"""Copies of a run's checkpoints that were harmed."""


# Few bytes that ask for much memory: weights, plants, robots -------------------------------------------------


def weights(card: object, **held: object) -> Callable[[Path], None]:
    """Weights with this card, as JSON or as it is; small arrays where none are given."""

    def make(path: Path) -> None:
        from safetensors.numpy import save_file

        told = {} if card is None else {"card": card if isinstance(card, str) else json.dumps(card)}
        save_file({k: np.asarray(a) for k, a in (held or {"a": np.ones(2, "f4")}).items()}, path, told)

    return make


def network(**settings: object) -> Callable[[Path], None]:
    """Weights of a few bytes, with the card of a network of these settings."""
    return weights({"kind": "network", "model": settings})


def prior(**other: object) -> Callable[[Path], None]:
    """Weights of a prior, some of whose arrays are others."""
    whole = {"dense": np.ones((2, 3)), "kinematic": np.ones((3, 4)), "probe": np.ones(3)}
    whole |= dict.fromkeys(("half", "caution", "start", "inflate"), np.ones(()))
    return weights({"kind": "prior"}, **{k: a for k, a in (whole | other).items() if a is not None})


def safetensors(header: object) -> Callable[[Path], object]:
    """A file of weights with this header, and no values."""
    about = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda path: path.write_bytes(len(about).to_bytes(8, "little") + about)


def claimed(shape: list[int], kind: str = "F32") -> Callable[[Path], object]:
    """Weights that claim an array which is not in them."""
    size = 4 * int(np.prod(shape, dtype=object))
    return safetensors({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}})


UNUSABLE = "holds no weights that can be"
WEIGHTS = [
    *(Case(f"weights: {name}", make, "expected a file of weights", "w.safetensors") for name, make in NO_FILE.items()),
    *(Case(f"weights: {name}", make, UNUSABLE, "w.safetensors") for name, make in NO_JSON.items()),
    Case("weights: a terabyte", sparse, "expected a file of weights", "w.safetensors"),
    *(
        Case(
            f"a network with {setting} {number:.0e}",
            network(**{"kind": kind, setting: number}),
            UNUSABLE,
            "w.safetensors",
        )
        for kind, setting, number in (
            ("matrix", "width", 100_000),
            ("matrix", "width", 10**9),
            ("matrix", "depth", 10**9),
            ("mlp", "hidden", 10**9),
            ("mlp", "window", 10**9),
            ("transformer", "width", 10**5),
            ("transformer", "depth", 10**9),
            ("transformer", "window", 10**9),
            ("transformer", "heads", 10**9),
            ("gain", "hidden", 10**9),
            ("matrix", "width", 10**12),
            ("matrix", "seed", -1),
        )
    ),
    Case("a network of unknown kind", network(kind="__import__"), "kind: ", "w.safetensors"),
    Case("a network with what is no setting", network(wings=2), "wings", "w.safetensors"),
    Case("no card", weights(None), "expected a card that says kind", "w.safetensors"),
    Case("a card without a model", weights({"kind": "network"}), "found none under 'model'", "w.safetensors"),
    Case("a card whose model is a text", weights({"kind": "network", "model": "large"}), UNUSABLE, "w.safetensors"),
    Case("a card of another kind", weights({"kind": ["prior"]}), "expected a card that says kind", "w.safetensors"),
    Case("a card that is a list", weights([]), "expected a card with names", "w.safetensors"),
    Case("a card of lists in lists", weights("[" * DEEP), UNUSABLE, "w.safetensors"),
    Case("a card of 5000 digits", weights("9" * 5000), UNUSABLE, "w.safetensors"),
    Case("a prior of nothing", weights({"kind": "prior"}), "expected no such array in a prior", "w.safetensors"),
    Case("a prior without odds", prior(dense=None), r"dense: expected shape .* found none", "w.safetensors"),
    Case("a prior with a large probe", prior(probe=np.ones(1000)), "probe: expected shape", "w.safetensors"),
    Case(
        "a prior with half of the families",
        prior(**{"families/mean": np.ones((2, 18, 12))}),
        "families/cost: expected",
        "w.safetensors",
    ),
    Case("a prior of words", prior(half=np.array(1)), "half: expected finite real numbers", "w.safetensors"),
    Case("a prior of infinities", prior(start=np.array(np.inf)), "start: expected finite real", "w.safetensors"),
    *(
        Case(f"an array of {shape}", claimed(shape), UNUSABLE, "w.safetensors")
        for shape in ([1 << 40], [1 << 62, 4], [1 << 33, 1 << 33])
    ),
    Case("an array of halves of halves", claimed([0], "F8_E5M2"), UNUSABLE, "w.safetensors"),
    Case("a header of a gigabyte", text((1 << 30).to_bytes(8, "little")), UNUSABLE, "w.safetensors"),
]
"""Files of trained weights."""


def nested_matlab(path: Path) -> None:
    """A small file with a structure of 65 megabytes; A and B are good."""
    import scipy.io

    content = {"A": np.eye(2), "B": np.ones((2, 1)), "C": {"a": np.zeros(65 << 17)}}
    scipy.io.savemat(path, content, do_compression=True)


def deep_matlab(path: Path) -> None:
    """A MATLAB file of cells in cells: reading one calls the next, until a processor's stack ends."""
    matlab()(path)
    levels = 100_000
    with path.open("ab") as file:
        for left in range(levels, -1, -1):
            # a matrix (14) of so many bytes; flags: a cell; dimensions 1, 1; the name C
            numbers = 14, 48 + 56 * left, 6, 8, 1, 0, 5, 8, 1, 1, 0x10001, ord("C"), 0, 0
            file.write(b"".join(n.to_bytes(4, "little") for n in numbers))


def zipped_lie(path: Path) -> None:
    """A MATLAB file whose variable says 1 × 1, and unpacks to half a gigabyte."""
    matlab()(path)
    pack = zlib.compressobj(1)
    # a matrix (14) of so many bytes; flags: double; dimensions 1, 1; the name C; values (miDOUBLE, 9)
    size, words = 1 << 29, lambda *numbers: b"".join(n.to_bytes(4, "little") for n in numbers)
    head = words(14, size + 56, 6, 8, 6, 0, 5, 8, 1, 1) + words(0x10001, ord("C"), 9, size)
    packed = pack.compress(head) + b"".join(pack.compress(bytes(1 << 20)) for _ in range(1 << 9)) + pack.flush()
    with path.open("ab") as file:
        file.write(words(15, len(packed)) + packed)


def family(**parameters: object) -> Callable[[Path], object]:
    """A catalogue's plant with these parameters, as JSON."""
    return text(json.dumps({"family": "pendulum", "parameters": parameters}))


PLANTS += [
    Case("a structure of 65 MiB", nested_matlab, "unpacks to", "plant.mat"),
    Case("cells a hundred thousand deep", deep_matlab, "at most 5000 variables, fields and cells", "plant.mat"),
    Case("1 × 1 of half a gigabyte", zipped_lie, "it unpacks to more than 64 MiB", "plant.mat"),
    Case("a structure beside", matlab(notes={"author": "a"}), "", "plant.mat"),
    Case("two million lists", text('{"A": [' + "[]," * (1 << 21) + "[]]}"), CANNOT, "plant.json"),
    Case(
        "a parameter called name",
        family(name="cart_pole"),
        "parameters: expected one of .* but found 'name'",
        "plant.json",
    ),
    Case("a parameter called self", family(self=1), "parameters: expected one of .* but found 'self'", "plant.json"),
    Case("a parameter that is a table", family(length={"a": 1}), "length: expected", "plant.json"),
    Case("a parameter that is nothing", family(length=None), "length: expected", "plant.json"),
    Case(
        "parameters that are a list",
        text('{"family": "pendulum", "parameters": [1]}'),
        "parameters by name",
        "plant.json",
    ),
    *(
        Case(f"a field that would be overlooked: {content}", text(content), words, "plant.json")
        for content, words in (
            ('{"family": "pendulum", "mass": 5.0}', "json: mass is a parameter: put it into 'parameters'"),
            ('{"family": "pendulum", "paramters": {}}', "json: 'paramters' .* did you mean parameters"),
            ('{"A": [[0.0]], "B": [[1.0]], "q": [[2.0]]}', "json: 'q' .* did you mean Q"),
            ('{"A": [[0.0]], "B": [[1.0]], "order": 1, "fit on the held-out part [%]": {}}', ""),
        )
    ),
    Case("a family that is a list", text('{"family": ["pendulum"]}'), "family: expected", "plant.json"),
]


def hdf5(fill: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """A MATLAB file of version 7.3 with a good A and B, and what else is put into it."""

    def make(path: Path) -> None:
        with h5py.File(path, "w", userblock_size=512, track_order=True) as file:
            file["A"], file["B"] = np.eye(2), np.ones((1, 2))
            fill(file)
        with path.open("r+b") as opened:
            opened.write(b"MATLAB 7.3 MAT-file")

    return make


def instead(make: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """Something else in the place of A."""

    def fill(file: h5py.File) -> None:
        del file["A"]
        make(file)

    return hdf5(fill)


def links(file: h5py.File) -> None:
    """A that is an array of another file, a kilobyte of which is read as numbers."""
    layout = h5py.VirtualLayout((2, 2), np.float64)
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (2, 2))
    file.create_virtual_dataset("A", layout)


def deep_groups(depth: int) -> Callable[[h5py.File], None]:
    """A structure in a structure in a structure."""

    def fill(file: h5py.File) -> None:
        group = file
        for _ in range(depth):
            group = group.create_group("s")

    return fill


def cells_in_themselves(file: h5py.File) -> None:
    """A cell that holds itself."""
    cell = file.create_dataset("c", (2, 1), h5py.ref_dtype)
    cell[:] = [[cell.ref], [cell.ref]]


def many_cells(file: h5py.File) -> None:
    """A million cells that are one array."""
    file["#refs#/a"] = np.zeros((1, 1000))
    file.create_dataset("c", data=np.full((1, 1 << 16), file["#refs#/a"].ref, object), dtype=h5py.ref_dtype)


PLANTS += [
    Case(f"7.3: {name}", make, words, "plant.mat")
    for name, make, words in (
        ("good", hdf5(lambda file: None), ""),
        (
            "a link to a file",
            instead(lambda f: f.__setitem__("A", h5py.ExternalLink("/etc/hostname", "x"))),
            "is a link",
        ),
        ("a link", instead(lambda f: f.__setitem__("A", h5py.SoftLink("/B"))), "is a link"),
        ("a link to itself", instead(lambda f: f.__setitem__("A", h5py.SoftLink("/A"))), "is a link"),
        ("values of another file", instead(links), "in another file"),
        (
            "values that are another file's bytes",
            instead(lambda f: f.create_dataset("A", (2, 2), "f8", external=[("/etc/hostname", 0, 32)])),
            "in another file",
        ),
        (
            "eight terabytes",
            instead(lambda f: f.create_dataset("A", (1 << 20, 1 << 20), "f8", chunks=(64, 64))),
            "claims",
        ),
        (
            "65 MiB of zeros",
            instead(lambda f: f.create_dataset("A", (1 << 10, 65 << 7), "f8", compression="gzip")),
            "unpacks to|claims",
        ),
        ("nothing", instead(lambda f: f.create_dataset("A", data=h5py.Empty("f8"))), "A: expected|is missing"),
        (
            "words",
            instead(lambda f: f.create_dataset("A", data=["a"] * 4, dtype=h5py.string_dtype())),
            "A: expected|missing",
        ),
        (
            "pairs",
            instead(lambda f: f.create_dataset("A", (2, 2), [("x", "f8"), ("y", "f8")])),
            "A: expected|is missing",
        ),
        ("a group", instead(lambda f: f.create_group("A")), "is missing"),
        ("a type", instead(lambda f: f.__setitem__("A", np.dtype("f8"))), "A: expected|is missing"),
        ("groups in groups", hdf5(deep_groups(3000)), ""),
        ("a group in itself", hdf5(lambda f: f.__setitem__("again", f["/"])), "expected at most"),
        ("5001 arrays", hdf5(lambda f: [f.__setitem__(f"n{k}", f["B"]) for k in range(5001)]), "expected at most"),
        ("a cell in itself", hdf5(cells_in_themselves), "expected at most"),
        ("a million cells", hdf5(many_cells), "expected at most"),
        (
            "a text of a cell that is none",
            hdf5(lambda f: f["B"].attrs.__setitem__("MATLAB_class", np.bytes_("char"))),
            CANNOT,
        ),
        ("attributes", hdf5(attributes), ""),
        ("an unknown filter", instead(lambda f: unknown_filter(f)), CANNOT + "|is missing|claims"),
        ("cut in half", lambda path: (hdf5(lambda f: None)(path), shortened(0.5)(path)), CANNOT),
        ("cut at its head", lambda path: (hdf5(lambda f: None)(path), shortened(0.1)(path)), CANNOT),
        ("no head", text(b"MATLAB 7.3 MAT-file".ljust(4096, b"\0")), CANNOT),
    )
]


def toml(content: str) -> Callable[[Path], object]:
    """Plants in TOML, of which the first is good."""
    return text(f"[good_plant]\nA = [[0.0]]\nB = [[1.0]]\n{content}")


TABLES = [
    *(
        Case(f"toml: {name}", make, "no TOML|there is no such file|expected a file ending in", "p.toml")
        for name, make in (NO_FILE | NO_JSON).items()
        if name not in ("nothing", "a list")
    ),
    Case("toml: a terabyte", sparse, "no TOML", "p.toml"),
    Case("toml: lists in lists", toml("[a]\nA = " + "[" * 9999 + "]" * 9999), "nested too deeply", "p.toml"),
    Case("toml: tables in tables", toml("[b]\nA = " + "{a=" * 9999 + "1" + "}" * 9999), "nested too deeply", "p.toml"),
    Case("toml: a path of tables", toml("[c" + ".c" * 9999 + "]"), "nested too deeply", "p.toml"),
    Case("toml: two megabytes", toml("# " + "a" * (2 << 20)), "at most 1048576 bytes", "p.toml"),
    Case("toml: a file that is a number", toml("[d]\nfile = 3"), r"\[d\]: file: expected", "p.toml"),
    Case("toml: no table", text("A = 3"), "expected a table", "p.toml"),
]
"""Plants in TOML."""


def robot(head: str = "", body: str = "", tail: str = "") -> Callable[[Path], object]:
    """A lever with a motor, and what else is put into its file."""
    return text(
        f'<mujoco>{head}<worldbody>{body}<body><joint name="pivot"/><geom size=".1" pos="1 0 0" mass="2"/></body>'
        f'</worldbody><actuator><motor name="motor" joint="pivot"/></actuator>{tail}</mujoco>'
    )


COPIES = '<replicate count="{}" offset="1 0 0"><geom size="1"/></replicate>'


def included(name: str) -> Callable[[Path], None]:
    """A lever whose file has another one in it; beside it stand a pipe and many copies."""

    def make(path: Path) -> None:
        if not (path.parent.parent / "pipe").exists():
            os.mkfifo(path.parent.parent / "pipe")
        (path.parent / "copies.xml").write_text(f"<mujoco><worldbody>{COPIES.format(10**7)}</worldbody></mujoco>")
        robot(f'<include file="{name}"/>')(path)

    return make


LARGE = "asks for|at most 20000 elements|expected a height field|MuJoCo can read"
ROBOTS = [
    *(
        Case(f"robot: {kind}", robot(f'<size nuser_{kind}="{number}"/>'), LARGE, "robot.xml")
        for kind, number in (("body", 10**8), ("geom", 10**8), ("jnt", 2 * 10**9), ("actuator", 10**8))
    ),
    Case("robot: user data", robot('<size nuserdata="1000000000"/>'), LARGE, "robot.xml"),
    Case("robot: key frames", robot('<size nkey="1000000000"/>'), LARGE, "robot.xml"),
    Case("robot: numbers", robot('<custom><numeric name="a" size="1000000000"/></custom>'), LARGE, "robot.xml"),
    Case(
        "robot: a field",
        robot('<asset><hfield name="h" nrow="50000" ncol="50000" size="1 1 1 1"/></asset>'),
        LARGE,
        "robot.xml",
    ),
    Case(
        "robot: a picture",
        robot('<asset><texture name="t" type="2d" builtin="flat" width="60000" height="60000"/></asset>'),
        LARGE,
        "robot.xml",
    ),
    Case(
        "robot: copies",
        robot(body='<replicate count="10000000" offset="1 0 0"><geom size="1"/></replicate>'),
        LARGE,
        "robot.xml",
    ),
    Case(
        "robot: copies of copies",
        robot(body='<replicate count="999" offset="1 0 0">' * 4 + '<geom size="1"/>' + "</replicate>" * 4),
        LARGE,
        "robot.xml",
    ),
    Case("robot: a hundred thousand balls", robot(body='<geom size=".1"/>' * 100_000), LARGE, "robot.xml"),
    Case("robot: bodies in bodies", robot(body="<body>" * 50 + "</body>" * 50), "", "robot.xml"),
    Case(
        "robot: a billion laughs",
        text(
            '<!DOCTYPE m [<!ENTITY a "'
            + "ha" * 50
            + '">'
            + "".join(f'<!ENTITY {b} "{f"&{a};" * 50}">' for a, b in zip("abcdef", "bcdefg"))
            + "]><mujoco>&g;</mujoco>"
        ),
        "robot|MuJoCo can read",
        "robot.xml",
    ),
    *(
        Case(f"robot: includes {name}", included(name), "no file that a robot has", "robot.xml")
        for name in ("../pipe", "/dev/zero", "/dev")
    ),
    Case("robot: includes itself", included("robot.xml"), "already included", "robot.xml"),
    Case("robot: includes another's file", included("/etc/hostname"), "MuJoCo can read", "robot.xml"),
    *(
        Case(f"robot: copies, {name}", robot(head, COPIES.format(count)), LARGE, "robot.xml")
        for name, head, count in (
            ("behind what is not well-formed", '<custom><text name="a" data="&none;"/></custom>', "9999999"),
            ("behind a comment of dashes", "<!-- a -- b -->", "9999999"),
            ("their number in code", "", "&#57;999999"),
        )
    ),
    Case("robot: copies in a comment", robot("<!--" + COPIES.format("9999999") + "-->"), "", "robot.xml"),
    Case("robot: copies in a file that it includes", included("copies.xml"), LARGE, "robot.xml"),
    Case(
        "robot: a million numbers in a word",
        robot(body=f'<geom name="{"1 " * (1 << 20)}" size="1"/>'),
        "elements of at most",
        "robot.xml",
    ),
    *(
        Case(f"robot: {word} without an end", text(word * 2_000_000), "MuJoCo can read", "robot.xml")
        for word in ("<!--", "<a ", "<a b='")
    ),
    Case("robot: bodies 15,000 deep", robot(body="<body>" * 15_000 + "</body>" * 15_000), "too deep", "robot.xml"),
    *(
        Case(f"robot: {kind} of endless zeros", robot(f"<asset>{asset}</asset>"), "", "robot.xml")
        for kind, asset in (
            ("a mesh", '<mesh name="m" file="/dev/zero" content_type="model/stl"/>'),
            ("a picture", '<texture name="t" type="2d" file="/dev/zero" content_type="image/png"/>'),
            ("a skin", '<skin file="/dev/zero"/>'),
        )
    ),
    *(Case(f"robot: {name}", make, "there is no such file", "robot.xml") for name, make in NO_FILE.items()),
    Case("robot: a terabyte", sparse, "at most 16 MiB", "robot.xml"),
    *(
        Case(f"robot: {name}", robot(head, body), words, "robot.xml")
        for name, head, body, words in (
            ("a mass that is none", "", '<geom size=".1" mass="nan"/>', "<geom …>: mass is not a number"),
            ("a number that is none", '<option gravity="0 0 -NaN"/>', "", "gravity is not a number"),
            ("a number in code", '<option gravity="0 0 &#110;an"/>', "", "gravity is not a number"),
            ("no end of gravity", '<option gravity="0 0 -1e999"/>', "", "NaN or infinity in gravity|MuJoCo can read"),
            ("a name that is no number", "", '<geom name="nan" size=".1"/>', ""),
            (
                "a range that ends before it begins",
                "",
                '<body><joint name="other" range="1 -1"/><geom size=".1"/></body>',
                "'other': expected a range from low to high, but found",
            ),
        )
    ),
    Case(
        "robot: letters of Latin-1",
        text("<mujoco model='\xe4'/>".encode("latin-1")),
        "save the file as UTF-8",
        "robot.xml",
    ),
    Case("robot: UTF-16", text("<mujoco/>".encode("utf-16")), "MuJoCo can read", "robot.xml"),
]
"""Robots' files."""


def memory(name: str) -> int:
    """A line of what Linux knows of this process's memory, in bytes; 0 elsewhere."""
    status = Path("/proc/self/status")
    found = re.search(rf"{name}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) << 10 if found else 0


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Fail where reading takes more memory or time of the processor than it may."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
    before, began = memory("VmRSS"), time.process_time()
    yield
    grown, took = memory("VmHWM") - before, time.process_time() - began
    assert grown <= MOST_MEMORY, f"{what}: takes {grown >> 20} MiB"
    assert took <= MOST_SECONDS, f"{what}: takes {took:.1f} s"


# Reading them ----------------------------------------------------------------------------------------------


def data_set(path: Path) -> object:
    """All that training would read of a data set that verifies."""
    import jax

    from lqrlab import dataset

    report = dataset.verify(path)
    if not report.ok:
        with contextlib.suppress(dataset.BadFile):  # what it finds at a glance
            dataset.open(path)
        raise ValueError(str(report))
    source = dataset.source(dataset.open(path), kind="memory", batch_size=64, window=4)
    leaves = jax.tree.leaves(source.windows(0, 4))
    return {str(i): np.asarray(a).tobytes() for i, a in enumerate(leaves)}


def parameters(path: Path) -> object:
    """The trained parameters as bytes."""
    from lqrlab import learning

    model = learning.load(path)
    return {name: np.asarray(a).tobytes() for name, a in learning.models.split(model)[1].items()}


def matrices(path: Path) -> object:
    """A and B of a plant, which are to be numbers."""
    from lqrlab import systems

    A, B = systems.load(path).matrices()
    assert np.isfinite(np.hstack([A, B])).all()
    return None


def log(path: Path) -> object:
    """A log of one input and one output."""
    from lqrlab.extensions import identification

    identification.read(path, ["u"], ["y"], 0.1)
    return None


def rows(path: Path) -> object:
    """The rows of a training's metrics."""
    from lqrlab.compute.files import read_rows

    assert [row for row in read_rows(path) if row is not None] == [json.loads(ROW)]
    return None


def declared(path: Path) -> object:
    """The parameters of a notebook."""
    from lqrlab.workbench.runs import notebooks

    return notebooks.read(path).parameters


def loaded(path: Path) -> object:
    """The network or prior of a file."""
    from lqrlab.learning import weight_files

    return weight_files.read(path)


def registered(path: Path) -> object:
    """The plants of a file that is named to the command line."""
    from lqrlab import systems

    return systems.register_file(path)


def lever(path: Path) -> object:
    """A robot as a plant."""
    from lqrlab import robots

    return robots.from_mujoco(path)


KINDS = {
    "data set": (data_set, DATA_SETS),
    "checkpoints": (parameters, CHECKPOINTS),
    "plant": (matrices, PLANTS),
    "log": (log, LOGS),
    "metrics": (rows, METRICS),
    "notebook": (declared, NOTEBOOKS),
    "weights": (loaded, WEIGHTS),
    "tables": (registered, TABLES),
    "robot": (lever, ROBOTS),
}
"""For each kind what reads it, and the cases."""
BOUNDED = ("log", "weights", "plant", "tables", "robot")
"""Kinds of which even the largest is small, so that little memory and time suffice for any."""


def met(kind: str, case: Case, place: Path, good: Path | None = None) -> float:
    """Read a hostile thing, in a new folder ``place``; the processor's seconds until it ended as it should.

    Raises:
        AssertionError: it did not; says how it ended.
    """
    read, _ = KINDS[kind]
    place.mkdir(parents=True)
    path = place / (case.file or "thing")
    if good is not None:
        shutil.copytree(good, path)
    target = bait(path)
    case.make(path)
    before, began, clock = contents(place), time.process_time(), time.monotonic()
    with bounded(f"{kind}, {case.name}") if kind in BOUNDED else contextlib.nullcontext():
        try:
            with warnings.catch_warnings(action="error", category=UserWarning):  # an older checkpoint, in words
                found, words = read(path), ""
        except (ValueError, OSError, UserWarning) as error:
            found, words = None, str(error)
    took = time.process_time() - began
    assert re.search(case.words, words) if case.words else not words, f"{kind}, {case.name}: {words or found!r:.500}"
    assert time.monotonic() - clock < HANGS, f"{kind}, {case.name}: takes too long"
    assert SECRET not in words, f"{kind}, {case.name}: tells what another file holds"
    assert contents(place) == before, f"{kind}, {case.name}: something was written"
    assert target.exists()
    return took


def contents(place: Path) -> dict[str, bytes]:
    """All regular files next to a hostile one."""
    return {p.name: p.read_bytes() for p in place.iterdir() if p.is_file() and p.stat().st_size < 1 << 20}
