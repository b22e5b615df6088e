"""Speed of matching: from scratch, and kept up to date after each rewrite.

Run with `make bench`, or with a file of rules (ours or the published form) to add; prints what it
measures. The rules are made here from a few patterns, to have as many as a library would.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import tracemalloc
from pathlib import Path

from meshwright.capture.load import load_model
from meshwright.graph.model import OperatorGraph
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.language.published import is_published_form, parse_published
from meshwright.rewrite.language.terms import Rule
from meshwright.rewrite.language.text import parse_rules

MODELS = ("zoo:inception-v3", "zoo:bert-large")
PARAMETERS = {"d": (2, 4)}
REWRITES = 200

UNARY = ("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "neg")
BINARY = ("add", "mul", "sub")
ONE_OPERAND = """
{f}-cut: {f}(x) => combine[k, d]({f}(partition[k, d](x)))
{f}-up: {f}(combine[k, d](x)) => combine[k, d]({f}(x))
{f}-down: combine[k, d]({f}(x)) => {f}(combine[k, d](x))
{f}-parts: partition[k, d]({f}(x)) => {f}(partition[k, d](x))
{f}-whole: {f}(partition[k, d](x)) => partition[k, d]({f}(x))
{f}-turn: {f}(transpose[a, b](x)) => transpose[a, b]({f}(x))
{f}-turned: transpose[a, b]({f}(x)) => {f}(transpose[a, b](x))
{f}-join: concat[k]({f}(x), {f}(y)) => {f}(concat[k](x, y))
{f}-joined: {f}(concat[k](x, y)) => concat[k]({f}(x), {f}(y))
{f}-joined-four: {f}(concat[k](x, y, z, u)) => concat[k]({f}(x), {f}(y), {f}(z), {f}(u))
{f}-split: {f}(split[k, n](x)) => split[k, n]({f}(x))
{f}-beside: ({f}(x), {f}(y)) => (split[0, n]({f}(concat[0](x, y))), split[0, n]({f}(concat[0](x, y))).1) if n = x.0
"""  # noqa: E501  a rule is one line
TWO_OPERANDS = """
{f}-cut: {f}(x, y) => combine[k, d]({f}(partition[k, d](x), partition[k, d](y)))
{f}-up: {f}(combine[k, d](x), combine[k, d](y)) => combine[k, d]({f}(x, y))
{f}-down: combine[k, d]({f}(x, y)) => {f}(combine[k, d](x), combine[k, d](y))
{f}-parts: partition[k, d]({f}(x, y)) => {f}(partition[k, d](x), partition[k, d](y))
{f}-turn: {f}(transpose[a, b](x), transpose[a, b](y)) => transpose[a, b]({f}(x, y))
{f}-join: concat[k]({f}(x, y), {f}(u, v)) => {f}(concat[k](x, u), concat[k](y, v))
"""
PRODUCTS = """
{f}-data: {f}(x, w) => combine[0, d]({f}(partition[0, d](x), replicate[d](w)))
{f}-column: {f}(x, w) => combine[{o}, d]({f}(replicate[d](x), partition[0, d](w)))
{f}-row: {f}(x, w) => reduce[d]({f}(partition[{i}, d](x), partition[1, d](w)))
{f}-data-up: {f}(combine[0, d](x), w) => combine[0, d]({f}(x, replicate[d](w)))
{f}-merge: ({f}(x, w), {f}(x, v)) => (split[{o}, n]({f}(x, concat[0](w, v))), split[{o}, n]({f}(x, concat[0](w, v))).1) if n = w.0
{f}-inner: add({f}(x, w), {f}(y, v)) => {f}(concat[{i}](x, y), concat[1](w, v)) if rank(x) = rank(y)
{f}-turn-up: {f}(x, neg(w)) => neg({f}(x, w))
{f}-scaled: {f}(neg(x), w) => neg({f}(x, w))
"""  # noqa: E501
OTHERS = """
fuse: relu(linear(x, w)) => linear_relu(x, w)
unfuse: linear_relu(x, w) => relu(linear(x, w))
bias-out: linear_bias(x, w, b) => bias(linear(x, w), b)
bias-in: bias(linear(x, w), b) => linear_bias(x, w, b)
associate: matmul(matmul(x, y), z) => matmul(x, matmul(y, z))
whole-again: partition[k, d](combine[k, d](x)) => x
cut-in-vain: combine[k, d](partition[k, d](x)) => x
commute: add(x, y) => add(y, x)
regroup: add(add(x, y), z) => add(x, add(y, z))
distribute: mul(add(x, y), z) => add(mul(x, z), mul(y, z))
factor: add(mul(x, z), mul(y, z)) => mul(add(x, y), z)
turn-twice: transpose[a, b](transpose[a, b](x)) => x
norm-data: layer_norm[z](x, g, b) => combine[0, d](layer_norm[z](partition[0, d](x), replicate[d](g), replicate[d](b)))
heads: attention[z](q, k, v) => combine[1, d](attention[z](partition[1, d](q), partition[1, d](k), partition[1, d](v)))
"""  # noqa: E501


def rules() -> tuple[Rule, ...]:
    """A few hundred, with those of the files named on the command line."""
    text = "".join(ONE_OPERAND.format(f=f) for f in UNARY)
    text += "".join(TWO_OPERANDS.format(f=f) for f in BINARY)
    text += PRODUCTS.format(f="linear", o=-1, i=-1)
    text += PRODUCTS.replace("{f}(", "conv2d[s, t, a, b](").format(f="conv2d", o=1, i=1)
    found = parse_rules(text + OTHERS)
    for file in map(Path, sys.argv[1:]):
        more = file.read_text()
        found += parse_published(more) if is_published_form(more) else parse_rules(more)
    return found


def milliseconds(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return (
        f"median {1e3 * statistics.median(ordered):.2f} ms, "
        f"nine in ten below {1e3 * ordered[len(ordered) * 9 // 10]:.2f} ms"
    )


def measure(graph: OperatorGraph, compiled: RuleSet) -> None:
    scratch = []
    for _ in range(5):
        begin = time.perf_counter()
        matcher = Matcher(graph, compiled, PARAMETERS)
        count = len(matcher.matches)
        scratch.append(time.perf_counter() - begin)
    print(f"{graph.name}: {len(graph.operators)} operators, {count} matches")
    rate = count / statistics.median(scratch)
    print(f"  from scratch       {milliseconds(scratch)}; {rate:,.0f} matches a second")
    draws, kept, matches = random.Random(0), [], 0
    for _ in range(REWRITES):
        match = draws.choice(matcher.matches)
        begin = time.perf_counter()
        matcher = matcher.rewrite(match)
        matches += len(matcher.matches)
        kept.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    again = Matcher(matcher.graph, compiled, PARAMETERS).matches
    anew = time.perf_counter() - begin
    assert again == matcher.matches
    print(f"  after each rewrite {milliseconds(kept)}; {matches / sum(kept):,.0f} matches a second")
    print(f"  from scratch after {REWRITES} rewrites {1e3 * anew:.0f} ms, "
          f"{anew / statistics.median(kept):.0f} times as long")  # fmt: skip
    tracemalloc.start()
    held = Matcher(graph, compiled, PARAMETERS)
    assert held.matches
    print(f"  memory of a matcher {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB")
    tracemalloc.stop()


def main() -> None:
    begin = time.perf_counter()
    compiled = RuleSet(rules())
    took = 1e3 * (time.perf_counter() - begin)
    print(f"{len(compiled.rules)} rules, read and compiled in {took:.0f} ms")
    for model in MODELS:
        measure(load_model(model).graph, compiled)


if __name__ == "__main__":
    main()
