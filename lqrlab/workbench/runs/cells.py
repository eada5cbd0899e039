"""The cells of an executed notebook as HTML that loads nothing, runs nothing and can be read by anyone."""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from jinja2.utils import markupsafe
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from lqrlab.workbench.figures.safe_html import mathml, plain_css, sanitise

_WIDGET = "application/vnd.jupyter.widget-view+json"
_SHOWN = ("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain")
_LIVE = r"<Figure size |<IPython\.core"  # what stands for things that only a live page can show


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML and headings that can be linked to."""

    def __init__(self, contents: list[tuple[int, str, str]], **options: Any) -> None:
        super().__init__(embed_images=True, exclude_anchor_links=True, escape=False, **options)
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


class Cells:
    """The cells of a notebook, each with what it shows as pieces of HTML, for ``templates/cells.html.j2``.

    Each piece is cleaned by itself, so that a tag left open in one does not swallow the next.
    """

    def __init__(self, nb: NotebookNode) -> None:
        self.nb, _ = CoalesceStreamsPreprocessor().preprocess(nb, {})  # text that was printed in pieces
        self.contents: list[tuple[int, str, str]] = []
        """Level, anchor and text of each heading."""
        self.lead = ""
        """The first paragraph."""
        self.heading = ""
        source = nb.metadata.get("papermill", {}).get("input_path")
        # pictures in Markdown are named from the folder of the notebook before it was executed
        self._folder = str(Path(source).parent) if source else ""
        self._highlight = Highlight2HTML(pygments_lexer=nb.metadata.get("language_info", {}).get("pygments_lexer"))
        for cell in self.nb.cells:
            if cell.cell_type == "markdown":
                cell.shown = self.markdown(cell.source, cell.get("attachments"))
            else:
                cell.shown = [piece for output in cell.get("outputs", []) for piece in self._pieces(cell, output)]

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
            return [("err" if output.name == "stderr" else "out", self.text(output.text))]
        if output.output_type == "error":
            return [("error", self.text("\n".join(output.traceback)))]
        hidden = ("text/plain", "text/html") if _WIDGET in output.data else ()
        kind = next((k for k in _SHOWN if k in output.data and k not in hidden), None)
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
        if kind == "text/markdown":
            return [("prose", self.markdown(data))]
        if kind == "text/latex":
            return [("formula", markupsafe.Markup(clean(_formulas(data))))]
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
    for table in soup.find_all("table"):
        del table["border"]
        caption = table.find("caption")
        label = caption.get_text(" ", strip=True) if caption else "Table"
        around = {"class": "scroll", "tabindex": "0", "role": "group", "aria-label": label}
        table.wrap(soup.new_tag("div", attrs=around))
    return "".join(styles) + sanitise(str(soup))  # last: nothing is written after it that it has not seen


def _formulas(text: str) -> str:
    """A ``text/latex`` output: one formula, or prose with formulas in it."""
    text = text.strip()
    inner = re.fullmatch(r"(\$\$?)(?:\\displaystyle)?([^$]*)\1", text, flags=re.S)
    if inner or "$" not in text:
        return mathml(inner[2] if inner else text, display=True)
    return MarkdownWithMath(renderer=_Renderer([])).render(text)
