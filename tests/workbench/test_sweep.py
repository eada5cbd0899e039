"""Sweeps: which points, and six runs of which four meet with something."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from urllib.parse import unquote

import distributed
import pandas as pd
import psutil
import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner
from refusals import refused
from toys import BEGIN, until, write_notebook

from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import notebooks, report, sweep, sweep_plan
from lqrlab.workbench.runs.sweep_plan import Sweep

PARAMETERS = """run: str = 'data/runs/default'
fate: str = 'well'  # what it meets with
rate: float = 0.5  # step [1/s]
depth: int = 2  # blocks
shout: bool = False
names: list[str] = ['a']
family: str = 'pendulum'
device: str = 'cpu'
limit: float | None = 1.0"""
FATES = """import signal
log(fate)
bad = (folder.parents[2] / 'bad').exists()
if bad and fate == 'raises':
    raise ArithmeticError('a matter of taste')
if bad and fate == 'kernel':
    os.kill(os.getpid(), signal.SIGKILL)
if bad and fate == 'late':
    time.sleep(600)
if bad and fate == 'worker':
    os.kill(os.getppid(), signal.SIGKILL)  # the worker
    time.sleep(600)"""
END = "finish('01_toy', {'letters': len(fate), 'deep': {'er': depth}, 'worst': 'inf'})"


@pytest.fixture
def toy(tmp_path):
    return write_notebook(tmp_path / "notebooks" / "01_toy.ipynb", PARAMETERS, BEGIN, FATES, END)


def command(*args):
    return CliRunner().invoke(main, ["sweep", "--no-report", *map(str, args)])


@pytest.mark.slow
@pytest.mark.matrix
def test_six_runs_of_which_four_meet_with_something(toy, tmp_path):
    folder = tmp_path / "sweep"
    fates = "raises,kernel,late,worker"
    ask = [toy, "-p", f"fate={fates},a,b", "--folder", folder, "--workers", 3, "--retries", 0]
    (tmp_path / "bad").touch()
    done = command(*ask, "--time-limit", 30)
    assert done.exit_code == 1, done.output
    frame = pd.read_csv(folder / "results.csv").set_index("fate")
    assert dict(frame["status"]) == {
        "raises": "failed",
        "kernel": "kernel died",
        "late": "timed out",
        "worker": "worker died",
        **dict.fromkeys("ab", "finished"),
    }
    assert "ArithmeticError: a matter of taste" in frame["error"]["raises"]
    assert frame["letters"].notna().sum() == 2  # no number without a result
    record = json.loads((folder / "sweep.json").read_text())
    place = {entry["point"]["fate"]: folder / "runs" / entry["run"] for entry in record["runs"]}
    before = {fate: (p / "results" / "01_toy.json").read_text() for fate, p in place.items() if fate in "ab"}

    (tmp_path / "bad").unlink()
    done = command(*ask)
    assert done.exit_code == 0, done.output
    assert "6 runs, 2 finished before" in done.stdout
    for fate, text in before.items():
        assert (place[fate] / "results" / "01_toy.json").read_text() == text
    times = {fate: Counter((p / "log").read_text().split())[fate] for fate, p in place.items()}
    assert times == dict.fromkeys(fates.split(","), 2) | dict.fromkeys("ab", 1)
    frame = pd.read_csv(folder / "results.csv")
    assert frame["status"].eq("finished").all()
    assert frame["deep.er"].eq(2).all()
    assert frame["worst"].eq(float("inf")).all()

    page = BeautifulSoup(sweep.compare(folder).read_text(), "html.parser")
    assert [len(row.find_all("td")) for row in page.select("tbody tr")] == [4] * 6
    for link in page.select("tbody a"):
        assert (folder / "report" / unquote(link["href"])).exists()
    assert re.search(r"letters of 6 runs over fate: lowest 1 at fate=[ab]-.*highest 6 at fate=", page.img["alt"])
    (tmp_path / "sweeps").mkdir()
    folder.rename(tmp_path / "sweeps" / "six")
    listed = BeautifulSoup(report.index(tmp_path).read_text(), "html.parser")
    assert listed.find("a", string="six")["href"] == "sweeps/six/report/index.html"


@pytest.mark.matrix
def test_a_run_is_tried_again_and_reads_what_an_earlier_run_made(toy, tmp_path):
    """A worker that dies is replaced; the data set of another run is linked into the folder."""
    later = toy.with_name("02_later.ipynb")
    die = (
        "text = (folder / 'data' / 'x').read_text()\nfirst = not (folder / 'log').exists()\nlog('x')\n"
        "if first:\n    os.kill(os.getppid(), 9)\n    time.sleep(600)"
    )
    write_notebook(later, "run: str = 'x'\nrate: float = 1.0", BEGIN, die, "finish('02_later', {'x': text})")
    earlier = tmp_path / "earlier"
    asked = Sweep(later, {"rate": "2"}, inputs=earlier, folder=tmp_path / "sweep", report=False)
    plan = sweep_plan.planned(asked, notebooks.read(later))
    refused("no result of 01_toy; give --from RUN", sweep.sweep, plan)
    (earlier / "data").mkdir(parents=True)
    (earlier / "data" / "x").write_text("17")
    (earlier / "results").mkdir()
    (earlier / "results" / "01_toy.json").write_text(json.dumps({"files": ["data/x"], "fingerprint": "e"}))
    row = sweep.read(sweep.sweep(plan)).iloc[0]
    assert (row["status"], row["x"], row["rate"]) == ("finished", 17, 2.0)
    assert (tmp_path / "sweep" / "runs" / row["run"] / "log").read_text().split() == ["x", "x"]
    assert (earlier / "data" / "x").read_text() == "17"

    (earlier / "results" / "01_toy.json").write_text(json.dumps({"files": ["data/x"], "fingerprint": "other"}))
    with contextlib.ExitStack() as held:
        (run,) = sweep.with_inputs(plan, held).runs(plan.points)
    entry = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert entry["runs"][0]["fingerprint"] != run["fingerprint"]  # what it reads is another
    (earlier / "data" / "x").unlink()
    refused("data/x, which 02_later reads, is gone", sweep.sweep, plan)


@pytest.mark.matrix
def test_a_run_on_somebodys_scheduler_ends_with_its_sweep(toy, tmp_path):
    """Ctrl-C at the command: the notebook that a worker executes ends within seconds, and its record says so."""
    write_notebook(toy, PARAMETERS, BEGIN, "log('begun')\ntime.sleep(600)", END)
    folder = tmp_path / "sweep"
    line = [sys.executable, "-c", INTERRUPTED, "sweep", str(toy), "-p", "rate=1", "--folder", str(folder)]
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        sweeping = subprocess.Popen([*line, "--scheduler", cluster.scheduler_address], stderr=subprocess.PIPE)
        (log,) = until(lambda: list(folder.glob("runs/*/log")))
        sweeping.send_signal(signal.SIGINT)
        assert b"stopped; the same command resumes it" in sweeping.communicate(timeout=30)[1]
        record = log.with_name("run.json")
        until(lambda: json.loads(record.read_text())["status"] == "stopped")
        assert "Stopped: its sweep was stopped" in json.loads(record.read_text())["error"]
        workers = psutil.Process().children(recursive=True)
        assert not [p for p in workers if "ipykernel_launcher" in p.cmdline()]
    assert sweep.read(folder)["status"].tolist() == ["stopped"]


INTERRUPTED = (
    "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what runs in the
    "from lqrlab.workbench.cli import main\nmain(sys.argv[1:])"  # background is deaf
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rate": "1e-3,2", "depth": "1,2"}, [(1e-3, 1), (1e-3, 2), (2.0, 1), (2.0, 2)]),
        ({"01_toy.rate": "1,1.0", "depth": "3"}, [(1.0, 3)]),  # the same point once
        ({"names": '["a","b"],["c"]'}, [(["a", "b"],), (["c"],)]),
        ({"01.depth": "3"}, [(3,)]),  # the beginning of the notebook's name
        ({"limit": "none,2"}, [(None,), (2.0,)]),
    ],
)
def test_points_of_grids(toy, given, expected):
    made = sweep_plan.points("01_toy", notebooks.read(toy).parameters, Sweep(toy, given))
    assert [tuple(point.values()) for point in made] == expected


def test_random_points_are_within_and_go_on(toy):
    def drawn(num, seed=3, **more):
        given = {"rate": "1e-4:1e-1:log", "depth": "1:3", "shout": "true,false"} | more
        return sweep_plan.points("01_toy", notebooks.read(toy).parameters, Sweep(toy, given, num, seed))

    many = drawn(400)
    assert drawn(50) == many[:50]
    assert drawn(50, seed=4) != many[:50]
    rates = pd.Series([p["rate"] for p in many])
    assert rates.between(1e-4, 1e-1).all()
    assert abs((rates < 10**-2.5).mean() - 0.5) < 0.1  # the middle of the decades
    assert {p["depth"] for p in many} == {1, 2, 3}
    assert {p["shout"] for p in many} == {True, False}
    assert list(drawn(1, names="a,b")[0].items())[:3] == list(many[0].items())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "rate=1e-3,fast"], "01_toy.rate (step [1/s]): expected a finite number, but found 'fast'"),
        (["-p", "depth=1:3"], "depth=1:3: a range is for a random search"),
        (["-p", "rate=0:1:log", "--random", "3"], "expected low < high, both above 0 with :log"),
        (["-p", "rate=1", "-p", "depth=2,x"], "01_toy.depth (blocks): expected a whole number, but found 'x'"),
    ],
)
def test_wrong_points_are_refused_before_anything_starts(toy, tmp_path, args, message):
    done = CliRunner().invoke(main, ["sweep", str(toy), *args])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_dask_that_does_not_start_ends_in_a_sentence(toy, tmp_path, monkeypatch):
    import distributed

    def fails(*args, **kwargs):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "LocalCluster", fails)
    done = command(toy, "-p", "rate=1,2", "--workers", 2, "--folder", tmp_path / "sweep")
    assert done.exit_code == 1
    assert done.stderr.strip().startswith(
        "lqrlab: --workers 2: dask could not start so many processes here (RuntimeError: Nanny failed to start.)"
    )
    assert len(done.stderr.strip().splitlines()) == 1
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())["status"] == "stopped"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sweep 03", "03_training"),
        ("sweep 03_training -p lea", "learning_rate="),
        ("run --profile qu", "quick"),
        ("rep", "report"),
    ],
)
def test_the_shell_completes(words, offered):
    typed = f"lqrlab {words}"
    env = {"_LQRLAB_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words.split()))}
    done = CliRunner().invoke(main, prog_name="lqrlab", env=env)
    assert done.stdout == f"plain,{offered}\n"


REFUSED = """
run -p familly=x|run -p families=cart_pol|run --profile nope|run 04_performance_analysis --folder new|run --bad
sweep cart_pol -p a=1|sweep cart_pole --profile tiny|sweep cart_pole --folder full -p dt=1|sweep 03_training -p x=1
judge lqr --noise nan|judge lqr --spread nan|report nowhere|init full|init|new Bad-Name|pack nowhere|unpack nowhere.zip
unpack full/x.toml|train nowhere|train full -p x=1|data generate d -p variants=-1|data generate d -p families=cart_pol
data verify nowhere|list 99_x|systems cart_pol|systems nowhere.toml|systems full/x.toml|systems --plants nowhere.toml
identify nowhere.csv --input a --output b|identify full/x.toml --input a --output b --plant cart_pol
identify full/x.toml --input a --output b --dt=-1|export cart_pol -o new|export nowhere.json -o new|export cart_pole
export cart_pole -o new --name int|export cart_pole -o full|export cart_pole -o new --limit=-3|judge lqr --limits nan
doctor x|judge|judge nope|judge mpc:x|judge lqr --plants cart_pol|judge lqr --spread=2|judge nowhere.json --compare
"""


def test_no_refusal_and_no_help_waits_for_jax(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.toml").touch()
    lines = [line for row in REFUSED.split("\n") for line in row.split("|") if line]
    every = main.list_commands(None)
    assert {line.split()[0] for line in lines} == {*every}
    code = (
        "import contextlib, io, sys\nfrom lqrlab.workbench.cli import main\n"
        "heavy = {'jax', 'numpy', 'nbconvert', 'pandas', 'papermill'}\nfor line in sys.argv[1:]:\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):\n"
        "        try: main(line.split(), prog_name='lqrlab')\n        except SystemExit as end: code = end.code\n"
        "    if code != 2 * ('--help' not in line) or heavy & set(sys.modules) or 'Traceback' in said.getvalue():\n"
        "        sys.exit(f'{line}: {code} {said.getvalue()} {heavy & set(sys.modules)}')\n"
    )
    lines += ["--help", *(f"{name} --help" for name in every)]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_help_has_a_whole_sentence_for_each_command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for line, group in (("--help", main), ("data --help", main.commands["data"])):
        shown = " ".join(CliRunner().invoke(main, line.split()).stdout.split())
        for name in group.list_commands(None):
            sentence = " ".join(group.get_command(None, name).help.partition("\n\n")[0].split())
            assert f" {name} {sentence}" in shown


def test_a_dry_run_says_the_points_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # of no project: data is next to the notebooks, as that of lqrlab run
    done = CliRunner().invoke(main, ["sweep", "cart_pole", "-p", "pole_length=0.5,1", "--dry-run"])
    folder, points = notebooks.find_source().parent / "data", "  {'pole_length': 0.5}\n  {'pole_length': 1.0}\n"
    assert (done.exit_code, done.stdout) == (0, f"cart_pole: 2 points in {folder}/sweeps/cart_pole\n{points}")
    assert not [*tmp_path.iterdir()]


SOUND = {"versions": {"lqrlab": "1"}, "notebook": "a", "title": "A", "started": "now", "runs": [{"point": {"x": 1}}]}


@pytest.mark.parametrize(
    ("change", "table", "words"),
    [
        *(({"runs": runs}, "status,error\n", "or a damaged one") for runs in (None, [3], [{}], [{"point": 3}])),
        *(({name: None}, "status,error\n", "or a damaged one") for name in ("notebook", "title", "started")),
        *(({name: 3}, "status,error\n", "not the folder of a sweep") for name in ("runs", "units", "plants", "commit")),
        *(
            ({}, table, "results.csv: not the table of a sweep")
            for table in ("", "a,b\n1,2\n", "\xff", "status\n1\n2,3")
        ),
    ],
)
def test_a_sweep_that_was_edited_is_refused_in_words(change, table, words, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps(SOUND | change))
    (tmp_path / "results.csv").write_bytes(table.encode("latin-1"))
    refused(words, sweep.read, tmp_path)
