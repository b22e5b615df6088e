"""Stand-ins for a model's modules: found by type and name, and told where a loop changes them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.capture.trace.fingerprint import modules_of
from meshwright.graph.traced import Traced
from meshwright.run.module_tree import PlanModule


class Config:
    """Settings as Transformers keeps them."""

    def __init__(self) -> None:
        self.rate, self.width = 0.1, 4


class Student(nn.Module):
    """Has a teacher in evaluation mode, a module with a `mode` of its own, modules in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.tau, self.scale = Config(), 0.5, torch.ones(4)
        self.words = nn.EmbeddingBag(8, 4, mode="sum")
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.parts = [self.words, self.teacher]
        self.act = self.out = nn.ReLU()

    def train(self, mode: bool = True) -> Student:
        super().train(mode)
        self.teacher.eval()
        return self


def parallel() -> PlanModule:
    model = Student().train()
    module = PlanModule()
    traced = Traced(modules=modules_of(model))
    module.stand_for(model, dict(model.named_parameters()), {}, traced)
    return module


def test_the_tree_is_the_models() -> None:
    module = parallel()
    plain = Student().train()
    assert [(n, type(m)) for n, m in module.named_modules() if n] == [
        (n, type(m)) for n, m in plain.named_modules() if n
    ]
    assert list(dict(module.named_parameters())) == list(dict(plain.named_parameters()))
    assert module.parts == [module.words, module.teacher]
    assert module.act is module.out
    assert not hasattr(module, "scale")
    assert (module.tau, module.config.width, module.teacher[1].p) == (0.5, 4, 0.5)
    module.eval()
    module.refuse_changed_modules()
    module.train()
    module.refuse_changed_modules()
    copied: Any = copy.deepcopy(module)
    assert type(copied) is Student
    assert copied.words.weight is not module.words.weight


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("module.tau = 1.0", "tau of the model is 1.0 now, and in the plan 0.5"),
        ("module.config.rate = 0.0", "config.rate of the model is 0.0 now, and in the plan 0.1"),
        ("module.teacher[1].p = 0.1", "p of module 'teacher.1' is 0.1 now, and in the plan 0.5"),
        ("module.teacher.train()", "'teacher' is in training mode, and in the plan in evaluation"),
        ("module.words.eval()", "module 'words' is put into evaluation mode by itself"),
        ("module.act = nn.GELU()", "module 'act' is another one now, or gone"),
        ("del module.words", "module 'words' is another one now, or gone"),
        ("module.teacher.append(nn.ReLU())", "module 'teacher.2' was added"),
        ("module.words.register_forward_hook(print)", "module 'words' has a hook"),
        ("module.words.load_state_dict({})", "a part of a module that runs by a plan is asked"),
        ("module.apply(print)", "apply() is asked of a module that runs by a plan"),
        ("module.act(torch.ones(1))", "cannot be called alone"),
    ],
)
def test_what_a_loop_changes_is_told(line: str, sentence: str) -> None:
    module = parallel()
    loop = f"{line}; module.refuse_changed_modules()"
    with pytest.raises(InputError) as told:
        exec(loop, {"module": module, "nn": nn, "torch": torch})
    assert sentence in str(told.value)
