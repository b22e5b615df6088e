"""Operators and rules of a user's own in the search: cut where it pays, applied where cheaper."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.configs.find_plan import find_plan
from meshwright.graph.text import parse_graph
from meshwright.plan.file import load_plan, save_plan
from meshwright.rewrite.verify.user_rules import user_rules
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.simulate.simulation import simulate

MODELS = "support.user_kernels"
SWIGLU = "swiglu(x, y)[i..] = silu(x[i..]) * y[i..]"
SCALED = "scaled[s](x, w)[i.., o] = sum(k) s * x[i.., k] * w[o, k]"
FUSE = "fuse: mul(silu(x), y) => swiglu(x, y)"
WIDE = "?width=512&hidden=2048"

GRAPH = parse_graph("""graph g
    input x: float32[n=8, k=4]
    operator y: y: float32[n=8, k=4] = silu(x)
    output y""")


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_tensor_parallelism_through_operators_of_one_s_own(tmp_path: Path) -> None:
    operators = written(tmp_path, "o.txt", f"{SWIGLU}\n{SCALED}\n")
    planned = find_plan(
        f"{MODELS}:gated{WIDE}", "laptop", batch=8, operators=operators, budget="200"
    )
    layouts = dict(planned.plan.layouts)
    assert layouts["gate.linear"] == "channel channel"
    assert layouts["meshwright_tests.swiglu"] == "dim1 dim1"
    assert layouts["meshwright_tests.scaled"] == "sum-k sum-k"
    save_plan(planned.plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == planned.plan
    assert simulate(loaded).prediction == planned.best.prediction


def test_a_rule_is_applied_where_it_is_cheaper(tmp_path: Path) -> None:
    operators = written(tmp_path, "o.txt", f"{SWIGLU}\n kernel = {MODELS}:swiglu\n")
    rules = written(tmp_path, "r.rules", FUSE)
    model = f"{MODELS}:plain{WIDE}"
    planned = find_plan(model, "laptop", batch=8, operators=operators, rules=rules, budget="200")
    assert planned.rewrites == ("fuse at mul: x = gate.linear, y = up.linear",)
    (fused,) = (operator for operator in planned.plan.graph.operators if operator.kind == "swiglu")
    assert dict(fused.attributes) == {"definition": SWIGLU, "python_kernel": f"{MODELS}:swiglu"}
    without = find_plan(
        model, "laptop", batch=8, operators=operators, rules=rules, budget="200",
        exclude_rules=("fuse",),
    )  # fmt: skip
    assert planned.best.prediction.step < without.best.prediction.step


@pytest.mark.parametrize(
    ("operators", "rules", "sentence"),
    [
        (SWIGLU, "wrong: mul(silu(x), y) => swiglu(y, x)", "r.rules: rule 'wrong' is refuted: x ["),
        (
            SWIGLU,
            FUSE,
            "rule 'fuse' writes 'swiglu', of which nobody says what runs it; put a line",
        ),
        (SWIGLU, FUSE.replace("fuse", "neg-neg"), "r.rules: the library has a rule 'neg-neg' too;"),
        (
            SWIGLU,
            "cut: swiglu(x, y) => combine[0, d](swiglu(partition[0, d](x), partition[0, d](y))) "
            "if 0 < rank(x)",
            "rule 'cut' has the parallel operator partition, and a search cuts operators by their",
        ),
        (SWIGLU, "bad: mul(silu(x) => x", "r.rules: line 1: "),
        ("swiglu(x)[i] = y[i]", FUSE, "o.txt: line 1: "),
    ],
)
def test_files_that_are_refused(tmp_path: Path, operators: str, rules: str, sentence: str) -> None:
    operators_path, ruled = (
        written(tmp_path, "o.txt", operators),
        written(tmp_path, "r.rules", rules),
    )
    with pytest.raises(InputError) as error:
        user_rules(GRAPH, operators_path, ruled)
    assert str(error.value).replace(f"{tmp_path}/", "").startswith(sentence)


def test_certificates_without_rules(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="certificates are given without rules"):
        user_rules(GRAPH, certificates=tmp_path / "c.json")


def test_rules_are_added_to_the_library(tmp_path: Path) -> None:
    operators = written(tmp_path, "o.txt", f"{SWIGLU}\n kernel = {MODELS}:swiglu\n")
    added = user_rules(GRAPH, operators, written(tmp_path, "r.rules", FUSE))
    assert [rule.name for rule in added.rules] == ["fuse"]
    assert {*algebra(added=added).numbers} - {*algebra().numbers} == {"fuse"}
    assert "fuse" not in algebra(("fu*",), added).numbers
