"""Chains of library rules from a plain graph to a known form of parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.rewrite.graphs.kinds import read
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.library import library

RULES = RuleSet(library())
PARAMETERS = {"d": (2,), "m": (2,), "after": (0, 1)}


class Step(NamedTuple):
    """A rule at the operator that makes a tensor, with what the rule leaves open."""

    rule: str
    at: str
    settings: Mapping[str, int] = {}


class Derivation(NamedTuple):
    """A plain graph, a chain of rules, and what the graph has become."""

    name: str
    graph: str
    chain: tuple[Step, ...]
    becomes: str
    """The first output as one expression."""


def derive(derivation: Derivation) -> Iterator[tuple[str, OperatorGraph]]:
    """Every step of a chain with the graph that it gives."""
    matcher = Matcher(parse_graph(derivation.graph), RULES, PARAMETERS)
    for step in derivation.chain:
        fitting = [
            match
            for match in matcher.matches
            if match.rule.name == step.rule
            and match.outputs[0].startswith(step.at)
            and step.settings.items() <= dict(match.settings).items()
        ]
        assert fitting, f"{step} fits nowhere in\n{matcher.graph}"
        matcher = matcher.rewrite(fitting[0])
        yield str(fitting[0]), matcher.graph


def expression(graph: OperatorGraph, tensor: str) -> str:
    """A tensor as an expression of the rule language over inputs and parameters."""
    maker = graph.producers.get(tensor)
    if maker is None:
        return tensor
    reading = read(graph.call(maker))
    assert reading is not None
    settings = ", ".join(map(str, reading.settings))
    inputs = ", ".join(expression(graph, maker.inputs[n] or "") for n in reading.order)
    output = [other.name for other in maker.outputs].index(tensor)
    return "".join(
        (reading.operator, f"[{settings}]" if settings else "", f"({inputs})",
         f".{output}" if output else "")
    )  # fmt: skip


LAYERS = """graph layers
    input x: float64[n=4, k=8]
    parameter u: float64[f=6, k=8]
    parameter v: float64[o=4, f=6]
    operator h: h: float64[n=4, f=6] = linear(x, u)
    operator a: a: float64[n=4, f=6] = relu(h)
    operator y: y: float64[n=4, o=4] = linear(a, v)
    output y"""

DATA = Derivation(
    "data parallelism",
    LAYERS,
    (
        Step("linear-cut-i", "h", {"k": 0}),
        Step("relu-cut-i", "a", {"k": 0}),
        Step("partition-combine", "a"),
        Step("linear-cut-i", "y", {"k": 0}),
        Step("partition-combine", "y"),
    ),
    "combine[0, 2](linear(relu(linear(partition[0, 2](x), replicate[copies, 2](u))), "
    "replicate[copies, 2](v)))",
)

MLP = Derivation(
    "Megatron's MLP: column, then row parallel",
    """graph mlp
    input x: float64[b=2, s=4, k=8]
    parameter u: float64[f=12, k=8]
    parameter v: float64[k=8, f=12]
    operator h: h: float64[b=2, s=4, f=12] = linear(x, u)
    operator a: a: float64[b=2, s=4, f=12] = gelu(h)
    operator y: y: float64[b=2, s=4, k=8] = linear(a, v)
    output y""",
    (
        Step("linear-cut-o", "h"),
        Step("gelu-cut-i", "a", {"k": 2}),
        Step("partition-combine", "a"),
        Step("linear-cut-k", "y"),
        Step("partition-combine", "y"),
    ),
    "reduce[sums, 2](linear(gelu(linear(replicate[copies, 2](x), partition[0, 2](u))), "
    "partition[1, 2](v)))",
)

_HEADS = """    operator {0}: {0}: float64[b=2, s=4, k=8] = linear(x, w{0})
    operator {0}u: {0}u: float64[b=2, s=4, h=4, e=2] = unflatten({0}) {{dim=2, sizes=[4, 2]}}
    operator {0}t: {0}t: float64[b=2, h=4, s=4, e=2] = transpose({0}u) {{dim0=1, dim1=2}}
"""

ATTENTION = Derivation(
    "Megatron's attention: heads parallel",
    """graph attention
    input x: float64[b=2, s=4, k=8]
    parameter wq: float64[o=8, k=8]
    parameter wk: float64[o=8, k=8]
    parameter wv: float64[o=8, k=8]
    parameter wo: float64[o=8, k=8]
"""
    + "".join(_HEADS.format(name) for name in "qkv")
    + """    operator c: c: float64[b=2, h=4, s=4, e=2] = scaled_dot_product_attention(qt, kt, vt)
    operator ct: ct: float64[b=2, s=4, h=4, e=2] = transpose(c) {dim0=1, dim1=2}
    operator cf: cf: float64[b=2, s=4, k=8] = flatten(ct) {start_dim=2}
    operator y: y: float64[b=2, s=4, k=8] = linear(cf, wo)
    output y""",
    (
        *(
            step
            for name in "qkv"
            for step in (
                Step("linear-cut-o", name),
                Step("unflatten-cut", f"{name}u"),
                Step("partition-combine", f"{name}u"),
                Step("transpose-cut", f"{name}t", {"j": 2, "k": 1}),
                Step("partition-combine", f"{name}t"),
            )
        ),
        Step("attention-cut-i", "c", {"k": 1}),
        Step("partition-combine", "c"),
        Step("partition-combine", "c"),
        Step("partition-combine", "c"),
        Step("transpose-cut", "ct", {"j": 1, "k": 2}),
        Step("partition-combine", "ct"),
        Step("flatten-cut", "cf"),
        Step("partition-combine", "cf"),
        Step("linear-cut-k", "y"),
        Step("partition-combine", "y"),
    ),
    "reduce[sums, 2](linear(flatten[2](transpose[1, 2](attention[(False, 0.7071067811865475)]("
    "transpose[1, 2](unflatten[2, 4](linear(replicate[copies, 2](x), partition[0, 2](wq)))), "
    "transpose[1, 2](unflatten[2, 4](linear(replicate[copies, 2](x), partition[0, 2](wk)))), "
    "transpose[1, 2](unflatten[2, 4](linear(replicate[copies, 2](x), partition[0, 2](wv))))))), "
    "partition[1, 2](wo)))",
)

SEQUENCE = Derivation(
    "sequence parallelism: what follows a row parallel linear works on a part of the sequence",
    """graph sequence
    input a: float64[b=2, s=4, f=12]
    parameter v: float64[k=8, f=12]
    parameter g: float64[k=8]
    parameter b: float64[k=8]
    parameter u: float64[f=12, k=8]
    operator h: h: float64[b=2, s=4, k=8] = linear(a, v)
    operator n: n: float64[b=2, s=4, k=8] = layer_norm(h, g, b) {normalized_shape=[8]}
    operator y: y: float64[b=2, s=4, f=12] = linear(n, u)
    output y""",
    (
        Step("linear-cut-k", "h"),
        Step("layer-norm-cut-i", "n", {"k": 1}),
        Step("linear-cut-o", "y"),
    ),
    "combine[2, 2](linear(replicate[copies, 2](combine[1, 2](layer_norm[1e-05]("
    "partition[1, 2](reduce[sums, 2](linear(partition[2, 2](a), partition[1, 2](v)))), "
    "replicate[copies, 2](g), replicate[copies, 2](b)))), partition[0, 2](u)))",
)

EXPERTS = Derivation(
    "expert parallelism: every device holds some of the experts",
    """graph experts
    input x: float64[t=8, k=4]
    input e: int64[g=4]
    parameter u: float64[g=4, k=4, f=6]
    parameter v: float64[g=4, f=6, k=4]
    operator h: h: float64[t=8, f=6] = _grouped_mm(x, u, e)
    operator a: a: float64[t=8, f=6] = silu(h)
    operator y: y: float64[t=8, k=4] = _grouped_mm(a, v, e)
    output y""",
    (Step("experts-cut-g", "h"), Step("experts-cut-g", "y")),
    "reduce[sums, 2](experts(replicate[copies, 2](silu(reduce[sums, 2](experts("
    "replicate[copies, 2](x), partition[0, 2](u), replicate[copies, 2](e))))), "
    "partition[0, 2](v), replicate[copies, 2](e)))",
)

SPATIAL = Derivation(
    "spatial parallelism: rows of an image, with the rows of neighbours that windows reach",
    """graph spatial
    input x: float64[n=2, c=3, h=8, w=6]
    parameter u: float64[c=4, d=3, p=3, q=3]
    parameter v: float64[c=2, d=4, p=3, q=3]
    operator h: h: float64[n=2, c=4, h=8, w=6] = conv2d(x, u) {padding=[1, 1]}
    operator a: a: float64[n=2, c=4, h=8, w=6] = relu(h)
    operator y: y: float64[n=2, c=2, h=8, w=6] = conv2d(a, v) {padding=[1, 1]}
    output y""",
    (
        Step("conv2d-cut-h", "h"),
        Step("relu-cut-i", "a", {"k": 2}),
        Step("partition-combine", "a"),
        Step("conv2d-cut-h", "y"),
        Step("partition-combine", "y"),
    ),
    "combine[2, 2](conv2d[1, 1, 1, 1](halo[2, 1, 1](relu(conv2d[1, 1, 1, 1](halo[2, 1, 1]("
    "partition[2, 2](x)), replicate[copies, 2](u)))), replicate[copies, 2](v)))",
)

PIPELINE = Derivation(
    "pipeline parallelism: micro-batches follow each other through all operators",
    LAYERS,
    (
        Step("linear-steps", "h"),
        Step("relu-steps", "a"),
        Step("pipeline-batch", "a"),
        Step("linear-steps", "y"),
        Step("pipeline-batch", "y"),
    ),
    "batch[0, 2](linear(relu(linear(pipeline[0, 2](x), replicate[steps, 2](u))), "
    "replicate[steps, 2](v)))",
)

DERIVATIONS = (DATA, MLP, ATTENTION, SEQUENCE, EXPERTS, SPATIAL, PIPELINE)
