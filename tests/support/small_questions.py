"""Random small questions whose every plan can be tried. Enters: a seed. Leaves: a `PlanRequest`.

A question is drawn again until it has few plans, and until its rules make no further graph after
two steps: then nothing is out of the reach of who rewrites once more. Clusters are slow enough for
their devices that communication counts as much as work. In a third of the questions the fastest
plan of all does not fit.
"""

from __future__ import annotations

from random import Random

import msgspec

from meshwright.base.quantities import Bytes, BytesPerSecond, OpsPerSecond, Seconds
from meshwright.cluster.cluster import WHOLE, Cluster, Device, Level, Link
from meshwright.plan.options import Options
from meshwright.search.joint.request.constraints import Constraints
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.micro_batches import supports_micro_batches
from meshwright.sharding.units import units
from support.brute_force import REWRITES, algebra, allowed, brute_force, every_plan, reachable, size
from support.small_graphs import small_graph

COUNT = 200
MOST = 4000
"""Plans of a question."""

ROOM = Bytes(1 << 40)
"""Enough for any plan."""

RULES = (
    ("linear-relu-fuse", "linear-relu-unfuse"), ("linear-bias-unfuse", "linear-bias-fuse"),
    ("linear-merge",), ("linear-relu-merge",), ("concat-linear-sum",), ("sum-linear-concat",),
    ("linear-channels-concat",), ("linear-linear",), ("linear-of-sum",), ("sum-of-linear",),
    ("relu-concat",), ("concat-relu",), ("conv-merge",), ("conv-channels-concat",),
    ("embedding-linear",), ("linear-weights-sum",), ("add-left", "add-right"),
)  # fmt: skip
"""Of these sets of rules a question has some."""


def small_question(seed: int) -> PlanRequest:
    """The question of a seed: of five in a row two can be rewritten, of three one has a limit."""
    random = Random(f"small question {seed}")
    while True:
        question = _drawn(random)
        graphs = reachable(question)
        if (
            len(units(question.graph)) > 1
            and size(question) <= MOST
            and (len(graphs) > 1 or seed % 5 > 1)
            and len(reachable(question, REWRITES + 1)) == len(graphs)
            and any(
                supports_micro_batches(question.graph, options.micro_batches)
                for options in allowed(question)
            )
        ):
            limited = _limited(random, question) if seed % 3 == 0 else question
            if limited is not None:
                return limited


def _limited(random: Random, question: PlanRequest) -> PlanRequest | None:
    """The question with a limit that rules its fastest plan out, if some are known to fit."""
    fastest = brute_force(question)
    assert fastest is not None
    every = list(every_plan(question))
    least = min(plan.memory for plan in random.sample(every, min(40, len(every))))
    if least >= fastest.memory:
        return None
    limit = Bytes(random.randint(least, fastest.memory - 1))
    return msgspec.structs.replace(question, memory=limit)


def _drawn(random: Random) -> PlanRequest:
    micro_batches = random.choice((1, 1, 1, 2))
    fixed = [("micro-batches", str(micro_batches))] if random.random() < 0.8 else []
    if random.random() < 0.7:
        fixed.append(("zero", str(random.choice((0, 0, 1)))))
    if random.random() < 0.8:
        fixed.append(("recompute", random.choice(("no", "yes"))))
    if random.random() < 0.8:
        fixed.append(("bucket", "0"))
    kept = {
        name for rule_names in random.sample(RULES, random.randint(4, 8)) for name in rule_names
    }
    return PlanRequest(
        graph=small_graph(random),
        cluster=_cluster(random),
        memory=ROOM,
        training=Options(optimizer=random.choice(("adam", "sgd"))),
        constraints=Constraints(
            fixed=tuple(fixed),
            rules=tuple(rule.name for rule in algebra() if rule.name not in kept),
        ),
    )


def _cluster(random: Random) -> Cluster:
    """2 to 6 devices on one or two levels."""
    sizes = random.choice(((2,), (2,), (3,), (4,), (5,), (6,), (2, 2), (2, 3), (3, 2)))
    names = ("node", "gpu")[-len(sizes) :]
    shared = random.choice((WHOLE, names[0], names[-1]))
    levels = [
        Level(name=name, cardinality=count, links=(_link(random, name, shared, names),))
        for name, count in zip(names, sizes, strict=True)
    ]
    device = Device(
        name="small",
        memory=ROOM,
        memory_bandwidth=BytesPerSecond(10 ** random.uniform(8, 10)),
        peak=(("fp32", OpsPerSecond(10 ** random.uniform(8, 10))),),
    )
    return Cluster(name="small", levels=tuple(levels), device=device)


def _link(random: Random, level: str, shared: str, names: tuple[str, ...]) -> Link:
    """A link each, or one that all of a level share."""
    outside = shared == WHOLE or names.index(shared) <= names.index(level)
    rate = BytesPerSecond(10 ** random.uniform(7, 10))
    return Link(
        name=f"{level}-link",
        per=shared if outside else level,
        out=rate,
        into=rate,
        latency=Seconds(10 ** random.uniform(-7, -4.5)),
    )
