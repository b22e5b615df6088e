"""Pieces of Markdown. Enters: text. Leaves: tables and examples as GitHub shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import dedent


def cell(text: str) -> str:
    """Text that stays inside its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """Text in a cell as code."""
    return f"`{' '.join(text.split())}`".replace("|", "\\|") if text else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are ready."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def docstring(text: str | None) -> str:
    """A docstring; what is indented and its examples are code, which tests find in the source."""
    summary, _, rest = (text or "").partition("\n")
    parts = []
    for paragraph in f"{summary}\n{dedent(rest)}".strip().split("\n\n"):
        if paragraph.startswith(">>>"):
            parts.append(f"```pycon\n{paragraph}\n```")
        else:
            parts.append(_with_grammar(paragraph))
    return "\n\n".join(parts).replace("```\n\n```pycon\n", "\n")


def _with_grammar(paragraph: str) -> str:
    """A paragraph whose later lines may be an indented block."""
    lines = paragraph.splitlines()
    at = next((n for n, line in enumerate(lines) if line.startswith("    ")), None)
    if at is None:
        return paragraph
    end = next((n for n in range(at, len(lines)) if not lines[n].startswith("    ")), len(lines))
    block = dedent("\n".join(lines[at:end]))
    pieces = ["\n".join(lines[:at]), f"```\n{block}\n```", "\n".join(lines[end:])]
    return "\n\n".join(filter(None, pieces))
