"""Pretty-printing of results (`str`, and `_repr_html_` for Jupyter). Enters: a title, facts, a
table, all text. Leaves: plain text for a terminal, HTML for a notebook. A noun says what is on its
sheet; this knows only how to set it.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple, Protocol, TypeVar


class Sheet(NamedTuple):
    """A title, facts with their names, and a table.

    >>> print(Sheet("laptop", (("devices", "4"),), ("level", "size"), (("process", "4"),)).text())
    laptop
      devices  4
    <BLANKLINE>
      level    size
      process  4
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

    def text(self) -> str:
        """For a terminal."""
        parts = [_aligned(self.facts), _aligned((self.columns, *self.rows)) if self.rows else ""]
        body = "\n\n".join(filter(None, parts))
        return f"{self.title}\n{body}" if body else self.title

    def html(self) -> str:
        """For a notebook: all text escaped, nothing fetched, the notebook's own colours."""
        facts = "".join(
            f"<tr>{_cells('th', (name,))}{_cells('td', (value,))}</tr>"
            for name, value in self.facts
        )
        lines = [_cells("th", self.columns), *(_cells("td", row) for row in self.rows)]
        rows = "".join(f"<tr>{line}</tr>" for line in lines) if self.rows else ""
        tables = "".join(f"<table>{table}</table>" for table in (facts, rows) if table)
        return f"<div><strong>{escape(self.title)}</strong>{tables}</div>"


class _Noun(Protocol):
    def sheet(self) -> Sheet: ...


_Class = TypeVar("_Class", bound=type[_Noun])


def printed(noun: _Class) -> _Class:
    """Let a noun that has a sheet print it: `str` unless it has a text form of its own, and what
    notebooks ask for.
    """
    if "__str__" not in noun.__dict__:
        setattr(noun, "__str__", lambda self: self.sheet().text())  # noqa: B010
    setattr(noun, "_repr_html_", lambda self: self.sheet().html())  # noqa: B010
    return noun


def _aligned(rows: tuple[tuple[str, ...], ...]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def _cells(tag: str, texts: tuple[str, ...]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
