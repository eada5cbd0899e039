"""What holds the project together: the rooms' order, the lists of packages, imports that change nothing."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from click.testing import CliRunner

import lqrlab
from lqrlab.workbench.cli import main

ROOT = Path(__file__).parents[1]
ROOMS = lqrlab.__all__
MODULES = sorted((ROOT / "lqrlab").rglob("*.py"))
ONLY_IN = {
    "h5py": {"dataset", "learning", "benchmarks"},  # the last measures beside others that read the same file
    **{package: {"workbench"} for package in ("matplotlib", "ipywidgets", "IPython", "papermill")},
}


def imports(path: Path) -> set[str]:
    """Full names of everything that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: from the package that the module is in
                parents = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
                base = ".".join([*parents, *base.split(".")]).rstrip(".")
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def room(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "lqrlab" and len(parts) > 1 and parts[1] in ROOMS else None


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_rooms_above_it(path):
    own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    used = imports(path)
    if own is not None:
        for other in {room(name) for name in used} - {None}:
            assert ROOMS.index(other) <= ROOMS.index(own), f"{own} must not import {other}"
    for package, rooms in ONLY_IN.items():
        if any(name.split(".")[0] == package for name in used):
            assert own in rooms, f"only {' and '.join(sorted(rooms))} may import {package}"


def test_the_conda_environment_is_in_step_with_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    plain = [line for line in conda if isinstance(line, str)]
    assert f"python{project['requires-python']}" in plain
    editable, *by_pip = next(line for line in conda if isinstance(line, dict))["pip"]
    assert editable == "-e ."
    assert [line for line in plain if not re.match(r"python\b|pip$", line)] == [
        line for line in wanted if line not in by_pip
    ]
    assert set(by_pip) <= set(wanted)


def test_constraints_pin_what_is_wanted_and_name_no_address():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!-]*", pin) for pin in pins)
    pinned = {re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"] + project["optional-dependencies"]["dev"]:
        assert re.match(r"[\w-]+", line)[0].lower() in pinned
    assert not pinned & {"lqrlab", "pip", "setuptools", "wheel"}


def test_what_is_packaged_besides_python(tmp_path):
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "lqrlab"
    ]
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


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_every_room_changes_no_setting_of_jax():
    rooms = [name for name in ROOMS if (ROOT / "lqrlab" / name / "__init__.py").exists()]
    assert set(rooms) >= {"compute", "systems", "control", "workbench"}
    look = "{k: v for k, v in jax.config.values.items()}"
    code = f"import importlib, jax; before = {look}; "
    code += f"[importlib.import_module('lqrlab.' + room) for room in {rooms}]; after = {look}; "
    code += "print({k: (v, after[k]) for k, v in before.items() if v != after[k]})"
    assert python(code) == "{}"


def test_importing_lqrlab_imports_no_room():
    assert python("import sys, lqrlab; print([m for m in sys.modules if m.startswith('lqrlab.')])") == "[]"
    assert (
        python("import lqrlab; print(lqrlab.workbench.__name__, 'compute' in dir(lqrlab))")
        == "lqrlab.workbench True"
    )


def test_the_command_line_starts_without_what_is_heavy():
    code = (
        "import sys; from lqrlab.workbench import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    )
    code += "print(sorted({'jax', 'numpy', 'matplotlib', 'papermill', 'nbconvert'} & set(sys.modules)))"
    *help_text, heavy = python(code).splitlines()
    assert heavy == "[]"
    assert any(line.split()[:1] == ["run"] for line in help_text)


def lqrlab_command(*args: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lqrlab.workbench", *args], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["systems", "cart_pool"], "no plant is called 'cart_pool'; did you mean cart_pole"),
        (["run", "-p", "rate"], "-p rate: expected NAME=VALUE"),
        (["run", "--notebooks", "/nowhere"], "found none named 01_"),
        (["report", "/nowhere"], "no executed notebook"),
    ],
)
def test_a_wrong_request_gets_one_line(args, message):
    code, out, err = lqrlab_command(*args)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("lqrlab: ")
    assert message in err
    code, _, err = lqrlab_command("--traceback", *args)
    assert code != 0
    assert "Traceback" in err


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
    for part in (
        "pole_length",
        "0.05 … 5",
        "hinge to the pole",
        "angular_velocity",
        "open-loop poles",
        "one unstable real mode, time constant 0.18 s",
    ):
        assert part in out


def test_a_data_set_from_the_command_line(tmp_path):
    path = str(tmp_path / "set")
    small = ["-p", "families=pendulum,cart_pole", "-p", "variants=4", "-p", "trajectories=2"]
    code, out, err = lqrlab_command("data", "generate", path, *small, "-p", "num_steps=10")
    assert code == 0, err
    assert any(line.startswith("✓") for line in out.splitlines())
    code, out, _ = lqrlab_command("data", "verify", path)
    assert code == 0
    assert "8 variants and 16 trajectories" in out
    shard = next((tmp_path / "set").glob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:-100])
    code, out, err = lqrlab_command("data", "verify", path)
    assert (code, out) == (1, "")
    assert shard.name in err
    (tmp_path / "config.json").write_text('{"held_out": ["dc_motor"]}')
    for wrong, words in (
        (["-p", "varians=3"], "did you mean variants"),
        (["-p", "variants=many"], "variants: expected int, but found 'many'"),
        (
            ["--config", str(tmp_path / "config.json"), "-p", "families=pendulum"],
            "held_out: expected some of families, but found dc_motor",
        ),
    ):
        refused = CliRunner().invoke(main, ["data", "generate", path, *wrong])
        assert refused.exit_code == 2
        assert words in refused.stderr


def test_help_fits_one_screen_and_begins_with_what_matters():
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert len(shown.splitlines()) <= 24
    order = re.findall(r"^  ([a-z]+) {2,}\S", shown, flags=re.M)
    assert order[:5] == ["run", "report", "sweep", "systems", "doctor"]
    assert set(order) == set(main.commands)


def test_the_doctor_finds_this_environment_well():
    code, out, _ = lqrlab_command("doctor")
    assert code == 0, out
    assert f"in {sys.prefix}" in out
    assert re.search(r"✓ kernel +python3 runs " + re.escape(sys.executable), out)


def test_ci_types_what_a_reader_types():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]
