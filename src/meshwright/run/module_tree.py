"""Fully qualified names (FQNs) of the plain model on a module that runs by a plan. Enters: names
with dots, and tensors. Leaves: modules inside of modules, so that `named_parameters`, `state_dict`
and `torch.distributed.checkpoint.state_dict` find each tensor where the plain model has it.

These modules compute nothing: a plan runs all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

from torch import Tensor, nn

from meshwright.base.errors import InputError

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Where PyTorch keeps what is to be called around a module."""


class NamesOnly(nn.Module):
    """A module with the names and tensors of the plain model, and not its modules."""

    def apply(self, *_: object, **__: object) -> Self:
        """Refuse what looks for the plain model's modules, and would find none."""
        raise InputError(
            "apply() looks at modules, and those of a module that runs by a plan are not the "
            "plain model's: they have names and tensors alone",
            "initialise the model before parallelize, or its parameters by their names",
        )


class Scope(NamesOnly):
    """A module of the plain model, of which only the names are left."""

    def forward(self, *_: object, **__: object) -> Tensor:
        """Refuse to be called alone."""
        raise InputError(
            "this module's computation is a part of the plan's step and cannot be called alone",
            "call the whole model, or the plain module with the state that whole_state() gives",
        )


class Part(Scope):
    """A scope of a module that takes over states as a whole."""

    def _load_from_state_dict(self, *_: object) -> None:
        """Nothing is left to do."""


def register_by_path(root: nn.Module, name: str, value: Tensor, scope: type[Scope] = Scope) -> None:
    """Give a module a parameter or buffer under a name with dots."""
    *path, last = name.split(".")
    owner = root
    for step in path:
        if step not in owner._modules:
            owner._modules[step] = scope()
        inner = owner._modules[step]
        assert inner is not None
        owner = inner
    if isinstance(value, nn.Parameter):
        owner._parameters[last] = value
    else:
        owner._buffers[last] = value


class Snapshot(Scope):
    """Copies of what a rank has of a model's state, as averages of weights (EMA) are kept in."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        copies: dict[int, nn.Parameter] = {}
        for name, parameter in parameters.items():
            # A tied weight is one in the copy too.
            copy = copies.setdefault(
                id(parameter), nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            )
            register_by_path(self, name, copy)
        for name, buffer in buffers.items():
            register_by_path(self, name, buffer.detach().clone())


def standing(root: nn.Module, name: str) -> Tensor | None:
    """The parameter that a module has under a name with dots."""
    *path, last = name.split(".")
    owner: nn.Module | None = root
    for step in path:
        owner = None if owner is None else owner._modules.get(step)
    return None if owner is None else owner._parameters.get(last)


def hooked(root: nn.Module) -> Iterator[str]:
    """The names of inner modules that have hooks, which nobody would call."""
    for name, module in root.named_modules():
        if module is not root and any(getattr(module, kind) for kind in HOOKS):
            yield name
