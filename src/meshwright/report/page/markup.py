"""HTML builder that escapes every text. Enters: names, attributes, texts. Leaves: markup in which
every text is escaped.

What is markup already is a `Markup`, which only `element` and `joined` make; everything else is
text, whoever wrote it. Nothing here knows of plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import final

VOID = frozenset(("meta", "br", "hr", "img", "input", "col"))
"""Elements without an end."""


@final
class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """An element; texts inside are escaped. A trailing underscore of an attribute is left out, the
    others become hyphens; True stands for an attribute without a value, None for none.

    >>> element("td", "a < b", class_="name", data_row="1")
    '<td class="name" data-row="1">a &lt; b</td>'
    """
    words = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(attribute)
        elif value is not None and value is not False:
            words.append(f'{attribute}="{escape(value)}"')
    begin = f"<{' '.join(words)}>"
    if name in VOID:
        return Markup(begin)
    return Markup(f"{begin}{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Parts in a row.

    >>> joined(["1 < 2", element("br")])
    '1 &lt; 2<br>'
    """
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, *, chosen: int | None = None
) -> Markup:
    """A table that scrolls sideways where it must; heads that end in > are of numbers, those that
    end in ~ of texts that may be broken. The row `chosen` is marked.
    """
    kinds = [{">": "number", "~": "text"}.get(head[-1]) for head in heads]

    def row(kind: str, cells: Sequence[str], marked: bool = False) -> Markup:
        scope = "col" if kind == "th" else None
        return element(
            "tr",
            *(
                element(kind, cell, class_=css_class, scope=scope)
                for cell, css_class in zip(cells, kinds, strict=True)
            ),
            class_="chosen" if marked else None,
        )

    body = [row("td", cells, n == chosen) for n, cells in enumerate(rows)]
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", row("th", [head.rstrip(">~") for head in heads])),
            element("tbody", *body),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def bar(share: float, label: str, kind: str = "") -> Markup:
    """A share of a whole as a bar with its label."""
    width = f"--share:{min(1.0, max(0.0, share)):.4f}"
    track = element("span", element("span", style=width, class_="fill"), class_="track")
    return element("span", track, element("span", label), class_=f"bar {kind}".strip())
