"""The report of a small executed notebook: complete in itself, formulas as MathML, pictures put in words."""

import json
import re

import hostile_html
import nbformat
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner
from refusals import refused

from lqrlab.workbench.cli import main
from lqrlab.workbench.figures import digits, safe_html, svg, tables
from lqrlab.workbench.runs import report, run_folder

new = nbformat.v4
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
"""A picture of one point."""


def display(data, metadata=None):
    return new.new_output("display_data", data, metadata=metadata or {})


TABLE = (
    '<style>#T_1 {} @import url("https://cdn.example/x.css")</style><script src="https://cdn.example/x.js"></script>'
    "<style>body { display: none }</style><style>#T_2 td { color: red }</style><script>steal()</script>"
    '<table border="1" class="dataframe" onclick="steal()"><tr><th>plant</th><td>1.02</td></tr></table>'
    '<img src="https://cdn.example/x.png" alt="far away"><iframe src="https://cdn.example"></iframe>'
    '<p style="background: url(https://cdn.example/y.png)">text</p><a href="javascript:steal()">here</a>'
    '<svg viewBox="0 0 1 1"><style>circle { fill: red }</style><image href="https://cdn.example/z.png"/></svg>'
)
WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "IntSlider(value=0)"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "notebooks").mkdir()
    cells = [
        new.new_markdown_cell("# How close?\n\nThe optimum is $x_0^\\top P x_0$ and *nothing* is below it."),
        new.new_code_cell(
            'run: str = "x"\nseed: int = 3\nspread: float = 0.2  # half-width\nnames: list[str] = ["a"]',
            metadata={"tags": ["parameters"]},
        ),
        new.new_code_cell("spread = 0.3", metadata={"tags": ["injected-parameters"]}),
        new.new_markdown_cell(
            "## The score\n\n$$\nJ = \\begin{bmatrix} 1 & 2 \\end{bmatrix}, \\quad \\min_u J\n$$\n\n"
            "\\begin{align}\na &= b < c \\\\\nc &= -d\n\\end{align}\n\n"
            "## The score\n\n[next](03_training.ipynb#top), [paper](https://doi.org/10.1/1), `$5 and $6`\n\n"
            "![a drawing](https://cdn.example/w.png)"
        ),
        new.new_code_cell(
            "secret()", metadata={"tags": ["hide-input"]}, outputs=[display({"text/latex": "$\\frac{1}{2}$"})]
        ),
        new.new_code_cell(
            "plot()",
            metadata={"tags": ["summary", "show-input"]},
            outputs=[
                display({"image/png": PNG, "text/plain": "<Figure size>"}, {"image/png": {"alt": "Costs < 2"}}),
                display({"text/html": TABLE}),
                new.new_output("stream", name="stderr", text="a warning"),
            ],
        ),
        new.new_code_cell("plot()", metadata={"alt": "from the cell"}, outputs=[display({"image/png": PNG})]),
        new.new_code_cell("plot()", outputs=[display({"image/png": PNG}), display(WIDGET)]),
        new.new_code_cell("log()", outputs=[new.new_output("stream", text="\x1b[31mred\x1b[0m & <b>plain</b>")]),
    ]
    metadata = {"papermill": {"parameters": {"spread": 0.3, "run": "y"}}}
    nbformat.write(new.new_notebook(cells=cells, metadata=metadata), folder / "notebooks" / "04_scores.ipynb")
    failing = [
        new.new_markdown_cell("# Training"),
        new.new_code_cell("1/0", outputs=[new.new_output("error", ename="E", evalue="e", traceback=["E: <e>"])]),
    ]
    nbformat.write(new.new_notebook(cells=failing), folder / "notebooks" / "03_training.failed.ipynb")
    (folder / "results").mkdir()
    numbers = {"headline": {"cost above the least": ("7 %", "old plants"), "<b>lost": ("0 %", "new plants")}}
    result = {"seconds": 65.0, "started": "2026-11-21T10:00:00+00:00", "device": "1 × cpu", "numbers": numbers}
    (folder / "results" / "04_scores.json").write_text(json.dumps(result))
    run = {"profile": "tiny", "commit": "abc+", "status": "failed at 03_training"}
    run["versions"] = {"lqrlab": "0.1.0", "jax": "0.10.2"}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


@pytest.fixture(scope="module")
def pages(folder):
    index = report.write(folder)
    assert index == folder / "report" / "index.html"
    return {p.stem: BeautifulSoup(p.read_text(), "html.parser") for p in index.parent.iterdir()}


def test_there_is_a_page_for_each_notebook_and_a_front_page(pages):
    assert set(pages) == {"index", "03_training", "04_scores"}
    for page in pages.values():
        assert {a["href"] for a in page.select(".bar a")} == {"index.html", "03_training.html", "04_scores.html"}


def test_one_file_has_all_of_the_report(folder, pages):
    """It stands alone: what leads to another page leads within it; anchors of both notebooks are told apart."""
    path = report.write(folder, whole=True)
    assert path.parent == folder / "report"
    page = BeautifulSoup(path.read_text(), "html.parser")
    path.unlink()
    links = [a["href"] for a in page.select(".bar a")]
    assert links == ["#main", "#03_training", "#04_scores"]
    ids = [tag["id"] for tag in page.find_all(id=True)]
    assert {link[1:] for link in links} <= {*ids}
    heads = [h["id"] for h in page.select("h1[id], h2[id], h3[id]")]
    assert len(heads) == len({*heads}) > 2
    assert [a["href"] for a in page.select("a[href]") if not a["href"].startswith(("#", "http"))] == []
    for name in ("03_training", "04_scores"):
        here, there = page.find(id=name), pages[name].select_one("article")
        assert len(here.select("svg, img")) == len(there.select("svg, img"))
        assert all(p.get_text() in here.get_text() for p in there.find_all("p"))
    assert page.find("a", string="next")["href"] == "#03_training-top"
    assert CliRunner().invoke(main, ["report", "--one-file"]).exit_code == 2


def test_nothing_is_loaded_and_nothing_runs(pages):
    for page in pages.values():
        assert not page.select("script, iframe, link, object, embed")
        for tag in page.find_all(True):
            assert not [name for name in tag.attrs if name.startswith("on")]
            for name in ("src", "srcset", "poster", "data", "xlink:href"):
                assert str(tag.get(name, "data:")).startswith("data:"), tag
            assert "url(" not in tag.get("style", "")
            if tag.name == "a":
                assert not tag.get("href", "").startswith("javascript")
            else:
                assert "href" not in tag.attrs
        for style in page.find_all("style"):
            assert not re.search(r"@import|https?:|url\(", style.get_text())
        policy = page.select_one('meta[http-equiv="Content-Security-Policy"]')["content"]
        assert "default-src 'none'" in policy
    kept = [style.get_text() for style in pages["04_scores"].select("article style")]
    assert kept == ["#T_2 td { color: red }", "circle { fill: red }"]  # of a table, of a drawing


def test_formulas_are_mathml(pages):
    page = pages["04_scores"]
    assert len(page.select("article .prose > p math[display=inline]")) == 1
    assert len(page.select("article .formula math[display=block]")) == 3
    assert len(page.select("math mtable")) == 2  # the matrix and the aligned lines
    assert page.select("math munder")
    text = page.select_one("article").get_text()
    assert "\\" not in text
    assert "$5 and $6" in text  # code stays code


def test_what_latex_cannot_do_is_shown_as_written():
    assert safe_html.mathml(r"a < \frac{") == '<code class="latex">a &lt; \\frac{</code>'
    assert '<mo form="prefix">−</mo><mi>K</mi>' in safe_html.mathml("u = -K")
    assert "prefix" not in safe_html.mathml("(u) - K")


def test_pictures_have_a_text_that_stands_for_them(pages):
    alts = [image["alt"] for image in pages["04_scores"].select("figure img")]
    assert alts == ["Costs < 2", "from the cell", "Figure in the section “The score”"]
    assert all(image.get("alt") for page in pages.values() for image in page.find_all("img"))


def test_code_is_folded_or_hidden(pages):
    page = pages["04_scores"]
    assert [d.select_one("summary").get_text() for d in page.select("details.code")] == ["Parameters", *["Code"] * 4]
    assert ["open" in d.attrs for d in page.select("details.code")] == [False, True, False, False, False]
    text = page.select_one("article").get_text()
    assert "secret()" not in text
    assert "spread = 0.3" not in text
    assert "IntSlider" not in text
    assert "<Figure" not in text
    assert "red & <b>plain</b>" in text


def test_contents_and_links(pages):
    page = pages["04_scores"]
    assert [a["href"] for a in page.select(".contents a")] == ["#the-score", "#the-score-2"]
    assert all(page.find(id=a["href"][1:]) for a in page.select(".contents a"))
    links = [a.get("href") for a in page.select("article .prose a")]
    assert links == ["03_training.html#top", "https://doi.org/10.1/1"]
    ids = [tag["id"] for tag in page.select("[id]")]
    assert len(ids) == len(set(ids))


def test_the_head_tells_parameters_seed_versions_commit(pages):
    page = pages["04_scores"]
    facts = {div.dt.get_text(): div.dd.get_text() for div in page.select("dl.facts div")}
    assert facts["Seed"] == "3"
    assert facts["Profile"] == "tiny"
    assert facts["Took"] == "0:01:05"
    rows = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in page.select(".parameters tbody tr")]
    assert rows == [["seed", "3", "–", ""], ["spread", "0.3", "0.2", "half-width"], ["names", "a", "–", ""]]
    assert len(page.select(".parameters .changed")) == 1
    assert "jax\N{NO-BREAK SPACE}0.10.2" in page.select_one(".versions").get_text()
    assert "abc with local changes" in page.select_one("footer").get_text()


def test_the_front_page_gathers_the_summaries(pages):
    page = pages["index"]
    (first,) = page.select("dl.headline ~ section.summary")
    assert not first.h2  # it answers what the headline says
    assert [i["alt"] for i in first.select("figure img")] == ["Costs < 2"]
    assert first.select_one(".scroll table td").get_text() == "1.02"
    assert page.select_one("h1 + .notice + dl.headline").get_text(" ", strip=True) == (
        "cost above the least 7\N{NO-BREAK SPACE}% old plants <b>lost 0\N{NO-BREAK SPACE}% new plants"
    )
    assert "a warning" not in page.get_text()
    assert "plot()" not in page.get_text()
    assert [a["href"] for a in page.select(".pages h3 a")] == ["03_training.html", "04_scores.html"]
    assert "stopped at an error" in page.select_one(".pages").get_text()


def test_a_number_is_written_out_and_stays_with_its_unit():
    numbers = 351.2, -4e-9, 1.1237 + 0j, -0.5 + 2j, 12345.6, np.nan, -np.inf, -0.0
    assert [*map(digits, numbers)] == ["351", "−4·10⁻⁹", "1.12", "−0.5 + 2j", "12,300", "–", "−∞", "0"]
    made = BeautifulSoup(report.clean("<p>2.09 % of 3 s, 4 plants</p><pre>5 % 2</pre>"), "html.parser")
    assert made.get_text() == "2.09\N{NO-BREAK SPACE}% of 3\N{NO-BREAK SPACE}s, 4 plants5 % 2"


def test_a_notebook_that_failed_says_so(pages):
    assert "stopped at an error" in pages["03_training"].select_one(".notice").get_text()
    assert "E: <e>" in pages["03_training"].select_one("pre.error").get_text()
    assert not pages["04_scores"].select(".notice")


_RUNNING = "animate base button embed foreignobject form iframe link meta noscript object script set style template"
_SCHEME = re.compile(r"(?!(https?|mailto):|data:(image|video|audio)/)[\0-\x20a-z0-9+.-]*:", re.I)


def runs(markup):
    """What in the markup could run a script or load something."""
    found = []
    for tag in BeautifulSoup(markup, "html.parser").find_all(True):
        links = [name for name in ("href", "xlink:href", "src") if _SCHEME.match(tag.get(name, ""))]
        found += (
            [tag.name] * (tag.name in _RUNNING.split()) + [name for name in tag.attrs if name.startswith("on")] + links
        )
    return found


def test_nothing_that_was_sanitised_runs():
    for payload in hostile_html.PAYLOADS:
        clean = safe_html.sanitise(payload)
        assert not runs(clean), payload
        assert safe_html.sanitise(clean) == clean  # read again, it is the same
        assert not runs(safe_html.mathml(rf"\text{{{payload}}}_{{{payload}}}")), payload


def test_a_name_is_shown_as_it_is_written(tmp_path):
    def page(path):
        return BeautifulSoup(path.read_text(), "html.parser")

    for payload in hostile_html.PAYLOADS:
        drawing = svg.Picture(svg.document(svg.text(0, 0, payload), 9, 9, payload), payload)
        shown = page(drawing.save(tmp_path / "a.html"))
        assert shown.find("text").get_text() == shown.title.get_text() == shown.svg["aria-label"] == payload
        shown = page(svg.HtmlPage("", "", payload).save(tmp_path / "b.html"))
        assert shown.h1.get_text() == shown.title.get_text() == payload
        assert shown.select_one("meta[http-equiv]")["content"] == safe_html.POLICY


def test_a_table_shows_names_as_they_are_written():
    names, together = list(hostile_html.PAYLOADS), "".join(hostile_html.PAYLOADS)
    frame = pd.DataFrame([names], columns=names, index=pd.Index([together], name="i"))
    shown = BeautifulSoup(tables.show(frame, together).to_html(), "html.parser")
    assert shown.caption.get_text() == together
    assert [cell.get_text() for cell in shown.find_all(["th", "td"])] == ["i", *names, together, *names]


def test_drawings_tables_and_formulas_are_kept_as_they_are():
    drawing = (
        '<svg class="lq-all" viewBox="0 0 9 9" role="img" aria-label="a"><g class="lq-m" style="animation-name:q1">'
        '<path class="lq-curve" d="M0 0h9" transform="translate(1 2)" vector-effect="non-scaling-stroke"></path></g>'
        '<svg x="1" preserveAspectRatio="none"></svg><image href="data:image/png;base64,AA"></image></svg>'
    )
    box = '<label class="lq-play"><input type="checkbox"><span class="lq-pause"> pause</span></label>'
    table = '<table id="T_1"><tbody><tr><td style="text-align: left">1 &lt; 2</td></tr></tbody></table>'
    for markup in (drawing, box, table, safe_html.mathml(r"\frac{1}{2}x_k^\top")):
        assert safe_html.sanitise(markup) == markup


@pytest.mark.parametrize(
    "style", ["background:url(//x)", "@import 'x'", r"background:u\72l(//x)", "background:image-set('x')"]
)
def test_a_style_that_loads_is_left_out(style):
    assert not safe_html.plain_css(style)
    assert safe_html.sanitise(f'<p style="{style}">x</p>') == "<p>x</p>"


@pytest.mark.filterwarnings("ignore:No lexer found")  # for the language that the notebook claims
def test_a_report_of_hostile_names_runs_nothing_and_lacks_nothing(tmp_path):
    front = report.write(hostile_html.run(tmp_path / "run"))
    for path in (front, front.with_name("01_names.html")):
        head, _, body = path.read_text().partition("<body>")
        assert head.count(safe_html.POLICY) == 1
        ours = f"<script>{svg.STRIP_SCRIPT}</script>"
        assert body.count(ours) == (path != front)  # which an output has asked for
        assert not [what for what in runs(body.replace(ours, "")) if what != "style"]
    assert body.count("The end.") == 1
    assert body.rindex("The end.") > body.rindex("stream error")


def test_the_list_of_runs_has_their_headlines_and_links(folder, pages, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "old").symlink_to(folder)
    head, row = BeautifulSoup(report.index(tmp_path).read_text(), "html.parser").select("tr")
    shown = dict(zip((cell.get_text() for cell in head.select("th")), row.select("th, td")))
    assert shown["cost above the least"].a["href"] == "runs/old/report/04_scores.html"
    of_run = [shown[key].get_text() for key in ("name", "cost above the least", "<b>lost", "profile", "took")]
    assert of_run == ["old", "7\N{NO-BREAK SPACE}%", "0\N{NO-BREAK SPACE}%", "tiny", "–"]


def test_a_page_that_is_not_lqrlabs_is_not_overwritten(tmp_path):
    run_folder.begin(tmp_path / "run.json")
    refused("no executed notebook", report.write, tmp_path)
    page = tmp_path / "index.html"
    page.write_text("<p>mine")
    refused(r"index.html: expected a list of runs .* found another page; move it", report.index, tmp_path)
    assert page.read_text() == "<p>mine"
    page.write_text("<meta " + report._GENERATOR.decode() + ">")
    refused("no run and no sweep to list", report.index, tmp_path)
