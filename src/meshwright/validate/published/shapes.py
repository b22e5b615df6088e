"""Template resizing: transformer graphs of any size from a few captures. Enters: which structure,
its sizes, a batch. Leaves: the operator graph with all layers.

A structure is captured once, with two layers and sizes that are different large numbers, of which
every other size is computed (`_told`); the graph of a row has the row's sizes in their places
(`graph.resized`) and its layers (`graph.repeated`). Tests hold it against captures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.repeated import with_layers
from meshwright.graph.resized import with_sizes

Structure = Literal["gpt", "grouped gpt", "llama", "experts", "shared experts", "latent experts"]

GraphOf = Callable[[str, int], OperatorGraph]
"""What captures a source at a batch."""

ATTENTION = "scaled_dot_product_attention"

LAYERS, BATCH = 2, 31
"""With which a structure is captured."""

_PLAIN = {"hidden": 2378, "heads": 29, "sequence": 37, "vocabulary": 1013, "inner": 331}
_GATED = {"hidden": 599, "heads": 29 * 19, "key_value_heads": 29, "width": 82, "sequence": 37,
          "vocabulary": 1013, "inner": 331}  # fmt: skip
_EXPERTS = _GATED | {"experts": 47, "chosen": 13}

TEMPLATES: Mapping[Structure, tuple[str, Mapping[str, int]]] = {
    "gpt": ("gpt3-175b", _PLAIN | {"key_value_heads": 29}),
    "grouped gpt": ("gpt3-175b", _PLAIN | {"heads": 58, "key_value_heads": 29}),
    "llama": ("llama3-8b", _GATED),
    "experts": ("mixtral-8x7b", _EXPERTS),
    "shared experts": ("mixtral-8x7b", _EXPERTS | {"shared": 211}),
    "latent experts": (
        "mixtral-8x7b",
        _EXPERTS | {"shared": 211, "query_rank": 223, "latent": 107, "rotary": 34},
    ),
}
"""The model of the zoo that has a structure, and the sizes with which it is captured."""


class PublishedSizes(msgspec.Struct, frozen=True, kw_only=True):
    """A structure with its sizes, named as the zoo has them."""

    structure: Structure
    layers: int
    sizes: tuple[tuple[str, int], ...]
    attended: float = 1.0
    """The share of its scores that attention computes, where layers attend to windows."""

    @property
    def source(self) -> str:
        """The model as `capture.load` reads it."""
        options = "&".join(f"{name}={size}" for name, size in self.sizes)
        return f"zoo:{TEMPLATES[self.structure][0]}?layers={self.layers}&{options}"


def resize_template(template: OperatorGraph, shape: PublishedSizes, batch: int) -> OperatorGraph:
    """The graph of a structure, captured as `captured_template` does, at some sizes and batch."""
    before = _told(TEMPLATES[shape.structure][1], BATCH)
    after = _told(dict(shape.sizes), batch)
    sizes = {before[name]: after[name] for name in before}
    return with_layers(_attending(with_sizes(template, sizes), shape.attended), shape.layers)


def _attending(graph: OperatorGraph, share: float) -> OperatorGraph:
    """A graph whose attention computes a share of its scores."""
    if share == 1.0:
        return graph
    operators = tuple(
        replace(operator, attributes=tuple(sorted((*operator.attributes, ("attended", share)))))
        if operator.kind == ATTENTION
        else operator
        for operator in graph.operators
    )
    return replace(graph, operators=operators)


def captured_template(structure: Structure, graph_of: GraphOf) -> OperatorGraph:
    """A structure with few layers."""
    name, sizes = TEMPLATES[structure]
    options = "&".join(f"{key}={size}" for key, size in sizes.items())
    return graph_of(f"zoo:{name}?layers={LAYERS}&{options}", BATCH)


def _told(sizes: Mapping[str, int], batch: int) -> dict[str, int]:
    """Every size that tensors of a model have, by what it is."""
    heads, sequence = sizes["heads"], sizes["sequence"]
    width = sizes.get("width") or sizes["hidden"] // heads
    shared = sizes["key_value_heads"]
    named_sizes = {
        **sizes,
        "batch": batch,
        "rows": batch * sequence,
        "width": width,
        "half width": width // 2,
        "queries": heads * width,
        "keys": shared * width,
    }
    if "chosen" in sizes:
        named_sizes["choices"] = batch * sequence * sizes["chosen"]
    if "rotary" in sizes:
        rotary, latent = sizes["rotary"], sizes["latent"]
        named_sizes |= {
            "half rotary": rotary // 2,
            "narrow": latent + rotary,
            "turning": width + rotary,
            "all turning": heads * (width + rotary),
        }
    return named_sizes
