"""Subgraph matching: bindings of a compiled pattern at an anchor operator. Enters: a site, a plan,
an operator. Leaves: bindings.

Straight down from the anchor, each tensor was made by the operator that the pattern says or the
search ends; only a further output of a rule may be found in several places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.rewrite.graphs.patterns import MatchPlan, PatternOperator, PatternOutput
from meshwright.rewrite.graphs.site import Node, Site
from meshwright.rewrite.language.terms import AXES, Setting
from meshwright.rewrite.language.types import rank


class Binding(NamedTuple):
    """A source that was found: tensors by slot, operators by number, symbols by name."""

    tensors: tuple[str, ...]
    operators: dict[int, str]
    symbols: dict[str, Setting]


_EMPTY = Binding((), {}, {})


def bindings(site: Site, plan: MatchPlan, anchor: str) -> Iterator[Binding]:
    """Every way in which a plan fits an anchor."""
    first = plan.parts[0]
    node = site.nodes[anchor]
    output = node.operator.outputs[first.steps[0].output : first.steps[0].output + 1]
    if output:
        begun = _down(site, first, output[0].name, _EMPTY)
        if begun is not None:
            yield from _further(site, plan.parts[1:], begun, (output[0].name,))


def _further(
    site: Site, parts: tuple[PatternOutput, ...], binding: Binding, roots: tuple[str, ...]
) -> Iterator[Binding]:
    """What is left of a plan, whose outputs are different tensors."""
    if not parts:
        yield binding
        return
    for tensor in dict.fromkeys(_candidates(site, parts[0], binding, roots[-1])):
        if tensor not in roots:
            extended = _down(site, parts[0], tensor, binding)
            if extended is not None:
                yield from _further(site, parts[1:], extended, (*roots, tensor))


def _candidates(site: Site, part: PatternOutput, binding: Binding, beside: str) -> Iterator[str]:
    """Tensors that a further output may be: up from a slot, or beside the last output."""
    if part.start is None:
        for reader in site.readers.get(beside, ()):
            yield from (
                operand for operand in site.nodes[reader].operands if operand in site.makers
            )
        return
    tensors = [binding.tensors[part.start]]
    for rung in part.climb:
        tensors = [
            node.operator.outputs[rung.output].name
            for tensor in tensors
            for node in map(site.nodes.__getitem__, site.readers.get(tensor, ()))
            if node.term == rung.operator
            and rung.position < len(node.operands)
            and node.operands[rung.position] == tensor
            and rung.output < len(node.operator.outputs)
        ]
    yield from tensors


def _down(site: Site, part: PatternOutput, tensor: str, begun: Binding) -> Binding | None:
    """What one output of a source binds, if it is there."""
    tensors = [*begun.tensors, tensor]
    operators, symbols = begun.operators, begun.symbols
    for step in part.steps:
        maker = site.makers.get(tensors[step.slot])
        if maker is None or maker[1] != step.output:
            return None
        name, node = maker[0], site.nodes[maker[0]]
        if step.node in operators:
            if operators[step.node] != name:
                return None
            continue
        if node.term != step.operator or len(node.operands) != step.arity:
            return None
        new_symbols = _told(site, step, node, symbols)
        if new_symbols is None:
            return None
        operators, symbols = operators | {step.node: name}, new_symbols
        tensors += node.operands
    for one, other in part.equal:
        if tensors[one] != tensors[other]:
            return None
    return Binding(tuple(tensors), operators, symbols)


def _told(
    site: Site, step: PatternOperator, node: Node, symbols: dict[str, Setting]
) -> dict[str, Setting] | None:
    """The symbols with what the settings of an operator say; a symbol is never steps, copies or
    sums, which a rule has to name.
    """
    if len(node.settings) != len(step.settings):
        return None
    for number, (wanted, value) in enumerate(zip(step.settings, node.settings, strict=True)):
        if isinstance(wanted, str) and wanted not in AXES:
            if wanted not in symbols and value not in AXES:
                symbols = symbols | {wanted: value}
            elif symbols.get(wanted) != value:
                return None
        else:
            if number in step.dims and isinstance(wanted, int) and wanted < 0:
                wanted += rank(site.types[node.operands[0]])
            if wanted != value:
                return None
    return symbols
