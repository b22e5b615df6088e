"""Shell completion. Enters: what is typed. Leaves: what it may become.

Loads nothing heavy: a shell asks at every press of a key.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable

INSTRUCTION = "_MESHWRIGHT_COMPLETE"


def models(incomplete: str) -> list[str]:
    """Models of the zoo."""
    from meshwright.capture.source.zoo_names import ZOO

    return [f"zoo:{name}" for name in ZOO if f"zoo:{name}".startswith(incomplete)]


def zoo_names(incomplete: str) -> list[str]:
    """Names of the zoo where nothing else can be given."""
    from meshwright.capture.source.zoo_names import ZOO

    return [name for name in ZOO if name.startswith(incomplete)]


def clusters(incomplete: str) -> list[str]:
    """Clusters of the catalogue."""
    from meshwright.cluster.catalogue import catalogue_names, irregular_names

    known = (*catalogue_names(), *irregular_names())
    return [name for name in known if name.startswith(incomplete)]


def answered(answer: Callable[[], int]) -> int:
    """Call the command line, which may be for a shell that asks.

    Bash alone takes 'zoo:bert' for three words, unless it is told otherwise, and replaces the last
    of them: it is asked about one word, and told what comes behind the colon.
    """
    if os.environ.get(INSTRUCTION) != "complete_bash":
        return answer()
    cut = os.environ["COMP_WORDS"].split("\n")
    words, at = joined(cut, int(os.environ["COMP_CWORD"]))
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(at)}
    known, colon, _ = words[at].rpartition(":") if ":" in cut and at < len(words) else ("", "", "")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return answer()
    finally:
        for line in printed.getvalue().splitlines():
            print(line.removeprefix(known + colon))


def joined(words: list[str], at: int) -> tuple[list[str], int]:
    """Words without the cuts around colons, and which of them is completed.

    >>> joined(["meshwright", "plan", "zoo", ":", "be"], 4)
    (['meshwright', 'plan', 'zoo:be'], 2)
    """
    merged: list[str] = []
    after = at
    for number, word in enumerate(words):
        if merged and number and (word == ":" or words[number - 1] == ":"):
            merged[-1] += word
            after -= number <= at
        else:
            merged.append(word)
    return merged, after
