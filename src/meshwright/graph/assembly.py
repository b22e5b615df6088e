"""Graph builder that reuses the slices and parts of concatenated tensors. Enters: operators, and
wishes for parts of tensors. Leaves: operators in an order in which they can run.

Remembers of which parts a tensor was joined, so that nothing is cut where it was joined before, and
nothing is cut twice. Does not know what is put together, nor whether anybody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from meshwright.graph.family import position
from meshwright.graph.operator_graph import Attributes, Operator, OperatorGraph, Tensor

Names = tuple[str, ...]
Dims = tuple[tuple[str, int], ...]


class Assembly:
    """Operators so far, and how tensors are made of parts; begins with the tensors of a graph."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.operators: list[Operator] = []
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self._parts: dict[tuple[str, int, int], Names] = {}
        """The parts of a tensor along a dim, all of one size."""

    def add(self, operator: Operator) -> Names:
        """Puts an operator last; its outputs."""
        self.operators.append(operator)
        self.tensors.update((tensor.name, tensor) for tensor in operator.outputs)
        if operator.kind == "cat":
            self._remember(operator)
        return tuple(tensor.name for tensor in operator.outputs)

    def _remember(self, cat: Operator) -> None:
        """Of what a tensor was joined, unless the parts differ in more than their values."""
        parts = tuple(filter(None, cat.inputs))
        specs = {self.tensors[name].spec for name in parts}
        if len(specs) == 1:
            (spec,) = specs
            dim = dict(cat.attributes).get("dim", 0)
            assert isinstance(dim, int)
            place = position(dim, len(spec.shape))
            self._parts[cat.outputs[0].name, place, spec.shape[place]] = parts

    def apply(
        self,
        kind: str,
        inputs: Sequence[str | None],
        dims: Sequence[Dims],
        *,
        name: str,
        layer: str,
        attributes: Attributes,
    ) -> Names:
        """Adds an operator that makes tensors of these dims, named after it."""
        names = (name,) if len(dims) == 1 else tuple(f"{name}.{i}" for i in range(len(dims)))
        dtype = self.tensors[inputs[0] or ""].dtype
        outputs = (Tensor(name=n, dtype=dtype, dims=d) for n, d in zip(names, dims, strict=True))
        return self.add(
            Operator(
                name=name,
                kind=kind,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                attributes=attributes,
                layer=layer,
            )
        )

    def cut(self, whole: str, dim: int, size: int, *, name: str, layer: str) -> Names:
        """The parts of a tensor along a dim; cut by an operator of this name if need be."""
        tensor = self.tensors[whole]
        if tensor.shape[dim] == size:
            return (whole,)
        key = (whole, dim, size)
        if key not in self._parts:
            dims = [resized(tensor, {dim: size})] * (tensor.shape[dim] // size)
            attributes = _along(dim, split_size=size)
            self._parts[key] = self.apply(
                "split", (whole,), dims, name=name, layer=layer, attributes=attributes
            )
        return self._parts[key]

    def joined(self, parts: Names, dim: int, *, name: str, layer: str) -> str:
        """Parts of one size put together along a dim; a single part is the whole."""
        if len(parts) == 1:
            return parts[0]
        first = self.tensors[parts[0]]
        dims = resized(first, {dim: first.shape[dim] * len(parts)})
        (whole,) = self.apply("cat", parts, (dims,), name=name, layer=layer, attributes=_along(dim))
        return whole

    def rename(self, begin: int, names: Mapping[str, str]) -> None:
        """Gives tensors that the operators from `begin` on make the names of known ones."""
        operators = self.operators[begin:]
        del self.operators[begin:]
        for operator in operators:
            inputs = tuple(name and names.get(name, name) for name in operator.inputs)
            outputs = tuple(
                self.tensors[names[t.name]] if t.name in names else t for t in operator.outputs
            )
            self.add(msgspec.structs.replace(operator, inputs=inputs, outputs=outputs))


def _along(dim: int, **others: int) -> Attributes:
    """Attributes with the dim, which is not recorded where it is ATen's default."""
    return tuple(sorted((others | ({"dim": dim} if dim else {})).items()))


def resized(tensor: Tensor, sizes: Mapping[int, int]) -> Dims:
    """The dims of a tensor, some with another size."""
    return tuple((name, sizes.get(i, size)) for i, (name, size) in enumerate(tensor.dims))
