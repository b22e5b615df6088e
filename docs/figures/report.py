"""A picture of a report: `python docs/figures/report.py report.html` draws docs/figures/report.png.
It needs Chromium; docs/report.md has the commands that made the report.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "report.png"
SHOWN = ("summary", "machine", "timeline", "memory")
COLOURS = 200
"""Enough for a page of few colours, in a small file."""


def main(report: Path) -> None:
    """Some sections of a report, as a small file."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        hidden = "section" + "".join(f":not(#{name})" for name in SHOWN)
        page.add_style_tag(content=f"{hidden}, footer {{ display: none; }}")
        page.screenshot(path=PICTURE, full_page=True)
        browser.close()
    few = Image.open(PICTURE).convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOURS)
    few.save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
