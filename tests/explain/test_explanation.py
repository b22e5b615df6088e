"""A plan explained: what is known in time, and what is there when somebody cannot wait."""

from __future__ import annotations

import math

import pytest

from meshwright.base.quantities import Bytes
from meshwright.baselines.expert import expert
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.explain import explanation as module
from meshwright.explain.decisions import explain
from meshwright.explain.evaluate_plan import judged
from meshwright.explain.explanation import Explained, explained, spending
from meshwright.explain.what_if import helps
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import transformer

SMALL = Cluster.named("dgx-h100", node=2, gpu=2)
PLAN = expert(transformer(), SMALL)
LONG = 1e6


def untimed(explanation: Explained) -> Explained:
    return explanation._replace(planned=explanation.planned._replace(seconds=0.0))


def test_it_has_what_its_parts_say() -> None:
    reports: list[tuple[float, str]] = []
    explanation = explained(
        PLAN, seconds=LONG, progress=lambda share, doing: reports.append((share, doing))
    )
    assert untimed(explanation).planned == judged(PLAN, baselines=False)._replace(seconds=0.0)
    assert explanation.spending == spending(simulate(PLAN))
    assert explanation.helps == helps(PLAN, SMALL.device.memory)
    assert explanation.decisions == explain(
        PLAN,
        prices=CollectivePrices(Pricer(SMALL, algorithm="best")),
        operators=OperatorPricer(SMALL.device),
        memory=SMALL.device.memory,
    )
    assert explanation.stopped == "complete"
    assert all(0 <= share <= 1 for share, _ in reports)
    doing = list(dict.fromkeys(words for _, words in reports))
    assert doing[:3] == ["simulating", "trying what would help", "trying other decisions"]


def test_without_time_there_is_still_the_path() -> None:
    explanation = explained(PLAN, seconds=1e-9)
    assert explanation.stopped == "budget"
    assert explanation.helps == ()
    assert [decision.subject for decision in explanation.decisions] == ["left out"]
    step = explanation.planned.best.prediction.step
    total = math.fsum(stretch.seconds for stretch in explanation.spending.stretches)
    assert math.isclose(total, step, rel_tol=1e-9)


def test_an_interrupt_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    explained(PLAN, seconds=1e-9)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "explain", interrupted)
    explanation = explained(PLAN, seconds=LONG)
    assert (explanation.stopped, explanation.decisions) == ("interrupted", ())
    assert explanation.helps == helps(PLAN, SMALL.device.memory)
    assert explanation.spending.stretches


def test_a_limit_is_obeyed() -> None:
    explanation = explained(PLAN, seconds=LONG, memory=Bytes(1))
    assert explanation.planned.question.memory == 1
    assert all(
        "NOT fit" in improvement.note
        for improvement in explanation.helps
        if improvement.step is not None
    )
    assert not any(decision.fits for decision in explanation.decisions if decision.step is not None)
