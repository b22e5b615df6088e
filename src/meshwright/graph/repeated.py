"""Layer count scaling: a graph with more copies of its repeated layer. Enters: a graph of a few
copies of a layer, a number. Leaves: the graph of the same model with so many copies, without
capturing it.

The last copy, which reads the one before it, is the pattern of all that are added: what it reads of
itself is read of the new copy, what of the copy before it of the copy before the new one, and
parameters that nobody else reads are the new copy's own. What comes behind reads the last copy.
Names carry the number of a module ("layers.1.attention"), which is counted on. The graph is no
trace of a module any more: it can be planned, not run.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.graph.layers import LayerRepeat, layers
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter, Tensor


def with_layers(graph: OperatorGraph, count: int) -> OperatorGraph:
    """The graph with `count` copies of the layer that it repeats.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4]
    ... operator h.0.exp: h.0.exp: float32[n=4] = exp(x) @ h.0
    ... operator h.0.neg: h.0.neg: float32[n=4] = neg(h.0.exp) @ h.0
    ... operator h.1.exp: h.1.exp: float32[n=4] = exp(h.0.neg) @ h.1
    ... operator h.1.neg: h.1.neg: float32[n=4] = neg(h.1.exp) @ h.1
    ... output h.1.neg''')
    >>> grown = with_layers(graph, 3)
    >>> [operator.name for operator in grown.operators][-2:], grown.outputs
    (['h.2.exp', 'h.2.neg'], ('h.2.neg',))
    """
    repeat = _only(layers(graph), graph)
    if count < repeat.count:
        raise InputError(
            f"graph {graph.name!r} has {repeat.count} layers, and {count} are wanted",
            f"give {repeat.count} or more, or a graph with fewer",
        )
    growing = _Growing(graph, repeat, count - repeat.count)
    return replace(
        graph,
        parameters=tuple(growing.parameters()),
        operators=tuple(growing.operators()),
        outputs=tuple(growing.last(name) for name in graph.outputs),
        traced=None,
    )


def _only(repeats: tuple[LayerRepeat, ...], graph: OperatorGraph) -> LayerRepeat:
    if len(repeats) != 1:
        raise InputError(
            f"graph {graph.name!r} has {len(repeats)} kinds of layers that repeat",
            "give one with a single kind",
        )
    return repeats[0]


class _Growing:
    """Names of copies that are added."""

    def __init__(self, graph: OperatorGraph, repeat: LayerRepeat, more: int) -> None:
        self._graph, self._repeat, self._more = graph, repeat, more
        pattern = [graph.operators[i] for i in repeat.layer(repeat.count - 1)]
        before = [graph.operators[i] for i in repeat.layer(repeat.count - 2)]
        self._pattern = pattern
        self._own = {tensor.name for operator in pattern for tensor in operator.outputs}
        self._following = {
            old.name: new.name
            for one, other in zip(before, pattern, strict=True)
            for old, new in zip(one.outputs, other.outputs, strict=True)
        }
        readers = {operator.name for operator in pattern}
        self._weights = {
            parameter.tensor.name
            for parameter in graph.parameters
            if {reader.name for reader in graph.consumers[parameter.tensor.name]} <= readers
        }
        self._prefix, self._number = _numbered(graph, pattern)

    def parameters(self) -> Iterator[Parameter]:
        """Those of new copies behind those of the last one."""
        last = [
            candidate
            for candidate in self._graph.parameters
            if candidate.tensor.name in self._weights
        ]
        for parameter in self._graph.parameters:
            yield parameter
            if last and parameter is last[-1]:
                for step in range(1, self._more + 1):
                    for weight in last:
                        tensor = self._tensor(weight.tensor, step)
                        also = tuple(self._name(name, step) for name in weight.also)
                        yield replace(weight, tensor=tensor, also=also)

    def operators(self) -> Iterator[Operator]:
        """All, in order."""
        yield from self._graph.operators[: self._repeat.stop]
        for step in range(1, self._more + 1):
            for operator in self._pattern:
                yield replace(
                    operator,
                    name=self._name(operator.name, step),
                    inputs=tuple(self._read(name, step) for name in operator.inputs),
                    outputs=tuple(self._tensor(tensor, step) for tensor in operator.outputs),
                    layer=self._name(operator.layer, step) if operator.layer else "",
                )
        for operator in self._graph.operators[self._repeat.stop :]:
            inputs = tuple(None if name is None else self.last(name) for name in operator.inputs)
            yield replace(operator, inputs=inputs)

    def last(self, name: str) -> str:
        """What stands in the last copy where a tensor of the pattern does."""
        return self._name(name, self._more) if name in self._own else name

    def _read(self, name: str | None, step: int) -> str | None:
        if name is None:
            return None
        if name in self._following:
            return self._name(self._following[name], step - 1)
        return self._name(name, step) if name in self._own | self._weights else name

    def _tensor(self, tensor: Tensor, step: int) -> Tensor:
        return replace(tensor, name=self._name(tensor.name, step))

    def _name(self, name: str, step: int) -> str:
        head = f"{self._prefix}{self._number}"
        assert name.startswith(head), "names of a copy begin with its module"
        return f"{self._prefix}{self._number + step}{name.removeprefix(head)}"


def _numbered(graph: OperatorGraph, pattern: list[Operator]) -> tuple[str, int]:
    """What the names of a copy begin with, and the number behind it."""
    words = pattern[0].layer.split(".")
    place = next((n for n, word in enumerate(words) if word.isdecimal()), None)
    if place is not None:
        prefix, number = ".".join((*words[:place], "")), int(words[place])
        named = [
            name
            for operator in pattern
            for name in (operator.name, *(t.name for t in operator.outputs))
        ]
        if all(name.startswith(f"{prefix}{number}.") for name in named):
            return prefix, number
    raise InputError(
        f"the layers of graph {graph.name!r} are not numbered modules",
        "capture the model with all its layers",
    )
