"""Micro-batches (gradient accumulation). Enters: a graph, how many. Leaves: how every tensor is cut
by them, or an `InputError` that names the unit which cannot be.

Every micro-batch goes through all units by itself. So each unit with samples must have as many of
them as can be shared out equally, and must read what other units make of its own samples alone:
what sorts or sums over all samples of a step cannot. A loss that adds up several is one for each
micro-batch. Asked by `Plan`, so that whatever is planned
can be run; layouts are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base.errors import InputError
from meshwright.base.once import once
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.partial_sums import pending_sums
from meshwright.sharding.samples import first_sharded_input, split_accepts_states
from meshwright.sharding.states import WHOLE, State
from meshwright.sharding.unit import OpGroup, states_inside
from meshwright.sharding.units import units


@once
def micro_batch_states(graph: OperatorGraph, count: int) -> Mapping[str, State]:
    """Of every tensor that units make, its state under micro-batches.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=8, i=4]
    ... parameter w: float32[o=6, i=4]
    ... operator y: y: float32[n=8, o=6] = linear(x, w)
    ... operator z: z: float32[o=6, n=8] = t(y)
    ... output z''')
    >>> micro_batch_states(graph, 2)
    {'y': 0, 'z': 1}
    """
    states = dict[str, State]()
    for unit in units(graph):
        split = unit.samples if count > 1 else None
        _refuse_uneven(unit, count)
        pending = pending_sums(unit, graph, states)
        if not pending:
            _refuse_mixed(unit, states, count)
        states |= pending or {
            tensor: WHOLE if split is None else by_split[split]
            for tensor, by_split in states_inside(unit, graph).items()
        }
    if count > 1:
        _refuse_uncut(graph, states, count)
    return states


def supports_micro_batches(graph: OperatorGraph, count: int) -> bool:
    """Whether a step can be cut into so many micro-batches."""
    try:
        micro_batch_states(graph, count)
    except InputError:
        return False
    return True


def _refuse_uncut(graph: OperatorGraph, states: Mapping[str, State], count: int) -> None:
    """Refuse micro-batches that would each do the whole step."""
    results = (graph.loss,) if graph.loss else graph.outputs
    if all(states.get(name, WHOLE) == WHOLE for name in results):
        raise InputError(
            f"no samples are found that {count} micro-batches could cut: "
            f"{', '.join(map(repr, results))} would be made of all of them each time",
            "plan it with one micro-batch, or give inputs whose first dim is the batch",
        )


def _refuse_mixed(unit: OpGroup, states: Mapping[str, State], count: int) -> None:
    samples, cut = unit.samples, first_sharded_input(unit, states)
    if cut is not None and (samples is None or not split_accepts_states(unit, samples, states)):
        raise InputError(
            f"unit {unit.name!r} needs all samples of {cut!r} at once, but there are "
            f"{count} micro-batches",
            "plan it with one micro-batch",
        )


def _refuse_uneven(unit: OpGroup, count: int) -> None:
    if any(extent % count for extent in unit.sample_extents):
        raise InputError(
            f"unit {unit.name!r} has {max(unit.sample_extents)} samples, which make no {count} "
            "equal micro-batches",
            "plan with a number of micro-batches that divides them",
        )
