"""What the site takes from the package while it is built: API pages, executed notebooks, films, formulas, drawings."""

import html
import inspect
import json
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import lqrlab
from lqrlab import compute, systems
from lqrlab.workbench.figures import catalogue_page
from lqrlab.workbench.figures.safe_html import mathml

sys.path.insert(0, str(Path(__file__).parent))
import docstrings
import flow
from film import film

ROOT = Path(__file__).parents[1]
_FLOW = re.compile(r"^```flow\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_BRAND = re.compile(r'<a class="brand" href="index.html".*?</a>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are made rather than written."""
    compute.setup()
    made = {f"api/{room}.md": api_page(room) for room in lqrlab.__all__}
    made["film.svg"] = film().svg
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


def api_page(room: str) -> str:
    """Directives for a subpackage's public names; a module among them is shown with its members."""
    module = getattr(lqrlab, room)  # an extension lives in lqrlab.extensions and is loaded when it is named
    more = f"The idea of it, with an example: [{room}](../rooms/{room}.md)."
    head = f"# lqrlab.{room}\n\n{docstrings.linked(inspect.getdoc(module) or '')}\n\n{more}\n"
    if hasattr(module, "__all__"):
        return head + "".join(_entry(module, name) for name in module.__all__)
    inner = sorted(path.stem for path in Path(module.__path__[0]).glob("[!_]*.py"))
    return head + "".join(f"\n::: {module.__name__}.{name}\n" for name in inner)


def _entry(module: types.ModuleType, name: str) -> str:
    value = getattr(module, name)
    if not callable(value) and not isinstance(value, types.ModuleType):
        return f"\n## `{name} = {value!r}` {{ #{module.__name__}.{name} .doc-heading }}\n"
    if value is systems.catalogue:
        return "\n## catalogue\n\nThe families of plants: [the catalogue](../catalogue.md) shows them.\n"
    if isinstance(value, types.ModuleType):
        return f"\n::: {value.__name__}\n"
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
