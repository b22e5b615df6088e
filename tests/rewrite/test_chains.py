"""A rewrite keeps the function: random chains of rewrites on tiny models, with real kernels."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from meshwright.capture.export import capture
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.zoo import ENTRIES
from meshwright.capture.zoo.entry import Entry
from meshwright.graph.operator_graph import Operator, OperatorGraph
from meshwright.graph.validation import check
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.places import Match
from meshwright.rewrite.library import library
from support.sharded_run import execute_sharded

LENGTH = int(os.environ.get("REWRITES", "50"))
CHAINS = int(os.environ.get("CHAINS", "1"))
RULES = RuleSet(library())
PARAMETERS = {"d": (2,), "e": (2,), "m": (2,), "after": (0, 1, 2)}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)
def test_every_tiny_model(model: Entry[Any]) -> None:
    torch.manual_seed(0)
    example = model.example(model.tiny, 4)
    graph = _undropped(capture(example))
    values = values_of(example, graph)
    expected = _outputs_and_gradients(graph, values, sharded=False)
    for chain in range(CHAINS):
        rewritten, applied = _rewritten(graph, random.Random(chain))
        assert check(rewritten) == ()
        computed = _outputs_and_gradients(rewritten, values, sharded=True)
        assert computed.keys() == expected.keys(), applied
        for name, value in expected.items():
            scale = value.abs().max().clamp(min=1e-6)
            assert (computed[name] - value).abs().max() <= 1e-9 * scale, (name, applied)


def _rewritten(graph: OperatorGraph, chance: random.Random) -> tuple[OperatorGraph, list[str]]:
    matcher = Matcher(graph, RULES, PARAMETERS)
    applied: list[str] = []
    while len(applied) < LENGTH and matcher.matches:
        match = _drawn(matcher.matches, chance)
        matcher = matcher.rewrite(match)
        applied.append(str(match))
    return matcher.graph, applied


def _drawn(matches: tuple[Match, ...], chance: random.Random) -> Match:
    """A rule first, then a place: rules that fit everywhere would hide the others."""
    name = chance.choice(sorted({match.rule.name for match in matches}))
    return chance.choice([match for match in matches if match.rule.name == name])


def _undropped(graph: OperatorGraph) -> OperatorGraph:
    """The graph without chance: a rewrite may change the order in which numbers are drawn."""
    return msgspec.structs.replace(graph, operators=tuple(map(_certain, graph.operators)))


def _certain(operator: Operator) -> Operator:
    attributes = dict(operator.attributes)
    attributes.pop("dropout_p", None)
    if operator.kind == "dropout":
        attributes["p"] = 0.0
    return msgspec.structs.replace(operator, attributes=tuple(sorted(attributes.items())))


def _outputs_and_gradients(
    graph: OperatorGraph, values: dict[str, Tensor], *, sharded: bool
) -> dict[str, Tensor]:
    trained = {p.tensor.name for p in graph.parameters if p.trainable}
    fresh = {
        name: value.detach().clone().requires_grad_(name in trained)
        for name, value in values.items()
    }
    outputs = execute_sharded(graph, fresh) if sharded else execute(graph, fresh)
    real = [value for value in outputs.values() if value.is_floating_point()]
    total = sum((value * torch.linspace(0.5, 1.5, value.numel()).view_as(value)).sum()
                for value in real)  # fmt: skip
    assert isinstance(total, Tensor)
    total.backward()  # type: ignore[no-untyped-call]
    gradients = {f"gradient of {n}": v.grad for n, v in fresh.items() if v.grad is not None}
    return {name: value.detach() for name, value in (outputs | gradients).items()}
