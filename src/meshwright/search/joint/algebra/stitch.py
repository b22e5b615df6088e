"""Stitching of rewritten segments into the whole graph. Enters: a graph, its segments, a variant
for each. Leaves: the whole graph again.

A variant speaks of the first segment of its kind. In a copy every name of that segment becomes the
copy's own; a name that a rewrite derived (`y~1`) is derived from the copy's (`z~1`), or numbered on
if it is taken. Inputs, parameters and buffers stay as they were: a rewrite that joins or cuts
parameters does so by operators of the graph (`cat`, `split_with_sizes`) which read them, so that
they are still trained, stored and loaded one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from meshwright.graph.operator_graph import Operator, OperatorGraph, Tensor
from meshwright.rewrite.graphs.tensor_names import DERIVED, fresh
from meshwright.search.joint.algebra.graph_segments import GraphSegment


def stitch_segments(
    graph: OperatorGraph, segments: Sequence[GraphSegment], chosen: Sequence[OperatorGraph]
) -> OperatorGraph:
    """The graph with each segment replaced by a variant of the first that it is a copy of.

    >>> from meshwright.graph.text import parse_graph
    >>> from meshwright.rewrite.graphs.match import Matcher
    >>> from meshwright.search.joint.algebra.graph_segments import segments
    >>> from meshwright.search.joint.algebra.explore_rewrites import algebra
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, k=8]
    ... parameter w: float32[o=6, k=8]
    ... operator h: h: float32[n=4, o=6] = linear(x, w)
    ... operator y: y: float32[n=4, o=6] = relu(h)
    ... output y''')
    >>> rules = algebra()
    >>> [segment] = segments(graph, rules)
    >>> matcher = Matcher(segment.graph, rules)
    >>> fused = matcher.rewrite(matcher.matches[0]).graph
    >>> [(op.name, op.kind) for op in stitch_segments(graph, [segment], [fused]).operators]
    [('y', 'linear_relu')]
    """
    tensors = {name for p in graph.parameters for name in p.also} | graph.tensors.keys()
    operators = {operator.name for operator in graph.operators}
    renamed: list[Operator] = []
    for segment, variant in zip(segments, chosen, strict=True):
        first = segments[segment.alike].graph
        called = _pairs(first.definitions(), segment.graph.definitions())
        titled = _pairs(first.operators, segment.graph.operators)
        names = _Names(called, called, tensors)
        # A rewrite calls an operator after what it makes.
        titles = _Names(titled, called | titled, operators)
        renamed += _renamed(variant, segment.graph, names, titles, _layers(first, segment.graph))
    return msgspec.structs.replace(graph, operators=tuple(renamed))


class _Names:
    """What a copy calls what the first of its kind calls so; `taken` grows with new names."""

    def __init__(self, names: Mapping[str, str], stems: Mapping[str, str], taken: set[str]) -> None:
        self._own, self._stems, self._taken = dict(names), stems, taken

    def __getitem__(self, name: str) -> str:
        if name not in self._own:
            stem, sign, number = name.partition(DERIVED)
            wanted = self._stems.get(stem, stem) + sign + number
            self._own[name] = fresh(wanted, self._taken) if wanted in self._taken else wanted
            self._taken.add(self._own[name])
        return self._own[name]


def _pairs(
    first: Iterable[Tensor | Operator], second: Iterable[Tensor | Operator]
) -> dict[str, str]:
    return {one.name: other.name for one, other in zip(first, second, strict=True)}


def _layers(first: OperatorGraph, second: OperatorGraph) -> dict[str, str]:
    pairs = zip(first.operators, second.operators, strict=True)
    return {one.layer: other.layer for one, other in pairs}


def _renamed(
    variant: OperatorGraph,
    copy_graph: OperatorGraph,
    names: _Names,
    titles: _Names,
    layers: Mapping[str, str],
) -> Iterator[Operator]:
    """The operators of a variant in the names of a copy."""
    for operator in variant.operators:
        yield msgspec.structs.replace(
            operator,
            name=titles[operator.name],
            inputs=tuple(None if name is None else names[name] for name in operator.inputs),
            outputs=tuple(
                _tensor(tensor, names[tensor.name], copy_graph) for tensor in operator.outputs
            ),
            layer=layers[operator.layer],
        )


def _tensor(tensor: Tensor, name: str, copy_graph: OperatorGraph) -> Tensor:
    """A tensor of a variant; one that the copy has keeps the names of its dims."""
    known = copy_graph.tensors.get(name)
    if known is not None and known.spec == tensor.spec:
        return known
    return msgspec.structs.replace(tensor, name=name)
