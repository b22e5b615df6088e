"""The reference, written from the code: `make reference`. Enters: nothing. Leaves: three pages."""

from __future__ import annotations

from pathlib import Path

from docs.reference.api_page import api_page
from docs.reference.cli_page import cli_page
from docs.reference.files_page import files_page

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by `make reference` from the code; changes here are lost. -->\n\n"
PAGES = {"cli.md": cli_page, "api.md": api_page, "files.md": files_page}


def page(name: str) -> str:
    """A page as it should be."""
    return f"{NOTE}{PAGES[name]()}\n"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(page(name), encoding="utf-8")
