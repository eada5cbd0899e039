"""What holds the project together: the rooms' order, the lists of packages, imports that change nothing."""

import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from test_architecture import MODULES, imports, room

from lqrlab import installation
from lqrlab.workbench.cli import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def wanted(*extras: str) -> list[str]:
    """What these extras need, and what they name of other extras; each once."""
    lines = []
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            own = re.fullmatch(r"lqrlab\[(.*)\]", line)
            lines += wanted(*own[1].split(",")) if own else [line]
    return list(dict.fromkeys(lines))


def test_the_conda_environment_is_in_step_with_pyproject():
    lines = list(dict.fromkeys(PROJECT["dependencies"] + wanted("dev")))
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    plain = [line for line in conda if isinstance(line, str)]
    assert f"python{PROJECT['requires-python']}" in plain
    editable, *by_pip = next(line for line in conda if isinstance(line, dict))["pip"]
    assert editable == "-e ."
    assert [line for line in plain if not re.match(r"python\b|pip$", line)] == [
        line for line in lines if line not in by_pip
    ]
    assert set(by_pip) <= set(lines)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(lines: list[str]) -> set[str]:
    """Names of packages that these lines install here, in turn; what is not installed here is not looked into."""
    found, queue = set(), [Requirement(line) for line in lines]
    while queue:
        wanted = queue.pop()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for extra in {"", *wanted.extras} - {e for name, e in found if name == canonical(wanted.name)}:
                found.add((canonical(wanted.name), extra))
                needed = map(Requirement, importlib.metadata.requires(wanted.name) or [])
                queue += [line for line in needed if not line.marker or line.marker.evaluate({"extra": extra})]
        found.add((canonical(wanted.name), ""))
    return {name for name, _ in found}


def test_constraints_pin_every_extra_and_name_no_address():
    """With what its packages need in turn; and nothing that nobody needs any more."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!-]*", pin) for pin in pins)
    pinned = {canonical(pin.partition("==")[0]) for pin in pins}
    assert len(pinned) == len(pins)
    needed = installed_with(PROJECT["dependencies"] + wanted(*PROJECT["optional-dependencies"]))
    assert {"moviepy", "rejax", "jax-cuda13-plugin", "ptyprocess"} <= needed
    assert needed <= pinned | {"lqrlab", "pip", "wheel"}
    assert not pinned & {"lqrlab", "pip", "wheel"}
    here = {canonical(name) for names in importlib.metadata.packages_distributions().values() for name in names}
    assert pinned & here <= needed


def test_what_is_pinned_installs_on_each_python_that_is_promised():
    """A pin once asked for Python 3.11.5: ``make run`` with Debian 12's 3.11.2 found no such version."""
    lowest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            name, _, version = line.partition("==")
            found = importlib.metadata.metadata(name) if version else {}
            if found.get("Version") == version:
                assert lowest in SpecifierSet(found.get("Requires-Python") or ""), line


def test_what_is_packaged_besides_python(tmp_path):
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lqrlab"]
    package = ROOT / "lqrlab"
    packaged = {path for pattern in patterns for path in package.glob(pattern)}
    others = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others == packaged


def test_the_hook_strips_what_papermill_leaves(tmp_path):
    """And fetches nothing: all hooks are local."""
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    entry = next(hook["entry"] for hook in repos[0]["hooks"] if hook["id"] == "nbstripout")
    new, notes = nbformat.v4, {"papermill": {"duration": 1.0}}
    cells = [
        new.new_code_cell("a = 1", metadata={"tags": ["parameters"], **notes}, execution_count=1),
        new.new_code_cell("a = 2", metadata={"tags": ["injected-parameters"]}),
        new.new_code_cell("a", metadata={"tags": ["summary"]}, outputs=[new.new_output("stream", text="2")]),
    ]
    path = tmp_path / "a.ipynb"
    nbformat.write(new.new_notebook(cells=cells, metadata=notes), path)
    program, *options = shlex.split(entry)
    command = [str(Path(sys.executable).parent / Path(program).name), *options, str(path)]
    subprocess.run(command, check=True, capture_output=True)
    nb = nbformat.read(path, 4)
    assert [(cell.source, cell.metadata) for cell in nb.cells] == [
        ("a = 1", {"tags": ["parameters"]}),
        ("a", {"tags": ["summary"]}),
    ]
    assert [(cell.outputs, cell.execution_count) for cell in nb.cells] == [([], None)] * 2
    assert nb.metadata == {}


DISTRIBUTIONS = {"IPython": "ipython", "PIL": "pillow", "bs4": "beautifulsoup4"}
"""Where what is imported has another name than what is installed."""
NOT_IMPORTED = {
    "fmpy": "deployment.from_fmu asks for it when it is called",
    "ipykernel": "the notebooks' kernel",
    "jupyterlab": "what a person opens the notebooks in",
    "mujoco": "robots.from_mujoco asks for it when it is called",
    "moviepy": "Gymnasium makes films with it",
    "openpyxl": "identification.read asks for it when a log is a workbook",
    "pyarrow": "pandas reads and writes Parquet with it",
    "pyserial": "deployment.realtime asks for it when a plant is at a serial line",
    "rejax": "notebook 16 trains agents with it",
    "six": "gymnax imports it and does not declare it",
}
OPTIONAL = {
    "control": {"control"},  # its StateSpace, for who has python-control
    "extensions": {"control"},
    "systems": {"sympy"},  # equations as formulas
}
"""Packages of extras that the library asks for only when somebody wants what they do."""


def declared(*extras: str) -> set[str]:
    """Names of the packages that the library needs, and these extras; and what those name in brackets."""
    lines = [re.split("[<>=]", line)[0] for line in [*PROJECT["dependencies"], *wanted(*extras)]]
    return {name for line in lines for name in re.findall(r"[\w-]+", line)}


def test_what_is_imported_is_declared():
    """By the library for itself, by the workbench and each extension in an extra."""
    for path in MODULES:
        own = room(path)
        extension = path.relative_to(ROOT).parts[2].removesuffix(".py") if own == "extensions" else ""
        extras = {"workbench": ["workbench"], "extensions": ["workbench", extension]}
        allowed = declared(*(extra for extra in extras.get(own, []) if extra in PROJECT["optional-dependencies"]))
        names = {name.split(".")[0] for name in imports(path)} - {"lqrlab", ""} - sys.stdlib_module_names
        missing = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names} - allowed
        assert missing <= OPTIONAL.get(own, set()), f"{path}: {missing} are not declared"


def test_what_is_declared_is_imported():
    names = {name.split(".")[0] for path in MODULES for name in imports(path)}
    used = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names}
    assert declared("all") - used <= set(NOT_IMPORTED)


ALL_MODULES = """
import importlib, pathlib, lqrlab
home = pathlib.Path(lqrlab.__file__).parents[1]
for room in lqrlab.LIBRARY:
    for path in sorted((home / "lqrlab" / room).rglob("*.py")):
        module = ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(module)
print("all")
"""
"""Imports each module of the library."""
REFUSING = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is of no hard dependency", name=name)

sys.meta_path.insert(0, Refuse())
"""


def test_the_library_imports_nothing_of_the_extras():
    hard, installed = installed_with(PROJECT["dependencies"]), importlib.metadata.packages_distributions()
    foreign = {top for top, names in installed.items() if not {n.lower().replace("_", "-") for n in names} & hard}
    assert {"IPython", "papermill", "dask", "pandas", "mujoco"} <= foreign
    refused = foreign - {"lqrlab"} | {"control", "slycot", "matplotlib"}  # python-control, which brings the latter
    assert python(f"REFUSED = {refused!r}\n" + REFUSING + ALL_MODULES) == "all"


ELSEWHERE = """
import builtins, importlib, json, pathlib, sys
import jax

POSIX = {"fcntl", "grp", "pwd", "resource", "termios"}  # which Windows lacks
plain = builtins.__import__

def as_on_windows(name, scope=None, *args, **kwargs):
    if name in POSIX and str((scope or {}).get("__name__")).startswith("lqrlab"):
        raise ImportError(f"{name} is not there")
    return plain(name, scope, *args, **kwargs)

builtins.__import__ = as_on_windows
before, refused = dict(jax.config.values), []
for path in sorted(pathlib.Path("lqrlab").rglob("*.py")):
    if path.stem == "__main__":
        continue
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(module)
    except ImportError as error:
        refused.append([module, str(error)])
changed = {k: (v, jax.config.values[k]) for k, v in before.items() if v != jax.config.values[k]}
print(json.dumps({"refused": refused, "changed": changed}, default=str))
"""


def test_all_modules_can_be_imported_on_windows_and_change_no_setting_of_jax():
    """In a process of their own, which has no module that only POSIX systems have."""
    assert json.loads(python(ELSEWHERE)) == {"refused": [], "changed": {}}


def python(code: str, **kwargs) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **{"cwd": ROOT} | kwargs
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (  # the package: no room
            "import sys, lqrlab; print([m for m in sys.modules if m.startswith('lqrlab.')])\n"
            "print(lqrlab.workbench.__name__, 'compute' in dir(lqrlab))",
            "[]\nlqrlab.workbench True",
        ),
        (  # the library: not half a second of statistics, pictures and tables that few of its functions need
            "import importlib, sys, lqrlab\nfor room in lqrlab.LIBRARY: importlib.import_module(f'lqrlab.{room}')\n"
            "print([name for name in ('scipy.stats', 'pandas', 'matplotlib', 'scipy.io') if name in sys.modules])",
            "[]",
        ),
        (  # the command line: nothing that is heavy
            "import sys; from lqrlab.workbench import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
            "print(sorted({'jax', 'numpy', 'matplotlib', 'papermill', 'nbconvert'} & set(sys.modules)))",
            "[]",
        ),
    ],
)
def test_what_is_imported_late(code, says):
    assert python(code).endswith(says)


def lqrlab_command(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, args)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["systems", "cart_pool"], "no plant is called 'cart_pool'; did you mean cart_pole?"),
        (["run", "-p", "rate"], "-p rate: expected NAME=VALUE, as in -p learning_rate=1e-3"),
        (["run", "--notebooks", "/nowhere"], "found none named 01_"),
        (["data", "verify", "/nowhere"], "/nowhere: expected the folder of a data set or of a run"),
        (["run", "width=6"], "'width=6' is none; set values with -p, as in -p width=6"),
    ],
)
def test_a_wrong_request_gets_one_line(args, message):
    code, out, err = lqrlab_command(*args)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("lqrlab: ")
    assert message in err
    with pytest.raises(ValueError, match=re.escape(message)):  # shown with all lines of code
        CliRunner().invoke(main, ["--traceback", *args], catch_exceptions=False)


def test_a_misspelt_folder_is_recognized(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "run.json").touch()
    assert (
        "found no run.json, the record of one; did you mean tiny?"
        in lqrlab_command("report", str(tmp_path / "tinny"))[2]
    )


def test_systems_are_listed_and_shown():
    code, out, _ = lqrlab_command("systems")
    assert code == 0
    assert re.search(r"^cart_pole +4 +1 +0.02 ", out, flags=re.M)
    code, listed, _ = lqrlab_command("systems", "--json")
    assert code == 0
    plants = {plant["name"]: plant for plant in map(json.loads, listed.splitlines())}
    assert plants["cart_pole"]["parameters"]["pole_length"]["unit"] == "m"
    assert len(plants) == len(out.splitlines()) - 2  # below its head
    code, out, _ = lqrlab_command("systems", "cart_pole")
    assert code == 0
    parts = ("pole_length", "0.05 … 5", "hinge to the pole", "angular_velocity", "open-loop poles")
    assert all(part in out for part in (*parts, "one unstable real mode, time constant 0.18 s")), out


def test_a_plant_whose_unstable_mode_no_input_moves_is_shown_with_a_warning(tmp_path, catalogue_as_before):
    for name, coupling in (("free", 0.0), ("bound", 1.0)):
        file = tmp_path / f"{name}.toml"
        file.write_text(f"[{name}]\nA = [[1.0, {coupling}], [0.0, -1.0]]\nB = [[0.0], [1.0]]\n")
        # Popov, Belevitch and Hautus: the mode at +1 is moved where [A - I, B] has full rank
        reached = np.linalg.matrix_rank([[0.0, coupling, 0.0], [0.0, -2.0, 1.0]]) == 2
        _, out, _ = lqrlab_command("systems", name, "--plants", str(file))
        assert "one unstable real mode" in out
        assert ("There is no regulator" in out, "moved by no input" in out) == (not reached, not reached)


def test_a_data_set_from_the_command_line(tmp_path):
    path = str(tmp_path / "set")
    small = ["-p", "families=pendulum", "-p", "variants=4", "-p", "trajectories=2", "-p", "num_steps=10"]
    code, out, err = lqrlab_command("data", "generate", path, *small)
    assert code == 0, err
    assert any(line.startswith("✓") for line in out.splitlines())
    code, out, _ = lqrlab_command("data", "verify", path)
    assert code == 0
    assert "4 variants and 8 trajectories" in out
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dataset").symlink_to(path)
    code, out, _ = lqrlab_command("data", "verify", str(tmp_path / "run"))  # a run means its data set
    assert (code, f"{tmp_path / 'run' / 'dataset'}: 4 variants" in out) == (0, True)
    shard = next((tmp_path / "set").glob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:-100])
    code, out, err = lqrlab_command("data", "verify", path)
    assert (code, out) == (1, "")
    assert shard.name in err
    for wrong, words in (
        (["-p", "varians=3"], "lqrlab: varians: "),
        (["-p", "variants=many"], "variants: expected .* found 'many'"),
        (["-p", "held_out=dc_motor", "-p", "families=pendulum"], "held_out: expected some of .*found .'dc_motor'"),
    ):
        code, _, err = lqrlab_command("data", "generate", path, *wrong)
        assert code == 2
        assert re.search(words, err), err


def test_plants_of_a_file_are_listed_and_make_data_like_others(tmp_path, catalogue_as_before):
    file = tmp_path / "mine.toml"
    file.write_text("[slide]\nA = [[0, 1], [0, 0]]\nB = [[0], [1]]\ndt = 0.1\n")
    code, out, err = lqrlab_command("systems", "slide", "--json", "--plants", str(file))
    assert (code, json.loads(out or "{}").get("dt")) == (0, 0.1), err
    small = ["-p", "families=slide", "-p", "variants=2", "-p", "trajectories=1", "-p", "num_steps=3"]
    code, out, err = lqrlab_command("--plants", str(file), "data", "generate", str(tmp_path / "set"), *small)
    assert code == 0, err
    code, _, err = lqrlab_command("systems", "--plants", str(tmp_path / "nowhere.toml"))
    assert (code, "there is no such file" in err) == (2, True)
    commands = (*main.commands.values(), *main.commands["data"].commands.values())
    assert all("plants" in {p.name for p in command.params} for command in commands)


def test_notebooks_are_listed_with_their_questions_and_parameters():
    code, out, err = lqrlab_command("list")
    assert code == 0, err
    assert "01_system_exploration: What are these plants, and what does optimal control do with them?" in out
    assert re.search(r"^  kind +str +'matrix' +the model, one of matrix, gain, ", out, flags=re.M)
    code, out, _ = lqrlab_command("list", "03_training")
    assert "01_system" not in out
    assert "plants_file" not in out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("kind=resnet", "03_training.kind .*: expected one of matrix, gain, .* found 'resnet'"),
        ("num_variants=0", r"num_variants .*: expected a whole number in \[1, 100000\], but found 0"),
        ("02_data_generation.spread=1", "spread .*: expected a number ≥ 0 and < 1, but found 1"),
        ("held_out=cart_pol", "02_data_generation.held_out: no plant is called 'cart_pol'; did you mean cart_pole"),
    ],
)
def test_values_are_checked_before_anything_starts(setting, words, tmp_path):
    code, out, err = lqrlab_command("run", "-p", *setting.split(), "--folder", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert re.search(words, err), err
    assert not (tmp_path / "run").exists()


def test_help_fits_one_screen_and_begins_with_what_matters():
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert len(shown.splitlines()) <= 33  # with a whole sentence for each
    order = re.findall(r"^  ([a-z]+) {2,}\S", shown, flags=re.M)
    assert order[:5] == ["run", "report", "sweep", "systems", "doctor"]
    own = {name for name, command in main.commands.items() if not command.hidden}
    assert set(order) == own | {"export", "identify", "judge"}


def test_the_doctor_finds_this_environment_well():
    code, out, _ = lqrlab_command("doctor")
    assert code == 0, out
    assert f"in {sys.prefix}" in out
    assert re.search(r"✓ kernel +python3 runs " + re.escape(sys.executable), out)


@pytest.mark.parametrize("where", [".", "notebooks", "/"])
def test_commands_are_printed_as_they_work_in_that_folder(where, monkeypatch):
    code = "from lqrlab import installation as i; print(i.program()); print(i.install('[robots]'))"
    program, install = python(code, cwd=ROOT / where).splitlines()
    assert install.endswith("[robots]'")
    for typed in (f"{program} --version", f"{install} --dry-run --no-index --no-deps --no-build-isolation --quiet"):
        done = subprocess.run(typed, shell=True, cwd=ROOT / where, capture_output=True, text=True)
        assert done.returncode == 0, (typed, done.stderr)
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"))
    assert installation.program() == "lqrlab"


def test_a_study_is_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = lqrlab_command("init", "my_study")
    assert (code, out) == (0, f"made my_study: cd my_study && {installation.program()} run --profile tiny\n")
    ours = {p.relative_to(ROOT) for p in (ROOT / "notebooks").rglob("*") if p.is_file()}
    made = {p.relative_to(tmp_path / "my_study") for p in (tmp_path / "my_study").rglob("*") if p.is_file()}
    assert made == {path for path in ours if not path.parts[1].startswith(".")} | {Path("README.md")}
    assert "# my_study" in (tmp_path / "my_study" / "README.md").read_text()
    code, _, err = lqrlab_command("init", "my_study")
    assert (code, err) == (2, "lqrlab: my_study: is there already and not empty; give a new folder\n")
    (tmp_path / "file").touch()
    code, _, err = lqrlab_command("init", "file/study")
    assert (code, err) == (2, "lqrlab: file/study: cannot be made (Not a directory)\n")


def call(*command: str | Path, cwd: Path) -> str:
    """Output of a command that does not see the checkout."""
    without = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    without["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")  # nbconvert's templates
    done = subprocess.run(command, cwd=cwd, env=without, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
OFFLINE = ["--no-deps", "--no-index"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = folder / "build"
    build.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, build)
    for name in ("lqrlab", "notebooks"):
        shutil.copytree(ROOT / name, build / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    call(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, build, cwd=folder)
    return next(folder.glob("lqrlab-*.whl"))


@pytest.fixture
def installed(wheel, tmp_path):
    """The wheel in an environment of its own: that environment, and the folder of its packages."""
    env = tmp_path / "env"
    call(sys.executable, "-m", "venv", "--without-pip", env, cwd=tmp_path)
    call(*PIP, "--python", env / "bin" / "python", "install", *OFFLINE, wheel, cwd=tmp_path)
    ask = [env / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return env, Path(call(*ask, cwd=tmp_path).strip())


@pytest.mark.matrix
@pytest.mark.parametrize("extra", ["", *sorted(PROJECT["optional-dependencies"].keys() - {"cuda", "dev"})])
def test_each_extra_alone_is_all_that_its_part_needs(extra, installed, tmp_path):
    """Its packages are imported and its page's example runs; they are linked from here, not downloaded."""
    env, packages = installed
    here, lines = {canonical(d.name): d for d in importlib.metadata.distributions()}, wanted(*[extra] * bool(extra))
    needed = installed_with(PROJECT["dependencies"] + lines)
    assert not needed - here.keys(), f"[{extra}] needs {needed - here.keys()}, not installed here: run make env"
    for file in (file for name in needed for file in here[name].files or ()):
        link = packages / file
        if ".." not in file.parts and file.suffix != ".pyc" and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(file.locate()).resolve())
    python, page = env / "bin" / "python", ROOT / f"docs/reference/{extra}.md" if extra else ROOT / "README.md"
    call(*PIP, "--python", python, "install", "--no-index", f"lqrlab[{extra}]", cwd=tmp_path)
    of = {canonical(name): top for top, names in importlib.metadata.packages_distributions().items() for name in names}
    code = [f"import {of[canonical(Requirement(line).name)]}" for line in lines] or [ALL_MODULES]
    found = re.search(r"^```python\n(.*?)^```$", page.read_text() if page.exists() else "", re.DOTALL | re.MULTILINE)
    call(python, "-c", "\n".join([*code, found[1] if found else ""]), cwd=tmp_path)
    commands = "judge lqr", "identify a.csv --input u --output y -o x.json", "data generate set", "systems cart_pole"
    for command in commands if not extra and (tmp_path / "a.csv").write_text("u,y\n1,2\n") else ():
        done = subprocess.run([env / "bin" / "lqrlab", *command.split()], cwd=tmp_path, capture_output=True, text=True)
        said = re.fullmatch(r"lqrlab: .* -m pip install 'lqrlab\[workbench.*\]' brings it", done.stderr.strip())
        assert (done.returncode, bool(said)) == (1, True), done.stderr


@pytest.mark.matrix
def test_the_wheel_works_without_the_checkout(installed, tmp_path):
    """With the packages of this environment, and nothing is downloaded."""
    env, packages = installed
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    where = call(env / "bin" / "python", "-c", "import lqrlab; print(lqrlab.__file__)", cwd=tmp_path)
    assert where.startswith(str(packages / "lqrlab"))

    call(env / "bin" / "lqrlab", "init", "my_study", cwd=tmp_path)
    study = tmp_path / "my_study"
    assert f"in {env}" in call(env / "bin" / "lqrlab", "doctor", cwd=study)
    command = [env / "bin" / "lqrlab", "run", "01_system_exploration", "--profile", "tiny"]
    assert "report: data/runs/tiny/report/index.html" in call(*command, "-p", "pages=pendulum", cwd=study)
    result = json.loads((study / "data/runs/tiny/results/01_system_exploration.json").read_text())
    assert result["numbers"]


def test_ci_types_what_a_reader_types():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test", "make check"]
