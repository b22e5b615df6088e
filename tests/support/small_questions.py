"""Random small questions whose every plan can be tried. Enters: a seed. Leaves: a `Question`.

A question is drawn again until it has few plans, and until its rules make no further graph after
two steps: then nothing is out of the reach of who rewrites once more. Clusters are slow enough for
their devices that communication counts as much as work. In a third of the questions the fastest
plan of all does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from meshwright.cluster.model import WHOLE, Cluster, Device, Level, Link
from meshwright.foundation.units import Bytes, BytesPerSecond, OpsPerSecond, Seconds
from meshwright.graph.model import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.parallelize.units import units
from meshwright.plan.model import Options
from meshwright.search.joint.constraints import Constraints
from meshwright.search.joint.question import Question
from support.brute_force import REWRITES, algebra, brute_force, every_plan, reachable, size

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


def small_question(seed: int) -> Question:
    """The question of a seed: of five in a row two can be rewritten, of three one has a limit."""
    random = Random(f"small question {seed}")
    while True:
        question = _drawn(random)
        found = reachable(question)
        if (
            len(units(question.graph)) > 1
            and size(question) <= MOST
            and (len(found) > 1 or seed % 5 > 1)
            and len(reachable(question, REWRITES + 1)) == len(found)
        ):
            limited = _limited(random, question) if seed % 3 == 0 else question
            if limited is not None:
                return limited


def _limited(random: Random, question: Question) -> Question | None:
    """The question with a limit that rules its fastest plan out, if some are known to fit."""
    fastest = brute_force(question)
    assert fastest is not None
    every = list(every_plan(question))
    least = min(own.memory for own in random.sample(every, min(40, len(every))))
    if least >= fastest.memory:
        return None
    limit = Bytes(random.randint(least, fastest.memory - 1))
    return msgspec.structs.replace(question, memory=limit)


def _drawn(random: Random) -> Question:
    micro_batches = random.choice((1, 1, 1, 2))
    fixed = [("micro-batches", str(micro_batches))] if random.random() < 0.8 else []
    if random.random() < 0.7:
        fixed.append(("zero", str(random.choice((0, 0, 1)))))
    if random.random() < 0.8:
        fixed.append(("recompute", random.choice(("no", "yes"))))
    kept = {name for own in random.sample(RULES, random.randint(4, 8)) for name in own}
    return Question(
        graph=_graph(random),
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


def _graph(random: Random) -> OperatorGraph:
    """One of the forms, of random sizes."""
    return parse_graph(random.choice(FORMS)(random))


def _sizes(random: Random, count: int) -> list[int]:
    return [random.choice((4, 6, 8, 10, 12, 15, 24, 30, 48)) for _ in range(count)]


def _batch(random: Random) -> int:
    return random.choice((2, 4, 6, 12, 30, 60, 120))


def _chain(random: Random) -> str:
    """One product or two, with or without something between them, with or without a loss."""
    n, (i, h, o) = f"n={_batch(random)}", _sizes(random, 3)
    lines = [
        f"graph chain\ninput x: float32[{n}, d={i}]",
        f"input t: int64[{n}]",
        f"parameter a: float32[o={h}, i={i}]",
        f"parameter c: float32[o={h}]",
        f"parameter b: float32[o={o}, i={h}]",
    ]
    bias = random.choice((", c", ""))
    last, wide = "p", f"float32[{n}, d={h}]"
    body = [f"operator first: p: {wide} = linear(x, a{bias})"]
    if random.random() < 0.7:
        body, last = [*body, f"operator relu: q: {wide} = relu(p)"], "q"
    two = random.random() < 0.6
    if two:
        body, last = [*body, f"operator second: r: float32[{n}, d={o}] = linear({last}, b)"], "r"
    if random.random() < 0.5:
        body, last = [*body, f"operator loss: l: float32[] = cross_entropy_loss({last}, t)"], "l"
    used = [line for line in lines if two or not line.startswith("parameter b")]
    used = [line for line in used if bias or not line.startswith("parameter c")]
    used = [line for line in used if last == "l" or not line.startswith("input t")]
    return "\n".join([*used, *body, f"output {last}", *([f"loss {last}"] if last == "l" else [])])


def _layers(random: Random) -> str:
    """The same layer twice, for which running again makes a difference."""
    n, (d,) = f"n={_batch(random)}", _sizes(random, 1)
    wide, kind = f"float32[{n}, d={d}]", random.choice(("relu", "gelu", "exp"))
    return f"""graph layers
        input x: {wide}
        parameter a: float32[o={d}, i={d}]
        parameter b: float32[o={d}, i={d}]
        operator first: p: {wide} = linear(x, a)
        operator act: q: {wide} = {kind}(p)
        operator second: r: {wide} = linear(q, b)
        operator also: s: {wide} = {kind}(r)
        output s"""


def _branches(random: Random) -> str:
    """Two products of one input, or of two, which are added or put side by side."""
    n, (i, j, o) = f"n={_batch(random)}", _sizes(random, 3)
    one = random.random() < 0.6
    joined = random.random() < 0.5
    other = "" if one else f"input y: float32[{n}, d={j}]"
    end = (
        f"operator end: s: float32[{n}, d={2 * o}] = concat(p, q) {{dim=1}}"
        if joined
        else f"operator end: s: float32[{n}, d={o}] = add(p, q)"
    )
    return f"""graph branches
        input x: float32[{n}, d={i}]
        {other}
        parameter a: float32[o={o}, i={i}]
        parameter b: float32[o={o}, i={i if one else j}]
        operator left: p: float32[{n}, d={o}] = linear(x, a)
        operator right: q: float32[{n}, d={o}] = linear({"x" if one else "y"}, b)
        {end}
        output s"""


def _joined(random: Random) -> str:
    """Two inputs side by side, and their product."""
    n, (i, j, o) = f"n={_batch(random)}", _sizes(random, 3)
    end = random.choice(("", f"operator relu: s: float32[{n}, d={o}] = relu(r)"))
    return f"""graph joined
        input x: float32[{n}, d={i}]
        input y: float32[{n}, d={j}]
        parameter a: float32[o={o}, i={i + j}]
        operator join: c: float32[{n}, d={i + j}] = concat(x, y) {{dim=1}}
        operator product: r: float32[{n}, d={o}] = linear(c, a)
        {end}
        output {"s" if end else "r"}"""


def _residual(random: Random) -> str:
    """A product beside which its input goes on, and a norm."""
    n, (d,) = f"n={_batch(random)}", _sizes(random, 1)
    wide = f"float32[{n}, d={d}]"
    norm = f"operator norm: s: {wide} = layer_norm(r, g, h) {{normalized_shape=[{d}]}}"
    both = random.random() < 0.5
    return f"""graph residual
        input x: {wide}
        parameter a: float32[o={d}, i={d}]
        {f"parameter g: float32[d={d}]" if both else ""}
        {f"parameter h: float32[d={d}]" if both else ""}
        operator product: p: {wide} = linear(x, a)
        operator add: r: {wide} = add(p, x)
        {norm if both else ""}
        output {"s" if both else "r"}"""


def _convolutions(random: Random) -> str:
    """One convolution, or two of one image side by side."""
    n, c = f"n={random.choice((2, 4, 6))}", random.choice((2, 3, 4))
    o, w = random.choice((2, 4, 6)), random.choice((4, 6, 8))
    image = f"float32[{n}, c={o}, h={w}, w={w}]"
    weight = f"float32[o={o}, i={c}, kh=3, kw=3]"
    two = f"""parameter m: {weight}
        operator left: p: {image} = conv2d(x, k) {{padding=[1, 1]}}
        operator right: q: {image} = conv2d(x, m) {{padding=[1, 1]}}
        operator join: r: float32[{n}, c={2 * o}, h={w}, w={w}] = concat(p, q) {{dim=1}}"""
    one = f"""operator left: p: {image} = conv2d(x, k) {{padding=[1, 1]}}
        operator relu: r: {image} = relu(p)"""
    return f"""graph convolutions
        input x: float32[{n}, c={c}, h={w}, w={w}]
        parameter k: {weight}
        {random.choice((one, two))}
        output r"""


def _table(random: Random) -> str:
    """A table of vectors and a product."""
    n, (v, d, o) = f"n={_batch(random)}", _sizes(random, 3)
    rows = random.choice((v, 100 * v))
    end = random.choice(("", f"operator relu: s: float32[{n}, d={o}] = relu(r)"))
    return f"""graph table
        input x: int64[{n}]
        parameter w: float32[v={rows}, d={d}]
        parameter a: float32[o={o}, i={d}]
        operator look: e: float32[{n}, d={d}] = embedding(w, x)
        operator product: r: float32[{n}, d={o}] = linear(e, a)
        {end}
        output {"s" if end else "r"}"""


FORMS: tuple[Callable[[Random], str], ...] = (
    _chain, _chain, _layers, _branches, _joined, _residual, _convolutions, _table,
)  # fmt: skip
