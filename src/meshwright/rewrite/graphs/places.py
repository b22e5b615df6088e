"""Matches of one rule at one operator. Enters: a site, a plan, an anchor. Leaves: `Match`es.

What a rule makes of tensors of the same types is worked out once and remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from meshwright.rewrite.graphs.bindings import bindings
from meshwright.rewrite.graphs.instantiate import Blueprint, FitShape, Parameters, blueprints
from meshwright.rewrite.graphs.patterns import MatchPlan, RuleSet
from meshwright.rewrite.graphs.site import Site
from meshwright.rewrite.graphs.tensor_names import naming
from meshwright.rewrite.language.terms import Rule, Setting, Tensor, Variable


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A rule where it fits.

    The text form names what is replaced and what was bound.
    """

    rule: Rule
    outputs: tuple[str, ...]
    """The tensors that are replaced."""
    tensors: tuple[tuple[str, str], ...]
    """For each variable of the rule its tensor."""
    settings: tuple[tuple[str, Setting], ...]
    """For each symbol of the rule its value."""
    operators: tuple[str, ...]
    """The operators of the source, in the order of `terms.nodes`."""

    def __str__(self) -> str:
        bound = ", ".join(f"{name} = {value}" for name, value in (*self.tensors, *self.settings))
        return f"{self.rule.name} at {', '.join(self.outputs)}: {bound}"


class ApplicableMatch(NamedTuple):
    """A match with what it takes to apply it."""

    match: Match
    blueprint: Blueprint
    given: tuple[str, ...]


Key = tuple[int, tuple[str, ...], tuple[str, ...], tuple[tuple[str, Setting], ...]]
"""Rule by number, replaced tensors, tensors of variables, values of symbols: a match is these."""


class BlueprintCache:
    """Blueprints that were worked out for a rule on tensors of these types."""

    def __init__(self, rules: RuleSet, parameters: Parameters) -> None:
        self.rules, self.parameters = rules, parameters
        self._known: dict[tuple[object, ...], tuple[Blueprint, ...]] = {}

    def found(
        self, site: Site, plan: MatchPlan, anchor: str
    ) -> Iterator[tuple[Key, ApplicableMatch]]:
        """Every match of a plan at an anchor."""
        rule = self.rules.rules[plan.rule]
        for binding in bindings(site, plan, anchor):
            bound = dict(zip(plan.terms, (binding.tensors[n] for n in plan.slots), strict=True))
            outputs = tuple(binding.tensors[n] for n in plan.outputs)
            if site.loses(binding.operators.values(), outputs):
                continue
            tensors = tuple((variable.name, bound[variable]) for variable in plan.terms
                            if isinstance(variable, Variable))  # fmt: skip
            for blueprint in self._fits(plan, bound, binding.symbols, site):
                inputs = tuple(bound[term] for term in blueprint.given)
                if naming(site, blueprint, inputs, outputs) is None:
                    continue
                match = Match(
                    rule=rule,
                    outputs=outputs,
                    tensors=tensors,
                    settings=blueprint.settings,
                    operators=tuple(binding.operators[n] for n in sorted(binding.operators)),
                )
                key = (plan.rule, outputs, tuple(name for _, name in tensors), match.settings)
                yield key, ApplicableMatch(match, blueprint, inputs)

    def _fits(self, plan: MatchPlan, bound: Mapping[Tensor, str], symbols: Mapping[str, Setting],
              site: Site) -> tuple[Blueprint, ...]:  # fmt: skip
        """What a rule makes of a binding; types of variables and symbols decide all others."""
        shapes = {term: FitShape(site.types[tensor], site.tensors[tensor].dtype)
                  for term, tensor in bound.items()}  # fmt: skip
        variable_shapes = tuple(
            shape for term, shape in shapes.items() if isinstance(term, Variable)
        )
        key = (plan.rule, variable_shapes, tuple(sorted(symbols.items())))
        if key not in self._known:
            rule, known = self.rules.rules[plan.rule], self.rules.known
            self._known[key] = tuple(blueprints(rule, symbols, shapes, self.parameters, known))
        return self._known[key]
