"""The examples in help texts. Enters: the parser's commands. Leaves: each with its example, which a
terminal shows in one piece, so that it works as it is pasted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "Example:  "

AS_WRITTEN = "\b\n"
"""Before a paragraph whose lines the parser leaves as they are."""


def verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every verb below a command, those of verbs too, by what is typed for it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, verb in below.items():
        yield from verbs(verb, f"{path} {name}")


def example_of(verb: Any) -> str:
    """The command that the help of a verb shows."""
    _, _, after = (verb.help or "").partition(MARK)
    return " ".join(after.partition("\n\n")[0].split())


def keep_examples(command: Any) -> None:
    """See to it that no example is broken into lines."""
    for _, verb in verbs(command, ""):
        before, mark, after = (verb.help or "").partition(MARK)
        if mark:
            _, gap, rest = after.partition("\n\n")
            verb.help = f"{before}{AS_WRITTEN}{MARK}{example_of(verb)}{gap}{rest}"
