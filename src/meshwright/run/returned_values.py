"""Model outputs rebuilt as nested structures (pytrees) of what a plan computes. Enters: a structure
(`graph.returned`) and values by the graph's names. Leaves: tuples, lists, mappings and outputs of
Transformers like the model's own.

A class is looked for among modules that are loaded, never imported: the model's own code has it.
What was not brought together is a stand-in that says so when it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.returned import Returned
from meshwright.lower.needed_for import unneeded_inputs

NOT_ASKED = "only the loss was asked for", "call parallelize(..., outputs=True) to have them too"
NOT_COMPUTED = (
    "the plan does not compute it, since the loss that was captured needs none of it",
    "capture the model with a loss that reads it, or compute it with the plain model",
)


class NotGiven:
    """Stands where a tensor is not; whoever uses it is told."""

    def __init__(self, path: str, why: tuple[str, str]) -> None:
        self._path, self._why = path, why

    def _refused(self, *_: object, **__: object) -> Never:
        problem, remedy = self._why
        raise InputError(f"output {self._path!r} is not there: {problem}", remedy)

    def __repr__(self) -> str:
        return f"<output {self._path!r} is not there: {self._why[0]}>"

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refused()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Iterable[Any] = (), kwargs: Any = None
    ) -> Never:
        values = [*args, *(kwargs or {}).values()]
        next(value for value in values if isinstance(value, NotGiven))._refused()

    __getitem__ = __iter__ = __len__ = __call__ = __float__ = __neg__ = __bool__ = _refused
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refused
    __matmul__ = __rmatmul__ = __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _refused


class Returning:
    """What calls of a plan's module return."""

    def __init__(self, graph: OperatorGraph, *, outputs: bool) -> None:
        traced = None if graph.traced is None else graph.traced.returned
        known = {name: name for name in graph.producers}
        self.structure = None if traced is None else traced.named(known)
        leaves = () if self.structure is None else self.structure.tensors()
        tensors = dict.fromkeys(tensor for _, tensor in leaves)
        self._loss = graph.loss or ""
        self.inside = self._loss in tensors
        """Whether the model returns its loss."""
        self.names = tuple(name for name in tensors if name != graph.loss)
        """What else it returns."""
        self.optional = unneeded_inputs(graph, self.names) if self.names else ()
        """Inputs without which a call is for outputs: targets, labels."""
        self.with_loss = self.names if outputs and self.inside else ()
        """What is brought together beside a loss."""
        self.never_loss = outputs and not self.inside and not self.optional and bool(self.names)
        """Whether every call is for outputs."""

    def of_loss(self, loss: Tensor, outputs: Sequence[Tensor]) -> Any:
        """What a call returns that computes the loss."""
        if self.structure is None or not self.inside:
            return loss
        others = dict(zip(self.with_loss, outputs, strict=True))
        return filled(self.structure, {self._loss: loss, **others})

    def of_outputs(self, outputs: Sequence[Tensor]) -> Any:
        """What a call returns that was given no targets: the loss is None, as in Transformers."""
        assert self.structure is not None
        others = dict(zip(self.names, outputs, strict=True))
        return filled(self.structure, {self._loss: None, **others})


def filled(returned: Returned, values: Mapping[str, Tensor | None], path: str = "") -> Any:
    """What the model would return; None stands for a tensor that the model would not return."""
    match returned.kind:
        case "tensor" if returned.tensor in values:
            return values[returned.tensor]
        case "tensor":
            return NotGiven(path, NOT_ASKED)
        case "absent":
            return NotGiven(path, NOT_COMPUTED)
        case "other":
            return None
    inside = [
        (key, filled(entry, values, f"{path}.{key}" if path else key))
        for key, entry in returned.entries
    ]
    container = _class(returned.type)
    if returned.kind == "mapping":
        present = {key: value for key, value in inside if value is not None}
        return dict(inside) if container is None else container(**present)
    items = [value for _, value in inside]
    if container is not None:
        return container(*items)
    return items if returned.kind == "list" else tuple(items)


def _class(name: str) -> Any | None:
    """A loaded class that is a mapping with named fields, or a named tuple."""
    module, _, path = name.partition(":")
    loaded: Any = sys.modules.get(module)
    for part in path.split(".") if loaded is not None and path else ():
        loaded = getattr(loaded, part, None)
    if not isinstance(loaded, type):
        return None
    named = issubclass(loaded, Mapping | dict) and hasattr(loaded, "__dataclass_fields__")
    return loaded if named or (issubclass(loaded, tuple) and hasattr(loaded, "_fields")) else None
