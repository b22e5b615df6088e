"""Block names of a model ("attention and MLP of 32 layers") from module paths. Enters: operators of
a graph. Leaves: names such as "attention and MLP of 32 layers", from the modules that operators lie
in.

The name of an operator is the path of its module ("layers.0.attention.key.linear"). In a repeated
layer the block is what comes behind the layer's number, elsewhere the outermost module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.graph.layers import layer_of, layers
from meshwright.graph.operator_graph import OperatorGraph

SAID = {
    "feed_forward": "MLP",
    "mlp": "MLP",
    "ffn": "MLP",
    "self_attn": "attention",
    "attn": "attention",
    "self_attention": "attention",
    "lm_head": "head",
    "embed_tokens": "embedding",
    "words": "embedding",
    "wte": "embedding",
    "block_sparse_moe": "experts",
    "experts": "experts",
}
"""What the field calls modules of these names."""

MOST = 3
"""Blocks that are named; the rest are others."""


def describe_blocks(graph: OperatorGraph, work: Mapping[str, float]) -> str:
    r"""Operators in words, given what each computes: those of most work first, repeated layers with
    how many there are; nothing if no operator has a module.

    >>> from meshwright.graph.text import parse_graph
    >>> line = "operator layers.{0}.mlp.{3}: {2}: float32[n=4] = {3}({1})"
    >>> steps = [
    ...     line.format(i, *ends)
    ...     for i in range(3)
    ...     for ends in ((f"b{i}", f"a{i}", "exp"), (f"a{i}", f"b{i + 1}", "neg"))
    ... ]
    >>> graph = parse_graph("\n".join(["graph g", "input b0: float32[n=4]", *steps]))
    >>> describe_blocks(graph, {operator.name: 1.0 for operator in graph.operators})
    'MLP of 3 layers'
    """
    place, counts = layer_of(graph), {repeated.start: repeated.count for repeated in layers(graph)}
    shares: dict[tuple[int, str], float] = {}
    for name, share in work.items():
        repeat = place[name][0] if name in place else -1
        block = _block(name, inside=repeat >= 0)
        if block:
            shares[repeat, block] = shares.get((repeat, block), 0.0) + share
    ranked = sorted(shares, key=lambda key: -shares[key])
    groups: dict[int, list[str]] = {}
    for repeat, block in ranked[:MOST]:
        groups.setdefault(repeat, []).append(block)
    words = [
        _listed(blocks) + (f" of {counts[repeat]} layers" if repeat >= 0 else "")
        for repeat, blocks in groups.items()
    ]
    if len(ranked) > MOST and words:
        words.append("others")
    return _listed(words)


def _block(name: str, *, inside: bool) -> str:
    path = name.split(".")[:-1]
    numbers = [at for at, word in enumerate(path) if word.isdecimal()]
    if inside and numbers:
        path = [word for word in path[numbers[0] + 1 :] if not word.isdecimal()]
    return SAID.get(path[0], path[0]) if path else ""


def _listed(words: Sequence[str]) -> str:
    return " and ".join((*[", ".join(words[:-1])][: len(words) > 1], *words[-1:]))
