"""User-defined backward passes: custom `autograd.Function`s and hooks on gradients. Enters: a
module, and its trace as it happens. Leaves: nothing, or a sentence that names the line.

A graph holds what forward computes; its backward pass is the derivative of that. So an
`autograd.Function` passes if its backward is that derivative (`derivative`), or becomes an operator
of its own (`autograd_functions`) if others can import it; hooks on gradients, which a trace
does not see at all, do not pass.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import function as autograd_function
from torch.autograd.function import Function
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import CheckpointFunction

from meshwright.base.errors import InputError
from meshwright.capture.operators.autograd_functions import is_importable
from meshwright.capture.operators.derivative import (
    FunctionCall,
    described_call,
    doubt,
    nondeterminism,
)
from meshwright.capture.operators.source_lines import called_by_the_user, calling_line, line_of

WITH_DETACH = (
    "write it with detach, as y = x + (f(x) - x).detach() for a gradient that goes straight "
    "through, or y = 2 * x.detach() - x for one that is reversed"
)
ELSEWHERE = "remove it, and change gradients in the loop, between backward() and the optimizer"


@contextmanager
def user_backward_checked(
    model: nn.Module, apart: Collection[type[Function]]
) -> Iterator[set[type[Function]]]:
    """Trace inside of this; refused is what a trace would lose.

    Leaves functions that a trace keeps only as operators of their own; those apart are already.
    """
    refuse_gradient_hooks(model)
    calls: list[FunctionCall] = []
    more: set[type[Function]] = set()
    with _functions_noted(calls), _tensor_hooks_refused(), _checkpoints_seen_through():
        yield more
    judged: dict[object, str | None] = {}
    for call in calls:
        key = call.function, repr(call.arguments)
        if call.function in apart or key in judged:
            continue
        judged[key] = doubt(call)
        if judged[key] is not None:
            _refuse_alone(call, judged[key])
            more.add(call.function)


def refuse_gradient_hooks(model: nn.Module) -> None:
    """Refuse modules and parameters with hooks on gradients."""
    for hooks in (module_hooks._global_backward_hooks, module_hooks._global_backward_pre_hooks):
        _refuse_hook(hooks, "all modules have a backward hook")
    for path, module in model.named_modules():
        where = f"module {path!r} ({type(module).__name__})" if path else type(module).__name__
        for hooks in (module._backward_hooks, module._backward_pre_hooks):
            _refuse_hook(hooks, f"{where} has a backward hook")
    for name, parameter in model.named_parameters():
        refuse_parameter_hooks(name, parameter)


def refuse_parameter_hooks(name: str, parameter: Tensor, known: object = None) -> None:
    """Refuse a parameter that has a hook on its gradient, but for one that is known."""
    for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
        _refuse_hook(hooks, f"parameter {name!r} has a hook on its gradient", known)


def _refuse_hook(hooks: Any, what: str, known: object = None) -> None:
    for hook in (other for other in (hooks or {}).values() if other is not known):
        raise InputError(f"{what}{line_of(hook)}, which no plan calls", ELSEWHERE)


def _refuse_alone(call: FunctionCall, problem: str | None) -> None:
    """Refuse a function whose backward is lost, if it cannot be an operator either."""
    named = f"the autograd.Function {call.function.__qualname__!r}{call.line}"
    if not is_importable(call.function):
        raise InputError(
            f"{named} has a backward that {problem}; a plan trains with that derivative",
            WITH_DETACH,
        )
    reason = nondeterminism(call)
    if reason is not None:
        raise InputError(
            f"{named} {reason}", "give it what it draws as an argument, drawn by torch.rand outside"
        )


@contextmanager
def _functions_noted(calls: list[FunctionCall]) -> Iterator[None]:
    """Note every `autograd.Function` that is applied, but for PyTorch's own.

    Classes are often kept as `apply = Own.apply`, so what is replaced is not that method but
    what it asks first.
    """
    asked: Any = autograd_function._is_setup_context_defined

    @wraps(asked)
    def noted(*arguments: Any) -> Any:
        local = sys._getframe(1).f_locals
        applied = local.get("cls")
        if isinstance(applied, type) and not applied.__module__.startswith("torch."):
            calls.append(described_call(applied, local["args"], calling_line()))
        return asked(*arguments)

    autograd_function._is_setup_context_defined = noted
    try:
        yield
    finally:
        autograd_function._is_setup_context_defined = asked


@contextmanager
def _tensor_hooks_refused() -> Iterator[None]:
    names = ("register_hook", "register_post_accumulate_grad_hook")
    before = {name: getattr(torch.Tensor, name) for name in names}

    def refusing(register: Any) -> Any:
        @wraps(register)
        def refused(*arguments: Any, **named: Any) -> Any:
            if not called_by_the_user():
                return register(*arguments, **named)
            raise InputError(
                f"the model hangs a hook on a tensor's gradient{calling_line()}, which no plan "
                "calls",
                WITH_DETACH,
            )

        return refused

    for name, register in before.items():
        setattr(torch.Tensor, name, refusing(register))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch.Tensor, name, function)


@contextmanager
def _checkpoints_seen_through() -> Iterator[None]:
    """Reentrant checkpoints run their function without gradients, and again going back.

    A plan decides itself what runs again, so that the function alone is traced. Inference mode is
    not seen by a trace.
    """
    forward, entered = CheckpointFunction.forward, torch.inference_mode.__enter__

    def run(ctx: object, function: Any, preserve: bool, *arguments: Any) -> Any:
        if not any(
            isinstance(argument, Tensor) and argument.requires_grad for argument in arguments
        ):
            raise InputError(
                f"a reentrant checkpoint{calling_line()} is given nothing that needs a gradient, "
                "so that PyTorch trains none of the parameters within it",
                "call checkpoint with use_reentrant=False",
            )
        return function(*arguments)

    def refused(context: torch.inference_mode) -> Any:
        if not called_by_the_user():
            return entered(context)
        raise InputError(
            f"the model computes in torch.inference_mode{calling_line()}, which no graph tells",
            "use torch.no_grad there",
        )

    checkpoint: Any = CheckpointFunction
    checkpoint.forward = staticmethod(run)
    torch.inference_mode.__enter__ = refused  # type: ignore[method-assign]
    try:
        yield
    finally:
        checkpoint.forward = staticmethod(forward)
        torch.inference_mode.__enter__ = entered  # type: ignore[method-assign]
