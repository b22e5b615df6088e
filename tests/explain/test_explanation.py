"""A plan explained: what is known in time, and what is there when somebody cannot wait."""

from __future__ import annotations

import math

import pytest

from meshwright.base.units import Bytes
from meshwright.baselines.expert import expert
from meshwright.cluster.model import Cluster
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


def untimed(found: Explained) -> Explained:
    return found._replace(planned=found.planned._replace(seconds=0.0))


def test_it_has_what_its_parts_say() -> None:
    told: list[tuple[float, str]] = []
    found = explained(PLAN, seconds=LONG, progress=lambda share, doing: told.append((share, doing)))
    assert untimed(found).planned == judged(PLAN, baselines=False)._replace(seconds=0.0)
    assert found.spending == spending(simulate(PLAN))
    assert found.helps == helps(PLAN, SMALL.device.memory)
    assert found.decisions == explain(
        PLAN,
        prices=CollectivePrices(Pricer(SMALL, algorithm="best")),
        operators=OperatorPricer(SMALL.device),
        memory=SMALL.device.memory,
    )
    assert found.stopped == "complete"
    assert all(0 <= share <= 1 for share, _ in told)
    doing = list(dict.fromkeys(words for _, words in told))
    assert doing[:3] == ["simulating", "trying what would help", "trying other decisions"]


def test_without_time_there_is_still_the_path() -> None:
    found = explained(PLAN, seconds=1e-9)
    assert found.stopped == "budget"
    assert found.helps == ()
    assert [own.subject for own in found.decisions] == ["left out"]
    step = found.planned.best.prediction.step
    total = math.fsum(own.seconds for own in found.spending.stretches)
    assert math.isclose(total, step, rel_tol=1e-9)


def test_an_interrupt_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    explained(PLAN, seconds=1e-9)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "explain", interrupted)
    found = explained(PLAN, seconds=LONG)
    assert (found.stopped, found.decisions) == ("interrupted", ())
    assert found.helps == helps(PLAN, SMALL.device.memory)
    assert found.spending.stretches


def test_a_limit_is_obeyed() -> None:
    found = explained(PLAN, seconds=LONG, memory=Bytes(1))
    assert found.planned.question.memory == 1
    assert all("NOT fit" in own.note for own in found.helps if own.step is not None)
    assert not any(own.fits for own in found.decisions if own.step is not None)
