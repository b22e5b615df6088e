"""Time unrolling of recurrent layers, for wavefront parallelism. Enters: a graph. Leaves: a graph
that computes the same.

An lstm or gru of several layers l over a sequence x that is cut into runs r of equal length becomes
an operator for each layer and each run, which hands its state s on; all runs of a layer read the
same weights:

    y[l, r], s[l, r + 1] = lstm(y[l - 1, r], s[l, r])    y[-1, r] = x[r], s[l, 0] as it was given

    `_runs`         one layer in one direction: r from first to last
    `_taken_apart`  all layers; a reverse direction takes the runs from last to first, each flipped

The operator (l, r) waits for (l - 1, r) and (l, r - 1) only, so that layers and runs that lie on
different devices work as a wavefront. What was joined in time and would be cut in the same places
again is not: layers that are modules of their own are wired run by run too. Whatever else reads a
sequence stays whole, since it has time as a dim of its own and can be split along it. Where
anything lies is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.graph.assembly import Assembly, Names, resized
from meshwright.graph.families import family_of
from meshwright.graph.families.recurrent import Recurrent
from meshwright.graph.family import integer, replaced
from meshwright.graph.operator_graph import Attributes, Call, Operator, OperatorGraph


def unrolled(graph: OperatorGraph, steps: int | None = None) -> OperatorGraph:
    """The graph with `steps` operators for every layer of a recurrent operator, by default T.

    T is the length of the operator's sequence, and `steps` divides it.

    >>> from meshwright.graph.text import parse_graph
    >>> state, weight = "float32[layer=1, batch=2, feature=3]", "float32[out=9, in=3]"
    >>> graph = parse_graph(f'''graph g
    ... input x: float32[position=4, batch=2, feature=3]
    ... input h: {state}
    ... parameter a: {weight}
    ... parameter b: {weight}
    ... operator r: y: float32[position=4, batch=2, feature=3], s: {state} = gru(x, h, a, b)
    ... output y''')
    >>> [(op.name, op.kind) for op in unrolled(graph, 2).operators]
    [('r.split', 'split'), ('r.step0', 'gru'), ('r.step1', 'gru'), ('r.cat', 'cat')]
    """
    assembly = Assembly(graph)
    for operator in graph.operators:
        if not is_recurrent(operator):
            assembly.add(operator)
            continue
        layered = _layered(operator, graph.call(operator), steps)
        if layered.cells == 1 and layered.length == layered.total:
            assembly.add(operator)
        else:
            _taken_apart(assembly, layered)
    return msgspec.structs.replace(graph, operators=_needed(graph, assembly.operators))


def is_recurrent(operator: Operator) -> bool:
    """Whether an operator runs over a sequence step by step, so that it can be unrolled."""
    return isinstance(family_of(operator), Recurrent)


class _Layered(NamedTuple):
    """A recurrent operator and the shape of what it is taken apart into."""

    operator: Operator
    attributes: Attributes
    """Of each of its parts."""
    time: int
    """The dim of the sequence along which it runs."""
    total: int
    length: int
    """Of the whole sequence, and of one run."""
    layers: int
    directions: int
    dropout: float
    """Between layers; 0 where nothing is trained."""

    @property
    def cells(self) -> int:
        """Layers, each direction for itself."""
        return self.layers * self.directions

    def name(self, layer: int, *rest: str) -> str:
        """A name for something of one layer."""
        suffix = (str(layer),) if self.layers > 1 else ()
        return ".".join((self.operator.name, *suffix, *rest))

    def path(self, layer: int) -> str:
        """The path of one layer, as if it were a module of its own."""
        suffix = str(layer) if self.layers > 1 else ""
        return ".".join(filter(None, (self.operator.layer, suffix)))


def _layered(operator: Operator, call: Call, steps: int | None) -> _Layered:
    time = 1 if call.get("batch_first", False) else 0
    total = call.outputs[0].shape[time]
    count = total if steps is None else steps
    if count < 1 or total % count:
        raise InputError(
            f"operator {operator.name!r} runs over {total} steps, which {count} operators do not "
            "share evenly",
            f"unroll it into one of {', '.join(map(str, divisors(total)))}",
        )
    dropout = call.get("dropout", 0.0)
    assert isinstance(dropout, float | int)
    one_cell = {"num_layers": 1, "bidirectional": False, "dropout": 0.0}
    return _Layered(
        operator=operator,
        attributes=replaced(call.attributes, **one_cell),
        time=time,
        total=total,
        length=total // count,
        layers=integer(call, "num_layers", 1),
        directions=2 if call.get("bidirectional", False) else 1,
        dropout=dropout if call.get("train", False) else 0.0,
    )


def _taken_apart(assembly: Assembly, whole: _Layered) -> None:
    """Adds the runs of every layer, and what makes the outputs of the operator of them."""
    operator, begin = whole.operator, len(assembly.operators)
    name, layer = operator.name, operator.layer
    x, *others = operator.inputs
    assert x is not None
    count = len(operator.outputs) - 1
    states, weights = list(filter(None, others[:count])), others[count:]
    runs = assembly.cut(x, whole.time, whole.length, name=f"{name}.split", layer=layer)
    initial = [
        assembly.cut(state, 0, 1, name=f"{name}.state{i}.split", layer=layer)
        for i, state in enumerate(states)
    ]
    each = len(weights) // whole.cells
    lasts: list[Names] = []
    for depth in range(whole.layers):
        ways = []
        for reverse in range(whole.directions):
            cell = depth * whole.directions + reverse
            state = tuple(of_cells[cell] for of_cells in initial)
            cell_weights = weights[cell * each : (cell + 1) * each]
            walk = _reversed_runs if reverse else _runs
            produced, last = walk(assembly, whole, depth, runs, state, cell_weights)
            ways.append(produced)
            lasts.append(last)
        runs = _between(assembly, whole, depth, ways)
    sequence = assembly.joined(runs, whole.time, name=f"{name}.cat", layer=layer)
    final = [
        assembly.joined(of_cells, 0, name=f"{name}.state{i}.cat", layer=layer)
        for i, of_cells in enumerate(zip(*lasts, strict=True))
    ]
    outputs = (tensor.name for tensor in operator.outputs)
    assembly.rename(begin, dict(zip((sequence, *final), outputs, strict=True)))


def _runs(
    assembly: Assembly,
    whole: _Layered,
    depth: int,
    runs: Names,
    state: Names,
    weights: Sequence[str | None],
    stem: str = "step",
) -> tuple[Names, Names]:
    """One layer in one direction: its outputs run by run, and its last states."""
    y, *states = whole.operator.outputs
    width = y.shape[-1] // whole.directions
    dims = [resized(y, {whole.time: whole.length, 2: width})]
    dims += [resized(tensor, {0: 1}) for tensor in states]
    outputs = []
    for index, run in enumerate(runs):
        output, *state_made = assembly.apply(
            whole.operator.kind,
            (run, *state, *weights),
            dims,
            name=whole.name(depth, f"{stem}{index}"),
            layer=whole.path(depth),
            attributes=whole.attributes,
        )
        outputs.append(output)
        state = tuple(state_made)
    return tuple(outputs), state


def _reversed_runs(
    assembly: Assembly,
    whole: _Layered,
    depth: int,
    runs: Names,
    state: Names,
    weights: Sequence[str | None],
) -> tuple[Names, Names]:
    """One layer from the last step to the first, with its outputs in the order of time."""
    flip: Attributes = (("dims", (whole.time,)),)

    def turned(runs: Names, stem: str) -> Names:
        """Runs flipped one by one; a run of one step is its own reverse."""
        if whole.length == 1:
            return runs
        return _each(assembly, whole, depth, runs, "flip", stem, flip)

    entering = turned(runs[::-1], "reverse.in")
    outputs, last = _runs(assembly, whole, depth, entering, state, weights, "reverse.step")
    return turned(outputs, "reverse.out")[::-1], last


def _between(assembly: Assembly, whole: _Layered, depth: int, ways: list[Names]) -> Names:
    """What the next layer reads: both directions side by side, with dropout but at the end."""
    runs = tuple(
        assembly.joined(pair, 2, name=whole.name(depth, f"cat{i}"), layer=whole.path(depth))
        for i, pair in enumerate(zip(*ways, strict=True))
    )
    if not whole.dropout or depth == whole.layers - 1:
        return runs
    drop: Attributes = (("p", whole.dropout), ("train", True))
    return _each(assembly, whole, depth, runs, "dropout", "dropout", drop)


def _each(
    assembly: Assembly,
    whole: _Layered,
    depth: int,
    runs: Names,
    kind: str,
    stem: str,
    attributes: Attributes,
) -> Names:
    """Each run of a layer through an operator that keeps its shape."""
    names: list[str] = []
    for i, run in enumerate(runs):
        name, layer = whole.name(depth, f"{stem}{i}"), whole.path(depth)
        dims = (assembly.tensors[run].dims,)
        names += assembly.apply(kind, (run,), dims, name=name, layer=layer, attributes=attributes)
    return tuple(names)


def _needed(graph: OperatorGraph, operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The operators that somebody reads, or that nobody read before they were unrolled either."""
    ends = {name for name in (*graph.outputs, graph.loss) if name is not None}
    for operator in graph.operators:
        produced = {tensor.name for tensor in operator.outputs}
        if not any(graph.consumers[name] for name in produced):
            ends |= produced
    kept = []
    for operator in reversed(operators):
        if not ends.isdisjoint(tensor.name for tensor in operator.outputs):
            ends.update(filter(None, operator.inputs))
            kept.append(operator)
    return tuple(reversed(kept))
