"""Operators of a user's own, from their file to four ranks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from meshwright.capture.capture_model import capture_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.file import save_plan
from meshwright.plan.plan import Plan
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.verify.user_rules import user_rules
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.typed import typed

MODELS = "support.user_kernels"
"""By its name, as other tests: run as a file, too, it would register its operators a second time,
and PyTorch frees those that it registered before."""
SWIGLU = "swiglu(x, y)[i..] = silu(x[i..]) * y[i..]"
SCALED = "scaled[s](x, w)[i.., o] = sum(k) s * x[i.., k] * w[o, k]"

ROLES = {"gate.linear": "channel", "up.linear": "channel", "down.linear": "inner",
         "meshwright_tests.swiglu": "dim1", "meshwright_tests.scaled": "sum-k",
         "mul": "dim1"}  # fmt: skip


def saved(graph: OperatorGraph, model: str, folder: Path) -> Path:
    """Tensor parallelism on four ranks."""
    layouts = [Layout((ROLES.get(unit.name, "replica"),) * 2) for unit in units(graph)]
    plan = Plan.of("by hand", graph, Cluster.named("laptop"), layouts)
    save_plan(msgspec.structs.replace(plan, model=model), folder / "plan.json")
    return folder / "plan.json"


def ran(plan: Path) -> dict[str, float]:
    result = typed(
        "run", str(plan), "--steps", "1", "--against-one-device", "--json",
        PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    comparison: dict[str, float] = json.loads(result.stdout)["measured"]["one_device"]
    return comparison


@pytest.mark.ranks
def test_operators_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "o.txt").write_text(f"{SWIGLU}\n{SCALED}\n")
    model = f"{MODELS}:gated"
    graph = capture_model(model, operators=tmp_path / "o.txt", dtype="float64")
    assert ran(saved(graph, model, tmp_path))["loss_error"] < 1e-9


@pytest.mark.ranks
def test_a_function_that_a_rule_wrote(tmp_path: Path) -> None:
    (tmp_path / "o.txt").write_text(f"{SWIGLU}\n kernel = {MODELS}:swiglu\n")
    (tmp_path / "r.rules").write_text("fuse: mul(silu(x), y) => swiglu(x, y)")
    model = f"{MODELS}:plain"
    graph = capture_model(model, operators=tmp_path / "o.txt", dtype="float64")
    matcher = Matcher(
        graph, algebra(added=user_rules(graph, tmp_path / "o.txt", tmp_path / "r.rules"))
    )
    (match,) = (candidate for candidate in matcher.matches if candidate.rule.name == "fuse")
    fused = matcher.rewrite(match).graph
    assert [operator.kind for operator in fused.operators].count("swiglu") == 1
    assert ran(saved(fused, model, tmp_path))["loss_error"] < 1e-9
