"""The dirty check of a step notices whatever guards look at, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from meshwright.run.exec.parameters import ParameterPiece
from meshwright.run.module_tree import PlanModule
from meshwright.run.step_guard import Unchanged


class Model(nn.Module):
    """Has settings, one of them a list, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.body = nn.Dropout(0.5), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.factor, self.sizes = 2.0, [1, 2]


@pytest.fixture
def module() -> Any:
    module, weights = PlanModule(), Model().state_dict()
    pieces = [
        ParameterPiece(name, ((0, 2),) * value.dim(), value, None, trained=True)
        for name, value in weights.items()
    ]
    module.stand_for(Model(), {piece.name: piece.parameter for piece in pieces}, {}, None)
    return module, Unchanged(module, pieces, module.planned_settings)


CHANGES = [
    "module.factor = 3.0",
    "module.sizes.append(3)",
    "module.drop.p = 0.1",
    "module.drop.eval()",
    "module.train(False)",
    "module.drop = nn.Identity()",
    "del module.drop",
    "module.body.append(nn.ReLU())",
    "module.body[0] = nn.Linear(2, 2)",
    "module.body[0].weight = nn.Parameter(torch.ones(2, 2))",
    "module.body[0].weight.requires_grad_(False)",
    "module.body[0].weight.data = torch.ones(2, 2)",
    "module.body[0].weight.register_hook(print)",
    "module.body[0].weight.register_post_accumulate_grad_hook(print)",
    "module.body[0].register_parameter('other', nn.Parameter(torch.ones(2)))",
    "module.body.register_forward_hook(print)",
    "module.body.register_full_backward_pre_hook(print)",
]


@pytest.mark.parametrize("line", CHANGES)
def test_changes_are_noticed(line: str, module: Any) -> None:
    parallel, unchanged = module
    assert unchanged()
    exec(line, {"module": parallel, "nn": nn, "torch": torch})
    assert not unchanged()


def test_steps_are_no_changes(module: Any) -> None:
    parallel, unchanged = module
    for parameter in parallel.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(parallel.parameters()).step()
    parallel.zero_grad()
    assert unchanged()
