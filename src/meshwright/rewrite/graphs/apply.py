"""Graph substitution: a matched source replaced by its rule's target.

Enters: a site, a blueprint, the tensors that it reads and replaces. Leaves: another site and what
has changed. Types of tensors that stay never change, since an output is replaced by one of its own
type; so nothing has to be worked out downstream. An operator whose outputs nobody reads any more
goes, and so does what only it read; one that is still read stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import Operator, Tensor
from meshwright.rewrite.graphs.instantiate import Blueprint, BlueprintOperator
from meshwright.rewrite.graphs.site import Node, Site
from meshwright.rewrite.graphs.tensor_names import Names, Naming, dim_names, fresh


class Change(NamedTuple):
    """Operators that went, and those that came or read something else now."""

    gone: frozenset[str]
    came: frozenset[str]


def replace(
    site: Site,
    blueprint: Blueprint,
    naming: Naming,
    outputs: Names,
    known: Mapping[str, Definition],
) -> tuple[Site, Change]:
    """The site with these outputs computed by the blueprint."""
    inputs = naming.names[: len(blueprint.given)]
    changed = [name for name in outputs if name not in inputs]
    changed += naming.renamed.values()
    makers = dict.fromkeys(site.makers[name][0] for name in changed)
    edit = _Edit(site)
    for old, new in naming.turned.items():
        edit.turn_readers(old, new)
    edit.drop_unread(list(makers), site.ends.union(filter(None, inputs), naming.renamed), changed)
    for old, new in naming.renamed.items():
        edit.rename_output(old, new)
        edit.turn_readers(old, new)
    edit.build(blueprint, naming.names, site.nodes[next(iter(makers))].operator.layer, known)
    return edit.finished(list(makers), [name for name in inputs if name is not None])


class _Edit:
    """Copies of a site's indexes, and what has been done to them."""

    def __init__(self, site: Site) -> None:
        self._old = site
        self._nodes = dict(site.nodes)
        self._makers, self._readers = dict(site.makers), dict(site.readers)
        self._types, self._tensors = dict(site.types), dict(site.tensors)
        self._taken = set(site.tensors)
        self._added: list[str] = []
        self._came: set[str] = set()

    def fresh_tensor(self, stem: str) -> str:
        """A name that no tensor has, nor had before the edit."""
        self._taken.add(name := fresh(stem, self._taken))
        return name

    def rename_output(self, old: str, new: str) -> None:
        """Has the maker of a tensor call it otherwise; readers are left alone."""
        name, output = self._makers.pop(old)
        node = self._nodes[name]
        tensor = msgspec.structs.replace(self._tensors.pop(old), name=new)
        tensors = node.operator.outputs
        outputs = (*tensors[:output], tensor, *tensors[output + 1 :])
        self._nodes[name] = node._replace(
            operator=msgspec.structs.replace(node.operator, outputs=outputs)
        )
        self._makers[new], self._tensors[new] = (name, output), tensor
        self._types[new] = self._types.pop(old)
        self._came.add(name)

    def turn_readers(self, old: str, new: str) -> None:
        """Has everybody who reads one tensor read another."""
        turned = self._readers.pop(old, ())
        for name in turned:
            node = self._nodes[name]
            inputs = tuple(new if tensor == old else tensor for tensor in node.operator.inputs)
            self._nodes[name] = node._replace(
                operator=msgspec.structs.replace(node.operator, inputs=inputs),
                operands=tuple(new if tensor == old else tensor for tensor in node.operands),
            )
            self._came.add(name)
        if merged := tuple(dict.fromkeys((*self._readers.get(new, ()), *turned))):
            self._readers[new] = merged

    def build(
        self,
        blueprint: Blueprint,
        names: Sequence[str | None],
        layer: str,
        known: Mapping[str, Definition],
    ) -> None:
        """Makes the operators of a blueprint, whose tensors have these names or any."""
        stem = next(name for name in (*names[len(blueprint.given) :], *names) if name is not None)
        called = [name for name in names[: len(blueprint.given)] if name is not None]
        for piece in blueprint.pieces:
            wanted = names[len(called) : len(called) + len(piece.outputs)]
            operands = tuple(called[number] for number in piece.operands)
            dims = dim_names(
                piece.reading, [[dim for dim, _ in self._tensors[name].dims] for name in operands],
                known,
            )  # fmt: skip
            for spec, type_, name in zip(piece.outputs, piece.types, wanted, strict=True):
                tensor = self.fresh_tensor(stem) if name is None else name
                sizes = tuple(zip(dims, spec.shape, strict=True))
                named = sizes if name is None else self._old.tensors[name].dims
                self._tensors[tensor] = Tensor(name=tensor, dtype=spec.dtype, dims=named)
                self._types[tensor] = type_
                called.append(tensor)
            self._add(piece, operands, called[-len(piece.outputs) :], layer)

    def _add(
        self, piece: BlueprintOperator, operands: tuple[str, ...], outputs: Names, layer: str
    ) -> None:
        name = outputs[0] if outputs[0] not in self._nodes else fresh(outputs[0], self._nodes)
        inputs = [""] * len(operands)
        for number, tensor in zip(piece.reading.order, operands, strict=True):
            inputs[number] = tensor
        operator = Operator(
            name=name,
            kind=piece.kind,
            inputs=tuple(inputs),
            outputs=tuple(self._tensors[output_name] for output_name in outputs),
            attributes=piece.attributes,
            layer=layer,
        )
        self._nodes[name] = Node(operator, piece.reading.operator, piece.reading.settings, operands)
        for output, tensor in enumerate(outputs):
            self._makers[tensor] = (name, output)
        for tensor in dict.fromkeys(operands):
            self._readers[tensor] = (*self._readers.get(tensor, ()), name)
        self._added.append(name)
        self._came.add(name)

    def drop_unread(
        self, waiting: list[str], wanted: Collection[str], replaced: Collection[str]
    ) -> None:
        """Takes out these operators, and what they read, where nobody reads what they make.

        What is replaced is made by others from now on; an operator that stays calls it otherwise.
        """
        while waiting:
            if (name := waiting.pop()) not in self._nodes:
                continue
            node = self._nodes[name]
            outputs = [tensor.name for tensor in node.operator.outputs]
            if any((t in self._readers or t in wanted) and t not in replaced for t in outputs):
                continue
            del self._nodes[name]
            for tensor in outputs:
                del self._makers[tensor], self._tensors[tensor], self._types[tensor]
            for read in dict.fromkeys(node.operands):
                waiting += self._unread(read, name)
        for tensor in replaced:
            if tensor in self._makers:
                self.rename_output(tensor, self.fresh_tensor(tensor))

    def _unread(self, tensor: str, by: str) -> list[str]:
        """Has an operator no longer read a tensor; its maker, if nobody else does."""
        left = tuple(other for other in self._readers[tensor] if other != by)
        if left:
            self._readers[tensor] = left
            return []
        del self._readers[tensor]
        return [self._makers[tensor][0]] if tensor in self._makers else []

    def finished(self, replaced: Names, inputs: Names) -> tuple[Site, Change]:
        """The new site: what came stands where the first of the replaced operators stood."""
        order = list(self._old.nodes)
        first = min(map(order.index, replaced))
        ahead = self._needed(inputs, set(order[first:]))
        before = [*order[:first], *(name for name in order[first:] if name in ahead)]
        added = {name: self._nodes[name] for name in self._added}
        left = self._nodes.keys() - added

        def kept(names: Iterable[str]) -> dict[str, Node]:
            return {name: self._nodes[name] for name in names if name in left}

        site = Site(
            frame=self._old.frame,
            nodes={**kept(before), **added, **kept(n for n in order[first:] if n not in ahead)},
            makers=self._makers,
            readers=self._readers,
            types=self._types,
            tensors=self._tensors,
            behind=self._old.behind,
        )
        gone = frozenset(name for name in self._old.nodes if name not in self._nodes)
        return site, Change(gone=gone, came=frozenset(self._came.intersection(self._nodes)))

    def _needed(self, inputs: Names, after: set[str]) -> set[str]:
        """Operators of a set that must run before these tensors are there."""
        needed: set[str] = set()
        waiting = [self._makers[name][0] for name in inputs if name in self._makers]
        while waiting:
            maker = waiting.pop()
            if maker in after and maker not in needed:
                needed.add(maker)
                read = self._nodes[maker].operands
                waiting += (self._makers[name][0] for name in read if name in self._makers)
                waiting += filter(None, [self._old.behind.get(maker)])
        return needed
