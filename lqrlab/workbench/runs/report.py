"""Executed notebooks as a report: HTML files that need no network and no other file, and can be read without a script.

LaTeX becomes MathML, images are inlined with a text that stands for them, and what would load anything from elsewhere
is taken out. The front page gathers the outputs of the cells that are tagged ``summary``.
"""

import base64
import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from bs4 import BeautifulSoup
from jinja2.utils import markupsafe
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from lqrlab.compute import files
from lqrlab.installation import program, typed
from lqrlab.workbench.figures import svg
from lqrlab.workbench.figures.safe_html import mathml, plain_css, policy, sanitise, unbroken
from lqrlab.workbench.runs import notebooks, plant_copies, run_folder, session
from lqrlab.workbench.runs.terminal import cell, clock

TEMPLATES = Path(__file__).parent / "templates"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_PREFERRED = ("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain")
_LIVE = r"<Figure size |<IPython\.core"  # what stands for things that only a live page can show


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML and headings that can be linked to."""

    def __init__(self, contents: list[tuple[int, str, str]], **options: Any) -> None:
        super().__init__(embed_images=True, exclude_anchor_links=True, escape=False, **options)
        self.contents = contents

    def heading(self, text: str, level: int, **attrs: object) -> str:
        base = re.sub(r"[^\w]+", "-", BeautifulSoup(text, "html.parser").get_text().lower()).strip("-") or "section"
        taken = {anchor for _, anchor, _ in self.contents}
        anchor = next(a for i in range(10_000) if (a := base if not i else f"{base}-{i + 1}") not in taken)
        self.contents.append((level, anchor, sanitise(re.sub(r"</?a\b[^>]*>", "", text))))
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{mathml(body, display=True)}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


class NotebookPage:
    """An executed notebook, ``<name>.ipynb`` or ``<name>.failed.ipynb`` of a run, as HTML: the page ``<name>.html``.

    Each piece that a cell shows is cleaned by itself, so that a tag left open in one does not swallow the next.
    """

    def __init__(self, path: Path) -> None:
        declared, self.name = notebooks.read(path), path.name.partition(".")[0]
        self.title, self.failed = declared.title, path.name.endswith(".failed.ipynb")
        # text that was printed in pieces
        self.nb, _ = CoalesceStreamsPreprocessor().preprocess(nbformat.read(path, 4), {})
        executed = self.nb.metadata.get("papermill", {})
        given, source = executed.get("parameters", {}), executed.get("input_path")
        # pictures in Markdown are named from the folder of the notebook before it was executed
        self._folder = str(Path(source).parent) if source else ""
        language = self.nb.metadata.get("language_info", {})
        self._highlight = Highlight2HTML(pygments_lexer=language.get("pygments_lexer"))
        self.contents: list[tuple[int, str, str]] = []
        """Level, anchor and text of each heading."""
        self.lead = self.heading = ""
        """The first paragraph; the heading that a cell stands under."""
        for each in self.nb.cells:
            if each.cell_type == "markdown":
                each.shown = self.markdown(each.source, each.get("attachments"))
            else:
                each.shown = [piece for output in each.get("outputs", []) for piece in self._pieces(each, output)]
        shown = [p for p in declared.parameters.values() if p.name not in notebooks.BY_OPTION]
        self.parameters = [(p.name, given.get(p.name, p.default), p.default, p.about) for p in shown]
        self.facts = [("Seed", str(value)) for name, value, *_ in self.parameters if name == "seed"]
        self.headline = headline(path.parents[1], self.name)
        with contextlib.suppress(ValueError):  # none was written
            result = session.results(path.parents[1], self.name)
            started, device = (str(result.get(key) or "–") for key in ("started", "device"))
            self.facts += [("Run on", started.replace("T", " ")[:16]), ("Took", clock(result.get("seconds") or 0.0))]
            self.facts += [("Device", device)]
        template = _templates().get_template("cells.html.j2")
        self.body, self.summary = (template.render(page=self, outputs_only=only) for only in (False, True))
        """All cells; the outputs of those tagged ``summary``."""

    def markdown(self, source: str, attachments: Mapping[str, Any] | None = None) -> markupsafe.Markup:
        """Prose with formulas."""
        renderer = _Renderer(self.contents, attachments=attachments or {}, path=self._folder)
        made = clean(MarkdownWithMath(renderer=renderer).render(source))
        self.heading = BeautifulSoup(self.contents[-1][2], "html.parser").get_text() if self.contents else ""
        if not self.lead:
            paragraphs = BeautifulSoup(made, "html.parser").find_all("p", recursive=False)
            self.lead = str(next((p for p in paragraphs if p.get_text(strip=True)), ""))
        return markupsafe.Markup(made)

    def code(self, source: str) -> markupsafe.Markup:
        """Code in colours."""
        return markupsafe.Markup(clean(self._highlight(source)))

    def text(self, text: str) -> markupsafe.Markup:
        """Printed text, with its colours."""
        return markupsafe.Markup(clean(ansi2html(text)))

    def _pieces(self, cell: NotebookNode, output: NotebookNode) -> list[tuple[str, markupsafe.Markup]]:
        """Kind and HTML of an output, in the form that we prefer; none of what only a live page could show."""
        if output.output_type == "stream":
            text = re.sub(r"(?:/[^\s/:]+)+/(?=lqrlab/)", "", output.text)  # no path of the machine that it ran on
            return [("err" if output.name == "stderr" else "out", self.text(text))]
        if output.output_type == "error":
            return [("error", self.text("\n".join(output.traceback)))]
        hidden = ("text/plain", "text/html") if _WIDGET in output.data else ()
        kind = next((k for k in _PREFERRED if k in output.data and k not in hidden), None)
        if kind is None or (kind == "text/plain" and re.match(_LIVE, str(output.data[kind]))):
            return []
        data = output.data[kind]
        if kind.startswith("image/"):
            about = output.metadata.get(kind, {})
            default = f"Figure in the section “{self.heading}”" if self.heading else "Figure"
            said = (about.get("alt"), output.metadata.get("alt"), cell.metadata.get("alt"), default)
            return [("image", _image(kind, str(data), str(next(filter(None, said))), about.get("width")))]
        if kind == "text/html":
            return [("html", markupsafe.Markup(clean(data)))]
        if kind == "text/latex" and "$" not in (formula := data.strip().strip("$")):
            return [("formula", markupsafe.Markup(clean(mathml(formula, display=True))))]
        if kind in ("text/markdown", "text/latex"):
            return [("prose", self.markdown(data))]
        return [("plain", self.text(data))]


def _image(kind: str, data: str, words: str, width: object) -> markupsafe.Markup:
    encoded = base64.b64encode(data.encode()).decode() if kind == "image/svg+xml" else data.replace("\n", "")
    image = markupsafe.Markup('<img src="data:{};base64,{}" alt="{}"{}>')
    return image.format(kind, encoded, words, markupsafe.Markup(' width="{}"').format(width) if width else "")


def clean(body: str) -> str:
    """Keep what neither loads nor runs anything; let wide tables scroll; point at pages, not notebooks."""
    soup = BeautifulSoup(body, "html.parser")
    styles = []
    for tag in soup.find_all("style"):  # kept: those that speak of one table (pandas' Styler) or of drawings
        text, drawing = tag.get_text(), tag.find_parent("svg")
        if (drawing or re.match(r"\s*(#T_|\.lq-)", text)) and plain_css(text):
            styles.append(f"<style>{text}</style>")
    for tag in soup.select("[src], [poster]"):
        if not str(tag.get("src", "data:")).startswith("data:") or tag.get("poster"):
            tag.replace_with(f"[{tag.get('alt') or 'picture'}: not part of this file]")
    for image in soup.find_all("img"):
        image["alt"] = image.get("alt") or "Picture"
    for link in soup.select('a[href*=".ipynb"]'):
        link["href"] = re.sub(r"^(?!\w+:)(?:.*/)?([\w-]+)\.ipynb", r"\1.html", str(link["href"]))
    for words in soup.find_all(string=True):
        if not words.find_parent(["pre", "code", "style", "svg", "math"]):
            words.replace_with(unbroken(words))
    for table in soup.find_all("table"):
        del table["border"]
        caption = table.find("caption")
        label = caption.get_text(" ", strip=True) if caption else "Table"
        around = {"class": "scroll", "tabindex": "0", "role": "group", "aria-label": label}
        table.wrap(soup.new_tag("div", attrs=around))
    return "".join(styles) + sanitise(str(soup))  # last: nothing is written after it that it has not seen


_GENERATOR = b'name="generator" content="lqrlab"'  # in templates/base.html.j2


def write(folder: str | Path, *, whole: bool = False) -> Path:
    """Write a run's report from its executed notebooks; returns the front page, ``<folder>/report/index.html``.

    With ``whole`` all of it is written into one file, to be mailed: ``<folder>/report/<folder>.html``.

    Raises:
        ValueError: the folder is not a run's, or holds no executed notebook.
    """
    folder = Path(folder)
    run_folder.require_record(folder)
    paths = sorted((folder / "notebooks").glob("[0-9]*.ipynb"), reverse=True)  # of two the one that failed
    executed = {path.name.partition(".")[0]: path for path in paths}
    if not executed:
        raise ValueError(f"{folder}: no executed notebook; {program()} run --folder {typed(folder)} makes them")
    run = run_folder.read(folder / run_folder.RUN)
    pages, front = [_page(executed[name]) for name in sorted(executed)], folder / "report" / "index.html"
    shared: dict[str, Any] = {"pages": pages, "run": run, "folder": folder.resolve().name}
    shared |= {"versions": run["versions"], "plants": plant_copies.names(run)}
    if whole:
        for page in pages:
            page.body = _within_one_file(page.name, page.body, [other.name for other in pages])
        bodies = "".join(page.body for page in pages)
        return fill(front.with_name(f"{shared['folder']}.html"), "index.html.j2", bodies, whole=True, **shared)
    for page in pages:
        fill(front.with_name(f"{page.name}.html"), "page.html.j2", page.body, page=page, **shared)
    return fill(front, "index.html.j2", **shared)


def _page(path: Path) -> NotebookPage:
    """An executed notebook, which anyone may have edited, as a page."""
    try:
        return NotebookPage(path)
    except (AttributeError, KeyError, OverflowError, TypeError, nbformat.ValidationError) as error:
        raise ValueError(f"{path}: not an executed notebook ({type(error).__name__}: {error!s:.200})") from error


def _within_one_file(name: str, body: str, names: Sequence[str]) -> str:
    """A page's body with the names of pages before its anchors, for two may have headings of one name."""
    anchors = set(re.findall(r'<h[1-6] id="([^"]*)"', body))
    body = re.sub(r'(<h[1-6] id=")', rf"\g<1>{name}-", body)

    def link(found: re.Match[str]) -> str:
        page, anchor = found[1] or name, found[2] or ""
        if page not in names or (not found[1] and anchor not in anchors):
            return found[0]
        return f'href="#{page}{"-" * bool(anchor)}{anchor}"'

    return re.sub(r'href="(?:([\w.-]+)\.html)?(?:#([^"]*))?"', link, body)


def headline(folder: Path, name: str) -> dict[str, tuple[str, str]]:
    """Label → number in words, of what: those of a notebook's result that stand on top of the report."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):  # none, or not of this form
        found = (session.results(folder, name).get("numbers") or {}).get("headline") or {}
        return {str(label): (str(number), str(what)) for label, (number, what) in found.items()}
    return {}


def _templates() -> jinja2.Environment:
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True)
    made.finalize = lambda value: unbroken(value) if type(value) is str else value
    made.filters["value"] = lambda v: ", ".join(map(str, v)) if type(v) is list else cell(v)
    return made


def fill(path: Path, template: str, body: str = "", **values: object) -> Path:
    """Write a page from one of our templates, in one piece; nothing is loaded, and no script but that of strips runs.

    ``body`` is what may have a strip of pictures in it.
    """
    script = svg.STRIP_SCRIPT if svg.STRIP_MARK in body else ""
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    ours = {"style": style, "script": script, "policy": policy(script)}
    path.parent.mkdir(parents=True, exist_ok=True)
    return files.write_atomic(path, _templates().get_template(template).render(**ours, **values))


def index(data: str | Path) -> Path:
    """Write ``<data>/index.html``: all runs and sweeps in ``data/runs`` and ``data/sweeps``, the latest first.

    Raises:
        ValueError: there is none; a page of that name is not lqrlab's.
    """
    data = Path(data).resolve()
    old = data / "index.html"
    if old.exists() and _GENERATOR not in old.read_bytes()[:1000]:
        raise ValueError(f"{old}: expected a list of runs to write anew, but found another page; move it away")
    listed = {
        kind: sorted(
            (_listed(data, path) for path in data.glob(f"{kind.lower()}/*/{name}")),
            key=lambda one: str(one["record"].get("started")),
            reverse=True,
        )
        for kind, name in (("Runs", run_folder.RUN), ("Sweeps", run_folder.SWEEP))
    }
    if not any(listed.values()):
        raise ValueError(f"{data}: no run and no sweep to list; {program()} run makes one")
    return fill(data / "index.html", "runs.html.j2", listed=listed, versions=session.versions(), run={})


def _listed(data: Path, path: Path) -> dict[str, Any]:
    """A run or sweep by the path of its record: the folder of its report, if there is one, and its headlines."""
    folder, names = path.parent, sorted(file.stem for file in (path.parent / "results").glob("*.json"))
    page = (folder / "report").relative_to(data).as_posix() if (folder / "report" / "index.html").exists() else ""
    top = {label: (name, one[0]) for name in names for label, one in headline(folder, name).items()}
    return {"name": folder.name, "page": page, "top": top, "record": run_folder.read(path)}
