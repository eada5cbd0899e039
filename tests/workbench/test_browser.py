"""What people see, in a real browser: JupyterLab with panels; reports without a network, to everybody's eyes."""

import html
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import hostile_html
import nbformat
import numpy as np
import pandas as pd
import pytest
import test_report

from lqrlab import dataset, learning, systems
from lqrlab.workbench import widgets
from lqrlab.workbench.figures import catalogue_page, data_card
from lqrlab.workbench.runs import report, run_folder, sweep

pytestmark = [pytest.mark.browser, pytest.mark.matrix]
ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def chromium():
    """The system's browser; nothing is downloaded."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; on Debian: apt install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


# Panels in JupyterLab --------------------------------------------------------------------------------------------


PANELS = (
    'widgets.lqr_designer("cart_pole")',
    'widgets.mpc_designer("double_integrator")',
    'widgets.attraction_map("pendulum")',
    'widgets.loop_shaper("pendulum")',
    'widgets.policy_inspector(learning.pretrained("regulator"), systems.make("cart_pole"))',
    'widgets.data_browser("set")',
    'widgets.training_monitor("training")',
)


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory):
    """JupyterLab with the settings of ``make lab``; a data set, a training, a notebook that names no kernel."""
    work, own = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("jupyter")
    config = dataset.DataConfig(families=("mass_spring_damper", "pendulum"), variants=3, trajectories=2, num_steps=20)
    made = dataset.generate(config, work / "set")
    model = learning.ModelConfig(kind="gain", window=1, hidden=16)
    train = learning.TrainConfig(num_steps=8, batch_size=8, plants=8, closed_loop=0.0, report_every=4)
    learning.fit(dataset.source(made, batch_size=8, window=1), model, train, work / "training")
    cells = ("from lqrlab import learning, systems\nfrom lqrlab.workbench import widgets", *PANELS)
    nbformat.write(nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)]), work / "p.ipynb")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LQRLAB_HEADLESS", "JUPYTER"))}
    env |= {f"JUPYTER{s}_DIR": str(own / s) for s in ("_CONFIG", "_DATA", "_RUNTIME", "LAB_SETTINGS", "LAB_WORKSPACES")}
    env |= {"JUPYTER_CONFIG_PATH": str(ROOT / "tools" / "jupyter")}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])}
    options = ["--no-browser", "--allow-root", "--port=0", "--IdentityProvider.token=", "--ServerApp.password="]
    options += [f"--ServerApp.root_dir={work}", "--LabApp.extension_manager=readonly"]
    with (said := own / "server.log").open("w") as log:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=work)
    try:
        deadline = time.monotonic() + 120
        while not (found := [file.read_text() for file in own.glob("_RUNTIME/jpserver-*.json") if file.stat().st_size]):
            assert server.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        yield json.loads(found[0])["url"]
    finally:
        server.terminate()  # takes its kernels along
        server.wait(20)


@pytest.fixture(scope="module")
def panels(chromium, jupyterlab):
    """The panels of one notebook that was run, on a laptop's screen; the browser has nothing to complain of."""
    page, errors = chromium.new_page(viewport={"width": 1280, "height": 800}), []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{jupyterlab}lab/tree/p.ipynb", timeout=40_000)
    idle = page.locator("#jp-main-statusbar :text('| Idle')")
    idle.wait_for(timeout=60_000)
    page.click("text=Run >> nth=0")
    page.click(".lm-Menu-item[data-command='runmenu:run-all']")
    panels = page.locator(".lq-panel")
    panels.nth(len(PANELS) - 1).wait_for(timeout=60_000)
    idle.wait_for(timeout=60_000)
    yield panels
    page.close()
    assert errors == []


BOTTOM = """panel => {
  const top = panel.getBoundingClientRect().top, wide = panel.getBoundingClientRect().right;
  const whole = [...panel.querySelectorAll('svg')].filter(svg => !svg.parentElement.closest('svg'));
  const drawn = whole.map(svg => svg.getBoundingClientRect());
  const large = drawn.filter(box => box.height > 100);
  const right = Math.max(...large.map(box => box.right)), left = Math.min(...large.map(box => box.left));
  const share = (right - left) / panel.getBoundingClientRect().width;
  return [share, Math.max(...large.map(box => box.bottom)) - top, Math.max(...drawn.map(b => b.right)) - wide];
}"""
"""Share of a panel's width that pictures use, how far below its top the last ends, how far it juts out to the right."""


REACHED = """panel => {
  const e = document.activeElement;
  if (!panel.contains(e)) return null;
  const label = e.labels && e.labels.length ? e.labels[0].textContent : '';
  const words = e.ariaLabel || label || e.textContent || e.placeholder;
  return [e.tagName + (e.id || e.className) + words, words.trim()];
}"""
"""What the keyboard has come to in a panel, and how it is called; nothing outside of it."""
CONTROLS = """panel => [...panel.querySelectorAll('.noUi-handle, select, button, input')].filter(
  e => e.getBoundingClientRect().width > 0 && !e.disabled).length"""


def reached(panel):
    """Names of the controls that Tab comes to, from the first of a panel until it leaves it."""
    panel.locator("button, select, input, .noUi-handle, .lm-TabBar-tab").locator("visible=true").first.focus()
    found = {}
    for _ in range(80):
        if (one := panel.evaluate(REACHED)) is None:
            break
        found[one[0]] = one[1]
        panel.page.keyboard.press("Tab")
    return found


def view_of(page):
    return page.locator(".jp-WindowedPanel-outer").first.evaluate("e => e.clientHeight")


def test_controls_and_picture_are_on_a_screen_together(panels):
    """On a larger screen and a laptop's, whose side bar is closed, and open as it is at first."""
    page = panels.page
    for width, height, closed in ((1680, 1000, True), (1280, 800, True), (1280, 800, False)):
        page.set_viewport_size({"width": width, "height": height})
        bar = page.locator("#jp-left-stack")
        if closed == bar.is_visible():
            page.click(".lm-TabBar-tab[data-id='filebrowser']")
            bar.wait_for(state="hidden" if closed else "visible")
        for i, source in enumerate(PANELS):
            panels.nth(i).scroll_into_view_if_needed()
            panels.nth(i).locator("svg >> visible=true").first.wait_for(timeout=60_000)
            share, bottom, out = panels.nth(i).evaluate(BOTTOM)
            assert share >= 0.8, source
            assert bottom <= view_of(page), source
            assert out <= 0, source
    for i, source in enumerate(PANELS):  # by the keyboard alone: every control is come to and has a name
        panels.nth(i).scroll_into_view_if_needed()
        there, found = panels.nth(i).evaluate(CONTROLS), reached(panels.nth(i))
        assert len(found) >= there, source
        assert all(found.values()), (source, found)


DRAWN = """([panel, before]) => {
  const drawn = [...panel.querySelectorAll('svg')].map(svg => svg.outerHTML).join(), now = performance.now();
  const idle = document.querySelector('#jp-main-statusbar').textContent.includes('| Idle');
  if (panel.innerHTML !== panel.seen || !idle) [panel.seen, panel.since] = [panel.innerHTML, now];
  return now > panel.since + 1000 && !panel.seen.includes('computing…') && drawn !== before && drawn;
}"""


def rested(panel, before=None):
    """What a panel shows, other than before, once its kernel is idle and nothing in it has changed for a second."""
    panel.evaluate("panel => {panel.seen = ''}")
    return panel.page.wait_for_function(DRAWN, arg=[panel.element_handle(), before], timeout=40_000).json_value()


def redrawn(panel, move, *args, **kwargs):
    """What a move does to a panel is to be seen in it, after all that earlier moves do and before what comes next."""
    before = rested(panel)
    move(*args, **kwargs)
    rested(panel, before)


@pytest.fixture
def designer(panels):
    panels.page.set_viewport_size({"width": 1280, "height": 800})
    panels.first.scroll_into_view_if_needed()
    panels.first.evaluate("e => e.scrollIntoView()")
    return panels.first


LETTERS = """svg => {
  const wide = svg.getBoundingClientRect().width, zoom = wide / svg.viewBox.baseVal.width;
  const sizes = [...svg.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize) * zoom);
  return [wide, Math.min(...sizes)];
}"""
"""Width of a picture and size of its smallest letters, in pixels of the screen."""


def test_a_slider_moves_the_curve(designer):
    page, picture = designer.page, designer.locator("svg.lq-all").first
    for width in (1280, 1920):  # below the controls, and beside them
        page.set_viewport_size({"width": width, "height": 800})
        wide, letters = picture.evaluate(LETTERS)
        assert wide >= 700
        assert letters >= 9.0
    long = [bar.bounding_box()["width"] for bar in designer.locator(".noUi-base >> visible=true").all()]
    assert min(long) >= 160  # nearly a pixel a step, of which there are 200
    names = designer.locator(".noUi-handle").evaluate_all("hs => hs.map(h => h.ariaLabel)")
    assert {"Q: position ×", "delay [samples]", "cart mass [kg]"} <= {*names}
    designer.locator(".noUi-handle").first.focus()
    redrawn(designer, page.keyboard.press, "ArrowRight")


def test_a_panel_is_used_by_the_keyboard_alone(designer):
    """Arrows and Enter change pages and values, which JupyterLab would take for its cells, and the picture follows."""
    press = designer.page.keyboard.press
    designer.locator(".lm-TabBar-tab").first.focus()
    press("ArrowRight")
    press("Enter")
    designer.locator("label:text-is('controller') >> visible=true").wait_for(timeout=5000)
    designer.locator("select >> visible=true").first.focus()
    redrawn(designer, press, "ArrowDown")
    designer.locator("text=Placed at >> visible=true").wait_for(timeout=20_000)


def test_a_kind_of_controller_is_chosen_and_a_specification_is_moved(designer):
    page, view = designer.page, view_of(designer.page)
    designer.locator(".lm-TabBar-tabLabel:text-is('controller')").click()
    for kind in ("LQG", "integral action", "pole placement"):
        redrawn(designer, designer.locator("select >> visible=true").first.select_option, kind)
        assert designer.evaluate(BOTTOM)[1] <= view
    designer.locator(".lm-TabBar-tabLabel:text-is('loop')").click()
    redrawn(designer, designer.locator("select >> visible=true").last.select_option, "step and specifications")
    designer.locator("text=over its set-point").wait_for(timeout=20_000)
    designer.locator(".lm-TabBar-tabLabel:text-is('specifications')").click()
    assert designer.evaluate(BOTTOM)[1] <= view
    settled = designer.locator("svg .lq-forbidden >> visible=true").nth(1)  # the first forbids an overshoot
    before = settled.bounding_box()["x"]
    designer.locator(".noUi-handle >> visible=true").first.focus()
    for _ in range(3):
        redrawn(designer, page.keyboard.press, "ArrowRight")
    assert settled.bounding_box()["x"] > before + 2


ROOTS = """all => all.filter(p => ['m-4 -4l8 8m0 -8l-8 8', 'a5 5 0 1 0 -10 0'].some(
  end => p.getAttribute('d').endsWith(end))).map(p => p.getBoundingClientRect()).map(
  r => [r.x + r.width / 2, r.y + r.height / 2])"""
"""Middles of a loop shaper's poles and zeros, which are drawn last in its plane."""


def test_the_loop_gain_follows_the_mouse(panels):
    """A click is answered once; moves that come faster than answers end where the mouse does, and move nothing else."""
    page, panel = panels.page, panels.nth(3)
    panel.scroll_into_view_if_needed()
    panel.locator("text=Gain margin").wait_for(timeout=60_000)
    panel.evaluate("e => e.scrollIntoView()")
    rested(panel)
    plane, gains = panel.locator("svg").first, [panel.locator(".widget-readout").first.inner_text()]
    box = plane.bounding_box()
    plane.evaluate("e => {top.n = 0; new MutationObserver(() => top.n++).observe(e.parentNode, {childList: true})}")
    x, y = box["x"] + 0.25 * box["width"], box["y"] + 0.42 * box["height"]
    page.mouse.move(x, y)
    redrawn(panel, page.mouse.down)
    assert page.evaluate("top.n") == 1
    for up in (80, 40, 80):
        redrawn(panel, page.mouse.move, x, y - up, steps=20)
        gains.append(panel.locator(".widget-readout").first.inner_text())
    page.mouse.up()
    assert float(gains[0]) + 10 < float(gains[1]) == float(gains[3])
    before = sorted(plane.locator("path").evaluate_all(ROOTS))
    x, y = before[-2]  # the lead's pole; the roll-off waits at the right end
    page.mouse.move(x, y)
    page.mouse.down()
    for right in (-60, 15):
        redrawn(panel, page.mouse.move, x + right, y, steps=20)
    page.mouse.up()
    after = sorted(plane.locator("path").evaluate_all(ROOTS))
    assert after[-2][0] == pytest.approx(x + 15, abs=3)
    assert [c[0] for c in after[:-2]] == pytest.approx([c[0] for c in before[:-2]], abs=1)


# Pages ----------------------------------------------------------------------------------------------------------


SCHEMES = ("light", "dark")


def mailed(folder):
    """The report of a notebook that shows the designer's strip and nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LQRLAB_HEADLESS", "1")
        made = widgets.lqr_designer("cart_pole")
    (folder / "notebooks").mkdir(parents=True)
    output = nbformat.v4.new_output("display_data", {"text/html": made.html, "text/plain": made.alt})
    cells = [nbformat.v4.new_markdown_cell("# Exploration"), nbformat.v4.new_code_cell("", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "notebooks" / "01_exploration.ipynb")
    run_folder.begin(folder / "run.json")
    report.write(folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page of each kind that lqrlab writes: of a notebook, of a run, of a sweep, of all runs, of plants."""
    data = tmp_path_factory.mktemp("data")
    run = data / "runs" / "run"
    shutil.copytree(test_report.folder.__wrapped__(tmp_path_factory), run)
    report.write(run)
    report.write(run, whole=True)
    folder = data / "sweeps" / "cart_pole"
    points = [{"length": 0.1 * i, "dt": (0.01, 0.02)[i % 2]} for i in range(1, 80)]
    frame = pd.DataFrame(points).assign(cost=lambda p: 1 + p.length, lost=lambda p: 100 * (p.length > 7), error="")
    frame.insert(0, "run", [str(i) for i in range(len(points))])
    frame.insert(1, "status", ["finished"] * 3 + ["failed"] + ["finished"] * (len(points) - 4))
    frame.loc[3, ["cost", "lost", "error"]] = np.nan, np.nan, "mode at +4.2 rad/s is not stabilizable"
    folder.mkdir(parents=True)
    frame.to_csv(folder / sweep.TABLE, index=False)
    record = {"notebook": "cart_pole", "title": "Cart-pole", "runs": [{"point": p} for p in points]}
    record |= {"started": "2026-11-21T10:00:00", "status": "failed", "versions": {"lqrlab": "0.1.0"}}
    record["units"] = {"dt": "s"}
    (folder / "sweep.json").write_text(json.dumps(record))
    sweep.compare(folder)
    report.index(data)
    catalogue_page.page(["mass_spring_damper"]).save(data / "plants.html")
    mailed(data / "mailed")
    return data


PAGES = {
    "notebook": "runs/run/report/04_scores.html",
    "run": "runs/run/report/index.html",
    "whole": "runs/run/report/run.html",
    "sweep": "sweeps/cart_pole/report/index.html",
    "all": "index.html",
    "plants": "plants.html",
    "designs": "mailed/report/01_exploration.html",
}


WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 400, "height": 800}
PHONE = """() => {
  const all = tag => [...document.querySelectorAll(tag)].filter(e => e.getBoundingClientRect().width > 0);
  const letters = all('svg').flatMap(svg => [...svg.querySelectorAll('text')].map(t =>
    parseFloat(getComputedStyle(t).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width));
  const moved = e => e && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || moved(e.parentElement));
  const cut = all('table, img, svg, pre').filter(e => e.getBoundingClientRect().right > innerWidth && !moved(e));
  return {page: document.documentElement.scrollWidth, letters: Math.min(99, ...letters),
          cut: cut.map(e => e.outerHTML.slice(0, 80))};
}"""
"""Of a page on a phone: its width, its smallest letters in a picture, and what can be seen only in part."""


PAPER = {"width": 643, "height": 972}  # A4 within its margins
PRINTED = """() => [
  ...[...document.querySelectorAll('img, svg:not(svg svg)')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1),
  ...[...document.querySelectorAll('.lq-play')].filter(e => e.getBoundingClientRect().width),
].map(e => e.outerHTML.slice(0, 80))"""
"""What is of no use on paper: pictures that do not fit, for nothing can be moved sideways, and buttons of films."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_need_no_network_and_shut_nobody_out(chromium, site, scheme):
    """Offline, nothing is asked for and nothing is missing; axe-core finds nothing that bars anyone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    context = chromium.new_context(color_scheme=scheme, viewport=WIDE)
    context.set_offline(True)
    page, wrong, phone, printed = context.new_page(), [], {}, {}
    page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url[:80]}"))
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    barred, shown = [], {}
    for name, path in PAGES.items():
        page.goto((site / path).as_uri())
        page.evaluate("Promise.all([...document.images].map(image => image.decode()))")  # or it is broken
        shown[name] = page.evaluate(
            "() => ['math', 'img', 'svg', 'table'].map(tag => [...document.querySelectorAll(tag)]"
            ".filter(e => e.getBoundingClientRect().width > 0).length)"
        )
        for found in axe.Axe().run(page).response["violations"]:
            where = found["nodes"][0]["html"][:120]
            barred.append(f"{name}: {found['impact']}, {found['help']}, {len(found['nodes'])} times, as in {where}")
        page.set_viewport_size(NARROW)
        phone[name] = page.evaluate(PHONE)
        page.set_viewport_size(PAPER)
        page.emulate_media(media="print")
        printed[name] = page.evaluate(PRINTED)
        page.emulate_media(media="screen")
        page.set_viewport_size(WIDE)
    context.close()
    assert wrong == []
    assert barred == []
    for name, seen in phone.items():
        assert seen["page"] <= NARROW["width"], name  # what is wider is moved sideways by itself
        assert seen["letters"] >= 9.0, name
        assert seen["cut"] == [], name
    assert {name: cut for name, cut in printed.items() if cut} == {}
    assert shown["notebook"][:2] == [4, 3]  # all that test_report's notebook has: none is left as LaTeX or empty
    assert shown["notebook"][3] >= 1
    assert shown["sweep"][1] == 2  # a figure for each number that differs
    assert shown["plants"][2] >= 2


@pytest.mark.parametrize("width", [1280, 400])
def test_a_reader_moves_the_designs_of_a_mailed_report(chromium, site, width):
    """Offline, by the keyboard: one picture at a time is shown; without scripts the first one."""
    shown = "() => [...document.querySelectorAll('.lq-strip svg.lq-all')].filter(e => e.checkVisibility()).length"
    for scripts in (False, True):
        context = chromium.new_context(viewport={"width": width, "height": 900}, java_script_enabled=scripts)
        context.set_offline(True)
        page, wrong = context.new_page(), []
        page.on("console", lambda said: wrong.append(said.text))  # noqa: B023
        page.on("pageerror", lambda error: wrong.append(str(error)))  # noqa: B023
        page.goto((site / PAGES["designs"]).as_uri())
        handles = page.get_by_role("slider")
        assert handles.count() == (4 if scripts else 0)
        if not scripts:
            assert page.locator(".lq-still > svg").is_visible()
            context.close()
            continue
        assert page.evaluate(shown) == 1
        first = page.locator(".lq-still")
        wide = first.locator("svg").first.bounding_box()["width"]
        for i in range(handles.count()):
            before = handles.nth(i).get_attribute("aria-valuetext")
            handles.nth(i).focus()
            page.keyboard.press("ArrowLeft" if i == 3 else "ArrowRight")
            assert page.evaluate(shown) == 1
            assert not first.is_visible()
            assert page.locator(".lq-on svg").first.bounding_box()["width"] == pytest.approx(wide, abs=1)
            assert handles.nth(i).get_attribute("aria-valuetext") != before
            if i:  # one control is moved at a time
                assert page.locator(".lq-row b").nth(i - 1).inner_text() != ""
        page.keyboard.press("ArrowRight")
        assert first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        context.close()
        assert wrong == []


def test_the_policy_of_a_page_with_a_script_lets_no_other_run(chromium, site, tmp_path):
    """Nor the same one, changed."""
    text, page = (site / PAGES["designs"]).read_text(), chromium.new_page()
    for name, changed, sliders in (
        ("more", text.replace("<main", "<script>top.ran1 = 1</script><main"), 4),
        ("other", text.replace("}\n</script>", "}top.ran1 = 1;\n</script>"), 0),
    ):
        assert changed != text
        (tmp_path / f"{name}.html").write_text(changed)
        page.goto((tmp_path / f"{name}.html").as_uri())
        assert page.evaluate(RAN) == []
        assert page.get_by_role("slider").count() == sliders
    page.close()


def test_on_paper_the_rows_of_a_plant_stay_with_its_name(chromium, site):
    page = chromium.new_page()
    page.goto((site / PAGES["notebook"]).as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    rows = "".join(f"<tr><td>{name}</td><td>1</td></tr>" for name in ("pendulum", "", "", "cart_pole"))
    table = f'<table class="parameters"><tbody>{rows}</tbody></table>'
    page.evaluate("table => {document.querySelector('main').innerHTML = table}", table)
    stay = page.evaluate("[...document.querySelectorAll('tr')].map(row => getComputedStyle(row).breakAfter)")
    assert stay == ["avoid", "avoid", "auto", "auto"]
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--mark')") == "#fff3d6"
    page.close()


def hostile_site(folder):
    """A page of each kind, with names and outputs that would run a script."""
    name = "".join(hostile_html.PAYLOADS)
    report.write(hostile_html.run(folder / "runs" / "run"))
    many = folder / "sweeps" / "sweep"
    many.mkdir(parents=True)
    frame = pd.DataFrame([{"run": name, "status": name, name: name, "error": name}])
    frame.to_csv(many / sweep.TABLE, index=False)
    record = {"notebook": name, "title": name, "status": name, "profile": name}
    record |= {"started": name, "versions": {"lqrlab": name, name: name}, "units": {}, "commit": name, "device": name}
    record["runs"] = [{"point": {name: name}}]
    (many / "sweep.json").write_text(json.dumps(record))
    sweep.compare(many)
    report.index(folder)
    plant = systems.load(hostile_html.plant_file(folder / "plant.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "make", lambda _: plant)
        patch.setattr(type(plant), "title", name)
        catalogue_page.page([name], unfolded=True).save(folder / "plants.html")
        widgets.lqr_designer(plant, num_steps=20).save(folder / "designs.html")
        config = dataset.DataConfig(families=("dc_motor",), held_out=(), variants=2, num_steps=9, trajectories=1)
    data_card.write(dataset.generate(config, folder / "set"))
    return sorted(folder.rglob("*.html"))


RAN = r"""async () => {
  const wait = () => new Promise(later => setTimeout(later, 300));
  const follows = link => /^\s*(java|vb)script:/i.test(String(link.href.animVal ?? link.href));
  await wait();
  const frames = [...document.querySelectorAll("iframe.bare")].map(frame => frame.contentDocument);
  for (const page of [document, ...frames]) {
    page.addEventListener("click", event => {
      const link = event.target.closest("a");
      if (link && !follows(link)) event.preventDefault();
    }, true);
    for (const e of page.querySelectorAll("a, a *, button, input"))
      e.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
  }
  await wait();
  return Object.keys(window).filter(name => /^ran\d+$/.test(name));
}"""


@pytest.mark.filterwarnings("ignore:No lexer found")  # for the language that the notebook claims
def test_no_name_and_no_output_runs_a_script(chromium, tmp_path):
    """Not even where the page's content security policy is switched off; and the payloads run where they stand bare."""
    pages = hostile_site(tmp_path)
    assert len(pages) == 7
    for bypass in (True, False):  # what runs without the policy is named first
        context = chromium.new_context(bypass_csp=bypass)
        page = context.new_page()
        for path in pages:
            page.goto(path.as_uri())
            assert page.evaluate(RAN) == [], (path, bypass)
            assert "default-src 'none'" in page.locator("meta[http-equiv]").get_attribute("content")
        context.close()
    page = chromium.new_page()
    bare = (html.escape(payload) for payload in hostile_html.PAYLOADS)
    (tmp_path / "bare.html").write_text("".join(f'<iframe class="bare" srcdoc="{text}"></iframe>' for text in bare))
    page.goto((tmp_path / "bare.html").as_uri())
    assert len(page.evaluate(RAN)) >= 40
    page.close()
