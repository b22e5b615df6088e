"""Known forms of parallelism are chains of library rules, and compute what the plain graph does."""

from __future__ import annotations

import pytest
import torch

from meshwright.capture.reference_executor import execute
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from support.derivations import DERIVATIONS, Derivation, derive, expression
from support.sharded_run import execute_sharded


@pytest.mark.parametrize("own", DERIVATIONS, ids=lambda derivation: derivation.name.split(":")[0])
def test_derivation(own: Derivation) -> None:
    plain = parse_graph(own.graph)
    print(f"\n{own.name}\n  {expression(plain, plain.outputs[0])}")
    torch.manual_seed(0)
    values = {t.name: torch.randn(t.shape, dtype=torch.float64) for t in plain.definitions()}
    if "e" in values:
        values["e"] = torch.tensor([2, 3, 7, 8])
    values = {
        t.name: values[t.name] for t in (*plain.inputs, *(p.tensor for p in plain.parameters))
    }
    (expected,) = execute(plain, values).values()
    graph = plain
    for said, graph in derive(own):
        print(f"  {said}\n    {expression(graph, graph.outputs[0])}")
        assert check(graph) == ()
        (computed,) = execute_sharded(graph, values).values()
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)
    assert expression(graph, graph.outputs[0]) == own.becomes
