"""Custom `torch.autograd.Function`s with a backward of their own, as one operator each.

Enters: classes whose backward is not the derivative of their forward. Leaves: while a model is
traced, `own_function` wherever it applies one of them; when a graph runs, the class's own `apply`,
so that a plan trains with the user's backward. A class is named MODULE:CLASS#DIGEST: it must be
importable, with the same code, in every process that runs the plan. Arguments that are no tensors
are kept as JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.operators.derivative import differentiable_forward

Class = type[Function]
TENSOR = "tensor"
"""The key under which JSON has the number of a tensor."""


def is_importable(function: Class) -> bool:
    """Whether another process finds a class by its name."""
    try:
        return _loaded(named(function)) is function
    except InputError:
        return False


@contextmanager
def as_operators(functions: Collection[Class]) -> Iterator[None]:
    """Trace inside of this: applying one of the functions is one operator."""
    with ExitStack() as stack:
        for function in functions:
            stack.enter_context(_replaced(function))
        yield


def apply_function(tensors: Sequence[Tensor], function: str, arguments: str) -> list[Tensor]:
    """What a function gives, with its own backward."""
    result = _loaded(function).apply(*_given(tensors, arguments))  # type: ignore[no-untyped-call]
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


@torch.library.custom_op("meshwright::own_function", mutates_args=())
def _traced(tensors: Sequence[Tensor], function: str, arguments: str) -> list[Tensor]:
    """In a trace and in a rehearsal, neither of which goes backward."""
    return [result.clone() for result in _forward(tensors, function, arguments)]


@_traced.register_fake
def _results_of(tensors: Sequence[Tensor], function: str, arguments: str) -> list[Tensor]:
    return [torch.empty_like(output) for output in _forward(tensors, function, arguments)]


def _forward(tensors: Sequence[Tensor], function: str, arguments: str) -> list[Tensor]:
    """What forward gives, even while it is replaced by an operator."""
    loaded = _loaded(function)
    alone = differentiable_forward(loaded, vars(loaded).get(_KEPT))
    return pytree.tree_leaves(alone(*_given(tensors, arguments)))


_KEPT = "_meshwright_forward"
"""Where a class has its own forward while it is replaced."""


@contextmanager
def _replaced(function: Class) -> Iterator[None]:
    """A class whose forward is one operator."""
    patched: Any = function
    forward, name = vars(patched)["forward"], named(function)
    with_context = function.setup_context is Function.setup_context
    alone = differentiable_forward(function, function.forward)

    def operator(*arguments: Any) -> Any:
        operands = arguments[1:] if with_context else arguments
        with torch._C.DisableTorchFunction(), disable_proxy_modes_tracing():
            shape = pytree.tree_structure(alone(*operands))
        tensors, text = _told(operands, name)
        return pytree.tree_unflatten(_traced(tensors, name, text), shape)

    setattr(patched, _KEPT, function.forward)
    patched.forward = staticmethod(operator)
    try:
        yield
    finally:
        patched.forward = forward
        delattr(patched, _KEPT)


def _told(arguments: Sequence[object], name: str) -> tuple[list[Tensor], str]:
    """The tensors of some arguments, and the arguments as JSON with numbers in their places."""
    tensors = list[Tensor]()

    def numbered(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return {TENSOR: len(tensors) - 1}

    template = pytree.tree_map(numbered, list(arguments))
    try:
        return tensors, json.dumps(template)
    except TypeError:
        raise InputError(
            f"the autograd.Function {name!r} has a backward of its own and an argument that is "
            "neither a tensor nor a number, text or list",
            "give it such arguments only",
        ) from None


def _given(tensors: Sequence[Tensor], arguments: str) -> list[Any]:
    def value(node: Any) -> Any:
        match node:
            case {"tensor": int(number)}:
                return tensors[number]
            case list():
                return [value(part) for part in node]
            case _:
                return node

    return [value(node) for node in json.loads(arguments)]


def named(function: Class) -> str:
    """The name by which other processes find a class, if they can."""
    try:
        code = inspect.getsource(function)
    except (OSError, TypeError):
        code = ""
    digest = hashlib.sha256(code.encode()).hexdigest()[:12]
    return f"{function.__module__}:{function.__qualname__}#{digest}"


@cache
def _loaded(name: str) -> Class:
    module, _, rest = name.partition(":")
    path, _, _ = rest.partition("#")
    remedy = "put it at the top of a module that every rank can import"
    try:
        if module == "__main__" or "<locals>" in path:
            raise ImportError
        member: Any = importlib.import_module(module)
        for part in path.split("."):
            member = getattr(member, part)
    except (ImportError, AttributeError, ValueError):
        raise InputError(
            f"the autograd.Function {path!r} of module {module!r} cannot be imported", remedy
        ) from None
    assert isinstance(member, type)
    if named(member) != name:
        raise InputError(
            f"the autograd.Function {path!r} of module {module!r} is not the one that was captured",
            "capture the model again with this code",
        )
    return member
