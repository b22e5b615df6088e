"""Partial sums over micro-batches (DTensor's Partial), propagated through linear operators. Enters:
a unit that reads some. Leaves: what it makes of them, pending too.

    f(Σ over micro-batches m of x_m) = Σ over m of f(x_m)    where f is linear in what is pending
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.graph.operator_graph import Operator, OperatorGraph
from meshwright.sharding.states import PARTIAL, WHOLE, State
from meshwright.sharding.unit import Member, OpGroup

ALONE = {"neg", "sum", "mean", "reshape", "flatten", "squeeze", "unsqueeze", "permute"}
"""Kinds that are linear in their one input."""

TOGETHER = {"add", "sub", "stack", "cat"}
"""Kinds that are linear in all of their inputs."""

SCALING = {"mul", "div"}
"""Kinds that are linear in their first input."""


def pending_sums(
    unit: OpGroup, graph: OperatorGraph, states: Mapping[str, State]
) -> dict[str, State]:
    """The states of all that a unit makes, if it reads pending sums and is linear in them; nothing
    if it is not, or reads some of the samples besides.
    """
    pending = dict[str, State]()
    for member in unit.members:
        operator = graph.named[member.operator]
        read = [pending.get(name, states.get(name, WHOLE)) for name in operator.inputs if name]
        if not (set(read) <= {WHOLE} or _linear(operator, member, read)):
            return {}
        state = PARTIAL if PARTIAL in read else WHOLE
        pending |= {tensor.name: state for tensor in operator.outputs}
    return pending if PARTIAL in pending.values() else {}


def _linear(operator: Operator, member: Member, read: list[State]) -> bool:
    """Whether an operator is linear in what it reads of pending sums."""
    first, *others = read
    if operator.kind in ALONE:
        return read == [PARTIAL]
    if operator.kind in TOGETHER:
        return set(read) == {PARTIAL} and not dict(operator.attributes).get("other")
    plain = not any(member.wanted[1:]) and "rounding_mode" not in dict(operator.attributes)
    return operator.kind in SCALING and first == PARTIAL and set(others) <= {WHOLE} and plain
