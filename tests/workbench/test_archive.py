"""A run as one file: what is packed comes out again, and what a stranger made of it is refused."""

import hashlib
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from refusals import refused

from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import run_folder, session

RECORD = {
    "versions": {"lqrlab": "0.0.1"},
    "status": "finished",
    "profile": "tiny",
    "parameters": {"01_system_exploration": {"num_variants": 7}},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, whose data set is another's."""
    folder, data = tmp_path / "runs" / "mine", tmp_path / "elsewhere"
    for place in (folder / "results", folder / "report", data / "shards"):
        place.mkdir(parents=True)
    (folder / run_folder.RUN).write_text(json.dumps(RECORD))
    (folder / "results" / "01.json").write_text("{}")
    (folder / "report" / "index.html").write_text("<p>")
    (folder / "notes.txt").write_text("not the run's")
    (folder / session.DESIGNS).write_text('{"a panel": {}}')
    (folder / session.BY_HAND).mkdir()
    (folder / session.BY_HAND / "plot é.svg").write_text("<svg>")
    (data / "shards" / "a.h5").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "secret").write_text("a key")
    (data / "key.h5").symlink_to(tmp_path / "secret")
    (folder / "dataset").symlink_to(data)
    return folder


def test_what_is_packed_comes_out_again(run: Path, tmp_path: Path) -> None:
    """With a data set that was borrowed and what persons made, without pages, links and what is not the run's."""
    file = run_folder.pack(run)
    assert file == run.with_suffix(".zip")
    (changed, *_) = run_folder.unpack(file, tmp_path / "new" / "one")
    assert changed.startswith("lqrlab '0.0.1' there, ")
    found = {p.relative_to(tmp_path / "new" / "one").as_posix(): p for p in (tmp_path / "new" / "one").rglob("*.*")}
    by_persons = {"designs.json", "by_hand/plot é.svg"}
    assert set(found) == {"run.json", "results/01.json", "dataset/shards/a.h5"} | by_persons
    assert found["dataset/shards/a.h5"].read_bytes() == (run / "dataset" / "shards" / "a.h5").read_bytes()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["one"]
    refused(r"mine.zip: is there already", run_folder.pack, run)
    refused("one: is there already and not empty", run_folder.unpack, file, tmp_path / "new" / "one")
    for place in (run / "results", tmp_path / "elsewhere"):  # else it would be in the next archive
        refused("is inside of the run that it is to hold", run_folder.pack, run, place / "x.zip")
    refused("there is no folder", run_folder.pack, run, tmp_path / "no" / "x.zip")
    refused("there is no such file", run_folder.unpack, tmp_path, tmp_path / "two")


@pytest.mark.parametrize("name", ["a.", "aux.png", "a\nb"])
def test_what_would_not_be_unpacked_is_not_packed(name: str, run: Path) -> None:
    (run / "by_hand" / name).write_text("")
    refused("or no name of a file on every system; nothing was packed", run_folder.pack, run)
    assert {path.name for path in run.parent.iterdir()} == {"mine"}


KILLED = """
import os, pathlib, sys
from lqrlab.workbench.runs import plant_copies, run_folder
plant_copies.digest = lambda path: os.kill(os.getpid(), 9)
getattr(run_folder, sys.argv[1])(*map(pathlib.Path, sys.argv[2:]))
"""


def test_what_a_killed_process_left_is_removed_by_the_next(run: Path, tmp_path: Path) -> None:
    place, good = tmp_path / "place", run_folder.pack(run)
    place.mkdir()
    for call, source in (("pack", run), ("unpack", good)) * 2:
        killed = subprocess.run([sys.executable, "-c", KILLED, call, source, place / "x"], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert [path.name[:8] for path in place.iterdir()] == [".lqrlab-"]
    (place / ".lqrlab-part-thesis").mkdir()
    (place / ".lqrlab-part-thesis" / "thesis.tex").touch()  # of a person
    (place / ".lqrlab-part-link").symlink_to(run)
    run_folder.unpack(good, place / "x")
    assert {path.name for path in place.iterdir()} == {"x", ".lqrlab-part-thesis", ".lqrlab-part-link"}


def test_an_unpacked_run_is_not_the_latest(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were made here; it is, once something runs in it."""
    (tmp_path / "data").mkdir()
    run.parent.rename(tmp_path / "data" / "runs")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    mine, theirs = (tmp_path / "data" / "runs" / name for name in ("mine", "theirs"))
    run_folder.unpack(run_folder.pack(mine, tmp_path / "x.zip"), theirs)
    assert session.runs() == [mine, theirs]
    run_folder.note(theirs / run_folder.RUN, status="running")
    assert session.runs() == [theirs, mine]


def test_no_run_and_one_that_is_in_use_are_not_packed(run: Path, tmp_path: Path) -> None:
    refused(r"found no run.json", run_folder.pack, tmp_path / "elsewhere")
    with run_folder.hold(run), pytest.raises(ValueError, match="another run works in this folder"):
        run_folder.pack(run)
    assert not run.with_suffix(".zip").exists()


def _zip(
    file: Path, files: dict[str, bytes], listed: dict[str, bytes] | None = None, *, link: str = "", kind: int = 8
) -> Path:
    """An archive as a stranger makes one."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in (files if listed is None else listed).items()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in (files | {"sha256.json": json.dumps(digests).encode()}).items():
            member = zipfile.ZipInfo(name)
            member.compress_type = kind
            member.external_attr = (0o120777 if name == link else 0o100644) << 16
            made.writestr(member, data)
    return file


def _damaged(file: Path, first: int = 30 + len("run.json")) -> Path:
    """Its first member's compressed bytes overwritten, or others."""
    data = bytearray(file.read_bytes())
    data[first : first + 8] = b"\xff" * 8
    file.write_bytes(data)
    return file


GOOD = {"run.json": json.dumps(RECORD).encode(), "results/01.json": b"{}"}
HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "changed": (lambda f: _zip(f, GOOD | {"results/01.json": b"[]"}, GOOD), r"results/01.json is not what was written"),
    "missing": (lambda f: _zip(f, {"run.json": GOOD["run.json"]}, GOOD), r"results/01.json is missing"),
    "more": (lambda f: _zip(f, GOOD | {"results/02.json": b"{}"}, GOOD), "not in its list"),
    "no record": (lambda f: _zip(f, {"run.json": b"{}"}), r"run.json is no record of a run"),
    "nothing": (lambda f: _zip(f, {}), "found no run.json"),
    "up": (lambda f: _zip(f, GOOD | {"results/../../x": b""}), "no file of a run"),
    "absolute": (lambda f: _zip(f, GOOD | {"/x": b""}), "no file of a run"),
    "of Windows": (lambda f: _zip(f, GOOD | {"results\\..\\x": b""}), "no file of a run|holds"),
    "a drive": (lambda f: _zip(f, GOOD | {"results/C:x": b""}), "no file of a run"),
    "twice": (lambda f: _zip(f, GOOD | {"results/01.JSON": b"{}"}), "two files of one name"),
    "accents": (lambda f: _zip(f, GOOD | {"results/\u00e9": b"", "results/e\u0301": b""}), "two files of one name"),
    "a file in a file": (lambda f: _zip(f, GOOD | {"results/01.json/a": b""}), "one in the other"),
    **{
        f"results/{name!a}": (
            lambda f, name=name: _zip(f, GOOD | {f"results/{name}": b""}),
            "no name of a file on every",
        )
        for name in (
            *("a.", "a ", "a. /b", "CON", "nul.json", "x/Aux .txt", "COM1", "LPT\u00b9"),  # of Windows
            *("a\nb", "\x1b[2J", "\u202egpj", "\u200b", "\x7f", "\u2028", "\ue000"),  # not seen as they are
            *("a" * 256, "\u00e9" * 128, "a/" * 40 + "a", "/".join(["a" * 200] * 6)),
        )
    },
    "lzma": (lambda f: _zip(f, GOOD, kind=zipfile.ZIP_LZMA), "no file of a run"),
    "a link": (lambda f: _zip(f, GOOD | {"dataset": b"/etc"}, link="dataset"), "no file of a run"),
    "elsewhere": (lambda f: _zip(f, GOOD | {".bashrc": b""}), "no file of a run"),
    "a bomb": (lambda f: _zip(f, GOOD | {"results/0": bytes(5_000_000)}), "more than fits here or than a run has"),
    "damaged": (lambda f: _damaged(_zip(f, GOOD)), "cannot be read"),
    "its table of contents nowhere": (lambda f: _damaged(_zip(f, GOOD), f.stat().st_size - 10), "cannot be read"),
    "no archive": (lambda f: f.write_bytes(b"PK") and f, "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence, and nothing is left of them."""
    monkeypatch.setattr(run_folder, "_UNSUSPICIOUS", 1_000_000)
    make, sentence = HOSTILE[name]
    file = make(tmp_path / "x.zip")
    refused(sentence, run_folder.unpack, file, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["x.zip"]


def test_more_than_the_disk_holds_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = run_folder.pack(run)
    monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    refused(r"6 files of 0\.0 GB in all", run_folder.unpack, file, tmp_path / "out")


def test_the_commands_say_what_they_made(run: Path, tmp_path: Path) -> None:
    command = CliRunner()
    file = command.invoke(main, ["pack", str(run)]).output.strip()
    said = command.invoke(main, ["unpack", file, str(tmp_path / "two")])
    assert f"lqrlab report {tmp_path / 'two'} --open" in said.output
