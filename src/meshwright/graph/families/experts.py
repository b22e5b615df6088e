"""Routed experts (mixture of experts, MoE): each token goes through the k experts that it chose.

    out[t] = sum over j of weights[t, j] · f_e(x[t])  with  e = index[t, j]

f_e, the `body` (`graph.expert_body`), is what all experts do, each with its own operands. Nothing
is dropped: counts are exact, however tokens spread; costs are those of equal loads.

    split     role        cuts
    sample    sample      tokens (DP): a device routes its own tokens alone
    expert    parameter   experts and tokens alike (EP): a device has some of both; tokens travel to
                          their experts and back by AllToAll (`Split.exchanged`)
    inner     reduction   the dim between the products of every expert (TP), where there is one

Tokens are cut by both `sample` and `expert`: the parts of one are cut by the other. So that there
are always as many tokens as experts, E tokens are a unit of `sample`; with fewer, only `sample` is
there. Where experts do not divide them, parts of tokens differ by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from meshwright.base.quantities import Bytes
from meshwright.graph.expert_body import (
    OPERANDS,
    ROWS,
    SizedOperator,
    inside,
    local_expert_count,
    operand,
)
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    replaced,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec

PRODUCT = "_grouped_mm"


@final
class RoutedExperts(Family):
    """routed_experts (ours): x[t, h], index[t, k], weights[t, k], operands[e, ...]."""

    products = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """What the weighted sum of the experts' results gives."""
        return inside(call)[-1].call.outputs

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Tokens, experts, and what lies between the products of an expert."""
        tokens, held = tensor(call, 0).shape[0], local_expert_count(call)
        whole = (None,) * (len(call.inputs) - OPERANDS)
        sample = Split(
            name="sample",
            role="sample",
            extent=tokens // held if held <= tokens else tokens,
            inputs=(0, 0, 0, *whole),
            outputs=(0,),
        )
        expert = Split(
            name="expert",
            role="parameter",
            extent=held if held <= tokens else 1,
            inputs=(0,) * len(call.inputs),
            outputs=(0,),
            exchanged=_travelling(call),
        )
        return (sample, expert, *_between(call))

    def flops(self, call: Call) -> int:
        """Of the products: k for each token."""
        return sum(_family(product.call).flops(product.call) for product in _products(call))

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """As many for tokens as the forward pass takes, and for each weight as its product."""
        origins = _origins(call)
        of_operands = [0] * (len(call.inputs) - OPERANDS)
        for product in _products(call):
            of_operands[origins[product.stage.inputs[1]]] += _family(product.call).flops(
                product.call
            )
        return (self.flops(call), 0, 0, *of_operands)

    def traffic(self, call: Call) -> Bytes:
        """What all its stages read and write."""
        return Bytes(
            sum(_family(operator.call).traffic(operator.call) for operator in inside(call))
        )

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The choices, and what the stages keep."""
        operands = {operand(n): OPERANDS + n for n in range(len(call.inputs) - OPERANDS)}
        places = {"index": 1, "weights": 2, **operands}
        roots: dict[str, str] = {}
        sizes: dict[str, int] = {}
        kept: set[str] = {"index"}
        extra = 0
        for stage, stage_call, gradients in inside(call, wanted):
            family = _family(stage_call)
            for name, spec in zip(stage.outputs, stage_call.outputs, strict=False):
                root = roots.get(stage.inputs[0], stage.inputs[0])
                roots[name] = root if family.view else name
                sizes[name] = spec.bytes
            if any(gradients):
                saved = family.saved(stage_call, gradients)
                kept |= {roots.get(name := stage.inputs[i], name) for i in saved.inputs}
                kept |= {roots[stage.outputs[i]] for i in saved.outputs}
                extra += saved.extra
        inputs = tuple(sorted(places[name] for name in kept if name in places))
        return Saved(inputs=inputs, extra=Bytes(extra + sum(sizes.get(name, 0) for name in kept)))

    def stages(self, call: Call, wanted: Wanted) -> tuple[tuple[Call, Wanted], ...]:
        """Sorting, the body, the weighted sum."""
        return tuple((operator.call, operator.wanted) for operator in inside(call, wanted))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The first expert that is held here."""
        if split.name != "expert":
            return call.attributes
        first = start * local_expert_count(call) // split.extent
        return replaced(call.attributes, first=integer(call, "first", 0) + first)


def _family(call: Call) -> Family:
    from meshwright.graph.families import family_of  # Which knows this one.

    return family_of(call)


def _products(call: Call) -> Iterator[SizedOperator]:
    return (operator for operator in inside(call) if operator.call.kind == PRODUCT)


def _travelling(call: Call) -> int:
    """Elements that go to experts, and that come back."""
    operators = inside(call)
    rows = next(operator for operator in operators if ROWS in operator.stage.outputs).call.outputs[
        0
    ]
    returned = next(
        operator for operator in operators if "back" in operator.stage.outputs
    ).call.outputs[0]
    return rows.elements + returned.elements


def _origins(call: Call) -> dict[str, int]:
    """For each tensor of the body that is an operand, perhaps turned, the operand's number."""
    origins = {operand(n): n for n in range(len(call.inputs) - OPERANDS)}
    for operator in inside(call):
        first = operator.stage.inputs[0]
        if first in origins and operator.call.kind != "index":
            origins |= dict.fromkeys(operator.stage.outputs, origins[first])
    return origins


def _between(call: Call) -> Iterator[Split]:
    """The split of the dim that the first products make and the last one sums over, if it can be.

    Followed from stage to stage: a product of whole rows is cut along its columns, one of cut rows
    sums, and must be the last; everything between takes rows as they are cut.
    """
    try:
        dims, extent = _followed(call)
    except ShapeError:
        return
    yield Split(
        name="inner",
        role="reduction",
        extent=extent,
        inputs=(None, None, None, *dims),
        outputs=(None,),
    )


def _followed(call: Call) -> tuple[tuple[int | None, ...], int]:
    """For each operand the dim that is cut, and the units of the cut."""
    body = [op for op in inside(call) if op.stage.outputs[0] not in _AROUND]
    cut: dict[str, tuple[int | None, int]] = {ROWS: (None, 0)}
    needed: dict[str, tuple[int, int]] = {}
    for operator in body[:-1]:
        _follow(operator, cut, needed)
    last = body[-1]
    dim, extent = cut.get(last.stage.inputs[0], (None, 0))
    if last.call.kind != PRODUCT or dim != 1:
        raise ShapeError("the last stage does not sum over what is cut")
    needed[last.stage.inputs[1]] = (1, extent)
    for operator in reversed(body):
        _turn(operator, needed)
    operands = [operand(n) for n in range(len(call.inputs) - OPERANDS)]
    extents = {extent for _, extent in needed.values()}
    if len(extents) != 1:
        raise ShapeError(f"the dims between have {sorted(extents)} units")
    return tuple(needed[name][0] if name in needed else None for name in operands), extents.pop()


_AROUND = {"ids", "rows", "back", "slots", "columns", "weighted", "out"}
"""What stages before and after the body make."""


def _follow(
    operator: SizedOperator,
    cut: dict[str, tuple[int | None, int]],
    needed: dict[str, tuple[int, int]],
) -> None:
    """How a stage's results are cut, given how its rows are."""
    stage, call = operator.stage, operator.call
    rows = {i: cut[name] for i, name in enumerate(stage.inputs) if name in cut}
    if call.kind == PRODUCT and rows == {0: (None, 0)}:
        size = call.outputs[0].shape[1]
        needed[stage.inputs[1]] = (2, size)
        cut[stage.outputs[0]] = (1, size)
    elif call.kind == "index" and stage.inputs[0] not in cut:
        size = call.outputs[0].shape[1]
        needed[stage.inputs[0]] = (1, size)
        cut[stage.outputs[0]] = (1, size)
    elif rows:
        ((dim, extent),) = set(rows.values()) if len(set(rows.values())) == 1 else ((None, 0),)
        fitting = (
            split
            for split in _family(call).splits(call)
            if dim is not None and all(split.inputs[i] == dim for i in rows)
        )
        split = next(fitting, None)
        if split is None or split.role == "reduction" or split.halo or split.statistics:
            raise ShapeError(f"{stage} cannot be cut so")
        cut |= dict.fromkeys(stage.outputs, (split.outputs[0], extent))


def _turn(operator: SizedOperator, needed: dict[str, tuple[int, int]]) -> None:
    """Of an operand that is turned before it is read: how the operand itself is cut."""
    wanted = needed.get(operator.stage.outputs[0])
    if wanted is None or operator.call.kind in (PRODUCT, "index"):
        return
    dim, extent = wanted
    split = next(
        (s for s in _family(operator.call).splits(operator.call) if s.outputs[0] == dim), None
    )
    if split is None or (source := split.inputs[0]) is None:
        raise ShapeError(f"{operator.stage} cannot be cut so")
    needed[operator.stage.inputs[0]] = (source, extent)


KINDS: Mapping[str, Family] = {"routed_experts": RoutedExperts()}
