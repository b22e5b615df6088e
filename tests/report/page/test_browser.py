"""The page in a real browser: it loads, draws, unfolds and zooms, and asks the network nothing.

Screenshots go to the folder that MESHWRIGHT_SCREENSHOTS names, if it does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.reported import MODELS, reported, simulated

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")

SECTIONS = (
    "summary", "strategies", "machine", "graph", "timeline", "spent", "memory", "reductions",
    "decisions", "helps", "search",
)  # fmt: skip
MOST_BYTES = 10_000_000

INKED = """canvas => {
  const { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
}"""
"""How many colours a canvas has."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # The sandbox of Chromium needs rights that containers seldom give to root.
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def opened(
    browser: Browser, folder: Path, text: str, *, width: int = 1280, dark: bool = False
) -> Page:
    """A page that loaded without a complaint and without a request but for itself."""
    file = folder / "report.html"
    file.write_text(text)
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    assert complaints == []
    assert requests == [file.as_uri()]
    return page


def photograph(page: Page, name: str) -> None:
    wanted = os.environ.get("MESHWRIGHT_SCREENSHOTS")
    if wanted:
        page.screenshot(path=Path(wanted) / f"{name}.png", full_page=True)


def window(page: Page) -> tuple[float, float]:
    chart = page.locator("#timeline-chart")
    ends = chart.get_attribute("data-from"), chart.get_attribute("data-to")
    assert ends[0] is not None
    assert ends[1] is not None
    return float(ends[0]), float(ends[1])


@pytest.mark.parametrize("model", MODELS)
def test_every_section_is_drawn(browser: Browser, folder: Path, model: str) -> None:
    text = reported(model)
    assert len(text.encode()) <= MOST_BYTES
    page = opened(browser, folder, text)
    assert (
        tuple(element.get_attribute("id") for element in page.query_selector_all("section"))
        == SECTIONS
    )
    for name in SECTIONS:
        section = page.locator(f"#{name}")
        box = section.bounding_box()
        assert box is not None
        assert box["height"] > 60
        assert section.locator("h2").count() == 1
    charts = page.query_selector_all(".chart canvas")
    assert len(charts) == 3 + (model == "bert-large")
    for chart in charts:
        assert chart.evaluate(INKED) > 5
    assert page.locator("#machine .cell").count() > 0
    assert page.locator("#strategies .scroll").evaluate("it => it.scrollWidth <= it.clientWidth")
    photograph(page, model)
    page.close()


@pytest.mark.parametrize("model", ["bert-large", "llama3-70b"])
def test_it_is_readable_on_a_small_screen_and_in_the_dark(
    browser: Browser, folder: Path, model: str
) -> None:
    page = opened(browser, folder, reported(model), width=360, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("html").get_attribute("data-theme") == "dark"
    photograph(page, f"{model}-360-dark")
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert page.locator("#theme").text_content() == "Theme: light"
    page.close()


@pytest.mark.parametrize("model", ["bert-large", "llama3-70b"])
def test_clicks_unfold_layers_to_every_operator(browser: Browser, folder: Path, model: str) -> None:
    page = opened(browser, folder, reported(model))
    fold = page.locator("#graph details", has_text="× a layer of").first
    assert fold.locator("table").count() == 0
    fold.locator("summary").first.click()
    fold.locator("table").first.wait_for()
    assert "*" in (fold.locator("td.name").first.text_content() or "")
    photograph(page, f"{model}-unfolded")
    names = page.evaluate(
        """async () => {
          const closed = () => [...document.querySelectorAll("#graph details:not([open])")];
          while (closed().length) {
            closed().forEach((own) => { own.open = true; });
            await new Promise((done) => setTimeout(done, 30));
          }
          return [...document.querySelectorAll("#graph td.name")].map((own) => own.textContent);
        }"""
    )
    shown = [name for name in names if "*" not in name]
    operators = simulated(model).plan.graph.operators
    assert sorted(shown) == sorted(
        operator.name for operator in operators if "*" not in operator.name
    )
    page.close()


def test_the_timeline_zooms_and_tells(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, reported("llama3-70b"))
    step = simulated("llama3-70b").timeline.makespan
    assert window(page) == (0, step)
    page.get_by_role("button", name="Zoom in").click()
    assert window(page) == pytest.approx((step / 4, step * 3 / 4), rel=1e-3)
    page.get_by_role("button", name="Later").click()
    assert window(page) == pytest.approx((step * 3 / 8, step * 7 / 8), rel=1e-3)
    chart = page.locator("#timeline-chart")
    chart.press("+")
    assert window(page) == pytest.approx((step / 2, step * 3 / 4), rel=1e-3)
    chart.press("0")
    assert window(page) == (0, step)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 240, box["y"] + 19)
    readout = page.locator(".readout").text_content() or ""
    assert readout.startswith("device 0: forward pass")
    assert "(predicted)" in readout
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function(
        "step => Number(document.querySelector('#timeline-chart').dataset.to) < step", arg=step
    )
    page.close()


def test_cells_and_devices_can_be_chosen(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, reported("llama3-70b"))
    cell = page.locator("#machine .cell").nth(1)
    assert cell.get_attribute("class") == "cell c0"
    page.locator("#machine button", has_text="channel").first.click()
    assert cell.get_attribute("class") == "cell c1"
    before = page.locator("#memory-words").text_content()
    page.locator("#memory-device").select_option(index=1)
    assert page.locator("#memory-words").text_content() != before
    page.close()


def test_tables_sort_and_seek(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, reported("mlp"))
    strategies = page.locator("#strategies table")
    head = strategies.locator("th button", has_text="step (bar: speed)")
    columns = []
    for order in ("descending", "ascending"):
        head.click()
        assert strategies.locator(f"th[aria-sort={order}]").count() == 1
        columns.append(strategies.locator("tbody tr td:nth-child(2)").all_text_contents())
    assert columns[0] == columns[1][::-1] != columns[1]
    path = page.locator("#spent table").first
    rows = path.locator("tbody tr:visible")
    before = rows.count()
    page.locator("#spent .seek").first.fill("backward")
    assert 0 < rows.count() < before
    page.close()
