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

from meshwright.capture.trace.data_reads import ValueRead
from meshwright.capture.translation.applied import Applied, State
from meshwright.capture.translation.dim_names import (
    Names,
    input_dims,
    numbered,
    output_dims,
    parameter_dims,
)
from meshwright.capture.translation.guards import judged, needed_for
from meshwright.capture.translation.statistics_writes import refuse_unfollowed
from meshwright.capture.translation.translate import Translation
from meshwright.graph.gates import with_gates
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Parameter, Spec, Tensor
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
    translation = Translation(program, root, input_names)
    ends = tuple(_outputs(program, translation))
    ends, seen = _parted(ends, len(reads))
    outputs, returned_names = _parted(
        ends, 0 if returned is None else len(tuple(returned.tensors()))
    )
    needed = needed_for(outputs, translation.operators)
    checked = judged(translation, tuple(zip(seen, reads, strict=True)))
    kept = {applied_op.name for applied_op in (*needed, *checked.operators)}
    refuse_unfollowed(translation, kept)
    applied = [applied_op for applied_op in translation.operators if applied_op.name in kept]
    read = {name for operator in applied for name in operator.described.inputs}
    dims = _dims(translation, applied)

    def tensor(name: str, spec: Spec) -> Tensor:
        named = tuple(zip(dims[name], spec.shape, strict=True))
        return Tensor(name=name, dtype=spec.dtype, dims=named)

    def tensors(states: Iterable[State]) -> tuple[Tensor, ...]:
        return tuple(tensor(state.name, state.spec) for state in states)

    def operator(applied_op: Applied) -> Operator:
        return Operator(
            name=applied_op.name,
            kind=applied_op.described.kind,
            inputs=applied_op.described.inputs,
            outputs=tuple(tensor(name, spec) for name, spec in applied_op.outputs),
            attributes=applied_op.described.attributes,
            layer=applied_op.layer,
        )

    made_by = {output for applied_op in needed for output, _ in applied_op.outputs}
    graph = OperatorGraph(
        name=name,
        inputs=tensors(translation.inputs.values()),
        parameters=tuple(
            Parameter(
                tensor=tensor(state.name, state.spec),
                also=tuple(state.also),
                trainable=state.trainable,
            )
            for state in translation.parameters.values()
        ),
        buffers=tensors(state for state in translation.buffers.values() if state.name in read),
        operators=tuple(map(operator, needed)),
        outputs=outputs,
        loss=_loss(translation, outputs),
        checks=tuple(map(operator, checked.operators)),
        guards=checked.guards,
        traced=None if returned is None else _traced(returned, returned_names, made_by),
    )
    return with_gates(graph)


def _parted(ends: tuple[str, ...], last: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ends[: len(ends) - last], ends[len(ends) - last :]


def _traced(returned: Returned, names: Sequence[str], known: AbstractSet[str]) -> Traced:
    """What was returned, as far as the graph computes it."""
    numbered = {str(number): name for number, name in enumerate(names) if name in known}
    return Traced(modules=(), returned=returned.named(numbered))


def _outputs(program: ExportedProgram, translation: Translation) -> Iterator[str]:
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT and spec.arg.name in nodes:
            yield from filter(None, translation.names(nodes[spec.arg.name]))


def _loss(translation: Translation, outputs: Sequence[str]) -> str | None:
    """The only output, if it is a scalar that depends on a parameter."""
    if len(outputs) != 1 or translation.specs[outputs[0]].shape != ():
        return None
    return outputs[0] if outputs[0] in translation.learnt else None


def _dims(translation: Translation, operators: Sequence[Applied]) -> Mapping[str, Names]:
    """Names of the dims of every tensor; parameters and buffers are named after a reader."""
    specs = translation.specs
    dims = {
        state.name: input_dims(state.spec.shape, whole="int" in state.spec.dtype)
        for state in translation.inputs.values()
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
    return {name: numbered(len(specs[name].shape)) for name in translation.parameters} | dims
