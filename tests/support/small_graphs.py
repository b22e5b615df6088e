"""Random graphs of a few units, most of which some rule rewrites. Enters: a generator of random
numbers. Leaves: a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph


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


def small_graph(random: Random) -> OperatorGraph:
    """One of the forms, of random sizes."""
    return parse_graph(random.choice(FORMS)(random))
