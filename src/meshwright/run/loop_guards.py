"""Guards of a training loop: mode changes, autocast, moves, freezing and hooks are refused. Enters:
a module run by a plan. Leaves: nothing, or a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.capture.trace.user_backward import refuse_parameter_hooks
from meshwright.graph.traced import Traced
from meshwright.run.exec.executor import Executor
from meshwright.run.module_tree import standing
from meshwright.run.state.state_dicts import named_pieces


def refuse_other_mode(traced: Traced | None, *, training: bool) -> None:
    """Refuse the mode that was not traced, where the graph does not compute it."""
    if traced is not None and traced.other_mode and training is not traced.training:
        call = "train" if traced.training else "eval"
        raise InputError(
            f"the plan was made in {traced.mode} mode; {traced.other_mode}",
            f"stay in {traced.mode} mode with model.{call}(), and do the rest with the plain "
            "model and whole_state(), or with a plan of its own",
        )


@contextmanager
def as_no_grad() -> Iterator[None]:
    """Compute under `torch.no_grad` where users are in `torch.inference_mode`, whose tensors no
    later step could write.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=False), torch.no_grad():
            yield
    else:
        yield


def refuse_autocast(device: torch.device) -> None:
    """Refuse a call in a region that would have operators compute in other dtypes."""
    if torch.is_autocast_enabled(device.type):
        raise InputError(
            "the model is called in torch.autocast, and a plan's operators have the dtypes that it "
            "was made with",
            "leave the call outside of it (a loss may be inside), and plan with --dtype bfloat16, "
            "or use torch.autocast in the model's forward before it is captured",
        )


def refuse_other_place(
    module: nn.Module, asked: tuple[Any, ...], named: dict[str, Any], planned: torch.device
) -> None:
    """Refuse that a module be moved from where its plan has it."""
    parsed: tuple[Any, ...] = torch._C._nn._parse_to(*asked, **named)
    device: torch.device | None = parsed[0]
    dtype: torch.dtype | None = parsed[1]
    elsewhere = device is not None and (
        device.type != planned.type
        or (planned.type != "cpu" and device.index not in (None, planned.index))
    )
    other = dtype is not None and any(
        value.is_floating_point() and value.dtype != dtype for value in module.parameters()
    )
    if elsewhere or other:
        raise InputError(
            f"the module is asked to be on {planned if device is None else device} in "
            f"{'its dtypes' if dtype is None else dtype}, and it runs by a plan",
            "say the device in parallelize(..., device=...), and the dtype when it is planned",
        )


def refuse_penalties(executor: Executor) -> None:
    """Refuse them where ranks have other parameters."""
    for piece in executor.parameters.pieces.values():
        if piece.parameter.requires_grad:
            piece.parameter.register_hook(refuse_penalty)  # type: ignore[no-untyped-call]


def refuse_penalty(_: Tensor) -> None:
    """Refuse a gradient that comes to a parameter of what users compute of it; a plan's own are
    handed out without autograd.
    """
    raise InputError(
        "a term of the loss is computed of parameters (a penalty), and ranks of this plan have "
        "parameters that others do not have: each would add another term",
        "leave it to the optimizer (weight_decay), or plan without pipeline stages and idle "
        "devices",
    )


def refuse_changed_parameters(executor: Executor, module: nn.Module) -> None:
    """Refuse what was done to parameters since, and no plan does: freezing, hooks, others."""
    graph = executor.script.plan.graph
    for parameter in graph.parameters:
        piece = executor.parameters.pieces.get(parameter.tensor.name)
        if piece is None:
            continue
        if piece.parameter.requires_grad is not parameter.trainable:
            raise InputError(
                f"requires_grad of {piece.name!r} is {piece.parameter.requires_grad} now, and "
                f"in the plan {parameter.trainable}",
                "freeze parameters before the model is captured and planned for",
            )
        if piece.moved:
            raise InputError(
                f"{piece.name!r} has got other memory, which the plan's steps do not read",
                "change parameters in place (under torch.no_grad(), with copy_), and say "
                "device and dtype when the model is planned and parallelized",
            )
        refuse_parameter_hooks(piece.name, piece.parameter, refuse_penalty)
    for name, piece in named_pieces(executor):
        if standing(module, name) is not piece.parameter:
            raise InputError(
                f"{name!r} is another parameter now, which the plan's steps do not read",
                "tie weights and replace layers before the model is captured and planned for",
            )
