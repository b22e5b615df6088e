"""Routed experts from their definition: token by token, choice by choice. Enters: tensors and a
body. Leaves: the weighted sums, through which gradients flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from meshwright.capture.execution.kernels import run_operator
from meshwright.graph.expert_body import ENDS, IDS, ROWS, parse_body
from meshwright.graph.operator_graph import Value


def slow_experts(tensors: Sequence[Tensor | None], attributes: Mapping[str, Value]) -> Tensor:
    """For each token the sum over its experts of weight times what the expert makes of it."""
    x, index, weights, *operands = [tensor for tensor in tensors if tensor is not None]
    outputs = []
    for token, chosen, shares in zip(x, index.tolist(), weights, strict=True):
        each = (
            share
            * one_expert(str(attributes["body"]), token, [operand[expert] for operand in operands])
            for expert, share in zip(chosen, shares, strict=True)
        )
        outputs.append(torch.stack(list(each)).sum(0))
    return torch.stack(outputs)


def one_expert(body: str, token: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """What one expert makes of one token: its operands are those of the only expert there is."""
    present = {
        ROWS: token[None],
        IDS: torch.zeros(1, dtype=torch.int64),
        ENDS: torch.ones(1, dtype=torch.int64),
        **{f"w{n}": operand[None] for n, operand in enumerate(operands)},
    }
    stages = parse_body(body)
    for stage in stages:
        inputs = [present[name] for name in stage.inputs]
        if stage.kind == "_grouped_mm":
            outputs: tuple[Tensor, ...] = (inputs[0] @ inputs[1][0],)
        else:
            outputs = run_operator(stage.kind, inputs, stage.attributes)
        present |= zip(stage.outputs, outputs, strict=False)
    return present[stages[-1].outputs[0]][0]
