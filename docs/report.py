"""The picture of a report in the README: ``python docs/report.py data/runs/quick docs/report.png`` after that run."""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

page = Path(sys.argv[1], "report", "index.html").absolute()
with sync_playwright() as driver:
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    tab = browser.new_page(viewport={"width": 1060, "height": 772})
    tab.goto(page.as_uri())
    tab.screenshot(path=sys.argv[2])
    browser.close()
Image.open(sys.argv[2]).convert("RGB").quantize(32).save(sys.argv[2], optimize=True)
