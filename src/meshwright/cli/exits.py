"""Exit codes of the command line: the one place that says what they mean."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """An exit code, with what it means for a script."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """A code that knows its meaning."""
        exit_code = int.__new__(cls, code)
        exit_code._value_, exit_code.meaning = code, meaning
        return exit_code

    def __str__(self) -> str:
        return f"{self.value} {self.name.lower().replace('_', ' ')}"

    DONE = 0, "all went well; a reader that goes away early is no mistake"
    NO = (
        1,
        "the answer is no: 'check' has a configuration that does not run or does not fit, 'run "
        "--against-one-device' numbers that are not those of one device",
    )
    MISTAKE = (
        2,
        "a mistake in what was given, or nowhere to write: one sentence on standard error, nothing "
        "on standard output",
    )
    RANK_FAILED = 3, "a run that failed on some rank: standard error names it"
    INTERRUPTED = 130, "interrupted (Ctrl-C) before there was anything to show"
