"""From an exported program to an `OperatorGraph`.

Enters: what `torch.export` traced, without decompositions. Leaves: the same computation over
tensors with the names of the module, tied weights as one parameter, dims with readable names.
What no output depends on is left out: assertions, and updates of statistics such as batch
normalisation's counters, which change no value of this step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from meshwright.capture.dims import Names, input_dims, numbered, output_dims, parameter_dims
from meshwright.capture.followed import refuse_unfollowed
from meshwright.capture.judged import judged, needed_for
from meshwright.capture.reading import ValueRead
from meshwright.capture.translate import Applied, State, Translation
from meshwright.graph.gates import with_gates
from meshwright.graph.model import Call, Operator, OperatorGraph, Parameter, Spec, Tensor
from meshwright.graph.returned import Returned
from meshwright.graph.traced import Traced


def graph_of(
    program: ExportedProgram,
    name: str,
    *,
    root: str = "",
    input_names: Sequence[str] = (),
    reads: Sequence[ValueRead | None] = (),
    returned: Returned | None = None,
) -> OperatorGraph:
    """The graph of an exported program.

    `root` is the path of the user's model in the program, which no name repeats; `input_names`
    are the user's names of the program's inputs; `reads` tell of its last outputs, and `returned`,
    which becomes a part of `traced`, of those before.
    """
    found = Translation(program, root, input_names)
    ends = tuple(_outputs(program, found))
    ends, seen = _parted(ends, len(reads))
    outputs, given = _parted(ends, 0 if returned is None else len(tuple(returned.tensors())))
    needed = needed_for(outputs, found.operators)
    checked = judged(found, tuple(zip(seen, reads, strict=True)))
    kept = {own.name for own in (*needed, *checked.operators)}
    refuse_unfollowed(found, kept)
    applied = [own for own in found.operators if own.name in kept]
    read = {name for operator in applied for name in operator.described.inputs}
    dims = _dims(found, applied)

    def tensor(name: str, spec: Spec) -> Tensor:
        named = tuple(zip(dims[name], spec.shape, strict=True))
        return Tensor(name=name, dtype=spec.dtype, dims=named)

    def tensors(states: Iterable[State]) -> tuple[Tensor, ...]:
        return tuple(tensor(state.name, state.spec) for state in states)

    def operator(own: Applied) -> Operator:
        return Operator(
            name=own.name,
            kind=own.described.kind,
            inputs=own.described.inputs,
            outputs=tuple(tensor(name, spec) for name, spec in own.outputs),
            attributes=own.described.attributes,
            layer=own.layer,
        )

    made_by = {made for own in needed for made, _ in own.outputs}
    made = OperatorGraph(
        name=name,
        inputs=tensors(found.inputs.values()),
        parameters=tuple(
            Parameter(
                tensor=tensor(state.name, state.spec),
                also=tuple(state.also),
                trainable=state.trainable,
            )
            for state in found.parameters.values()
        ),
        buffers=tensors(state for state in found.buffers.values() if state.name in read),
        operators=tuple(map(operator, needed)),
        outputs=outputs,
        loss=_loss(found, outputs),
        checks=tuple(map(operator, checked.operators)),
        guards=checked.guards,
        traced=None if returned is None else _traced(returned, given, made_by),
    )
    return with_gates(made)


def _parted(ends: tuple[str, ...], last: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ends[: len(ends) - last], ends[len(ends) - last :]


def _traced(returned: Returned, given: Sequence[str], known: AbstractSet[str]) -> Traced:
    """What was returned, as far as the graph computes it."""
    numbered = {str(number): name for number, name in enumerate(given) if name in known}
    return Traced(modules=(), returned=returned.named(numbered))


def _outputs(program: ExportedProgram, found: Translation) -> Iterator[str]:
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT and spec.arg.name in nodes:
            yield from filter(None, found.names(nodes[spec.arg.name]))


def _loss(found: Translation, outputs: Sequence[str]) -> str | None:
    """The only output, if it is a scalar that depends on a parameter."""
    if len(outputs) != 1 or found.specs[outputs[0]].shape != ():
        return None
    return outputs[0] if outputs[0] in found.learnt else None


def _dims(found: Translation, operators: Sequence[Applied]) -> Mapping[str, Names]:
    """Names of the dims of every tensor; parameters and buffers are named after a reader."""
    specs = found.specs
    dims = {
        state.name: input_dims(state.spec.shape, whole="int" in state.spec.dtype)
        for state in found.inputs.values()
    }
    for operator in operators:
        call = operator.described
        for place, name in enumerate(call.inputs):
            if name is not None and name not in dims:
                dims[name] = parameter_dims(call.kind, place, len(specs[name].shape))
        shapes = Call(
            kind=call.kind,
            inputs=tuple(None if name is None else specs[name] for name in call.inputs),
            outputs=tuple(spec for _, spec in operator.outputs),
            attributes=call.attributes,
        )
        known = [None if name is None else dims[name] for name in call.inputs]
        results = zip(operator.outputs, output_dims(shapes, known), strict=True)
        dims |= {name: names for (name, _), names in results}
    return {name: numbered(len(specs[name].shape)) for name in found.parameters} | dims
