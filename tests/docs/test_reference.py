"""The reference says what the code says.

`make reference`, or `UPDATE_EXAMPLES=1 pytest tests/docs/test_reference.py`, writes it anew.
"""

from __future__ import annotations

import os

import pytest

import meshwright
from docs.reference.generate import FOLDER, PAGES, page
from docs.reference.markdown import docstring, table
from docs.reference.source import constant_text, fields, signature
from meshwright.cli.examples import verbs
from meshwright.cli.main import command
from meshwright.plan import file
from meshwright.plan.options import Options


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    if os.environ.get("UPDATE_EXAMPLES"):
        (FOLDER / name).write_text(page(name), encoding="utf-8")
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == page(name), "out of date: run 'make reference'"


def test_every_verb_and_every_name_is_told() -> None:
    lines = page("cli.md").splitlines()
    assert all(f"## {path}" in lines for path, _ in verbs(command(), "meshwright"))
    lines = page("api.md").splitlines()
    assert all(f"### {name}" in lines for name in meshwright.__all__)


def test_fields_as_written() -> None:
    zero = next(field for field in fields(Options) if field.name == "zero")
    assert (zero.kind, zero.default) == ("int", "0")
    assert zero.text.startswith("Sharding of what is copied")
    schedule = next(field for field in fields(Options) if field.name == "schedule")
    assert schedule.kind == "'gpipe' | '1f1b' | 'interleaved'"
    assert constant_text(file, "KEY") == "Where a file has its version."


def example(one: int, *many: str, other: bool = False, **named: float) -> None: ...


def test_signature_as_written() -> None:
    assert signature(example) == (
        "(one: int, *many: str, other: bool = False, **named: float) -> None"
    )
    assert signature(example, width=20).splitlines()[3] == "    other: bool = False,"


def test_markdown() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    shown = docstring("One.\n\n    Two:\n\n        code\n    Three.\n\n    >>> 1\n    1\n    ")
    assert shown == "One.\n\nTwo:\n\n```\ncode\n```\n\nThree.\n\n```pycon\n>>> 1\n1\n```"
