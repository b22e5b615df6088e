"""Parser of model sources (`zoo:NAME?key=value`). Enters: text. Leaves: a `Source`. Opens no
file.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import parse_whole
from meshwright.capture.source.zoo_names import PUBLISHED, ZOO

Form = Literal["zoo", "hf", "function", "program", "graph"]

FORMS = (
    "'zoo:bert-large', 'path/to/file.py:function', 'package.module:function', 'hf:ClassName', "
    "'hf:path/config.json', a .pt2 file or a graph's .json file"
)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from; options are text until somebody knows their types."""

    text: str
    form: Form
    name: str
    """The model's, the class's or the file's; for a function the file or module."""
    function: str = ""
    options: tuple[tuple[str, str], ...] = ()
    unroll: int | Literal["each"] | None = None
    """How many operators each recurrent layer becomes, "each" for one a step; None leaves it whole.

    The one option that every form takes, since it concerns the graph and not the model.
    """


def parse_source(text: str) -> Source:
    """A source from its text.

    >>> parse_source("zoo:bert-large?layers=2&heads=4").options
    (('layers', '2'), ('heads', '4'))
    >>> parse_source("models/mine.py:build").function
    'build'
    >>> parse_source("zoo:rnnlm?steps=2&unroll=2").unroll
    2
    """
    head, _, tail = text.partition("?")
    settings = _options(tail, text) if tail else {}
    unroll = _unroll(settings.pop("unroll", None), text)
    options = tuple(settings.items())
    if head.endswith((".pt2", ".json")) and not head.startswith("hf:"):
        form: Form = "program" if head.endswith(".pt2") else "graph"
        if options:
            raise InputError(
                f"a saved model takes no options but unroll, as in {text!r}", "leave them out"
            )
        return Source(text=text, form=form, name=head, unroll=unroll)
    name, colon, last = head.partition(":") if head.startswith("hf:") else head.rpartition(":")
    if not colon or not name or not last:
        bare = head.removesuffix("/tiny")
        place = "zoo" if bare in ZOO else "hf" if bare in PUBLISHED else None
        raise InputError(
            f"{text!r} does not say where the model comes from",
            f"give {FORMS}" if place is None else f"did you mean {place}:{text}?",
        )
    if name in ("zoo", "hf"):
        known: Form = "zoo" if name == "zoo" else "hf"
        return Source(text=text, form=known, name=last, options=options, unroll=unroll)
    return Source(
        text=text, form="function", name=name, function=last, options=options, unroll=unroll
    )


def _unroll(value: str | None, source: str) -> int | Literal["each"] | None:
    if value is None:
        return None
    if value == "each":
        return "each"
    try:
        count = parse_whole(value)
    except InputError:
        count = 0
    if not count:
        raise InputError(
            f"unroll={value} in {source!r} is no number of operators",
            "give 1 or more, or 'each' for one operator a step",
        )
    return count


def _options(text: str, source: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if not equals or not all(word.isidentifier() for word in key.split(".")) or not value:
            raise InputError(
                f"option {part!r} in {source!r}", "write ?key=value&key=value after the name"
            )
        if key in options:
            raise InputError(f"option {key!r} stands twice in {source!r}", "give it once")
        options[key] = value
    return options


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
