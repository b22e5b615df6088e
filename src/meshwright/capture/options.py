"""The text of a source, taken apart. Enters: text. Leaves: a `Source`. Opens no file."""

from __future__ import annotations

from typing import Literal

import msgspec

from meshwright.foundation.errors import InputError

Form = Literal["zoo", "hf", "function", "program", "graph"]

FORMS = (
    "'zoo:bert-large', 'path/to/file.py:function', 'package.module:function', 'hf:ClassName', "
    "a .pt2 file or a graph's .json file"
)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from; options are text until somebody knows their types."""

    text: str
    form: Form
    name: str
    """The model's, the class's or the file's; for a function the file or module."""
    function: str = ""
    options: tuple[tuple[str, str], ...] = ()


def parse_source(text: str) -> Source:
    """A source from its text.

    >>> parse_source("zoo:bert-large?layers=2&heads=4").options
    (('layers', '2'), ('heads', '4'))
    >>> parse_source("models/mine.py:build").function
    'build'
    """
    head, _, tail = text.partition("?")
    options = _options(tail, text) if tail else ()
    if head.endswith((".pt2", ".json")):
        form: Form = "program" if head.endswith(".pt2") else "graph"
        if options:
            raise InputError(f"a saved model takes no options, as in {text!r}", "leave them out")
        return Source(text=text, form=form, name=head)
    name, colon, last = head.rpartition(":")
    if not colon or not name or not last:
        raise InputError(f"{text!r} does not say where the model comes from", f"give {FORMS}")
    if name in ("zoo", "hf"):
        known: Form = "zoo" if name == "zoo" else "hf"
        return Source(text=text, form=known, name=last, options=options)
    return Source(text=text, form="function", name=name, function=last, options=options)


def _options(text: str, source: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier() or not value:
            raise InputError(
                f"option {part!r} in {source!r}", "write ?key=value&key=value after the name"
            )
        if key in found:
            raise InputError(f"option {key!r} stands twice in {source!r}", "give it once")
        found[key] = value
    return tuple(found.items())


def plain_value(text: str) -> bool | int | float | str:
    """The value that a text most simply is, for those who declare no type.

    >>> plain_value("12"), plain_value("0.1"), plain_value("true"), plain_value("gelu")
    (12, 0.1, True, 'gelu')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
