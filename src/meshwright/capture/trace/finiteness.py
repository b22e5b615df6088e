"""Finiteness checks (`if not torch.isfinite(x).all()`): whether a read asks only that.

Enters: an exported program and which of its outputs was read. Leaves: yes or no. Libraries ask so
to clamp what has overflowed (DETR and its kin); what a plan does is what the example does.
"""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram

from meshwright.capture.operators.nodes import kind_of_node

ASKING = frozenset({"isfinite", "isinf", "isnan", "isneginf", "isposinf"})
JOINING = frozenset(
    {
        *("__and__", "__or__", "alias", "all", "any", "bitwise_and", "bitwise_not", "bitwise_or"),
        *("clone", "detach", "logical_and", "logical_not", "logical_or", "reshape", "view"),
    }
)


def is_of_finiteness(program: ExportedProgram, output: int) -> bool:
    """Whether an output of a program is made of nothing but answers to that question."""
    (last,) = (node for node in program.graph.nodes if node.op == "output")
    results = last.args[0]
    assert isinstance(results, tuple)
    waiting, answers = [results[output]], 0
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node):
            return False
        kind = kind_of_node(node)
        if kind in ASKING:
            answers += 1
        elif kind in JOINING:
            waiting += node.all_input_nodes
        else:
            return False
    return answers > 0
