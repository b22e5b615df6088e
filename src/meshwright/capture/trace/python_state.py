"""Python side effects: what a model's forward remembers from one call to the next. Enters: a module
that is traced. Leaves: nothing, or a sentence that names the attribute and the line that reads it.

A plan computes every step alike, from one trace. So attributes that forward writes must have no
part in what a later call computes: counters, `if self.first:`, hidden states of the batch before.
Every attribute that changed is replaced by a `Stale` and the module is traced again: whoever
decides or computes with it is found. Tensors that depend on neither inputs nor parameters are
caches (rotary angles, masks): a later call would make the same. Buffers that get a new tensor are
refused at once: they are state by declaration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.operators.source_lines import line_of
from meshwright.capture.trace.stale_values import REMEDY, stale_of

OF_TORCH = frozenset((*vars(nn.Module()), "_output_capturing_hooks_installed"))
"""Attributes that every module has, and that with which Transformers knows whether its hooks, which
hand on what layers return, are there already: they are put in by the first call."""


class Attribute(NamedTuple):
    """An attribute of one module."""

    owner: nn.Module
    path: str
    name: str

    @property
    def full_name(self) -> str:
        """As the model would be asked for it."""
        return f"{self.path}.{self.name}" if self.path else self.name


class ChangedAttributes:
    """What a module's forward changes of its own attributes while it is traced."""

    def __init__(self, model: nn.Module, root: str) -> None:
        self._modules = [
            (name.removeprefix(root).removeprefix("."), module)
            for name, module in model.named_modules()
            if not type(module).__module__.startswith("torch.")
        ]
        self._model = model
        self._before: dict[Attribute, object] = {}
        self._varying: set[fx.Node] = set()
        self.written: dict[Attribute, object] = {}
        """What has to be put back: the values from before the first call."""
        self.remembered: dict[Attribute, object] = {}
        """Those that a later call may see, as this one leaves them."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Trace inside of this."""
        handles = [
            self._model.register_forward_pre_hook(self._enter, with_kwargs=True),
            self._model.register_forward_hook(self._leave, always_call=False),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for attribute, value in self.written.items():
                _put(attribute, value)

    @contextmanager
    def stale(self) -> Iterator[None]:
        """Trace again inside of this: whoever reads what an earlier call wrote is refused."""
        kept = {
            attribute: vars(attribute.owner).get(attribute.name, _ABSENT)
            for attribute in self.remembered
        }
        for attribute, left in self.remembered.items():
            put = partial(vars(attribute.owner).__setitem__, attribute.name)
            put(stale_of(attribute.full_name, left, put))
        try:
            yield
        finally:
            for attribute, value in kept.items():
                # The object itself, since a hook may know it too.
                vars(attribute.owner)[attribute.name] = value
                _put(attribute, self.written[attribute])

    def refuse_other(self, differs: bool) -> None:
        """Refuse a model whose next call computes something else, though nothing was read."""
        if differs:
            names = ", ".join(sorted(repr(attribute.full_name) for attribute in self.remembered))
            raise InputError(
                f"forward writes {names}, and its next call computes something else; "
                "a plan computes every step alike",
                REMEDY,
            )

    def _enter(self, model: nn.Module, inputs: object, named: object) -> None:
        self._before = dict(self._attributes())
        self._state = _state(model)
        leaves = pytree.tree_leaves((inputs, named))
        tensors = [leaf for leaf in (*leaves, *model.parameters()) if isinstance(leaf, Tensor)]
        self._varying = {
            node for tensor in tensors if (node := fx_node_of_tensor(tensor)) is not None
        }

    def _leave(self, model: nn.Module, inputs: object, output: object) -> None:
        self._refuse_new_state(model)
        for attribute, value in self._attributes():
            before = self._before.get(attribute, _ABSENT)
            if not _alike(before, value):
                self.written.setdefault(attribute, before)
                if not self._is_cache(vars(attribute.owner)[attribute.name]):
                    self.remembered[attribute] = value

    def _attributes(self) -> Iterator[tuple[Attribute, object]]:
        for path, module in self._modules:
            for name, value in tuple(vars(module).items()):
                if name not in OF_TORCH:
                    yield Attribute(module, path, name), _copied(value)

    def _refuse_new_state(self, model: nn.Module) -> None:
        now = _state(model)
        changed = [name for name, storage in self._state.items() if now.get(name) != storage]
        if changed:
            name = changed[0].partition(".")[2]
            raise InputError(
                f"forward{self._line_of(name)} gives a new tensor to {name!r}, a buffer "
                "or parameter; no later step of a plan would see it",
                REMEDY,
            )

    def _line_of(self, name: str) -> str:
        """Where the user's innermost module is written that has a tensor of this name."""
        users, path = dict(self._modules), name.rpartition(".")[0]
        while path and path not in users:
            path = path.rpartition(".")[0]
        return line_of(type(users[path]).forward) if path in users else ""

    def _is_cache(self, value: object) -> bool:
        """Whether a later call would make the same: tensors of constants alone."""
        leaves = pytree.tree_leaves(value)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            return False
        return not any(self._varies(leaf) for leaf in leaves)

    def _varies(self, value: Tensor) -> bool:
        node = fx_node_of_tensor(value)
        if node is None:
            return isinstance(value, torch._subclasses.FakeTensor)
        waiting, seen = [node], {node}
        while waiting:
            current = waiting.pop()
            if current in self._varying:
                return True
            fresh = [source for source in current.all_input_nodes if source not in seen]
            seen.update(fresh)
            waiting += fresh
        return False


_ABSENT = object()


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[None]:
    """Every attribute is the same object afterwards, with the same content.

    `torch.export` gives modules copies of their containers, so that a dict that two of them share
    (a configuration) would become two.
    """
    attributes = [
        (
            vars(module),
            {name: value for name, value in vars(module).items() if name not in OF_TORCH},
        )
        for module in model.modules()
    ]
    contents = dict[int, tuple[object, object]]()
    for _, values in attributes:
        for value in values.values():
            _note_contents(value, contents)
    try:
        yield
    finally:
        for container, content in contents.values():
            _refill(container, content)
        for namespace, values in attributes:
            namespace.update(values)


def _note_contents(value: object, contents: dict[int, tuple[object, object]]) -> None:
    """What containers hold, through any depth; each with the container, which keeps its id."""
    if id(value) in contents or not isinstance(value, dict | list | tuple | deque):
        return
    contents[id(value)] = value, _copied(value)
    for element in value.values() if isinstance(value, dict) else value:
        _note_contents(element, contents)


def _refill(container: object, content: Any) -> None:
    """Give a container its content again."""
    match container:
        case list():
            container[:] = content
        case deque():
            container.clear()
            container.extend(content)
        case dict() | set():
            container.clear()
            container.update(content)


def _put(attribute: Attribute, value: Any) -> None:
    attributes = vars(attribute.owner)
    match attributes.get(attribute.name), value:
        case (list() as kept, list()) | (dict() as kept, dict()) | (set() as kept, set()):
            _refill(kept, value)
        case _, _ if value is _ABSENT:
            attributes.pop(attribute.name, None)
        case _:
            attributes[attribute.name] = value


def _copied(value: object) -> object:
    """A value that stays as it is when containers are written into."""
    match value:
        case list() | dict() | set() | deque():
            return value.copy()
        case _:
            return value


def _alike(one: Any, other: Any) -> bool:
    """Whether an attribute is what it was; tensors only if they are the same object."""
    if one is other:
        return True
    match one, other:
        case ((bool() | int() | float() | str()), (bool() | int() | float() | str())):
            return type(one) is type(other) and one == other
        case (list(), list()) | (deque(), deque()):
            return len(one) == len(other) and all(map(_alike, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(
                _alike(value, other[k]) for k, value in one.items()
            )
        case set(), set():
            return {id(element) for element in one} == {id(element) for element in other}
        case _:
            return False


def _state(model: nn.Module) -> Mapping[str, object]:
    """Which memory each parameter and buffer has."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.untyped_storage()._cdata for name, tensor in tensors}


def fx_node_of_tensor(value: Tensor) -> fx.Node | None:
    """The node of a trace that makes a tensor."""
    mode = get_proxy_mode()
    if mode is None:
        return None
    slot = get_proxy_slot(value, mode.tracer, None)
    return None if slot is None else slot.proxy.node
