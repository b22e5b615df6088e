"""Return structure of a model's forward, a pytree over the graph's tensors. Enters: tensors' names.
Leaves: `Returned`: tuples, lists and mappings as the model nests them, with the graph's tensor in
each place that the graph computes.

Knows neither PyTorch nor how the structure is found; values are put into it by whoever runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

Kind = Literal["tensor", "tuple", "list", "mapping", "absent", "other"]
"""Absent is a tensor that the graph does not compute, since its loss needs none of it."""


class Returned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place of what is returned.

    >>> logits = Returned(kind="tensor", tensor="head.linear")
    >>> pair = Returned(kind="tuple", entries=(("0", logits), ("1", Returned(kind="other"))))
    >>> list(pair.tensors()), pair.named({"head.linear": "head.linear"}) == pair
    ([('0', 'head.linear')], True)
    """

    kind: Kind
    tensor: str = ""
    """The graph's name of it."""
    type: str = ""
    """module:class of a mapping or tuple that is more than a dict or tuple."""
    entries: tuple[tuple[str, Returned], ...] = ()
    """By key, or by number."""

    def tensors(self, path: str = "") -> Iterator[tuple[str, str]]:
        """Where the graph's tensors stand, as a path of keys, with their names."""
        if self.kind == "tensor":
            yield path, self.tensor
        for key, entry in self.entries:
            yield from entry.tensors(f"{path}.{key}" if path else key)

    def named(self, names: Mapping[str, str]) -> Returned:
        """The same with other names; tensors that have none are absent."""
        if self.kind == "tensor":
            name = names.get(self.tensor)
            return Returned(kind="absent") if name is None else _with(self, tensor=name)
        return _with(self, entries=tuple((key, entry.named(names)) for key, entry in self.entries))


def _with(returned: Returned, **fields: object) -> Returned:
    return msgspec.structs.replace(returned, **fields)
