"""Terminal output: console, progress line, progress bar, JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def new_console() -> Console:
    """A console as wide as the terminal, wider where there is none, that prints what it is given.

    Brackets and colons are no markup: a matrix is written [[1 2]], and names are the user's.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console


def print_parts(*parts: str | Table) -> None:
    """Sentences and tables on standard output, an empty line between two."""
    console = new_console()
    for number, part in enumerate(parts):
        if number:
            console.print()
        if not isinstance(part, str):
            _break_names(part, console)
        console.print(part, soft_wrap=isinstance(part, str))


def _break_names(table: Table, console: Console) -> None:
    """Names of columns over several lines, if a table is wider than the console: a name must not
    take the room of the figures under it.
    """
    roomy = console.options.update(max_width=PIPED_WIDTH * len(table.columns))
    if console.measure(table, options=roomy).minimum <= console.width:
        return
    for column in table.columns:
        column.header = re.sub(r"(?<=[-/]) *| +", "\n", str(column.header))


def print_left_out(console: Console, total: int, top: int, noun: str) -> None:
    """Say how many lines of a table --top left out, if any."""
    from meshwright.base.quantities import counted

    if total > top:
        console.print(f"... {counted(total - top, f'more {noun}')} (--top)")


@contextmanager
def progress(what: str) -> Iterator[Callable[[], None]]:
    """A line on standard error that counts, on a terminal only."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(what), MofNCompleteColumn())
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda: bar.advance(task)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error that shows a share done and words, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share, words: bar.update(task, completed=share, description=words)


def print_json(document: dict[str, object]) -> None:
    """A document for scripts, on standard output."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
