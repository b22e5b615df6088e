"""AllToAll volume of expert parallelism: token dispatch and combine. Enters: the pieces of a
mixture of experts on the devices that share its experts. Leaves: what one of them sends.

With t_m tokens on device m that choose k experts each, and e_m of E experts there, loads are taken
to be equal: m sends t_m k e_n / E rows to n, and gets t_n k e_m / E from it. In the forward pass
go the counts of each expert's rows, the rows, and what was made of those that came; in the
backward pass the gradients of both. What runs sends exactly what the choices ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.graph.expert_body import OPERANDS, local_expert_count
from meshwright.graph.family import Wanted, tensor
from meshwright.graph.operator_graph import ITEM_BYTES, Call

COUNT = ITEM_BYTES["int64"]
"""Bytes of the number of rows of one expert."""


def all_to_all_bytes(calls: Sequence[Call], device: int, wanted: Wanted | None) -> int:
    """What a device of those with these pieces sends in the forward pass; in the backward
    pass, if it is told which gradients are wanted.
    """
    experts = [local_expert_count(call) for call in calls]
    chosen = [tensor(call, 1).elements for call in calls]
    others = [number for number in range(len(calls)) if number != device]
    total = sum(experts)
    to_experts = sum(chosen[device] * experts[other] for other in others) // total
    to_tokens = sum(chosen[other] * experts[device] for other in others) // total
    row, produced = _row_bytes(calls[device])
    if wanted is None:
        counts = COUNT * sum(experts[other] for other in others)
        return counts + to_experts * row + to_tokens * produced
    learnt = wanted[0] or any(wanted[OPERANDS:])
    return (to_experts * produced if learnt else 0) + (to_tokens * row if wanted[0] else 0)


def _row_bytes(call: Call) -> tuple[int, int]:
    """Of a row on its way to an expert, and of what is made of it."""
    x, output = tensor(call, 0), call.outputs[0]
    item = ITEM_BYTES[x.dtype]
    return x.shape[1] * item, output.shape[1] * item
