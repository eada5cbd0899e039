"""Executed notebooks as a report: HTML files that need no network, no script and no other file.

nbconvert walks through the notebooks with a template of ours (``templates/cells.html.j2``), LaTeX becomes
MathML, images are inlined with a text that stands for them, and what would load anything from elsewhere is
taken out. The front page gathers the outputs of the cells that are tagged ``summary``.
"""

import dataclasses
import html
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import latex2mathml.converter
import nbformat
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from lqrlab.workbench import notebooks
from lqrlab.workbench.terminal import clock

_TEMPLATES = Path(__file__).parent / "templates"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_SHOWN = (
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "text/latex",
    "image/png",
    "image/jpeg",
    "text/plain",
)
_LOADING = "script, iframe, object, embed, link, meta, base, form, noscript"
_LOADS = re.compile(r"@import|url\(\s*['\"]?(?!data:|#)", re.I)


@dataclasses.dataclass
class Page:
    """One executed notebook, rendered.

    Attributes:
        name: of the notebook; the page is ``<name>.html``.
        title: its first heading.
        lead: its first paragraph, as HTML.
        body: all cells, as HTML.
        summary: outputs of the cells tagged ``summary``, as HTML.
        contents: level, anchor and HTML text of each heading.
        parameters: name, value, default and meaning of each parameter.
        result: what the notebook wrote at its end; empty where it did not.
        failed: whether it stopped at an error.
    """

    name: str
    title: str
    lead: str
    body: str
    summary: str
    contents: list[tuple[int, str, str]]
    parameters: list[tuple[str, Any, Any, str]]
    result: dict[str, Any]
    failed: bool = False

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What the head of the page tells: when, on what, how long."""
        values = {name: value for name, value, *_ in self.parameters}
        result = self.result
        rows = [
            ("Seed", values.get("seed")),
            ("Run on", str(result.get("started", "")).replace("T", " ")[:16]),
            ("Took", clock(result["seconds"]) if "seconds" in result else None),
            ("Device", result.get("device")),
        ]
        return [(name, str(value)) for name, value in rows if value not in (None, "")]


def write(folder: str | Path) -> Path:
    """Write ``<folder>/report`` from the executed notebooks in ``<folder>/notebooks``.

    Args:
        folder: a run's folder.

    Returns:
        The path of the front page, ``report/index.html``.

    Raises:
        ValueError: the folder holds no executed notebook.
    """
    folder = Path(folder)
    executed = {p.stem: p for p in sorted((folder / "notebooks").glob("[0-9]*.ipynb")) if "." not in p.stem}
    failed = {p.name.removesuffix(".failed.ipynb"): p for p in (folder / "notebooks").glob("*.failed.ipynb")}
    if not executed | failed:
        raise ValueError(f"{folder}: no executed notebook to report on; lqrlab run --folder {folder} makes them")
    run = _json(folder / "run.json")
    pages = []
    for name, path in sorted((executed | failed).items()):
        result = _json(folder / "results" / f"{name}.json")
        pages.append(render(path, result, name=name, failed=name in failed))
    target = folder / "report"
    target.mkdir(exist_ok=True)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True)
    environment.filters["value"] = _value
    shared = {
        "style": (_TEMPLATES / "report.css").read_text(encoding="utf-8"),
        "pages": pages,
        "run": run,
        "folder": folder.resolve().name,
        "versions": run.get("versions") or next((p.result["versions"] for p in pages if p.result), {}),
    }
    for page in pages:
        _replace(target / f"{page.name}.html", environment.get_template("page.html.j2").render(page=page, **shared))
    return _replace(target / "index.html", environment.get_template("index.html.j2").render(**shared))


def render(path: Path, result: dict[str, Any] | None = None, *, name: str = "", failed: bool = False) -> Page:
    """Render one executed notebook."""
    nb = nbformat.read(path, 4)
    declared = notebooks.read(path)
    given = nb.metadata.get("papermill", {}).get("parameters", {})
    parameters = [
        (p.name, given.get(p.name, p.default), p.default, p.about)
        for p in declared.parameters.values()
        if p.name != "run"
    ]
    _tidy(nb)
    exporter = _Exporter()
    body, _ = exporter.from_notebook_node(nb, {"metadata": {"path": _origin(nb)}})
    contents = list(exporter.contents)
    front = [cell for cell in nb.cells if cell.cell_type == "code" and "summary" in notebooks.tags(cell)]
    summary, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=front), {"outputs_only": True})
    lead = next((p for p in BeautifulSoup(body, "html.parser").select(".prose > p") if p.get_text(strip=True)), "")
    return Page(
        name=name or path.stem,
        title=declared.title,
        lead=str(lead),
        body=_clean(body),
        summary=_clean(summary),
        contents=contents,
        parameters=parameters,
        result=result or {},
        failed=failed,
    )


# Formulas -----------------------------------------------------------------------------------------------

_BRACKETS = {
    "p": ("(", ")"),
    "b": ("[", "]"),
    "B": (r"\{", r"\}"),
    "v": ("|", "|"),
    "V": (r"\lVert", r"\rVert"),
}
_REWRITTEN = (
    (r"\\(begin|end)\{(align|aligned|gather\*?|gathered|eqnarray\*?|equation\*?|multline\*?)\}", r"\\\1{align*}"),
    (r"\\mathrm\{([^{}\\]*)\}", r"\\text{\1}"),  # a single letter would come out slanted
    (r"\\operatorname\*?\{([^{}]*)\}", lambda m: r"\mathop{\text{" + re.sub(r"\\[,;: ]", " ", m[1]) + "}}"),
    (r"\\(label|nonumber|notag)(\{[^{}]*\})?", ""),
    # brackets that grow with what they hold
    (r"\\begin\{([pbBvV])matrix\}", lambda m: rf"\left{_BRACKETS[m[1]][0]}\begin{{matrix}}"),
    (r"\\end\{([pbBvV])matrix\}", lambda m: rf"\end{{matrix}}\right{_BRACKETS[m[1]][1]}"),
)

# a sign after an operator or a space belongs to what follows: = −Kx, not = − Kx
_SIGN = re.compile(
    r"((?:<mo(?: [^>]*)?>(?!&#x00029;|&#x0005D;|&#x0007D;|&#x0007C;|&#x02016;)[^<]*</mo>|<mspace[^>]*/>))"
    r"<mo>(&#x02212;|&#x0002B;)</mo>"
)


def mathml(latex: str, *, display: bool = False) -> str:
    """LaTeX as MathML; what cannot be converted is shown as it is written."""
    text = latex.strip()
    for pattern, replacement in _REWRITTEN:
        text = re.sub(pattern, replacement, text)  # type: ignore[arg-type]
    if display:  # below, where a formula stands alone
        text = re.sub(r"\\(min|max|inf|sup|lim)_", r"\\\1\\limits_", text)
    try:
        tree = latex2mathml.converter.convert(text, display="block" if display else "inline")
    except Exception:  # its parser raises many kinds, some of them built-in ones
        return f'<code class="latex">{html.escape(latex.strip())}</code>'
    return _SIGN.sub(r'\1<mo form="prefix">\2</mo>', tree)


def _latex_output(text: str) -> str:
    """A ``text/latex`` output: one formula, or prose with formulas in it."""
    text = text.strip()
    inner = re.fullmatch(r"(\$\$?)(?:\\displaystyle)?([^$]*)\1", text, flags=re.S)
    if inner:
        return mathml(inner[2], display=True)
    if "$" in text:
        return MarkdownWithMath(renderer=_Renderer([], escape=False)).render(text)
    return mathml(text, display=True)


# Cells --------------------------------------------------------------------------------------------------


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML and headings that can be linked to."""

    def __init__(self, contents: list[tuple[int, str, str]], **options: Any) -> None:
        super().__init__(embed_images=True, exclude_anchor_links=True, **options)
        self.contents = contents

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        plain = BeautifulSoup(text, "html.parser").get_text()
        base = re.sub(r"[^\w]+", "-", plain.lower()).strip("-") or "section"
        taken = {anchor for _, anchor, _ in self.contents}
        anchor = next(a for i in range(10_000) if (a := base if not i else f"{base}-{i + 1}") not in taken)
        self.contents.append((level, anchor, re.sub(r"</?a\b[^>]*>", "", text)))
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return f'<span class="formula">{mathml(body, display=True)}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


class _Exporter(HTMLExporter):
    """nbconvert with our template; ``contents`` holds the headings of the notebook exported last."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            template_name="base", template_file="cells.html.j2", extra_template_paths=[str(_TEMPLATES)], **options
        )
        self.contents: list[tuple[int, str, str]] = []

    @property
    def default_config(self) -> Any:
        config = super().default_config
        config.NbConvertBase.display_data_priority = list(_SHOWN)
        return config

    def default_filters(self) -> Iterable[tuple[str, Any]]:
        yield from super().default_filters()
        yield "markdown2html", self._markdown
        yield "latex2html", _latex_output

    @jinja2.pass_context
    def _markdown(self, context: Any, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        path = context.get("resources", {}).get("metadata", {}).get("path", "")
        renderer = _Renderer(self.contents, escape=False, attachments=attachments, path=path)
        return MarkdownWithMath(renderer=renderer).render(source)

    def from_notebook_node(self, nb: Any, resources: Any = None, **options: Any) -> tuple[str, Any]:
        self.contents.clear()
        return super().from_notebook_node(nb, resources, **options)


def _tidy(nb: Any) -> None:
    """Drop outputs that only a live page could show; give each image a text that stands for it."""
    heading = ""
    for cell in nb.cells:
        heading = [heading, *(text for _, text in notebooks.headings(cell))][-1]
        if cell.cell_type != "code":
            continue
        cell.outputs = [o for o in (_static(o) for o in cell.outputs) if o is not None]
        for output in cell.outputs:
            for kind in ("image/png", "image/jpeg", "image/svg+xml"):
                if kind in output.get("data", {}):
                    about = output.metadata.setdefault(kind, {})
                    about["alt"] = (
                        about.get("alt")
                        or output.metadata.get("alt")
                        or cell.metadata.get("alt")
                        or (f"Figure in the section “{heading}”" if heading else "Figure")
                    )


def _static(output: Any) -> Any:
    data = output.get("data")
    if data is None:
        return output
    widget = _WIDGET in data
    kept = {k: v for k, v in data.items() if k in _SHOWN and not (widget and k in ("text/plain", "text/html"))}
    if set(kept) == {"text/plain"} and re.match(r"<Figure size |<IPython\.core", str(kept["text/plain"])):
        kept = {}
    output["data"] = nbformat.NotebookNode(kept)
    return output if kept else None


def _origin(nb: Any) -> str:
    """The folder that pictures in Markdown are named from: the one of the notebook before it was executed."""
    source = nb.metadata.get("papermill", {}).get("input_path")
    return str(Path(source).parent) if source else ""


def _clean(body: str) -> str:
    """Take out what would load or run anything; let wide tables scroll; point at pages, not notebooks."""
    soup = BeautifulSoup(body, "html.parser")
    for tag in soup.select(_LOADING):
        tag.decompose()
    for tag in soup.find_all(True):
        for name, value in list(tag.attrs.items()):
            text = str(value).strip()
            elsewhere = name in ("href", "xlink:href") and tag.name != "a" and not text.startswith(("#", "data:"))
            if name.startswith("on") or name == "srcset" or elsewhere or text.lower().startswith("javascript:"):
                del tag[name]
            elif name == "style" and _LOADS.search(text):
                del tag[name]
    for tag in soup.find_all("style"):  # kept: those that speak of one table (pandas' Styler) or one drawing
        own = tag.find_parent("svg") or re.match(r"\s*#T_", tag.get_text())
        if not own or _LOADS.search(tag.get_text()):
            tag.decompose()
    for tag in soup.select("[src], [poster]"):
        if not str(tag.get("src", "data:")).startswith("data:") or tag.get("poster"):
            tag.replace_with(f"[{tag.get('alt') or 'picture'}: not part of this file]")
    for image in soup.find_all("img"):
        image["alt"] = image.get("alt") or "Picture"
        image["decoding"] = "async"
    for link in soup.select('a[href*=".ipynb"]'):
        link["href"] = re.sub(r"^(?!\w+:)(?:.*/)?([\w-]+)\.ipynb", r"\1.html", str(link["href"]))
    for link in soup.select('a[href^="http"]'):
        link["rel"] = "noreferrer"
    for table in soup.find_all("table"):
        del table["border"]
        caption = table.find("caption")
        label = caption.get_text(" ", strip=True) if caption else "Table"
        around = {"class": "scroll", "tabindex": "0", "role": "group", "aria-label": label}
        table.wrap(soup.new_tag("div", attrs=around))
    return str(soup)


# Files --------------------------------------------------------------------------------------------------


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
