"""Batch rescaling of a captured graph. Enters: a graph, how many times as many samples. Leaves: the
graph of the same model with so many, or an `InputError` that says which operator has its batch
fixed.

The dims that readers of the inputs cut by sample grow, and the first dims that are as long of
inputs which nobody cuts (a loss wants its targets whole); all other shapes follow by the families
of the kinds, as `check` judges them. Parameters and buffers stay.

Where an operator's attributes name the batch, as a view's shape, they are those of a split's part
that is longer than the whole (`_lengthened`): of the one split that reads the inputs as they grew.
What depends on no input, as a class token that is expanded to every sample, grows with whoever
reads it (`_Growing.made_longer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.families import family_of
from meshwright.graph.family import ShapeError, Split
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Spec, Tensor
from meshwright.graph.pieces import piece_of, splits_of
from meshwright.graph.validation import check

SAMPLE = "sample"

COUNTED = frozenset({"nonzero_static"})
"""Kinds whose outputs are as long as values of the example said, which a guard holds."""

CAPTURE = "capture the model anew with a larger batch (--batch)"


def with_batch(graph: OperatorGraph, times: int | Fraction) -> OperatorGraph:
    """The graph with so many times as many samples.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, i=8]
    ... parameter w: float32[o=2, i=8]
    ... operator y: y: float32[n=4, o=2] = linear(x, w)
    ... output y''')
    >>> [str(tensor) for tensor in with_batch(graph, 3).definitions()]
    ['x: float32[n=12, i=8]', 'w: float32[o=2, i=8]', 'y: float32[n=12, o=2]']
    """
    grown = sample_dims(graph)
    inputs = tuple(
        _longer(tensor, grown[tensor.name], times) if tensor.name in grown else tensor
        for tensor in graph.inputs
    )
    sizes = {tensor.name: tensor.spec for tensor in inputs}
    batched = msgspec.structs.replace(
        graph,
        inputs=inputs,
        operators=_all_grown(graph, graph.operators, sizes, times),
        checks=_all_grown(graph, graph.checks, sizes, times),
    )
    problems = check(batched)
    if problems:
        raise InputError(f"with {times} times the samples {problems[0]}", CAPTURE)
    return batched


def with_samples(graph: OperatorGraph, samples: int) -> OperatorGraph:
    """The graph with so many samples in a step, fewer or more than it has.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, i=8]
    ... parameter w: float32[o=2, i=8]
    ... operator y: y: float32[n=4, o=2] = linear(x, w)
    ... output y''')
    >>> [str(tensor) for tensor in with_samples(graph, 3).definitions()]
    ['x: float32[n=3, i=8]', 'w: float32[o=2, i=8]', 'y: float32[n=3, o=2]']
    """
    now = samples_of(graph)
    if now is None:
        raise InputError(f"no operator of graph {graph.name!r} cuts samples of an input", CAPTURE)
    return graph if now == samples else with_batch(graph, Fraction(samples, now))


def samples_of(graph: OperatorGraph) -> int | None:
    """Samples of a step: of the inputs that are cut by sample the fewest; None if none is."""
    dims = _sample_dims(graph)
    sizes = (tensor.spec.shape[dims[tensor.name]] for tensor in graph.inputs if tensor.name in dims)
    return min(sizes, default=None)


def sample_dims(graph: OperatorGraph) -> dict[str, int]:
    """For each input that has samples the dim along which they lie."""
    dims = _sample_dims(graph)
    sizes = {tensor.spec.shape[dims[tensor.name]] for tensor in graph.inputs if tensor.name in dims}
    if not dims:
        raise InputError(f"no operator of graph {graph.name!r} cuts samples of an input", CAPTURE)
    whole = {tensor.name: 0 for tensor in graph.inputs if {*tensor.spec.shape[:1]} & sizes}
    return whole | dims


def _sample_dims(graph: OperatorGraph) -> dict[str, int]:
    """The dim along which samples of an input lie. Nobody can cut a single sample: where the first
    dim of all inputs is 1 and a reader of one would cut it, that is it, and positions are none.
    """
    inputs = [tensor for tensor in graph.inputs if tensor.spec.shape]
    if all(tensor.spec.shape[0] == 1 for tensor in inputs) and any(
        _cut(graph, tensor, _every_split) == 0 for tensor in inputs
    ):
        return {tensor.name: 0 for tensor in inputs}
    cuts = {tensor.name: _cut(graph, tensor, splits_of) for tensor in inputs}
    return {name: dim for name, dim in cuts.items() if dim is not None}


def _every_split(call: Call) -> tuple[Split, ...]:
    """Of dims of size 1, too."""
    return family_of(call).splits(call)


def _cut(
    graph: OperatorGraph, tensor: Tensor, splits: Callable[[Call], tuple[Split, ...]]
) -> int | None:
    """The dim of an input that the first reader to do so cuts by sample, if any does."""
    for reader in graph.consumers[tensor.name]:
        place = reader.inputs.index(tensor.name)
        for split in splits(graph.call(reader)):
            if SAMPLE in (split.name, split.role) and split.inputs[place] is not None:
                return split.inputs[place]
    return None


def _longer(tensor: Tensor, dim: int, times: int | Fraction) -> Tensor:
    if (tensor.dims[dim][1] * times) % 1:
        raise InputError(
            f"{times} times the {tensor.dims[dim][1]} samples of {tensor.name!r} are no number",
            "give another number of samples",
        )
    dims = tuple(
        (name, int(size * times) if at == dim else size)
        for at, (name, size) in enumerate(tensor.dims)
    )
    return msgspec.structs.replace(tensor, dims=dims)


def _all_grown(
    graph: OperatorGraph,
    operators: tuple[Operator, ...],
    inputs: Mapping[str, Spec],
    times: int | Fraction,
) -> tuple[Operator, ...]:
    """The operators of a graph, or its checks, which read its inputs and each other."""
    apart = OperatorGraph(
        name=graph.name,
        inputs=graph.inputs,
        parameters=graph.parameters,
        buffers=graph.buffers,
        operators=operators,
    )
    growing = _Growing(apart, inputs, times)
    for operator in operators:
        growing.add(operator)
    return tuple(growing.operators.values())


class _Growing:
    """A graph under way: operators whose inputs have grown, in order."""

    def __init__(
        self, graph: OperatorGraph, inputs: Mapping[str, Spec], times: int | Fraction
    ) -> None:
        self._graph, self._times = graph, times
        self._specs = {**graph.specs, **inputs}
        self.operators: dict[str, Operator] = {}
        """By name."""

    def add(self, operator: Operator) -> None:
        """The next operator, with outputs that follow from its inputs."""
        call = self._with_inputs(operator)
        if call.inputs == self._graph.call(operator).inputs:
            self._put(operator, self._graph.call(operator))
            return
        if operator.kind in COUNTED:
            raise InputError(
                f"operator {operator.name!r} finds as many elements as this batch has", CAPTURE
            )
        # First by splits: a shape with a -1 takes any number of elements, if not as it was meant.
        longer = self._lengthened(operator)
        try:
            outputs = call.outputs if longer else family_of(call).outputs(call)
        except ShapeError as error:
            raise InputError(
                f"operator {operator.name!r} has its batch fixed: {error}", CAPTURE
            ) from None
        self._put(operator, longer or msgspec.structs.replace(call, outputs=outputs))

    def _with_inputs(self, operator: Operator) -> Call:
        call = self._graph.call(operator)
        inputs = tuple(None if name is None else self._specs[name] for name in operator.inputs)
        return msgspec.structs.replace(call, inputs=inputs)

    def _lengthened(self, operator: Operator) -> Call | None:
        """The operator with a longer split, if its inputs are as that split reads them."""
        call = self._graph.call(operator)
        for split in _every_split(call):
            longer = self._with_longer(call, split)
            if longer is None:
                continue
            wanted = list(zip(operator.inputs, longer.inputs, strict=True))
            short = [(n, s) for n, s in wanted if n is not None and s != self._specs[n]]
            if all(s is not None and self.made_longer(n, s) for n, s in short):
                return longer
        return None

    def _with_longer(self, call: Call, split: Split) -> Call | None:
        """A call with a split so many times as long; None where it has no such form."""
        if split.halo is not None or split.role == "reduction" or split.once:
            return None
        if (split.extent * self._times) % 1:
            return None
        longer = piece_of(call, split, 0, int(split.extent * self._times)).call
        names = {key for key, _ in call.attributes}
        if any(key not in names for key, _ in longer.attributes):
            return None  # It says that it is a part.
        try:
            return longer if family_of(longer).outputs(longer) == longer.outputs else None
        except ShapeError:
            return None

    def made_longer(self, tensor: str, wanted: Spec) -> bool:
        """Have what depends on no input made longer too; whether it can be."""
        maker = self._graph.producers.get(tensor)
        if maker is None or self._specs[tensor] != self._graph.specs[tensor]:
            return False
        index = [output.name for output in maker.outputs].index(tensor)
        call = self._graph.call(maker)
        for split in _every_split(call):
            longer = self._with_longer(call, split)
            if longer is None or longer.outputs[index] != wanted:
                continue
            read = list(zip(maker.inputs, longer.inputs, strict=True))
            short = [(n, s) for n, s in read if n is not None and s != self._specs[n]]
            if all(s is not None and self.made_longer(n, s) for n, s in short):
                self._put(maker, longer)
                return True
        return False

    def _put(self, operator: Operator, call: Call) -> None:
        if tuple(len(spec.shape) for spec in call.outputs) != tuple(
            len(tensor.dims) for tensor in operator.outputs
        ):
            raise InputError(f"operator {operator.name!r} has its batch fixed", CAPTURE)
        outputs = tuple(map(_resized, operator.outputs, call.outputs))
        self._specs |= {tensor.name: tensor.spec for tensor in outputs}
        self.operators[operator.name] = msgspec.structs.replace(
            operator, outputs=outputs, attributes=call.attributes
        )


def _resized(tensor: Tensor, spec: Spec) -> Tensor:
    sizes = zip(tensor.dims, spec.shape, strict=True)
    return msgspec.structs.replace(tensor, dims=tuple((name, size) for (name, _), size in sizes))
