"""Which operators run again, counted out layer by layer: a slow twin of `Options.runs_again`."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options


def recomputed(graph: OperatorGraph, options: Options) -> dict[str, tuple[int, int]]:
    """The names of operators that run again, with their layers."""
    if not options.recompute:
        return {}
    every = [(repeat, index) for repeat in layers(graph) for index in range(repeat.count)]
    wanted = min(options.recompute_layers or len(every), len(every))
    layer_of: dict[str, tuple[int, int]] = {}
    rest = len(every) - wanted
    kept = {len(every) - 1 - ceil(Fraction(n * len(every), rest)) for n in range(rest)}
    for number in sorted(set(range(len(every))) - kept):
        repeat, index = every[number]
        for position in repeat.layer(index):
            layer_of[graph.operators[position].name] = repeat.start, index
    assert len(set(layer_of.values())) == wanted
    return layer_of
