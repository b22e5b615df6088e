"""Operators and state of a graph that is being translated: `Applied`, `State`."""

from __future__ import annotations

import msgspec

from meshwright.capture.operators.aten import Described
from meshwright.graph.operator_graph import Spec


class Applied(msgspec.Struct, kw_only=True):
    """An operator before its dims have names."""

    name: str
    described: Described[str]
    outputs: tuple[tuple[str, Spec], ...]
    layer: str


class State(msgspec.Struct, kw_only=True):
    """A tensor that is there before the first operator."""

    name: str
    spec: Spec
    also: list[str] = msgspec.field(default_factory=list)
    trainable: bool = False
