"""Tensor contractions in index notation: einsum, and the products that one line of it defines.

    out[output labels] = sum over all other labels of the product of the operands

Labels are letters, or negative numbers for the dims of an ellipsis, counted from the last. Every
label is a way to cut the work, unless an operand repeats it (a diagonal, whose two dims would have
to be cut at once):

    label                                        role
    the output's first                           sample
    in the operand that has the output's first   attribute
    in other operands only                       parameter
    not in the output                            reduction; what is added goes to one part

PyTorch contracts operands from left to right, which is what the flops count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import final

import msgspec

from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.families.elementwise import promoted
from meshwright.graph.family import Family, Role, Saved, ShapeError, Split, Wanted, tensor
from meshwright.graph.operator_graph import Call, Spec

Label = str | int
Labels = tuple[Label, ...]

ELLIPSIS = "..."


class Contraction(msgspec.Struct, frozen=True, dict=True):
    """An equation with the sizes of its operands."""

    operands: tuple[Labels, ...]
    output: Labels
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> Mapping[Label, int]:
        """The size of each label; size 1 stretches."""
        sizes: dict[Label, int] = {}
        for labels, shape in zip(self.operands, self.shapes, strict=True):
            for label, size in zip(labels, shape, strict=True):
                known = sizes.get(label, 1)
                if known != size and 1 not in (known, size):
                    raise ShapeError(f"label {label!r} has sizes {known} and {size}")
                sizes[label] = size if known == 1 else known
        return sizes

    def cut(self, label: Label) -> tuple[int | None, ...] | None:
        """The dim of each operand that a label runs along, None for one that has it not or
        stretches it; no answer if an operand repeats it.
        """
        dims: list[int | None] = []
        for labels, shape in zip(self.operands, self.shapes, strict=True):
            places = [dim for dim, other in enumerate(labels) if other == label]
            if len(places) > 1:
                return None
            dims.append(places[0] if places and shape[places[0]] != 1 else None)
        return tuple(dims)

    def role(self, label: Label) -> Role:
        """What a part of a label's range computes."""
        if label not in self.output:
            return "reduction"
        first = self.output[0]
        if label == first:
            return "sample"
        leading = next(labels for labels in self.operands if first in labels)
        return "attribute" if label in leading else "parameter"

    def name(self, label: Label) -> str:
        """What a split along a label is called: its letter, or its place in an ellipsis."""
        if self.output[:1] == (label,):
            return "sample"
        if isinstance(label, str):
            return label
        return f"dim{self.output.index(label)}" if label in self.output else f"ellipsis{-label}"

    @cached_property
    def flops(self) -> int:
        """One for each product of a pair, and one more for each that is added up."""
        counted, current = 0, set(self.operands[0])
        for place, labels in enumerate(self.operands):
            later = {label for other in self.operands[place + 1 :] for label in other}
            joined = current | set(labels)
            summed = joined - later - set(self.output)
            terms = math.prod(self.sizes[label] for label in joined)
            counted += terms * (bool(place) + bool(summed))
            current = joined - summed
        return counted


def contraction(equation: str, shapes: Sequence[tuple[int, ...]]) -> Contraction:
    """An equation as `torch.einsum` takes it, for operands of these shapes.

    >>> contraction("...i, ij", ((2, 3, 4), (4, 5))).output
    (-2, -1, 'j')
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ShapeError(f"{equation!r} has {len(terms)} operands, not {len(shapes)}")
    operands = tuple(_labels(term, len(shape)) for term, shape in zip(terms, shapes, strict=True))
    hidden = sorted({label for labels in operands for label in labels if isinstance(label, int)})
    if arrow:
        before, dots, after = right.partition(ELLIPSIS)
        output: Labels = (*before, *(hidden if dots else ()), *after)
    else:
        letters = left.replace(",", "").replace(".", "")
        output = (*hidden, *sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    unknown = set(output) - {label for labels in operands for label in labels}
    if unknown or len(set(output)) != len(output):
        raise ShapeError(f"the output of {equation!r} has labels that are new, or given twice")
    parsed = Contraction(operands, output, tuple(shapes))
    assert parsed.sizes or not output, (
        "sizes are looked at here, so that those that differ are told"
    )
    return parsed


def _labels(term: str, rank: int) -> Labels:
    """The label of each dim of an operand."""
    before, dots, after = term.partition(ELLIPSIS)
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ShapeError(f"an operand of {rank} dims has labels {term!r}")
    return (*before, *range(-hidden, 0), *after)


@final
class Einsum(Family):
    """The equation is an attribute, or the kind's own; `added` is the operand that is added."""

    products = True

    def __init__(self, equation: str | None = None, *, added: int | None = None) -> None:
        self._equation, self._added = equation, added

    def _contraction(self, call: Call) -> Contraction:
        equation = self._equation or str(call.get("equation"))
        factors = tuple(tensor(call, place).shape for place in self._factors(call))
        return contraction(equation, factors)

    def _factors(self, call: Call) -> tuple[int, ...]:
        """The places of the operands that are multiplied."""
        return tuple(place for place in range(len(call.inputs)) if place != self._added)

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The sizes of the output's labels; what is added stretches to them."""
        contraction = self._contraction(call)
        shape = tuple(contraction.sizes[label] for label in contraction.output)
        summand = self._summand(call)
        if summand is not None and broadcast(shape, summand.shape) != shape:
            raise ShapeError(f"what is added is {summand.shape}, the product {shape}")
        factors = tuple(tensor(call, place) for place in self._factors(call))
        return (Spec(promoted(factors), shape),)

    def _summand(self, call: Call) -> Spec | None:
        present = self._added is not None and self._added < len(call.inputs)
        return call.inputs[self._added or 0] if present else None

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every label that no operand repeats."""
        contraction = self._contraction(call)
        rest = [label for label in contraction.sizes if label not in contraction.output]
        cuts = ((label, contraction.cut(label)) for label in (*contraction.output, *rest))
        return tuple(
            self._split(call, contraction, label, cut) for label, cut in cuts if cut is not None
        )

    def _split(
        self, call: Call, contraction: Contraction, label: Label, cut: tuple[int | None, ...]
    ) -> Split:
        out = contraction.output.index(label) if label in contraction.output else None
        inputs, once = list(cut), list[int]()
        if self._added is not None and self._added < len(call.inputs):
            inputs.insert(self._added, self._summand_dim(call, out))
            once += [self._added] if out is None else []
        return Split(
            name=contraction.name(label),
            role=contraction.role(label),
            extent=contraction.sizes[label],
            inputs=tuple(inputs),
            outputs=(out,),
            once=tuple(once),
        )

    def _summand_dim(self, call: Call, out: int | None) -> int | None:
        """The dim of what is added that a dim of the output runs along."""
        summand = self._summand(call)
        if summand is None or out is None:
            return None
        return stretched(summand.shape, out, len(call.outputs[0].shape))

    def flops(self, call: Call) -> int:
        """Those of all pairs, from left to right."""
        return self._contraction(call).flops

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """As many for each factor; a summand is only added."""
        flops, factors = self.flops(call), self._factors(call)
        return tuple(flops if place in factors else 0 for place in range(len(call.inputs)))

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """For the gradient of a factor all others."""
        factors = self._factors(call)
        return Saved(
            inputs=tuple(
                place
                for place in factors
                if any(wanted[other] for other in factors if other != place)
            )
        )


KINDS: Mapping[str, Family] = {
    "einsum": Einsum(),
    "bilinear": Einsum("...i,...j,oij->...o", added=3),
    "mv": Einsum("ij,j->i"),
    "dot": Einsum("i,i->"),
    "vdot": Einsum("i,i->"),
    "outer": Einsum("i,j->ij"),
    "trace": Einsum("ii->"),
    "addbmm": Einsum("bij,bjk->ik", added=0),
    "addmv": Einsum("ij,j->i", added=0),
    "addr": Einsum("i,j->ij", added=0),
}
