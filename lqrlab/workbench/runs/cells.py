"""The cells of an executed notebook as HTML that loads nothing, runs nothing and can be read by anyone."""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from traitlets.config import Config

from lqrlab.workbench.figures.formulas import mathml
from lqrlab.workbench.figures.safe_html import plain_css, sanitise
from lqrlab.workbench.runs import notebooks

TEMPLATES = Path(__file__).parent / "templates"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_SHOWN = ("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain")


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML and headings that can be linked to."""

    def __init__(self, contents: list[tuple[int, str, str]], **options: Any) -> None:
        super().__init__(embed_images=True, exclude_anchor_links=True, **options)
        self.contents = contents

    def heading(self, text: str, level: int, **attrs: object) -> str:
        plain = BeautifulSoup(text, "html.parser").get_text()
        base = re.sub(r"[^\w]+", "-", plain.lower()).strip("-") or "section"
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


class Exporter(HTMLExporter):
    """nbconvert with our template; ``contents``, ``lead``: headings and first paragraph of the notebook exported last.

    Each output and each piece of Markdown is cleaned by itself, so that a tag left open in one does not swallow the
    next, and the page around them once more. Outputs are put into it at the end: they can be megabytes, and nbconvert
    parses a page whole.
    """

    def __init__(self, **options: object) -> None:
        ours = {"template_file": "cells.html.j2", "extra_template_paths": [str(TEMPLATES)]}
        super().__init__(template_name="base", **ours, **options)
        self.contents: list[tuple[int, str, str]] = []
        self.lead = ""
        self._styles: list[str] = []
        self._outputs: dict[str, str] = {}

    @property
    def default_config(self) -> Config:
        """nbconvert's settings, with the order in which we prefer one form of an output to another."""
        config = super().default_config
        config.NbConvertBase.display_data_priority = list(_SHOWN)
        config.CoalesceStreamsPreprocessor.enabled = True  # text that was printed in pieces
        return config

    def default_filters(self) -> Iterable[tuple[str, Callable[..., str]]]:
        """nbconvert's filters, three of them ours."""
        yield from super().default_filters()
        yield "markdown2html", self._markdown
        yield "latex2html", lambda text: self._cleaned(_latex_output(text))
        yield "clean", self._placeholder

    @jinja2.pass_context
    def _markdown(self, context: Mapping[str, dict], source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        path = context.get("resources", {}).get("metadata", {}).get("path", "")
        renderer = _Renderer(self.contents, escape=False, attachments=attachments, path=path)
        return self._cleaned(MarkdownWithMath(renderer=renderer).render(source))

    def _cleaned(self, markup: str) -> str:
        styles, markup = clean(markup)
        self._styles += styles
        return markup

    def _placeholder(self, markup: str) -> str:
        """Placeholder of an output until the page is made; nobody can guess it, and so write it elsewhere."""
        name = secrets.token_hex(16)
        self._outputs[name] = self._cleaned(markup)
        return name

    def from_notebook_node(self, nb: NotebookNode, *more: Any, **options: Any) -> Any:
        """The body as HTML, and nbconvert's resources."""
        for made in (self.contents, self._styles, self._outputs):
            made.clear()
        body, resources = super().from_notebook_node(nb, *more, **options)
        body = sanitise(body)
        paragraphs = BeautifulSoup(body, "html.parser").select(".prose > p")
        self.lead = sanitise(str(next((p for p in paragraphs if p.get_text(strip=True)), "")))
        body = re.sub("[0-9a-f]{32}", lambda found: self._outputs.get(found[0], found[0]), body)
        return "".join(self._styles) + body, resources


def tidy(nb: NotebookNode) -> None:
    """Drop outputs that only a live page could show; give each image a text that stands for it."""
    heading = ""
    for cell in nb.cells:
        heading = [heading, *(text for _, text in notebooks.headings(cell))][-1]
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in map(_static, cell.outputs) if output is not None]
        default = f"Figure in the section “{heading}”" if heading else "Figure"
        for output in cell.outputs:
            for kind in {"image/png", "image/jpeg", "image/svg+xml"} & set(output.get("data", {})):
                about = output.metadata.setdefault(kind, {})
                words = (about.get("alt"), output.metadata.get("alt"), cell.metadata.get("alt"), default)
                about["alt"] = next(filter(None, words))


def _static(output: NotebookNode) -> NotebookNode | None:
    data = output.get("data")
    if data is None:
        return output
    hidden = ("text/plain", "text/html") if _WIDGET in data else ()
    kept = {k: v for k, v in data.items() if k in _SHOWN and k not in hidden}
    if set(kept) == {"text/plain"} and re.match(r"<Figure size |<IPython\.core", str(kept["text/plain"])):
        kept = {}
    output["data"] = NotebookNode(kept)
    return output if kept else None


def origin(nb: NotebookNode) -> str:
    """The folder that pictures in Markdown are named from: the one of the notebook before it was executed."""
    source = nb.metadata.get("papermill", {}).get("input_path")
    return str(Path(source).parent) if source else ""


def clean(body: str) -> tuple[list[str], str]:
    """Keep what neither loads nor runs anything; let wide tables scroll; point at pages, not notebooks.

    Returns the style elements that are kept, and the rest.
    """
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
    for table in soup.find_all("table"):
        del table["border"]
        caption = table.find("caption")
        label = caption.get_text(" ", strip=True) if caption else "Table"
        around = {"class": "scroll", "tabindex": "0", "role": "group", "aria-label": label}
        table.wrap(soup.new_tag("div", attrs=around))
    return styles, sanitise(str(soup))  # last: nothing is written after it that it has not seen


def _latex_output(text: str) -> str:
    """A ``text/latex`` output: one formula, or prose with formulas in it."""
    text = text.strip()
    inner = re.fullmatch(r"(\$\$?)(?:\\displaystyle)?([^$]*)\1", text, flags=re.S)
    if inner:
        return mathml(inner[2], display=True)
    if "$" in text:
        return MarkdownWithMath(renderer=_Renderer([], escape=False)).render(text)
    return mathml(text, display=True)
