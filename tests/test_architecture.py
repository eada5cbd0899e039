"""The house: which room may import which, one module and one class for one thing, and sizes that only fall.

Ceilings only fall; what a change adds beyond them, it takes away elsewhere.
"""

import ast
import graphlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lqrlab
from lqrlab.compute import names

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lqrlab"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [*lqrlab.LIBRARY, "workbench", "extensions"]
NAMED_BY_EXTRA = {("environments", "predictive"), ("identification", "robust"), ("deployment", "controllers")} | {
    ("controllers", other) for other in ("predictive", "classical", "unknown", "environments", "deployment")
}
"""Extensions that import another one; of deployment its command alone, which takes any controller by name."""
OF_A_SUBJECT = {"panel.py", "figures.py", "command.py"}
"""Modules that each extension may have: what people see of it."""
ONLY_IN = {
    "h5py": {"compute", "dataset", "learning"},
    **{package: {"workbench", "extensions"} for package in ("matplotlib", "ipywidgets", "IPython", "papermill")},
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


def room(path: Path) -> str | None:
    """The subpackage that a file of the package is in."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[1] in ROOMS else None


def test_a_subpackage_imports_only_those_below_it():
    for path in MODULES:
        own, used = room(path), imports(path)
        for other in {name.split(".")[1] for name in used if name.startswith("lqrlab.")} & set(ROOMS):
            assert own is None or ROOMS.index(other) <= ROOMS.index(own), f"{path} must not import {other}"
        for package, rooms in ONLY_IN.items():
            allowed = own in rooms or package not in {name.split(".")[0] for name in used}
            assert allowed, f"{path}: only {' and '.join(sorted(rooms))} may import {package}"


def test_extensions_stand_beside_each_other():
    for path in (PACKAGE / "extensions").rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[1]
        others = {name.split(".")[2] for name in imports(path) if name.startswith("lqrlab.extensions.")} - {own}
        assert others <= {b for a, b in NAMED_BY_EXTRA if a == own}, f"{path} imports {others}"


def test_no_two_modules_have_one_name():
    names = [path.name for path in MODULES if path.name not in OF_A_SUBJECT | {"__init__.py"}]
    assert {name for name in names if names.count(name) > 1} == set()


def test_functions_and_modules_are_one_thing():
    """No module of several things, no function that fits no screen."""
    for path in MODULES:
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 80, f"{path}: {node.name} has {lines} lines"


def test_no_class_name_means_two_things():
    """Nor do a docstring's first words leave open what a thing is."""
    found: dict[str, Path] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("__"):
                assert node.name not in found, f"{node.name} in {path} and in {found[node.name]}"
                found[node.name] = path
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split(maxsplit=1)
                assert words[:1] not in [["What"], ["How"], ["Where"], ["Which"], ["Whether"]], f"{path}: {words[0]}"


def imported_at_once(tree: ast.AST) -> set[str]:
    """Modules of lqrlab that a module imports while it is imported itself: not in functions, not for types alone."""
    found, waiting = set(), list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lqrlab"):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif not (isinstance(node, ast.FunctionDef | ast.If)):
            waiting += ast.iter_child_nodes(node)
    return found


def test_modules_do_not_import_one_another_in_circles():
    """A package's ``__init__`` gathers its modules, so it is left out."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES}
    graph = {
        name: imported_at_once(ast.parse(path.read_text())) & (names.keys() - {name})
        for name, path in names.items()
        if path.name != "__init__.py"
    }
    graphlib.TopologicalSorter(graph).prepare()


# Sizes ------------------------------------------------------------------------------------------------------


def lines(*paths: Path) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def modules(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


LIBRARY = [path for part in lqrlab.LIBRARY for path in modules(part)]
CEILINGS = {
    "library": (LIBRARY, 20_000),
    "workbench": (modules("workbench"), 8_000),
    "extensions": (modules("extensions"), 22_510),
    "package": (MODULES, 50_550),
    "tests": (sorted((ROOT / "tests").rglob("*.py")), 25_000),
}
"""Part → its files, and the most lines that they may have together."""
MOST_MODULES = 267
MOST_LOADED = 79, 14_100
"""Modules and lines of the library that the names used by notebooks 01 to 04 load."""
MOST_DEPENDENCIES = {"library": 10, "workbench": 18}
MANY_ARGUMENTS = {
    "simulation/loop.rollout": "one call of a notebook: plant, controller, start, and what a Problem would say",
    "control/estimation.lqg": "A, B, C, Q, R, W, V, N: each a matrix of the textbook's problem",
    "extensions/robust/structured_synthesis.hinfstruct": "a search over structures, of which each has a default",
    "extensions/identification/command.identify": "options of a command line",
}
"""Public functions with more than ten arguments, and why."""


@pytest.mark.parametrize("part", CEILINGS)
def test_a_part_is_no_larger_than_it_may_be(part):
    files, most = CEILINGS[part]
    assert lines(*files) <= most


def test_there_are_no_more_modules_than_there_may_be():
    assert len(MODULES) <= MOST_MODULES


def test_there_are_no_more_dependencies_than_there_may_be():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= MOST_DEPENDENCIES["library"]
    assert len(project["optional-dependencies"]["workbench"]) <= MOST_DEPENDENCIES["workbench"]


def public_functions() -> dict[str, int]:
    """Functions of modules without an underscore in front → number of their arguments."""
    found = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                found[f"{path.relative_to(PACKAGE).with_suffix('')}.{node.name}"] = len(given)
    return found


def test_public_functions_have_ten_arguments_at_most():
    assert {name for name, count in public_functions().items() if count > 10} == MANY_ARGUMENTS.keys()
    assert all(MANY_ARGUMENTS.values())


LOADED = """
import importlib, json, sys
import lqrlab
for room, names in json.loads(sys.argv[1]).items():
    module = importlib.import_module(f"lqrlab.{room}")
    for name in names:
        getattr(module, name)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("lqrlab."))))
"""


def names_used(notebooks: list[Path]) -> dict[str, list[str]]:
    """Subpackage → the names that code cells ask it for."""
    used: dict[str, set[str]] = {}
    for path in notebooks:
        cells = json.loads(path.read_text())["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        code = re.sub(r"^(%|!).*$", "", code, flags=re.MULTILINE)
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lqrlab"):
                for alias in node.names:
                    room, _, inside = f"{node.module}.{alias.name}".removeprefix("lqrlab.").partition(".")
                    used.setdefault(room, set()).update({inside.split(".")[0]} - {""})
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in lqrlab.LIBRARY:
                used.setdefault(node.value.id, set()).add(node.attr)
    return {room: sorted(names) for room, names in used.items()}


def test_the_four_main_notebooks_load_little_of_the_library():
    """Their own imports, without those of the workbench."""
    notebooks = sorted((ROOT / "notebooks").glob("0[1-4]_*.ipynb"))
    assert len(notebooks) == 4
    used = {room: names for room, names in names_used(notebooks).items() if room in lqrlab.LIBRARY}
    done = subprocess.run([sys.executable, "-c", LOADED, json.dumps(used)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = {name.removeprefix("lqrlab.") for name in json.loads(done.stdout)}
    files = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in LIBRARY
    }
    assert not {name for name in loaded if name.startswith("extensions.")}
    found = [files[name] for name in loaded if name in files]
    assert len(found) <= MOST_LOADED[0]
    assert lines(*found) <= MOST_LOADED[1]


def test_extensions_are_names_of_the_package():
    """``import lqrlab.predictive`` and the module in ``lqrlab.extensions`` are one."""
    code = "\n".join(
        f"import lqrlab.{name}, lqrlab.extensions.{name}\nassert lqrlab.{name} is lqrlab.extensions.{name}\n"
        f"from lqrlab import {name}\nassert {name} is lqrlab.{name}\n"
        for name in lqrlab.EXTENSIONS
    )
    code += "\nfrom lqrlab.predictive.design import MPC\nfrom lqrlab.predictive import MPC as same\nassert MPC is same"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_make_test_runs_a_test_of_each_extension():
    each = set(re.findall(r'^    "(test_\w+)",$', (ROOT / "tests" / "conftest.py").read_text(), re.MULTILINE))
    for name in lqrlab.EXTENSIONS:
        suite = "".join(path.read_text() for path in (ROOT / "tests" / "extensions" / name).glob("test_*.py"))
        assert set(re.findall(r"^def (test_\w+)", suite, re.MULTILINE)) & each, name


def test_a_name_that_moved_says_where_it_is():
    with pytest.raises(AttributeError, match=r"no attribute 'mpc': it is lqrlab\.predictive\.mpc now"):
        _ = lqrlab.control.mpc
    for home, by_room in names._MOVED.items():
        for room, moved in by_room.items():
            for name in moved.split():
                old, _, new = name.partition(":")
                assert hasattr(getattr(lqrlab, home), new or old)
                assert not hasattr(getattr(lqrlab, room), old), (room, old)


def test_public_names_are_there():
    """Those that are loaded when they are first asked for; a module of one's name would hide it."""
    for room in lqrlab.__all__:
        subpackage = getattr(lqrlab, room)
        inside = Path(subpackage.__file__)
        late = "lazily(" in inside.read_text()
        for name in getattr(subpackage, "__all__", ()):
            found, module = getattr(subpackage, name), (inside.parent / f"{name}.py").exists()
            assert not (late and module) or found.__name__.endswith(f".{name}"), f"{room}.{name}"
