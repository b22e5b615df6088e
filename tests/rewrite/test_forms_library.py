"""The forms of parallelism in the library are those that definitions give."""

from __future__ import annotations

from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.library import sections
from meshwright.rewrite.library.parallelization import forms


def test_the_library_has_every_form_of_every_operator() -> None:
    [section] = [entry for entry in sections() if entry.file == "forms"]
    assert section.rules == tuple(
        rule for definition in DEFINITIONS.values() for rule in forms(definition)
    )
