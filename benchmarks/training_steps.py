"""A step of training, predicted and measured, on a real two-level network and on local ranks.

    python benchmarks/training_steps.py [--keep DIR] [--models mlp,bert] [--into FILE]

Needs root (`testbed`). On this machine there is a rank for each core, on the testbed 2 x 2. Models,
three plans each: data parallel, expert, and what the joint search finds for this very cluster. What
predictions rest on is measured first, on each cluster:
    links       `measure_links`, and what talking takes of computing
    operators   all models' calls, whole and in pieces (`calibrate.profile_calls`), while every
                core computes (`background_load`), twice, of which the lesser counts; ranks that
                share a core take turns, so that each pass takes ranks / cores times as long
    host        what the executor adds to each pass of an operator: a tiny model on every rank
                without communication, less its measured operators, shared out among its passes
Then the plans are run in turns. Printed are all rows and what `judged` says of them; each row goes
into the file with the command. Nothing is fitted to a measured step but the tiny model's.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.baselines.data import data_parallel
from meshwright.baselines.expert import expert
from meshwright.calibrate.background_load import company
from meshwright.calibrate.calls import calls_to_measure
from meshwright.calibrate.link_fit import LinkMeasurements, fitted
from meshwright.calibrate.link_rates import measure_links
from meshwright.calibrate.profile_calls import calibrate
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import RINGS
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.profile_table import PriceTable, load_table
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Measurement, Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.run.training import TrainingTask, train
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import REPLICA, Layout, factors
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.reduction_choice import with_programs
from meshwright.simulate.simulation import simulate
from step_rows import Row, told
from testbed import Testbed

CORES = os.cpu_count() or 1
ROUNDS, STEPS = 1, 6
SEARCH = Budget(seconds=Seconds(2.0))
EACH = Seconds(0.04)
"""What the readings of one pass of one call take."""
TRAINING = Options(optimizer="sgd")
TINY = "zoo:bert-large/tiny"
MODELS = {
    "mlp": ("zoo:mlp?features=512&width=512&layers=4", 1024),
    "bert": (
        "zoo:bert-large?vocabulary=2000&sequence=64&positions=64&layers=2&hidden=256&heads=4"
        "&inner=1024&dropout=0",
        16,
    ),
    "gpt": ("zoo:gpt2-xl?vocabulary=2000&sequence=64&layers=2&hidden=256&heads=4&dropout=0", 16),
    "dlrm": ("zoo:dlrm?tables=8&rows=20000&width=32&bag=10&bottom=256,512,512&top=512,512,1", 512),
    "alexnet": (
        "zoo:alexnet?image=99&channels=32,64,96,64,64&hidden=512&classes=100&dropout=0",
        64,
    ),
    "rnnlm": ("zoo:rnnlm?vocabulary=2000&hidden=256&layers=2&steps=20", 64),
}
"""By name: the source and the batch."""


class Place(NamedTuple):
    """A cluster with measured links, and what runs there."""

    name: str
    cluster: Cluster
    run: Callable[..., list[object]]


def measured_place(name: str, cluster: Cluster, run: Callable[..., list[object]]) -> Place:
    """A place whose links are measured."""
    measurements = cast("LinkMeasurements", run(measure_links, cluster)[0])
    return Place(name, fitted(cluster, measurements, f"by {cluster.devices} ranks"), run)


def calibrated(graphs: Iterable[OperatorGraph], file: Path, command: str) -> PriceTable:
    """The operators of graphs, one rank on each core."""
    calls = dict.fromkeys(
        call for graph in graphs for call in calls_to_measure(graph, (1, 2, 4), largest=1)
    )
    with company(CORES) as accompany:
        done = calibrate(
            calls,
            torch.device("cpu"),
            file,
            command,
            lambda _done, _all, call: accompany(call),
            each=EACH,
            ranks=CORES,
        )
    for failure in done.failures:
        print(failure, file=sys.stderr)
    return load_table(file)


def lesser(one: PriceTable, other: PriceTable) -> PriceTable:
    """Of two tables of the same calls the lesser of each pass: what disturbs only ever adds."""
    again = {row.call: row for row in other.rows}
    pairs = [(row, again[row.call]) for row in one.rows if row.call in again]
    rows = tuple(
        msgspec.structs.replace(
            row,
            forward=min(row.forward, twin.forward),
            backward=None
            if not row.backward or not twin.backward
            else min(row.backward, twin.backward),
        )
        for row, twin in pairs
    )
    return msgspec.structs.replace(one, rows=rows)


def host_seconds(place: Place, table: PriceTable) -> Seconds:
    """What the executor adds to each pass of an operator, by a model that is hardly any work."""
    graph = load_model(TINY).graph
    layout = Layout((REPLICA,) * len(factors(place.cluster)))
    every = [layout] * len(units(graph))
    plan = Plan.of("copies", graph, place.cluster, every, TRAINING)
    alone = predicted(plan, OperatorPricer(place.cluster.device, table))
    taken = statistics.median(measured(place, plan, TINY, steps=20))
    passes = 2 * sum(not family_of(operator).view for operator in graph.operators)
    return Seconds(max(0.0, taken - alone) / passes)


def prices_there(place: Place, table: PriceTable) -> PriceTable:
    """The prices of a table where ranks share cores, with what the executor adds to each pass."""
    turns = max(1.0, place.cluster.devices / CORES)
    bare = changed(table, lambda seconds: seconds * turns)
    host = host_seconds(place, bare)
    print(f"{place.name}: {1e6 * host:.0f} us a pass of an operator, {place.cluster.device.toll}")
    return changed(bare, lambda seconds: seconds + host)


def changed(table: PriceTable, change: Callable[[float], float]) -> PriceTable:
    """A table with other seconds for each pass."""
    rows = tuple(
        msgspec.structs.replace(
            row,
            forward=Seconds(change(row.forward)),
            backward=None if row.backward is None else Seconds(change(row.backward)),
        )
        for row in table.rows
    )
    return msgspec.structs.replace(table, rows=rows)


def prices_on(cluster: Cluster) -> CollectivePrices:
    return CollectivePrices(Pricer(cluster, RINGS, algorithm="best"))


def predicted(plan: Plan, operators: OperatorPricer) -> Seconds:
    return simulate(plan, prices_on(plan.cluster), operators).prediction.step


def plans(
    graph: OperatorGraph, cluster: Cluster, operators: OperatorPricer
) -> Iterator[tuple[str, Plan]]:
    """By name, each with the programs by which it is predicted."""
    for name, strategy in (("data parallel", data_parallel), ("expert", expert)):
        try:
            plan = strategy(graph, cluster)
        except InputError:
            continue
        options = msgspec.structs.replace(plan.options, optimizer=TRAINING.optimizer)
        plan = msgspec.structs.replace(plan, options=options)
        yield name, with_programs(plan, simulate(plan, prices_on(cluster), operators).problem)
    question = PlanRequest(
        graph=graph, cluster=cluster, memory=cluster.device.memory, training=TRAINING
    )
    yield "found", best_plan(question, SEARCH, backend=RINGS, operators=operators).best.plan


def measured(place: Place, plan: Plan, model: str, steps: int = STEPS) -> tuple[Seconds, ...]:
    measurement = place.run(train, TrainingTask(plan, model, steps=steps))[0]
    return cast("Measurement", measurement).steps


class Case(NamedTuple):
    """What is to be measured."""

    place: Place
    model: str
    name: str
    plan: Plan
    predicted: Seconds


def cases(names: Sequence[str], places: Sequence[Place], table: PriceTable) -> Iterator[Case]:
    """All plans of all models on all places."""
    for place in places:
        operators = OperatorPricer(place.cluster.device, prices_there(place, table))
        for model in names:
            graph = load_model(*MODELS[model]).graph
            for name, plan in plans(graph, place.cluster, operators):
                yield Case(place, model, name, plan, predicted(plan, operators))


def rows_of(every: Sequence[Case]) -> list[Row]:
    """Each case measured, in turns."""
    taken: list[list[Seconds]] = [[] for _ in every]
    loads = [0.0] * len(every)
    for _ in range(ROUNDS):
        for number, case in enumerate(every):
            taken[number] += measured(case.place, case.plan, MODELS[case.model][0])
            print(case.place.name, case.model, case.name, case.predicted, taken[number], flush=True)
            loads[number] = max(loads[number], os.getloadavg()[0])
    return [
        Row(
            cluster=case.place.name,
            model=case.model,
            plan=case.name,
            predicted=case.predicted,
            measured=statistics.median(seconds),
            steps=tuple(seconds),
            load=load,
        )
        for case, seconds, load in zip(every, taken, loads, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, default=Path("/tmp/training_steps"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--clusters", default="local,2x2")
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    prefer()
    torch.set_num_threads(1)
    asked.keep.mkdir(parents=True, exist_ok=True)
    names = asked.models.split(",")
    command = shlex.join(["python", *sys.argv])
    graphs = [load_model(TINY).graph, *(load_model(*MODELS[name]).graph for name in names)]
    twice = [calibrated(graphs, asked.keep / f"operators-{n}.jsonl", command) for n in (0, 1)]
    described = Cluster.load("testbed/clusters/2x4.toml").resized({"process": 2})
    with Testbed(described) as bed:
        ways = {
            "local": (Cluster.named("laptop", process=CORES), _locally),
            "2x2": (described, bed.run),
        }
        places = [measured_place(name, *ways[name]) for name in asked.clusters.split(",")]
        rows = rows_of(list(cases(names, places, lesser(*twice))))
    told(rows)
    if asked.into is not None:
        kept = [msgspec.json.encode({"command": command})]
        asked.into.write_bytes(b"\n".join([*kept, *map(msgspec.json.encode, rows)]) + b"\n")


def prefer() -> None:
    """Have this session's processes go before those of others.

    Linux puts each session into a group (`sched_autogroup`), and niceness counts only inside one.
    """
    os.nice(-10)
    group = Path("/proc/self/autogroup")
    if group.exists():
        group.write_text("-10")


def _locally(body: Callable[..., object], *arguments: object) -> list[object]:
    return run_ranks(body, *arguments, ranks=CORES)


if __name__ == "__main__":
    main()
