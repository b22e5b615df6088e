"""How soon reports can be used: made, loaded and drawn in a headless Chromium. Run with
`python benchmarks/report_page.py`; `make bench` does too. Goals: 10 MB, 3 s for the largest.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from meshwright.report.page.page import page
from support.reported import DECISIONS, MODELS, planned, simulated

TIMES = 5

ZOOM = """() => {
  const button = [...document.querySelectorAll("#timeline button")][0];
  const begin = performance.now();
  for (let n = 0; n < 8; n += 1) button.click();
  return (performance.now() - begin) / 8;
}"""


def loaded(tab: Page, file: Path) -> float:
    """Milliseconds from navigation until everything is drawn and can be used."""
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]", state="attached")
    return float(tab.locator("html").get_attribute("data-ready") or "nan")


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    heads = ("made in", "size", "ready after", "a zoom")
    print(f"{'model':<16}" + "".join(f"{head:>14}" for head in heads))
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for model in MODELS:
            answer, simulation = planned(model), simulated(model)
            begin = time.perf_counter()
            text = page(answer, DECISIONS, simulation)
            page_seconds = time.perf_counter() - begin
            file = Path(folder) / f"{model}.html"
            file.write_text(text)
            tab = browser.new_page()
            ready = statistics.median(loaded(tab, file) for _ in range(TIMES))
            cells = (f"{page_seconds:.2f} s", f"{len(text) / 1e6:.2f} MB", f"{ready:.0f} ms")
            zoom = f"{tab.evaluate(ZOOM):.1f} ms"
            print(f"{model:<16}" + "".join(f"{cell:>14}" for cell in (*cells, zoom)))
        browser.close()


if __name__ == "__main__":
    main()
