"""What people see, in a real browser: JupyterLab with a panel; reports without a network, for everybody's eyes.

Pictures of what was looked at are left in ``data/browser`` (or in ``$LQRLAB_ARTEFACTS``).
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PANEL = """from lqrlab import compute
from lqrlab.workbench import widgets
compute.setup()
widgets.lqr_designer("cart_pole")"""


@pytest.fixture(scope="module")
def artefacts():
    folder = Path(os.environ.get("LQRLAB_ARTEFACTS", ROOT / "data" / "browser"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


@pytest.fixture
def page(chromium, artefacts, request):
    """A tab; its last sight is kept, also that of a test that fails."""
    page = chromium.new_page(viewport={"width": 1500, "height": 1000})
    yield page
    page.screenshot(path=artefacts / f"{request.node.name}.png")
    page.close()


@pytest.fixture
def jupyterlab(tmp_path):
    """A JupyterLab of its own, with nobody's settings, on an empty folder: (address, folder)."""
    work, own = tmp_path / "work", tmp_path / "jupyter"
    work.mkdir()
    (own / "labconfig").mkdir(parents=True)
    quiet = {"@jupyterlab/apputils-extension:announcements": True}  # asks the network for news
    (own / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": quiet}))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LQRLAB_HEADLESS", "JUPYTER"))}
    env |= {f"JUPYTER_{kind}_DIR": str(own) for kind in ("CONFIG", "DATA", "RUNTIME")}
    env |= {"JUPYTERLAB_SETTINGS_DIR": str(own / "s"), "JUPYTERLAB_WORKSPACES_DIR": str(own / "w")}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])}
    options = [
        "--no-browser",
        "--allow-root",
        "--port=0",
        "--IdentityProvider.token=",
        "--ServerApp.password=",
    ]
    options += [f"--ServerApp.root_dir={work}", "--LabApp.extension_manager=readonly"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=env, stdout=log, stderr=log, cwd=work
        )
    try:
        deadline = time.monotonic() + 40
        while not (found := list(own.glob("jpserver-*.json"))):
            assert server.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        yield json.loads(found[0].read_text())["url"], work
    finally:
        server.terminate()  # takes its kernels along
        server.wait(20)


WATCH = """() => {
  window.begun = 0; window.took = [];
  document.addEventListener('keydown', () => { window.begun = performance.now(); }, true);
  new MutationObserver(seen => {
    const holds = n => n.querySelector && (n.matches('svg') || n.querySelector('svg'));
    const drawn = seen.some(change => [...change.addedNodes].some(holds));
    if (drawn && window.begun) {  // painted in the frame after the next
      const begun = window.begun; window.begun = 0;
      requestAnimationFrame(() => setTimeout(() => window.took.push(performance.now() - begun)));
    }
  }).observe(document.querySelector('.jp-OutputArea'), {subtree: true, childList: true});
}"""


def test_a_slider_moves_the_curve_in_jupyterlab(jupyterlab, page, record_property):
    address, work = jupyterlab
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PANEL)], metadata={"kernelspec": kernel})
    nbformat.write(nb, work / "panel.ipynb")
    errors = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}lab/tree/panel.ipynb", timeout=40_000)
    page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=40_000)
    page.wait_for_selector("#jp-main-statusbar :text('| Idle')", timeout=60_000)
    page.click(".jp-CodeCell .cm-content")
    page.keyboard.press("Control+Enter")
    picture = page.locator(".jp-OutputArea .widget-html svg").first
    picture.wait_for(timeout=60_000)
    handle = page.locator(".jp-OutputArea .noUi-handle").first
    page.evaluate(WATCH)
    before = picture.screenshot()
    handle.focus()
    for count in range(1, 13):
        page.keyboard.press("ArrowRight")
        page.wait_for_function("n => window.took.length >= n", arg=count, timeout=20_000)
    after = picture.screenshot()
    took = page.evaluate("window.took")
    median = statistics.median(took)
    record_property("slider_to_picture_ms", took)
    print(f"slider to new picture: median {median:.0f} ms of {len(took)}, {[round(t) for t in took]}")
    assert before != after
    assert errors == []
