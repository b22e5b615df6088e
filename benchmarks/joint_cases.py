"""Joint searches, each in a new process. Enters: a `Case`. Leaves: a `Row`.

    echo '{"model": "zoo:mlp", "batch": 64, "cluster": "laptop"}' | python benchmarks/joint_cases.py

Seconds are those of `Planned`: without capture and without loading what is compiled. CPU seconds
are counted over the same time, with those of processes that the search starts.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import msgspec

from meshwright.base.quantities import Bytes, parse_bytes
from meshwright.capture.load import load_model
from meshwright.graph.cast import cast_graph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.jobs import cluster_of
from meshwright.search.joint.phases import SearchStatus
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One search."""

    model: str
    batch: int
    """Samples in a step, on all devices."""
    cluster: str
    """As in a sweep: a name or a file, and cardinalities."""
    half: bool = False
    """Whether everything is in bfloat16, with parameters kept in float32 as well."""
    memory: str = ""
    """What a plan may hold on a device; empty: all that a device has."""
    budget: str = "60s"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How long a search took, and what it found."""

    devices: int
    operators: int
    seconds: float
    cpu: float
    found: float
    """Seconds until the last plan that was better than all before."""
    step: float
    gap: float
    fits: bool
    stopped: str


def question_of(case: Case) -> PlanRequest:
    """What a case asks; loads the model."""
    graph = load_model(case.model, case.batch).graph
    cluster = cluster_of(case.cluster)
    return PlanRequest(
        graph=cast_graph(graph, "bfloat16") if case.half else graph,
        cluster=cluster,
        memory=parse_bytes(case.memory) if case.memory else Bytes(cluster.device.memory),
        training=Options(mixed=case.half),
    )


def searched(case: Case) -> Row:
    """Search in this process."""
    question = question_of(case)
    began: list[float] = []

    def progress(_: SearchStatus) -> None:
        if not began:
            began.append(cpu_seconds())

    answer = best_plan(question, Budget.parse(case.budget), progress=progress)
    return Row(
        devices=question.cluster.devices,
        operators=len(question.graph.operators),
        seconds=answer.seconds,
        cpu=cpu_seconds() - began[0],
        found=answer.history[-1].seconds if answer.history else answer.seconds,
        step=answer.best.prediction.step,
        gap=answer.gap,
        fits=answer.best.fits(question.memory),
        stopped=answer.stopped,
    )


def measured(case: Case) -> Row:
    """Search in a new process, which finds what is compiled in its cache."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=msgspec.json.encode(case),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Row)


def cpu_seconds() -> float:
    """Of this process and those it has started and seen end."""
    every = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in every)


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    sys.stdout.buffer.write(msgspec.json.encode(searched(asked)))
