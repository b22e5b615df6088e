"""Validation of operator graphs: unique names, topological order, shapes, outputs and loss. Enters:
an `OperatorGraph`. Leaves: what is wrong with it, in sentences.

A graph is right if its names are unique, every operator comes after what it reads (so there is no
cycle), every shape follows from the inputs by the family of the kind, and outputs and loss exist.
What guards are judged by has names and an order too, and reads no parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from meshwright.base.errors import InputError
from meshwright.graph.counts import is_differentiable
from meshwright.graph.families import family_of, has_family
from meshwright.graph.family import ShapeError
from meshwright.graph.operator_graph import Call, OperatorGraph, Spec

MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What families raise over inputs and attributes for which they were not written."""


def check(graph: OperatorGraph) -> tuple[str, ...]:
    """What is wrong with a graph; nothing if it is right.

    >>> from meshwright.graph.text import parse_graph
    >>> check(parse_graph('''graph wrong
    ... input x: float32[batch=4, width=8]
    ... operator double: y: float32[batch=4, width=7] = mul(x) {other=2}
    ... output y'''))
    ('operator double: mul gives float32[4, 8], not float32[4, 7]',)
    """
    problems = (*_names(graph), *_order(graph), *_ends(graph)) or tuple(_shapes(graph))
    return problems or tuple(_guards(graph))


def unknown_kinds(graph: OperatorGraph) -> tuple[tuple[str, int], ...]:
    """Kinds that no family tells about, with how many operators each has.

    They can be counted in bytes only, and be split only where a capture has proven it safe.
    """
    counts = Counter(op.kind for op in graph.operators if not has_family(op))
    return tuple(sorted(counts.items()))


def _names(graph: OperatorGraph) -> Iterator[str]:
    tensors = [tensor.name for tensor in graph.definitions()]
    tensors += [name for parameter in graph.parameters for name in parameter.also]
    for what, names in (("tensors", tensors), ("operators", [op.name for op in graph.operators])):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{count} {what} are called {name}"


def _order(graph: OperatorGraph) -> Iterator[str]:
    made_by_operators = {tensor.name for op in graph.operators for tensor in op.outputs}
    born = set(graph.tensors) - made_by_operators
    for operator in graph.operators:
        for name in operator.inputs:
            if name is None:
                continue
            if name not in graph.tensors:
                what = name or "a tensor without a name"
                yield f"operator {operator.name} reads {what}, which nobody makes"
            elif name not in born:
                yield f"operator {operator.name} reads {name}, which is made later"
        born.update(tensor.name for tensor in operator.outputs)


def _ends(graph: OperatorGraph) -> Iterator[str]:
    for name in graph.outputs:
        if name not in graph.tensors:
            yield f"output {name} is made by nobody"
    if graph.loss is None:
        return
    loss = graph.tensors.get(graph.loss)
    if loss is None:
        yield f"loss {graph.loss} is made by nobody"
    elif loss.spec.elements != 1 or not is_differentiable(loss.dtype):
        yield f"loss {loss} is not one real number"


def _guards(graph: OperatorGraph) -> Iterator[str]:
    """What is wrong with guards: the checks as a graph of their own, and what they end in."""
    if not graph.guards:
        return
    ends = tuple(dict.fromkeys(guard.tensor for guard in graph.guards))
    alone = OperatorGraph(
        name="checks",
        inputs=graph.inputs,
        buffers=graph.buffers,
        operators=graph.checks,
        outputs=ends,
    )
    problems = (*_names(alone), *_order(alone), *_ends(alone))
    yield from problems
    if not problems:
        wide = [name for name in ends if alone.specs[name].elements != 1]
        yield from (f"guard {name} is not one number" for name in wide)


def _shapes(graph: OperatorGraph) -> Iterator[str]:
    verdicts: dict[Call, str | None] = {}
    for operator in graph.operators:
        call = graph.call(operator)
        if call not in verdicts:
            verdicts[call] = _shape_problem(call)
        problem = verdicts[call]
        if problem is not None:
            yield f"operator {operator.name}: {problem}"


def _shape_problem(call: Call) -> str | None:
    try:
        expected = family_of(call).outputs(call)
        if expected == call.outputs:
            return _arity_problem(call)
    except ShapeError as error:
        return f"{call.kind}: {error}"
    except InputError:
        raise  # A line of a user's own operator: the sentence names what is wrong in it.
    except MISFITS as error:
        return f"{call.kind} cannot have these inputs and attributes ({error})"
    return f"{call.kind} gives {_format(expected)}, not {_format(call.outputs)}"


def _arity_problem(call: Call) -> str | None:
    """What is wrong with how many inputs there are, of how many dims: all that a family tells of a
    call is asked for once, so that it can be relied on later.
    """
    family, count = family_of(call), len(call.inputs)
    wanted = (True,) * count
    lengths = [len(family.gradient_flops(call)), *(len(cut.inputs) for cut in family.splits(call))]
    if min(lengths) < count:
        return f"{call.kind} has {count} inputs, of which it takes {min(lengths)}"
    for split in family.splits(call):
        if not (_cuts(split.inputs, call.inputs) and _cuts(split.outputs, call.outputs)):
            return f"{call.kind} cuts dims that its inputs or outputs do not have"
    family.flops(call), family.traffic(call), family.scratch(call)
    family.saved(call, wanted), family.stages(call, wanted)
    return None


def _cuts(dims: Sequence[int | None], specs: Sequence[Spec | None]) -> bool:
    """Whether dims to be cut are there."""
    return all(
        dim is None or (spec is not None and dim < len(spec.shape))
        for dim, spec in zip(dims, specs, strict=False)
    )


def _format(specs: tuple[Spec, ...]) -> str:
    return ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
