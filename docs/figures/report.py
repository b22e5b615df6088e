"""The picture of a report in docs/report.md: BERT-Large on 4 nodes of 16 A100s, the best plan of a
short search. Run with `python docs/figures/report.py`; it needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
ASKED = "zoo:bert-large --cluster gcp-a100 --nodes 4 --batch 64 --budget 90s --no-explain"
SHOWN = ("summary", "machine", "timeline", "memory")
COLOURS = 200
"""Enough for a page of few colours, in a small file."""


def main() -> None:
    """Plan, report, photograph."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "meshwright", "plan", *ASKED.split()]
        subprocess.run([*command, "--report", "report.html"], cwd=folder, check=True)
        photograph(Path(folder) / "report.html")


def photograph(report: Path) -> None:
    """Some sections of a report, as a small file."""
    picture = HERE / "report.png"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        hidden = "section" + "".join(f":not(#{name})" for name in SHOWN)
        page.add_style_tag(content=f"{hidden}, footer {{ display: none; }}")
        page.screenshot(path=picture, full_page=True)
        browser.close()
    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOURS).save(
        picture, optimize=True
    )


if __name__ == "__main__":
    main()
