"""Nouns print in a terminal and in a notebook, whatever their names are."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Axis, Cluster, Placement, Pricer, Ranker, Reduction, rank
from meshwright.base.quantities import Bytes, Seconds
from meshwright.base.sheet import Sheet
from meshwright.graph.text import parse_graph
from meshwright.plan.plan import Held, Measurement, Plan, Prediction
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.question import PlanRequest, PlanResult

ODD = "<script>alert('x')</script> & \"y\""


class Reader(HTMLParser):
    """What a browser shows, and the tags that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.shown: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def nouns() -> list[object]:
    laptop = Cluster.named("laptop")
    graph = parse_graph(
        "graph tiny\ninput x: float32[n=8, k=8]\nparameter w: float32[o=8, k=8]\n"
        "operator y: y: float32[n=8, o=8] = linear(x, w)\noutput y"
    )
    plan = Plan(
        origin=ODD, graph=graph, cluster=laptop, layouts=(("y", "sample sample"),), model=ODD
    )
    held = Held(
        parameters=Bytes(1), gradients=Bytes(2), optimizer=Bytes(3), activations=Bytes(4),
        workspace=Bytes(5), device="0", seconds=Seconds(0.5),
    )  # fmt: skip
    step, compute, moved = Seconds(2.0), Seconds(1.0), Bytes(7)
    prediction = Prediction(step=step, compute=compute, moved=moved, memory=held, missing=Bytes(0))
    best = Candidate(plan, prediction)
    planned = PlanResult(
        question=PlanRequest(graph=graph, cluster=laptop, memory=Bytes(1 << 30)),
        best=best, baselines=((ODD, best),), refused=(), front=(best,), bound=Seconds(1.0),
        graphs=1, rewrites=(ODD,), simulated=3, history=(), seconds=1.5, stopped="complete",
    )  # fmt: skip
    placement = Placement((Axis("data", 4),), ((4,),))
    ranking = rank(Ranker(Pricer(laptop)), {"data": 4}, [Reduction(("data",), Bytes(1 << 20))])
    measurement = Measurement(
        step=step, steps=(step,), compute=compute, moved=moved, memory=held, loss=(0.5,)
    )
    return [laptop, graph, plan, prediction, measurement, planned, placement, ranking]


@pytest.mark.parametrize("noun", nouns(), ids=lambda noun: type(noun).__name__)
def test_every_noun_prints_in_a_terminal_and_in_a_notebook(noun: object) -> None:
    assert str(noun) != repr(noun)
    assert "\x1b" not in str(noun)
    html = getattr(noun, "_repr_html_")()  # noqa: B009
    assert read(html).tags <= {"div", "strong", "table", "tr", "th", "td"}


def test_planned_as_text() -> None:
    planned = next(noun for noun in nouns() if isinstance(noun, PlanResult))
    assert str(msgspec.structs.replace(planned.plan, origin="joint")) == (
        "plan 'joint' of graph tiny on laptop\n"
        "  devices                   process 4\n"
        "  micro-batches             1 (1f1b)\n"
        "  optimizer                 adam, ZeRO 0\n"
        "  activation checkpointing  no\n"
        "  reduction programs        0\n"
        "  collectives in steps      0\n"
        "\n"
        "  units  layout, outermost factor first\n"
        "  1      sample sample"
    )
    lines = str(planned).splitlines()
    assert lines[:3] == [
        "tiny on laptop: every figure is predicted, priced as eager PyTorch",
        "  step         2 s",
        "  samples/s    4, 1 a device",
    ]
    assert "  lower bound  1 s, gap at most 100.0%" in lines
    assert "  peak memory  15 B of 1 GiB a device" in lines
    assert [word.strip() for word in lines[-3].split("  ") if word] == [
        "strategy", "micro-batches", "step", "samples/s/device", "MFU", "peak memory", "fits",
    ]  # fmt: skip
    assert planned.plan is planned.best.plan


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)


@given(title=TEXT, name=TEXT, value=TEXT, column=TEXT, cell=TEXT)
def test_a_notebook_shows_every_text_as_it_is(
    title: str, name: str, value: str, column: str, cell: str
) -> None:
    html = Sheet(title, ((name, value),), (column,), ((cell,),)).html()
    assert read(html).shown == [title, name, value, column, cell]


def test_what_is_empty_is_left_out() -> None:
    assert Sheet("title").text() == "title"
    assert Sheet("title").html() == "<div><strong>title</strong></div>"
