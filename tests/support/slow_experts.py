"""Routed experts from their definition: token by token, choice by choice. Enters: tensors and a
body. Leaves: the weighted sums, through which gradients flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from meshwright.capture.kernels import run_operator
from meshwright.graph.expert_body import ENDS, IDS, ROWS, parse_body
from meshwright.graph.model import Value


def slow_experts(tensors: Sequence[Tensor | None], attributes: Mapping[str, Value]) -> Tensor:
    """For each token the sum over its experts of weight times what the expert makes of it."""
    x, index, weights, *operands = [own for own in tensors if own is not None]
    made = []
    for token, chosen, shares in zip(x, index.tolist(), weights, strict=True):
        each = (
            share * one_expert(str(attributes["body"]), token, [own[expert] for own in operands])
            for expert, share in zip(chosen, shares, strict=True)
        )
        made.append(torch.stack(list(each)).sum(0))
    return torch.stack(made)


def one_expert(body: str, token: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """What one expert makes of one token: its operands are those of the only expert there is."""
    present = {
        ROWS: token[None],
        IDS: torch.zeros(1, dtype=torch.int64),
        ENDS: torch.ones(1, dtype=torch.int64),
        **{f"w{n}": own[None] for n, own in enumerate(operands)},
    }
    stages = parse_body(body)
    for stage in stages:
        given = [present[name] for name in stage.inputs]
        if stage.kind == "_grouped_mm":
            made: tuple[Tensor, ...] = (given[0] @ given[1][0],)
        else:
            made = run_operator(stage.kind, given, stage.attributes)
        present |= zip(stage.outputs, made, strict=False)
    return present[stages[-1].outputs[0]][0]
