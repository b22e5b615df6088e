"""A tokenizer with one token of lookahead, for recursive-descent parsers. Enters: one line of a
language. Leaves: names, numbers and signs, or a sentence that says where something else was
expected.

Shared by rules and definitions of operators; knows no word of either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TypeVar

from meshwright.base.errors import InputError, shown

T = TypeVar("T")

_TOKEN = re.compile(r"\s*(=>|!=|<=|\.\.|-?\d+(?![\w])|\w[\w-]*(?<!-)|[^\s])")
_NAME = re.compile(r"[^\W\d][\w-]*")


class Reader:
    """Tokens one after the other, each with its position; `words` are no names."""

    def __init__(self, text: str, words: Collection[str] = ()) -> None:
        self.text, self._words = text, words
        self._tokens = [(match[1], match.start(1)) for match in _TOKEN.finditer(text)]
        self._next = 0

    def peek(self) -> str:
        """The next token, nothing at the end."""
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def take(self) -> str:
        """The next token, which is then behind."""
        token = self.peek()
        self._next += 1
        return token

    def accept(self, token: str) -> bool:
        """Whether the next token is this one, which is then behind."""
        accepted = self.peek() == token
        self._next += accepted
        return accepted

    def expect(self, *tokens: str) -> str:
        """The next token, which has to be one of these."""
        if self.peek() not in tokens:
            raise self.wrong(" or ".join(map(repr, tokens)))
        return self.take()

    def name(self, what: str) -> str:
        """The next token, which has to be a name."""
        if not _NAME.fullmatch(self.peek()) or self.peek() in self._words:
            raise self.wrong(what)
        return self.take()

    def number(self, what: str) -> int:
        """The next token, which has to be a whole number."""
        if not re.fullmatch(r"-?\d+", self.peek()):
            raise self.wrong(what)
        return int(self.take())

    def listed(self, item: Callable[[], T]) -> tuple[T, ...]:
        """Items with commas between them."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    def end(self) -> None:
        """Nothing may follow."""
        if self.peek():
            raise self.wrong("the end of the line")

    def wrong(self, expected: str) -> InputError:
        """The mistake at the next token."""
        has_token = self._next < len(self._tokens)
        column = self._tokens[self._next][1] if has_token else len(self.text)
        token = repr(self.peek()) if has_token else "the end of the line"
        return InputError(
            f"{shown(self.text, 100)} has {token} at column {column + 1}", f"expected {expected}"
        )
