"""Predicted step times of the papers' models on the papers' machines, and of today's on today's.

    python benchmarks/papers.py                     # the table, from the results that are kept
    python benchmarks/papers.py --run               # first computes the rows that are missing
    python benchmarks/papers.py --run --rows bert   # only rows whose name has 'bert' in it
    python benchmarks/papers.py --run --anew        # also rows that do not say their commit
    python benchmarks/papers.py --run --fresh       # and those of another commit than this one
    python benchmarks/papers.py --run --fresh --jobs 14 --minutes 20   # ends after so long
    python benchmarks/papers.py --bounds            # only computes the bounds of all rows anew

A bound that is computed anew is one of the graph as it is and of the graph that is cheapest on one
device, with one micro-batch or as many as the joint plan has.

Rows are kept in benchmarks/papers.jsonl, one a line with the commit that computed it; delete lines,
or what they say of their commit, to compute them anew. They come in an order that is as good as
random, so that what is done when it is stopped is a sample of all. Columns:

    data, expert, EP, optcnn, operator placement   baselines, with the library's own collectives;
                 EP is expert parallelism, of mixtures of experts
    mcmc         FlexFlow's search from these baselines and a random plan (MCMC seconds), the same
    sequential   the graph that is cheapest on one device, then the joint search without rewrites
    flat         where a NIC is shared: the joint search with the library's own collectives on a
                 machine of one level, each device with its share of the NIC, which knows nothing of
                 placement; its plan then runs on the real one
    no programs  the joint search with the library's own collectives
    joint        the joint search; it starts from the best plan of the others, as with `--start`
A plan that does not fit into memory is put in brackets, and counts for nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from meshwright.base.quantities import BytesPerSecond, Seconds, counted
from meshwright.baselines import applicable
from meshwright.bounds.lower_bound import lower_bound
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.memory import Optimizer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.cast import cast_graph
from meshwright.graph.family import Wanted
from meshwright.graph.operator_graph import Call, OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.compare import compare
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.search.sweep import Failed, sweep
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate
from sequential import sequential

RESULTS = Path(__file__).with_name("papers.jsonl")
MCMC = Seconds(5.0)
JOINT = Seconds(60.0)
FLAT = 64
"""Devices from which on the column `flat` is computed."""

BASELINES = {
    "data": "data parallel",
    "expert": "expert-designed",
    "EP": "expert parallel",
    "optcnn": "optcnn",
    "operators": "operator placement",
}
COLUMNS = (*BASELINES, "mcmc", "flat", "sequential", "no programs", "joint")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a machine."""

    model: str
    cluster: str
    sizes: dict[str, int]
    devices: int
    batch: int
    """For each device."""
    optimizer: str = "sgd"
    dtype: str = ""

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.model} {self.cluster} {self.devices}"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step by column, which of the plans fit, and how the joint search went."""

    row: Row
    step: dict[str, float]
    fits: dict[str, bool]
    bound: float
    plan: str
    search: float
    stopped: str
    commit: str = ""
    """Of the code that computed it; nothing for rows older than this field."""


def rows() -> Iterator[Row]:
    """All rows of the table."""
    for model, batch in (
        ("bert-large", 4), ("dlrm", 1024), ("candle-uno", 256), ("resnext-50", 64),
        ("inception-v3", 64), ("mlp", 256), ("xdl", 1024),
    ):  # fmt: skip
        optimizer = "adam" if model == "bert-large" else "sgd"
        for nodes in (1, 16, 32):
            yield _row(model, "summit", {"node": nodes}, batch, optimizer)
    for model, batch in (
        ("alexnet", 256), ("inception-v3", 64), ("resnet-101", 64),
        ("rnntc", 64), ("rnnlm", 64), ("nmt", 64),
    ):  # fmt: skip
        for nodes in (1, 4):
            sizes = {"node": nodes}
            yield _row(model, "flexflow-p100", sizes, batch)
        yield _row(model, "flexflow-k80", {"node": 16}, batch)
    for model, cluster, many, batch in (
        ("bert-large", "gcp-a100", (4,), 16),
        ("mlp", "gcp-a100", (4,), 256),
        ("gpt2-xl", "gcp-a100", (4,), 4),
        ("gpt2-xl", "dgx-a100", (1, 128), 4),
        ("vit-large", "dgx-a100", (1, 128), 32),
        ("t5-large", "dgx-a100", (8,), 4),
        ("resnet-50", "dgx-a100", (1, 128), 64),
        ("llama3-8b", "dgx-h100", (1, 8, 128), 1),
        ("mixtral-8x7b", "dgx-h100", (4, 8), 1),
        ("llama3-70b", "dgx-h100", (8, 128), 1),
        ("gpt3-175b", "dgx-a100", (128,), 1),
    ):
        for count in many:
            yield _row(model, cluster, {"node": count}, batch, "adam", "bfloat16")


def _row(
    model: str,
    cluster: str,
    sizes: dict[str, int],
    batch: int,
    optimizer: str = "sgd",
    dtype: str = "",
) -> Row:
    devices = Cluster.named(cluster).resized(sizes).devices
    return Row(
        model=model,
        cluster=cluster,
        sizes=sizes,
        devices=devices,
        batch=batch,
        optimizer=optimizer,
        dtype=dtype,
    )


def computed(row: Row) -> Result:
    """All columns of a row."""
    graph, cluster = _asked(row)
    training = msgspec.convert({"optimizer": row.optimizer, "mixed": bool(row.dtype)}, Options)
    plans = _others(graph, cluster, training)
    question = PlanRequest(
        graph=graph, cluster=cluster, memory=cluster.device.memory, training=training
    )
    budget = Budget(seconds=JOINT)
    pricer = OperatorPricer(cluster.device)
    cheapest = sequential(graph, partial(_seconds, pricer)).graph
    request = msgspec.structs.replace(question, graph=cheapest)
    plans["sequential"] = best_plan(request, budget, rewrites=False).best.plan
    plans["no programs"] = best_plan(question, budget, programs=False).best.plan
    if cluster.levels[0].links[0].per == cluster.level_names[0] and row.devices >= FLAT:
        request = msgspec.structs.replace(question, cluster=flat(cluster))
        blind = best_plan(request, budget, programs=False).best.plan
        plans["flat"] = blind.changed(cluster=cluster)
    prices = {
        with_programs: CollectivePrices(Pricer(cluster, algorithm="best"), programs=with_programs)
        for with_programs in (False, True)
    }
    step: dict[str, float] = {}
    fits: dict[str, bool] = {}
    for name, plan in plans.items():
        prediction = simulate(plan, prices[name == "sequential"]).prediction
        step[name], fits[name] = prediction.step, not prediction.missing
    fitting = [name for name in step if fits[name]] or list(step)
    start = plans[min(fitting, key=lambda name: step[name])]
    joint = best_plan(question, budget, start=start)
    step["joint"] = joint.best.prediction.step
    fits["joint"] = joint.best.fits(question.memory)
    return Result(
        row=row,
        step=step,
        fits=fits,
        bound=joint.bound,
        plan=_described(joint),
        search=joint.seconds,
        stopped=joint.stopped,
        commit=_commit(),
    )


def _commit() -> str:
    """The commit that is checked out here, or is told to be."""
    if commit := os.environ.get("MESHWRIGHT_COMMIT"):
        return commit
    command = ("git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def bounded(result: Result) -> Result:
    """A row with its bound computed anew."""
    row = result.row
    graph, cluster = _asked(row)
    pricer = OperatorPricer(cluster.device)
    match = re.search(r"(\d+) micro-batches", result.plan)
    micro = sorted({1, int(match.group(1)) if match else 1})
    least = Seconds(result.step["joint"])
    for candidate in (graph, sequential(graph, partial(_seconds, pricer)).graph):
        bound = lower_bound(
            candidate,
            cluster,
            operators=pricer,
            optimizer=msgspec.convert(row.optimizer, Optimizer),
            micro_batches=micro,
            wanted=least,
        )
        least = min(least, bound.seconds)
    return msgspec.structs.replace(result, bound=least)


def _asked(row: Row) -> tuple[OperatorGraph, Cluster]:
    graph = load_model(f"zoo:{row.model}", row.batch * row.devices).graph
    cluster = Cluster.named(row.cluster).resized(row.sizes)
    return (cast_graph(graph, row.dtype) if row.dtype else graph), cluster


def flat(cluster: Cluster) -> Cluster:
    """A machine of one level on which every device has its share of the outermost link."""
    outer = cluster.levels[0]
    link, each = outer.links[0], cluster.devices // outer.cardinality
    share = Link(
        name="share",
        per="gpu",
        out=BytesPerSecond(link.out / each),
        into=BytesPerSecond(link.into / each),
        latency=link.latency,
    )
    level = Level(name="gpu", cardinality=cluster.devices, links=(share,))
    return Cluster(name=f"flat {cluster.name}", levels=(level,), device=cluster.device)


def _others(graph: OperatorGraph, cluster: Cluster, training: Options) -> dict[str, Plan]:
    """The plans of the baselines and of MCMC."""
    baselines = applicable(graph, cluster, training)
    plans = {column: baselines[name] for column, name in BASELINES.items() if name in baselines}
    budget = Budget(seconds=MCMC)
    walked = compare(graph, cluster, budget, options=training, programs=False)
    plans["mcmc"] = walked.searched.plan
    return plans


def _seconds(pricer: OperatorPricer, call: Call, wanted: Wanted) -> float:
    price = pricer.price(call, wanted)
    return price.forward.seconds + price.backward.seconds


def _described(joint: PlanResult) -> str:
    from meshwright.report.outline import short_description

    return str(short_description(joint.best.plan, joint.rewrites))


def known() -> dict[str, Result]:
    """The results that are kept, by the name of their row."""
    if not RESULTS.exists():
        return {}
    lines = RESULTS.read_bytes().splitlines()
    return {
        record.row.name: record
        for record in (msgspec.json.decode(line, type=Result) for line in lines)
    }


def table(results: list[Result]) -> str:
    """The table, and what it says on the whole."""
    head = [
        "model",
        "cluster",
        "devices",
        *COLUMNS,
        "over data, expert",
        "over all",
        "bound",
        "gap",
        "search",
    ]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    gaps = []
    for record in results:
        fitting = {name: t for name, t in record.step.items() if record.fits[name]}
        others = {name: t for name, t in fitting.items() if name in (*BASELINES, "mcmc")}
        plain = min((fitting[n] for n in ("data", "expert") if n in fitting), default=None)
        best = min(others.values(), default=None)
        gap = record.step["joint"] / record.bound - 1
        gaps.append(gap)
        cells = [record.row.model, record.row.cluster, str(record.row.devices)]
        cells += [_cell(record, column) for column in COLUMNS]
        cells += ["-" if t is None else f"{t / record.step['joint']:.2f}x" for t in (plain, best)]
        cells += [_ms(record.bound), f"{gap:.1%}"]
        lines.append(" | ".join([*cells, f"{record.search:.0f} s"]))
    lines.append("")
    lines.append(f"{len(results)} rows; median gap {statistics.median(gaps):.1%}")
    lines.append(f"computed by: {', '.join(_commits(results))}")
    lines += list(_summary(results))
    return "\n".join(lines)


def _summary(results: list[Result]) -> Iterator[str]:
    slower = [
        f"{record.row.name} ({column})"
        for record in results
        for column, t in record.step.items()
        if record.fits[column] and record.step["joint"] > t * (1 + 1e-9)
    ]
    yield f"joint slower than another column: {', '.join(slower) or 'nowhere'}"
    for what, column in (
        ("sequential", "sequential"),
        ("without programs", "no programs"),
        ("without placement and programs", "flat"),
    ):
        gain, name = max(
            (
                (record.step[column] / record.step["joint"], record.row.name)
                for record in results
                if column in record.step
            ),
            default=(1.0, "no row"),
        )
        yield f"joint over {what}: up to {gain:.2f}x ({name})"


def _cell(record: Result, column: str) -> str:
    if column not in record.step:
        return "-"
    text = _ms(record.step[column])
    return text if record.fits[column] else f"[{text}]"


def _commits(results: list[Result]) -> Iterator[str]:
    counts = Counter(record.commit or "code before commits were told" for record in results)
    for commit, count in counts.most_common():
        yield f"{commit} ({counted(count, 'row')})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def main() -> None:
    """Compute what is missing if asked, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="compute the rows that are missing")
    parser.add_argument("--anew", action="store_true", help="and those that say no commit")
    parser.add_argument("--bounds", action="store_true", help="compute bounds anew")
    parser.add_argument("--rows", default="", help="only rows whose name has this in it")
    parser.add_argument("--fresh", action="store_true", help="and those of another commit")
    parser.add_argument("--cores", "--jobs", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=0.0, help="end after so long; 0: never")
    asked = parser.parse_args()
    wanted = [row for row in rows() if asked.rows in row.name]
    if asked.minutes:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 60 * asked.minutes)
    if asked.run:
        have = known()
        commit = _commit()
        missing = [
            row
            for row in sorted(wanted, key=lambda row: zlib.crc32(row.name.encode()))
            if row.name not in have
            or (asked.anew and not have[row.name].commit)
            or (asked.fresh and have[row.name].commit != commit)
        ]

        def kept(row: Row, result: Result | Failed) -> None:
            if isinstance(result, Failed):
                print(f"{row.name}: {result.sentence}", flush=True)
                return
            with RESULTS.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
            print(table([result]).splitlines()[2], flush=True)

        sweep(missing, computed, cores=asked.cores, progress=kept)
        signal.setitimer(signal.ITIMER_REAL, 0)
    have = known()
    results = [have[row.name] for row in wanted if row.name in have]
    if asked.bounds:

        def replaced(_: Result, result: Result | Failed) -> None:
            if isinstance(result, Failed):
                print(result.sentence, flush=True)
                return
            lines = known() | {result.row.name: result}
            RESULTS.write_bytes(
                b"".join(msgspec.json.encode(record) + b"\n" for record in lines.values())
            )
            print(table([result]).splitlines()[2], flush=True)

        sweep(results, bounded, cores=asked.cores, progress=replaced)
        results = [known()[record.row.name] for record in results]
    print(table(results) if results else "no results: give --run")


if __name__ == "__main__":
    main()
