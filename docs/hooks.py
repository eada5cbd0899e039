"""What the site takes from the package while it is built: API pages, executed notebooks, films, formulas, drawings."""

import html
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import lqrlab
from lqrlab import compute, systems
from lqrlab.workbench import cli
from lqrlab.workbench.figures import catalogue_page
from lqrlab.workbench.figures.safe_html import mathml

sys.path.insert(0, str(Path(__file__).parent))
import docstrings
import flow
from film import film

ROOT = Path(__file__).parents[1]
SUBJECTS = {
    "compute": {
        "Settings and compilation": "backend compilation jit pytrees",
        "Timing and debugging": "debugging",
        "Linear algebra": "linalg",
    },
    "systems": {
        "Plants": "plant families catalogue plant_files custom",
        "Declaration and drawing": "declaration declaration_checks mechanics drawing",
        "Coordinates": "coordinates",
    },
    "control": {
        "Regulators": "regulator servo horizon delay",
        "Estimators": "estimation",
        "Riccati and Lyapunov equations": "riccati.equations lyapunov kleinman",
        "Models and sampling": "state_space discretization",
        "Analysis": "analysis.diagnosis analysis.stability_margins analysis.eigenmodes analysis.system_norms",
    },
    "dataset": {
        "Data sets": "data_config generation store shards card random_linear",
        "Windows and sources": "windows sources",
    },
    "identification": {
        "Logs and experiments": "reading log input_design",
        "Linear models": "regression subspace_method refinement model residuals",
        "Parameters and uncertainty": "physical fitted_plant uncertainty",
    },
    "workbench": {
        "Panels": "widgets panels",
        "Figures": "figures figures.animation figures.catalogue_page figures.data_card figures.judgement_page "
        "figures.loop_design figures.plots figures.tables",
        "Runs and reports": "runs runs.session runs.notebooks runs.pipeline runs.report runs.sweep cli",
    },
    "simulation": {
        "Problem and closed loop": "problem limits noise scaling loop recording verdict binding",
        "Policies and observers": "policies memory_policies quadratic_regulator estimators",
    },
}
"""Of a large subpackage: the pages of its public names, and the modules that define them."""
_FLOW = re.compile(r"^```flow\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_BRAND = re.compile(r'<a class="brand" href="index.html".*?</a>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are made rather than written."""
    compute.setup()
    made = {path: page for name in lqrlab.__all__ for path, page in api_pages(name).items()}
    made["film.svg"] = film().svg
    made["reference/command_line.md"] = "# Command line\n" + "".join(command_sections(cli.main, None, "lqrlab"))
    for name in ("CHANGELOG", "CONTRIBUTING"):
        made[f"{name.lower()}.md"] = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / str(config.extra["run"]) / "report").glob("[0-9]*.html")):
        text = path.read_text(encoding="utf-8")  # complete in itself; its bar shall lead back here
        made[f"notebooks/{path.name}"] = _BRAND.sub('<a class="brand" href="index.html">lqrlab</a>', text)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw ``flow`` blocks; list the notebooks and the plants."""
    fill: dict[str, Callable[[], str]] = {
        "notebooks": lambda: notebooks_table({f.src_uri for f in files}),
        "plants": plants_table,
        "names": lambda: names_links(Path(page.file.src_uri).stem),
    }
    for name, table in fill.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", table())
    return _FLOW.sub(lambda match: flow.picture(match[1]), markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, which needs no script; put films in their places."""
    content = _FORMULA.sub(lambda m: mathml(html.unescape(m[2]), display=m[1] == "div"), content)
    if "<!-- film -->" in content:
        content = content.replace("<!-- film -->", film().drawing)
    if "<!-- catalogue -->" in content and config.extra["films"]:
        content = content.replace("<!-- catalogue -->", catalogue_page.page().html)
    return content


def on_config(config: MkDocsConfig) -> None:
    """Below Reference: each subpackage, its page first and its public names below."""
    (reference,) = (section["Reference"] for section in config.nav or () if "Reference" in section)
    for name in lqrlab.__all__:
        subjects = SUBJECTS.get(name, {"Names": ""})
        below = [{title: _api_path(name, title)} for title in subjects]
        reference.append({name: [{"Overview": f"reference/{name}.md"}, *below]})


def api_pages(name: str) -> dict[str, str]:
    """Paths and texts of the pages of a subpackage's public names: functions first, then classes, then modules."""
    package = getattr(lqrlab, name)  # an extension lives in lqrlab.extensions and is loaded when it is named
    if not hasattr(package, "__all__"):
        inner = sorted(path.stem for path in Path(package.__path__[0]).glob("[!_]*.py"))
        entries = "".join(f"\n::: {package.__name__}.{each}\n" for each in inner)
        return {_api_path(name, "Names"): f"# {package.__name__}\n{entries}"}
    left, pages = list(package.__all__), {}
    for title, modules in SUBJECTS.get(name, {"Names": ""}).items():
        names = [each for each in left if not modules or _module(package, each) in ["", *modules.split()]]
        left = [each for each in left if each not in names]
        names.sort(key=lambda each: _rank(package, each, modules.split()))
        words = docstrings.linked(inspect.getdoc(package) or "")
        head = f"# {name}: {title.lower()}" if modules else f"# {name}: names\n\n{words}"
        pages[_api_path(name, title)] = f"{head}\n\n{_contents(package, names)}\n" + "".join(
            _entry(package, each) for each in names
        )
    if left:
        raise ValueError(f"docs/hooks.py, SUBJECTS[{name!r}]: on no page: {', '.join(left)}")
    return pages


def command_sections(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    """What ``--help`` says of a command, then of those below it: usage, arguments, options with their defaults."""
    context = click.Context(command, parent, name, **command.context_settings | {"terminal_width": 100})
    mark = "#" * (2 + len(context.command_path.split()[1:]))
    usage, words = context.get_usage().removeprefix("Usage: "), _plain(inspect.cleandoc(command.help or ""))
    yield f"\n{mark} `{context.command_path}`\n\n```text\n{usage}\n```\n\n{words}\n"
    group = command if isinstance(command, click.Group) else None
    below = {each: group.get_command(context, each) for each in group.list_commands(context)} if group else {}
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    for head, rows in (
        ("option", [record for record in records if record]),
        ("command", [(each, (found.help or "").partition("\n\n")[0]) for each, found in below.items() if found]),
    ):
        cells = [f"| `{left}` | {_plain(' '.join(words.split()))} |" for left, words in rows]
        yield "\n".join(["", f"| {head} | |", "|---|---|", *cells, ""]) if rows else ""
    for each, found in below.items():
        yield from command_sections(found, context, each) if found else ()


def _plain(text: str) -> str:
    """Text without what Markdown would make of its signs."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)


def names_links(name: str) -> str:
    """Links from a subpackage's page to those of its public names."""
    titles = [(t, Path(_api_path(name, t)).name) for t in SUBJECTS.get(name, {"Names": ""})]
    return "**Public names:** " + " · ".join(f"[{title}](api/{file})" for title, file in titles)


def _api_path(name: str, title: str) -> str:
    """Path of a page of public names."""
    return (
        f"reference/api/{name}.md" if title == "Names" else f"reference/api/{name}_{title.lower().replace(' ', '_')}.md"
    )


def _module(package: types.ModuleType, name: str) -> str:
    """The module of a subpackage that defines a name, from the subpackage on."""
    value = getattr(package, name)
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
    return home.removeprefix(f"{package.__name__}.")  # none of a number: it stands on the first page


def _rank(package: types.ModuleType, name: str, modules: list[str]) -> tuple[bool, bool, int]:
    """Order on a page: functions, classes, modules; each in the order of ``modules``."""
    value, home = getattr(package, name), _module(package, name)
    return isinstance(value, type), inspect.ismodule(value), modules.index(home) if home in modules else 0


def _contents(package: types.ModuleType, names: list[str]) -> str:
    """Names with the first sentence of each docstring."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in names:
        value = getattr(package, name)
        said = (
            (inspect.getdoc(value) or "").split("\n\n")[0]
            if callable(value) or inspect.ismodule(value)
            else repr(value)
        )
        first = re.split(r"(?<=[.:;]) ", " ".join(said.split()))[0].rstrip(".:;").replace("|", "\\|")
        rows.append(f"| `{name}` | {docstrings.linked(first)} |")
    return "\n".join(rows)


def _entry(module: types.ModuleType, name: str) -> str:
    value = getattr(module, name)
    if not callable(value) and not isinstance(value, types.ModuleType):
        return f"\n## `{name} = {value!r}` {{ #{module.__name__}.{name} .doc-heading }}\n"
    if value is systems.catalogue:
        return "\n## catalogue\n\nThe families of plants: [the catalogue](../../catalogue.md) shows them.\n"
    if isinstance(value, types.ModuleType):
        entry = f"\n::: {value.__name__}\n"
        if name == "widgets":  # each panel is loaded when it is named, those of extensions by their entry points
            panels = [getattr(value, panel) for panel in dir(value) if panel[0] != "_"]
            panels = [each for each in panels if str(getattr(each, "__module__", "")).startswith("lqrlab.")]
            entry += "".join(f"\n::: {each.__module__}.{each.__name__}\n" for each in panels)
        return entry
    if "__getattr__" in vars(module) and module.__name__ == "lqrlab.workbench":
        return f"\n::: {value.__module__}.{name}\n"  # loaded when it is first named, so nothing names it in the source
    return f"\n::: {module.__name__}.{name}\n"


def notebooks_table(pages: set[str]) -> str:
    """The notebooks with their questions; those that were executed are linked."""
    rows = []
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        title, _, question, *_ = "".join(json.loads(path.read_text())["cells"][0]["source"]).split("\n")
        page = f"notebooks/{path.stem}.html"
        name = f"[{title.lstrip('# ')}]({path.stem}.html)" if page in pages else title.lstrip("# ")
        rows.append(f"| {path.stem.partition('_')[0]} | {name} | {question.strip('*')} |")
    return "\n".join(["| | notebook | question |", "|---|---|---|", *rows])


def plants_table() -> str:
    """The families in one table."""
    plants = map(systems.make, systems.names())
    rows = [f"| `{p.name}` | {p.n} | {p.m} | {float(p.dt):g} | {p.title} |" for p in plants]
    return "\n".join(["| name | states | inputs | dt [s] | plant |", "|---|---|---|---|---|", *rows])
