"""`InputError`, the exception for user errors; the command line turns it into a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave is wrong; the message says what, what was expected, what to change.

    >>> raise InputError("--axes data=3 does not fit", "multiply the axes to 64")
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: --axes data=3 does not fit; multiply the axes to 64.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}{'' if remedy.endswith('?') else '.'}")
        self.problem, self.remedy = problem, remedy

    def at(self, place: str) -> InputError:
        """The same mistake with the place where it stands (a file, a key) in front."""
        return InputError(f"{place}: {self.problem}", self.remedy)


def shown(value: object, most: int = 60) -> str:
    """A value as a sentence quotes it: its text form, cut in the middle where it is long.

    >>> shown("data"), shown(10**80, 11)
    ("'data'", '100 ... 000')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits.
        return "a number of thousands of digits"
    except RecursionError:
        return "nested too deep to be shown"
    side = (most - 5) // 2
    return text if len(text) <= most else f"{text[:side]} ... {text[-side:]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names, those nearest to what was given first.

    >>> nearest("gcp-a10", ["laptop", "gcp-a100"])
    "did you mean 'gcp-a100'? Known: 'gcp-a100', 'laptop'"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{guess}{'Known' if guess else 'known'}: {', '.join(map(repr, names))}"
