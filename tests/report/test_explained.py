"""What is said of a plan that is explained."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines.expert import expert
from meshwright.cluster.cluster import Cluster
from meshwright.explain.decisions import Decision
from meshwright.explain.explanation import Explained, explained
from meshwright.explain.replan import Replanned
from meshwright.explain.what_if import Improvement
from meshwright.plan.file import parse_plan, plan_bytes
from meshwright.report.json.explained_documents import explained_document
from meshwright.report.text import explained as report
from meshwright.report.text.decision_table import (
    decision_cells,
    decision_note,
    decision_words,
    describe_decisions,
)
from meshwright.report.text.what_ifs import table_of_what_ifs, what_ifs_document
from support.baseline_graphs import transformer

SMALL = Cluster.named("dgx-h100", node=2, gpu=2)


@pytest.fixture(scope="module")
def found() -> Explained:
    return explained(expert(transformer(), SMALL), seconds=1e6)


def lines(table: Table) -> list[str]:
    console = Console(width=200, file=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()[2:]


def test_the_plan_in_words(found: Explained) -> None:
    first, *plan, rate, step, path, cost, memory, bound = report.describe_explained(
        found
    ).splitlines()
    assert first.startswith("transformer on dgx-h100 (2 node x 2 gpu): batch ")
    assert first.endswith(
        ", adam; expert: megatron; every figure is predicted, priced as eager PyTorch."
    )
    assert "DP 2 across nodes, TP 2 inside the node" in plan[0]
    assert rate.startswith("throughput: ")
    assert step.startswith("step: ")
    assert " = computing " in step
    assert path.startswith("critical path: ")
    assert " device-hours for 1 B " in cost
    assert bound.startswith("lower bound: ")
    assert " for any plan of the graph with one micro-batch; optimality gap at most " in bound
    assert " of 80 GiB (device 0, t = " in memory


def test_a_plan_that_does_not_fit_says_so() -> None:
    tight = explained(expert(transformer(), SMALL), seconds=1e-9, memory=Bytes(1024))
    *_, memory, _ = report.describe_explained(tight).splitlines()
    assert memory.startswith("peak memory: it does NOT fit into 1 KiB: device 0 holds ")


def test_what_is_waited_for_adds_up(found: Explained) -> None:
    text = report.describe_categories(found.spending.stretches)
    shares = [float(word.rstrip("%,")) for word in text.split() if word.rstrip(",").endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


def test_tables_are_cut_and_say_so(found: Explained) -> None:
    stretches = found.spending.stretches
    assert len(lines(report.table_of_stretches(stretches, 3))) == 3
    text = report.describe_stretches(stretches, 3)
    assert f"{len(stretches) - 3} more lines" in text
    assert f"--top {len(stretches)}." in text
    assert "more" not in report.describe_stretches(stretches, len(stretches))
    assert "--top" in report.describe_costs(found, 1)
    assert "--top" not in report.describe_costs(found, 1000)


def test_every_table_has_its_lines(found: Explained) -> None:
    spent = found.spending
    assert len(lines(report.table_of_links(spent.links))) == len(spent.links) == 2
    assert len(lines(report.table_of_kinds(spent.kinds, 99))) == len(spent.kinds)
    collectives = lines(report.table_of_collectives(spent.collectives, 99))
    assert len(collectives) == len(spent.collectives)
    assert any(line.startswith("AllReduce") for line in collectives)


def test_help_that_cannot_be_applied_has_no_figures() -> None:
    table = report.table_of_helps(
        [
            Improvement("more of it", Seconds(0.5), 2, 0.25, "in 4 micro-batches"),
            Improvement("less of it", None, 1, 0.0, "cannot be applied: there is none"),
        ]
    )
    assert [line.split("  ") for line in lines(table)]
    first, second = (" ".join(line.split()) for line in lines(table))
    assert first == "more of it 500 ms +25.0% in 4 micro-batches"
    assert second == "less of it cannot be applied: there is none"


def test_the_best_of_the_faster_runners_up_is_named() -> None:
    def searched(subject: str, step: float, *, fits: bool = True) -> Decision:
        kept = Decision(subject, "a", "b", Seconds(3.0), "", fits, f"--fix {subject}=b")
        return kept._replace(searched=Seconds(step))

    slower, hardly = searched("zero", 2.0), searched("bucket", 0.9995)
    larger = searched("recompute", 0.5, fits=False)
    none = "No runner-up that fits is faster than what was chosen."
    assert report.describe_better([hardly], 1.0) == none
    assert report.describe_better([slower, larger], 1.0) == none
    kept = slower._replace(step=Seconds(0.1), searched=None)
    assert report.describe_better([kept, slower], 1.0) == none
    assert report.describe_better([kept, slower, larger, searched("stages", 0.9)], 1.0) == (
        "1 runner-up that fits would be faster; the best, b for stages, by 100 ms: "
        "plan with --fix stages=b. A search found it so."
    )
    assert report.describe_better([kept], 1.0) == (
        "None of them was searched (--budget), so that none is called faster."
    )


def test_what_rewrote_the_graph_is_told_of_a_plan_that_was_saved() -> None:
    rules = ("fuse-linear-relu at a", "fuse-linear-relu at b")
    plan = replace(expert(transformer(), SMALL), rewrites=rules)
    explanation = explained(parse_plan(plan_bytes(plan)), seconds=1e-9)
    words = "rewritten by fuse-linear-relu (2 times)"
    assert words in report.describe_explained(explanation)
    assert words in json.dumps(explained_document(explanation))
    assert plan_bytes(parse_plan(plan_bytes(plan))) == plan_bytes(plan)


def test_the_document_is_json_with_all_fields(found: Explained) -> None:
    document = json.loads(msgspec.json.encode(explained_document(found)))
    assert document.keys() == {
        "origin", "graph", "units", "cluster", "hierarchy", "devices", "device_bytes",
        "software",
        "memory_limit_bytes", "batch", "sequence", "dtype", "samples_per_s", "tokens_per_s",
        "per_device_per_s", "model_flops", "executed_flops", "mfu", "hfu",
        "device_hours_per_billion", "exposed_communication_s", "bubble_s", "host_s", "step_s",
        "band",
        "compute_s",
        "exposed_s", "moved_bytes", "memory",
        "memory_bytes", "fullest_device", "fullest_at_s", "missing_bytes", "fits", "bound_s", "gap",
        "plan", "waits", "critical_path", "links", "operators", "collectives", "decisions", "helps",
        "stopped", "what_ifs",
    }  # fmt: skip
    assert sum(document["waits"].values()) == pytest.approx(document["step_s"])
    assert sum(stretch["share"] for stretch in document["critical_path"]) == pytest.approx(1.0)
    assert document["links"][0].keys() == {"link", "bytes", "busy_s", "share", "exposed_s"}
    assert document["operators"][0].keys() == {
        "kind", "operators", "predicted_s", "share", "roofline", "exposed_s",
    }  # fmt: skip
    assert document["collectives"][0].keys() == {
        "operation", "over", "bytes", "purpose", "program", "link", "times", "predicted_s",
        "exposed_s",
    }  # fmt: skip
    impossible = [change for change in document["helps"] if change["step_s"] is None]
    assert impossible
    assert all(change["gain"] is None for change in impossible)


def test_layouts_are_told_in_the_field_s_words(found: Explained) -> None:
    plan = found.planned.plan
    units = [
        decision
        for decision in found.decisions
        if decision.subject.partition(" (+")[0] in plan.layout
    ]
    pairs = [decision_words(decision, plan) for decision in units if decision.runner_up is not None]
    assert any("DP 2 across nodes" in chosen for chosen, _ in pairs)
    assert all(chosen != other for chosen, other in pairs)
    options = next(decision for decision in found.decisions if decision.subject == "recompute")
    assert decision_words(options, plan) == ("no", "yes")


def test_a_searched_decision_says_how_to_ask_for_it() -> None:
    decision = Decision("zero", "0", "1", Seconds(2.0), "1 s longer", fix="--fix zero=1")
    assert decision_note(decision) == "1 s longer"
    searched = decision._replace(searched=Seconds(1.5))
    assert decision_cells(searched, 1.0)[3:] == (
        "1.5 s", "+50.0%", "searched: --fix zero=1; all else kept: 2 s",
    )  # fmt: skip
    none = decision._replace(found="nothing divides")
    assert decision_note(none) == "1 s longer; nothing divides"
    assert "searched again" in describe_decisions([searched], 1)
    assert "searched" not in describe_decisions([decision], 1)


def test_what_ifs_are_a_table(found: Explained) -> None:
    again = found.planned
    other = found._replace(
        what_ifs=(Replanned("twice the batch", again), Replanned("more", None, "cannot be planned"))
    )
    now, same, none = (" ".join(line.split()) for line in lines(table_of_what_ifs(other)))
    assert now.startswith("as planned ")
    assert "+0.0%" in same
    assert none == "more cannot be planned"
    assert [row["step_s"] for row in what_ifs_document(other)] == [
        again.best.prediction.step, None,
    ]  # fmt: skip
