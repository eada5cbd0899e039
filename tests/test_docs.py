"""The documentation: it builds without a warning, loads nothing from the network, and what it says runs."""

import doctest
import importlib
import itertools
import operator
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import control as python_control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from bs4 import BeautifulSoup

import lqrlab
from lqrlab import compute
from lqrlab.systems import families
from lqrlab.workbench.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.matrix
def test_examples_in_docstrings_run():
    """As a user runs them, without the tests' check of types: examples write matrices as lists."""
    done = subprocess.run([sys.executable, __file__], cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr


def run_examples():
    compute.setup()
    known = {room: getattr(lqrlab, room) for room in lqrlab.__all__} | {"jax": jax, "jnp": jnp, "np": np}
    runner, finder = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF), doctest.DocTestFinder(exclude_empty=True)
    examples = 0
    for found in pkgutil.walk_packages(lqrlab.__path__, "lqrlab."):
        if found.name.split(".")[1] == "workbench":
            continue
        for test in finder.find(importlib.import_module(found.name), globs=dict(known)):
            examples += len(test.examples)
            runner.run(test)
    assert runner.failures == 0
    assert examples > 100


@pytest.fixture(scope="module")
def blocks():
    """Programs that were run before: the README and another page show the same one."""
    return set()


def pages_with_code():
    """All are run in ``make check``, what a newcomer reads first for every change."""
    for page in PAGES:
        if BLOCK.search(page.read_text()):
            marks = [] if page.stem in ("README", "concepts", "controllers") else [pytest.mark.matrix]
            yield pytest.param(page, marks=marks, id=page.stem)


@pytest.mark.parametrize("page", list(pages_with_code()))
def test_code_on_pages_runs(page, blocks, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("lqrlab.systems.families.FAMILIES", dict(families.FAMILIES))
    for block in [block for block in BLOCK.findall(page.read_text()) if block not in blocks]:
        blocks.add(block)
        exec(compile(block.replace("num=1000", "num=10"), str(page), "exec"), {"__name__": page.stem})


SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = sorted(
    {
        line.partition("  #")[0].strip()
        for page in PAGES
        for block in SHELL.findall(page.read_text())
        for line in block.splitlines()
        if re.search(r"(^|[/ ])lqrlab ", line.partition("#")[0])
    }
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_on_pages_exist(line):
    words = shlex.split(line[re.search(r"(^|[/ ])lqrlab ", line).end() :].partition("&&")[0])
    command: click.Command = main
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


def test_names_beside_those_of_other_tools_exist():
    rows = [line.split("|") for line in (ROOT / "docs" / "other_tools.md").read_text().splitlines() if "| `" in line]
    assert len(rows) > 25
    packages = {3: python_control, 4: lqrlab}
    for (column, package), row in itertools.product(packages.items(), rows):
        for name in re.findall(r"`([a-z]\w*(?:\.\w+)*)", row[column]):
            if not name.startswith("plant."):  # the argument of another
                operator.attrgetter(name)(package)


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{name}: {target}"


def test_paths_that_contributing_names_exist():
    found = re.findall(r"`([\w/]+/(?:\w+\.\w+)?)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(found) > 15
    assert not [path for path in found if not any((start / path).exists() for start in (ROOT, ROOT / "lqrlab"))]


def test_what_is_cited_is_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == lqrlab.__version__
    assert f"{{{lqrlab.__version__}}}" in (ROOT / "docs" / "citation.md").read_text()


def test_developers_can_build_the_documentation():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (ours,) = (needed for needed in extras["dev"] if needed.startswith("lqrlab["))
    assert "docs" in re.findall(r"\w+", ours)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without films and executed notebooks; a warning ends the build, unless ``--quiet`` drops it."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    env = os.environ | {"RUN": "data/no_such_run", "FILMS": "false", "NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def pages(site):
    return {name: BeautifulSoup(at.read_text(), "html.parser") for name, at in site.items() if name.endswith(".html")}


@pytest.mark.matrix
def test_the_site_loads_nothing_from_the_network(site, pages):
    for name, page in pages.items():
        loaded = [tag[kind] for tag in page.find_all() for kind in ("src", "data") if kind in tag.attrs]
        loaded += [tag["href"] for tag in page.find_all("link")]
        assert not [target for target in loaded if re.match(r"(https?:)?//", target)], name
    for name, path in site.items():
        if name.endswith(".css"):
            assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), name


@pytest.mark.matrix
def test_links_within_the_site_lead_somewhere(site, pages):
    anchors = {name: {tag["id"] for tag in page.find_all(id=True)} for name, page in pages.items()}
    checked = 0
    for name, page in pages.items():
        if name == "404.html":  # shown at any depth
            continue
        for tag in page.find_all("a", href=True):
            target, _, anchor = tag["href"].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            assert path in site, f"{name}: {tag['href']}"
            assert not anchor or path not in anchors or anchor in anchors[path] | {"__tabbed"}, f"{name}: {tag['href']}"
            checked += 1
    assert checked > 500


@pytest.mark.matrix
@pytest.mark.parametrize("room", lqrlab.__all__)
def test_each_public_name_is_in_the_reference(room, pages):
    ours = (page for name, page in pages.items() if re.fullmatch(rf"reference/api/{room}(_\w+)?.html", name))
    shown = {tag["id"] for page in ours for tag in page.find_all(id=True)}
    module = getattr(lqrlab, room)
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or module.__name__
        places = {f"{module.__name__}.{name}", f"{home}.{name}", getattr(value, "__name__", ""), name}
        assert places & shown, name


@pytest.mark.matrix
def test_the_site_has_moving_pictures_drawings_and_formulas(site, pages):
    assert "@keyframes" in site["film.svg"].read_text()
    assert pages["index.html"].select_one(".lq-film svg") is not None
    assert len(pages["index.html"].find_all("math")) >= 2
    for room in lqrlab.__all__:
        assert pages[f"reference/{room}.html"].select_one("figure.flow svg text") is not None, room
        source = (ROOT / "docs" / "reference" / f"{room}.md").read_text()
        assert len(source.splitlines()) <= 60
        assert BLOCK.search(source)
    for name, page in pages.items():
        assert page.select_one(".arithmatex") is None, name
        assert not re.search(r":(func|class|mod):<code", str(page)), name
        assert page.find("blockquote") is None, name  # what Markdown makes of >>>


if __name__ == "__main__":
    run_examples()
