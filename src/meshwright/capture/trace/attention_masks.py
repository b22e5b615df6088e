"""Attention masks of Transformers as a model makes them when it trains, not when it is exported.

Enters: nothing. Leaves: what to replace in Transformers while a model is traced. For an export,
which might be given other lengths, it makes explicit masks where training has `is_causal` or none
at all; and it takes any positions for those of packed sequences, as it cannot look at them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx

from meshwright.capture.operators.nodes import kind_of_node
from meshwright.capture.trace.python_state import fx_node_of_tensor

_KEPT = frozenset(
    {"_to_copy", "add", "alias", "clone", "expand", "reshape", "to", "unsqueeze", "view"}
)
"""Kinds that leave positions of one sequence those of one sequence."""


def training_mask_patches() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and replacement of functions of Transformers, if it is in use."""
    masks = sys.modules.get("transformers.masking_utils")
    if hasattr(masks, "is_torchdynamo_exporting"):
        yield masks, "is_torchdynamo_exporting", lambda: False
    packed = getattr(masks, "find_packed_sequence_indices", None)
    if packed is not None:

        def unless_counted(position_ids: Tensor) -> Any:
            return None if _counts_up(fx_node_of_tensor(position_ids)) else packed(position_ids)

        yield masks, "find_packed_sequence_indices", unless_counted


def _counts_up(node: fx.Node | None) -> bool:
    """Whether the model itself has made positions by counting: 0, 1, 2 ..., perhaps from another
    number on.
    """
    while node is not None and kind_of_node(node) in _KEPT and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node is not None and kind_of_node(node) == "arange" and _step(node) == 1


def _step(node: fx.Node) -> object:
    starts = str(node.target) == "aten.arange.start_step"
    return node.kwargs.get("step", node.args[2] if starts and len(node.args) > 2 else 1)
