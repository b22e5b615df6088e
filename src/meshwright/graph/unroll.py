"""Recurrent layers taken apart in time. Enters: a graph. Leaves: a graph that computes the same.

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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from meshwright.foundation.errors import InputError
from meshwright.foundation.integers import divisors
from meshwright.graph.families import family_of
from meshwright.graph.families.recurrent import Recurrent
from meshwright.graph.family import integer, position, replaced
from meshwright.graph.model import Attributes, Call, Operator, OperatorGraph, Tensor

Names = tuple[str, ...]


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
    result = _Result(graph)
    for operator in graph.operators:
        if not is_recurrent(operator):
            result.add(operator)
            continue
        layered = _layered(operator, graph.call(operator), steps)
        if layered.cells == 1 and layered.length == layered.total:
            result.add(operator)
        else:
            _taken_apart(result, layered)
    return msgspec.structs.replace(graph, operators=_needed(graph, result.operators))


def is_recurrent(operator: Operator) -> bool:
    """Whether an operator runs over a sequence step by step, so that it can be unrolled."""
    return isinstance(family_of(operator.kind), Recurrent)


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
        own = (str(layer),) if self.layers > 1 else ()
        return ".".join((self.operator.name, *own, *rest))

    def path(self, layer: int) -> str:
        """The path of one layer, as if it were a module of its own."""
        own = str(layer) if self.layers > 1 else ""
        return ".".join(filter(None, (self.operator.layer, own)))


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


class _Result:
    """The operators of the new graph so far, and how tensors are made of parts."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.operators: list[Operator] = []
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self._parts: dict[tuple[str, int, int], Names] = {}
        """The parts of a tensor along a dim, all of one size."""

    def add(self, operator: Operator) -> Names:
        """Puts an operator last; its outputs."""
        self.operators.append(operator)
        self.tensors.update((tensor.name, tensor) for tensor in operator.outputs)
        if operator.kind == "cat":
            self._remember(operator)
        return tuple(tensor.name for tensor in operator.outputs)

    def _remember(self, cat: Operator) -> None:
        """Of what a tensor was joined, unless the parts differ in more than their values."""
        parts = tuple(filter(None, cat.inputs))
        specs = {self.tensors[name].spec for name in parts}
        if len(specs) == 1:
            (spec,) = specs
            dim = dict(cat.attributes).get("dim", 0)
            assert isinstance(dim, int)
            place = position(dim, len(spec.shape))
            self._parts[cat.outputs[0].name, place, spec.shape[place]] = parts

    def cut(self, whole: str, dim: int, size: int, name: str, layer: str) -> Names:
        """The parts of a tensor along a dim; cut by an operator of this name if need be."""
        tensor = self.tensors[whole]
        if tensor.shape[dim] == size:
            return (whole,)
        key = (whole, dim, size)
        if key not in self._parts:
            dims = _resized(tensor, {dim: size})
            self._parts[key] = self.add(
                Operator(
                    name=name,
                    kind="split",
                    inputs=(whole,),
                    outputs=tuple(
                        Tensor(name=f"{name}.{i}", dtype=tensor.dtype, dims=dims)
                        for i in range(tensor.shape[dim] // size)
                    ),
                    attributes=_along(dim, split_size=size),
                    layer=layer,
                )
            )
        return self._parts[key]

    def derive(
        self, name: str, kind: str, inputs: Names, attributes: Attributes, dim: int, layer: str
    ) -> str:
        """What a kind makes of tensors that look alike: they add up along the dim."""
        first = self.tensors[inputs[0]]
        dims = _resized(first, {dim: first.shape[dim] * len(inputs)})
        output = Tensor(name=name, dtype=first.dtype, dims=dims)
        (made,) = self.add(
            Operator(
                name=name,
                kind=kind,
                inputs=inputs,
                outputs=(output,),
                attributes=attributes,
                layer=layer,
            )
        )
        return made

    def rename(self, begin: int, names: dict[str, str]) -> None:
        """Gives tensors that the operators from `begin` on make and read other names."""
        for place in range(begin, len(self.operators)):
            own = self.operators[place]
            self.operators[place] = msgspec.structs.replace(
                own,
                inputs=tuple(name and names.get(name, name) for name in own.inputs),
                outputs=tuple(
                    self.tensors[names[t.name]] if t.name in names else t for t in own.outputs
                ),
            )


def _taken_apart(result: _Result, whole: _Layered) -> None:
    """Adds the runs of every layer, and what makes the outputs of the operator of them."""
    operator, begin = whole.operator, len(result.operators)
    name, layer = operator.name, operator.layer
    x, *others = operator.inputs
    assert x is not None
    count = len(operator.outputs) - 1
    states, weights = list(filter(None, others[:count])), others[count:]
    runs = result.cut(x, whole.time, whole.length, f"{name}.split", layer)
    given = [
        result.cut(state, 0, 1, f"{name}.state{i}.split", layer) for i, state in enumerate(states)
    ]
    each = len(weights) // whole.cells
    lasts: list[Names] = []
    for depth in range(whole.layers):
        ways = []
        for reverse in range(whole.directions):
            cell = depth * whole.directions + reverse
            state = tuple(of_cells[cell] for of_cells in given)
            own = tuple(weights[cell * each : (cell + 1) * each])
            walk = _reversed_runs if reverse else _runs
            made, last = walk(result, whole, depth, runs, state, own)
            ways.append(made)
            lasts.append(last)
        runs = _between(result, whole, depth, ways)
    _finish(result, begin, whole, [runs, *zip(*lasts, strict=True)])


def _runs(
    result: _Result,
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
    dims = [_resized(y, {whole.time: whole.length, 2: width})]
    dims += [_resized(own, {0: 1}) for own in states]
    outputs = []
    for index, run in enumerate(runs):
        name = whole.name(depth, f"{stem}{index}")
        made = result.add(
            Operator(
                name=name,
                kind=whole.operator.kind,
                inputs=(run, *state, *weights),
                outputs=tuple(
                    Tensor(name=f"{name}.{i}", dtype=old.dtype, dims=own)
                    for i, (old, own) in enumerate(zip((y, *states), dims, strict=True))
                ),
                attributes=whole.attributes,
                layer=whole.path(depth),
            )
        )
        outputs.append(made[0])
        state = made[1:]
    return tuple(outputs), state


def _reversed_runs(
    result: _Result,
    whole: _Layered,
    depth: int,
    runs: Names,
    state: Names,
    weights: Sequence[str | None],
) -> tuple[Names, Names]:
    """One layer from the last step to the first, with its outputs in the order of time."""
    entering = _flipped(result, whole, depth, runs[::-1], "reverse.in")
    made, last = _runs(result, whole, depth, entering, state, weights, "reverse.step")
    return _flipped(result, whole, depth, made, "reverse.out")[::-1], last


def _flipped(result: _Result, whole: _Layered, depth: int, runs: Names, stem: str) -> Names:
    """Each run turned around in time; a run of one step is its own reverse."""
    if whole.length == 1:
        return runs
    attributes: Attributes = (("dims", (whole.time,)),)
    return tuple(
        result.derive(
            whole.name(depth, f"{stem}{i}"), "flip", (run,), attributes, 0, whole.path(depth)
        )
        for i, run in enumerate(runs)
    )


def _between(result: _Result, whole: _Layered, depth: int, ways: list[Names]) -> Names:
    """What the next layer reads: both directions side by side, with dropout but at the end."""
    path = whole.path(depth)
    runs = ways[0]
    if whole.directions == 2:
        runs = tuple(
            result.derive(whole.name(depth, f"cat{i}"), "cat", pair, _along(2), 2, path)
            for i, pair in enumerate(zip(*ways, strict=True))
        )
    if not whole.dropout or depth == whole.layers - 1:
        return runs
    drop: Attributes = (("p", whole.dropout), ("train", True))
    return tuple(
        result.derive(whole.name(depth, f"dropout{i}"), "dropout", (run,), drop, 0, path)
        for i, run in enumerate(runs)
    )


def _finish(result: _Result, begin: int, whole: _Layered, parts: Iterable[Names]) -> None:
    """Gives the operator's outputs their names: to a join of their parts, or to the only part."""
    operator = whole.operator
    alone: dict[str, str] = {}
    for index, (output, own) in enumerate(zip(operator.outputs, parts, strict=True)):
        if len(own) == 1:
            alone[own[0]] = output.name
            continue
        stem, dim = (f"state{index - 1}.cat", 0) if index else ("cat", whole.time)
        result.add(
            Operator(
                name=f"{operator.name}.{stem}",
                kind="cat",
                inputs=own,
                outputs=(output,),
                attributes=_along(dim),
                layer=operator.layer,
            )
        )
    result.rename(begin, alone)


def _along(dim: int, **others: int) -> Attributes:
    """Attributes with the dim, which is not recorded where it is ATen's default."""
    return tuple(sorted((others | ({"dim": dim} if dim else {})).items()))


def _resized(tensor: Tensor, sizes: dict[int, int]) -> tuple[tuple[str, int], ...]:
    """The dims of a tensor, some with another size."""
    return tuple((name, sizes.get(i, size)) for i, (name, size) in enumerate(tensor.dims))


def _needed(graph: OperatorGraph, operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The operators that somebody reads, or that nobody read before they were unrolled either."""
    ends = {name for name in (*graph.outputs, graph.loss) if name is not None}
    for operator in graph.operators:
        made = {tensor.name for tensor in operator.outputs}
        if not any(graph.consumers[name] for name in made):
            ends |= made
    kept = []
    for operator in reversed(operators):
        if not ends.isdisjoint(tensor.name for tensor in operator.outputs):
            ends.update(filter(None, operator.inputs))
            kept.append(operator)
    return tuple(reversed(kept))
