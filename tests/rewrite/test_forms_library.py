"""The forms of parallelism in the library are those that definitions give."""

from __future__ import annotations

from meshwright.rewrite.definitions import DEFINITIONS
from meshwright.rewrite.forms import forms
from meshwright.rewrite.library import sections


def test_the_library_has_every_form_of_every_operator() -> None:
    [section] = [own for own in sections() if own.file == "forms"]
    assert section.rules == tuple(rule for own in DEFINITIONS.values() for rule in forms(own))
