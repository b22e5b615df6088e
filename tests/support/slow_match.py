"""Matching by trying everything: the plain definition that the fast matcher is compared with.

Enters: a graph, rules, values for symbols. Leaves: for each match the rule's name, the replaced
tensors, the tensors of variables, the values of symbols. Every choice of an operator for each
operator of a source is looked at; nothing is indexed, remembered or updated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from meshwright.graph.notation import MisfitError
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.kinds import read
from meshwright.rewrite.graphs.readings import OperatorReading, normal
from meshwright.rewrite.graphs.types_of import types_of
from meshwright.rewrite.language.conditions import holds, quantity
from meshwright.rewrite.language.terms import (
    AXES,
    Condition,
    Rule,
    Setting,
    Tensor,
    Term,
    Variable,
    nodes,
    symbols,
    variables,
)
from meshwright.rewrite.language.types import DIMS, Type, infer, rank

Found = tuple[str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, object], ...]]


def slow_matches(
    graph: OperatorGraph, rules: Sequence[Rule], parameters: Mapping[str, Sequence[int]]
) -> set[Found]:
    return {rule_match for rule in rules for rule_match in _Slow(graph, parameters).matches(rule)}


class _Slow:
    def __init__(self, graph: OperatorGraph, parameters: Mapping[str, Sequence[int]]) -> None:
        self.graph, self.parameters, self.types = graph, parameters, types_of(graph)
        self.readings: dict[str, tuple[OperatorReading, tuple[str, ...], tuple[str, ...]]] = {}
        for operator in graph.operators:
            reading = read(graph.call(operator))
            if reading is not None:
                operands = tuple(str(operator.inputs[n]) for n in reading.order)
                outputs = tuple(tensor.name for tensor in operator.outputs)
                self.readings[operator.name] = (reading, operands, outputs)

    def matches(self, rule: Rule) -> Iterator[Found]:
        if rule.free or any(isinstance(term, Variable) for term in rule.source):
            return
        pattern_nodes = nodes(rule.source)
        choices = [[n for n, r in self.readings.items() if r[0].operator == node.operator]
                   for node in pattern_nodes]  # fmt: skip
        turns = [(False, True) if node.operator in ("add", "mul", "transpose") else (False,)
                 for node in pattern_nodes]  # fmt: skip
        for chosen in self._consistent(pattern_nodes, choices):
            for turned in itertools.product(*turns):
                yield from self._bound(rule, dict(zip(pattern_nodes, chosen, strict=True)),
                                       dict(zip(pattern_nodes, turned, strict=True)))  # fmt: skip

    def _consistent(
        self, pattern_nodes: tuple[Term, ...], choices: list[list[str]]
    ) -> Iterator[tuple[str, ...]]:
        """Choices in which an operator reads what was chosen for its operands, in any place."""

        def extended(chosen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            if len(chosen) == len(pattern_nodes):
                yield chosen
                return
            for name in choices[len(chosen)]:
                below = {
                    chosen[pattern_nodes.index(term.node)]
                    for term in pattern_nodes[len(chosen)].inputs
                    if isinstance(term, Term)
                }
                operand_outputs = [set(self.readings[other][2]) for other in below]
                if all(outputs & set(self.readings[name][1]) for outputs in operand_outputs):
                    yield from extended((*chosen, name))

        return extended(())

    def _bound(
        self, rule: Rule, chosen: Mapping[Term, str], turned: Mapping[Term, bool]
    ) -> Iterator[Found]:
        tensors: dict[Tensor, str] = {}
        values: dict[str, Setting] = {}

        def put(term: Tensor, name: str) -> bool:
            return tensors.setdefault(term, name) == name

        for node, name in chosen.items():
            reading, operands, produced = self.readings[name]
            inputs = node.inputs
            if turned[node] and node.operator != "transpose":
                inputs = inputs[::-1]
            if len(inputs) != len(operands):
                return
            if not all(put(term, operand) for term, operand in zip(inputs, operands, strict=True)):
                return
            uses = [t for t in self._terms(rule) if isinstance(t, Term) and t.node == node]
            if any(t.output >= len(produced) or not put(t, produced[t.output]) for t in uses):
                return
            wanted = node.attributes
            if node.operator == "transpose":
                wanted = wanted[::-1] if turned[node] else wanted
            else:
                wanted = normal(node.operator, wanted, 0)  # type: ignore[assignment]
            if len(wanted) != len(reading.settings):
                return
            for number, (setting, value) in enumerate(zip(wanted, reading.settings, strict=True)):
                if isinstance(setting, str) and setting not in AXES:
                    if value in AXES or values.setdefault(setting, value) != value:
                        return
                    continue
                if (
                    isinstance(setting, int)
                    and setting < 0
                    and number in DIMS.get(node.operator, ())
                ):
                    setting += rank(self.types[operands[0]])
                if setting != value:
                    return
        outputs = tuple(tensors[term] for term in rule.source)
        if len(set(outputs)) == len(outputs) and self._near(rule, outputs):
            yield from self._fitting(rule, tensors, values, outputs)

    def _terms(self, rule: Rule) -> list[Tensor]:
        return [*rule.source, *(operand for node in nodes(rule.source) for operand in node.inputs)]

    def _near(self, rule: Rule, outputs: tuple[str, ...]) -> bool:
        """Two outputs that share no tensor are read by one operator; no rule here has three."""
        if len(outputs) < 2:
            return True
        one, other = (set(map(str, (*variables((t,)), *nodes((t,))))) for t in rule.source)
        readers = [{op.name for op in self.graph.consumers[name]} for name in outputs]
        return bool(one & other) or bool(readers[0] & readers[1])

    def _fitting(
        self, rule: Rule, tensors: Mapping[Tensor, str], values: Mapping[str, Setting],
        outputs: tuple[str, ...],
    ) -> Iterator[Found]:  # fmt: skip
        types = {
            variable.name: self.types[tensors[variable]] for variable in variables(rule.source)
        }
        every = max(rank(self.types[tensor_name]) for tensor_name in tensors.values())
        opened = [s for s in dict.fromkeys(symbols(rule)) if s not in values]
        for drawn in itertools.product(*(self._draw(rule, s, types, every) for s in opened)):
            chosen = dict(values) | dict(zip(opened, drawn, strict=True))
            try:
                fits = all(holds(condition, types, chosen) for condition in rule.conditions)
                target_types = [_type(term, chosen, types) for term in rule.target] if fits else []
            except MisfitError:
                continue
            wanted = [self.types[name] for name in outputs]
            if fits and target_types == wanted and self._applies(rule, tensors, outputs):
                bound = tuple(tensors[variable] for variable in variables(rule.source))
                yield rule.name, outputs, bound, tuple(sorted(chosen.items()))

    def _draw(
        self, rule: Rule, symbol: str, types: Mapping[str, Type], every: int
    ) -> list[Setting]:
        for condition in rule.conditions:
            if (
                isinstance(condition, Condition)
                and condition.relation == "="
                and condition.left == symbol
            ):
                return [quantity(condition.right, types, {})]
        if symbol in self.parameters:
            return list(self.parameters[symbol])
        degree = any(symbol in node.attributes[1:] for node in nodes(rule.target))
        return [] if degree else list(range(every))

    def _applies(self, rule: Rule, tensors: Mapping[Tensor, str], outputs: tuple[str, ...]) -> bool:
        """Nothing that is read depends on what is replaced, and outputs stay what they are."""
        ends = {*self.graph.outputs, self.graph.loss}
        for source, target in zip(rule.source, rule.target, strict=True):
            if target in tensors and tensors[source] in ends:
                name = tensors[target]
                if name not in self.graph.producers or name in ends:
                    return False
        if len(outputs) == 1:
            return True
        below = set(outputs)
        for operator in self.graph.operators:
            if below & set(operator.inputs):
                below |= {tensor.name for tensor in operator.outputs}
        makers = {self.graph.producers[name].name for name in outputs}
        below |= {t.name for op in self.graph.operators if op.name in makers for t in op.outputs}
        return below.isdisjoint(tensors[variable] for variable in variables(rule.target))


def _type(term: Tensor, chosen: Mapping[str, Setting], types: Mapping[str, Type]) -> Type:
    if isinstance(term, Variable):
        return types[term.name]
    settings = tuple(chosen.get(a, a) if isinstance(a, str) else a for a in term.attributes)
    inputs = [_type(operand, chosen, types) for operand in term.inputs]
    return infer(term.operator, settings, inputs)[term.output]
