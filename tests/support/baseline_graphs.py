"""Small graphs of the kinds of models that experts have strategies for."""

from __future__ import annotations

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph


def convolutional(batch: int = 12, classes: int = 18) -> OperatorGraph:
    n = f"n={batch}"
    return parse_graph(
        f"""graph cnn
        input x: float32[{n}, c=3, h=8, w=8]
        input t: int64[{n}]
        parameter k: float32[o=6, i=3, kh=3, kw=3]
        parameter a: float32[o=12, i=216]
        parameter b: float32[o={classes}, i=12]
        operator conv: c: float32[{n}, c=6, h=6, w=6] = conv2d(x, k)
        operator flat: f: float32[{n}, d=216] = flatten(c) {{start_dim=1}}
        operator first: p: float32[{n}, d=12] = linear(f, a)
        operator relu: q: float32[{n}, d=12] = relu(p)
        operator second: r: float32[{n}, d={classes}] = linear(q, b)
        operator loss: l: float32[] = cross_entropy_loss(r, t)
        output l
        loss l"""
    )


def transformer(
    layers: int = 2,
    batch: int = 4,
    heads: int = 4,
    *,
    sequence: int = 6,
    width: int = 4,
    dtype: str = "float32",
) -> OperatorGraph:
    n, s, e, d = f"n={batch}", f"s={sequence}", f"e={width}", width * heads
    lines = ["graph transformer", f"input x: {dtype}[{n}, {s}, d={d}]"]
    body = []
    for i in range(layers):
        before = f"h{i}" if i else "x"
        lines += [f"parameter w{i}.{name}: {dtype}[o={d}, i={d}]" for name in "qkvo"]
        lines += [f"parameter w{i}.up: {dtype}[o={2 * d}, i={d}]"]
        lines += [f"parameter w{i}.down: {dtype}[o={d}, i={2 * d}]"]
        wide, tall = f"{dtype}[{n}, {s}, d={d}]", f"{dtype}[{n}, h={heads}, {s}, {e}]"
        for name in "qkv":
            body += [
                f"{i}.{name}: {i}.{name}: {wide} = linear({before}, w{i}.{name})",
                f"{i}.{name}u: {i}.{name}u: {dtype}[{n}, {s}, h={heads}, {e}] = "
                f"unflatten({i}.{name}) {{dim=2, sizes=[{heads}, {width}]}}",
                f"{i}.{name}t: {i}.{name}t: {tall} = transpose({i}.{name}u) {{dim0=1, dim1=2}}",
            ]
        body += [
            f"{i}.a: {i}.a: {tall} = scaled_dot_product_attention({i}.qt, {i}.kt, {i}.vt)",
            f"{i}.at: {i}.at: {dtype}[{n}, {s}, h={heads}, {e}] = "
            f"transpose({i}.a) {{dim0=1, dim1=2}}",
            f"{i}.f: {i}.f: {wide} = flatten({i}.at) {{start_dim=2}}",
            f"{i}.o: {i}.o: {wide} = linear({i}.f, w{i}.o)",
            f"{i}.add: {i}.r: {wide} = add({i}.o, {before})",
            f"{i}.up: {i}.up: {dtype}[{n}, {s}, d={2 * d}] = linear({i}.r, w{i}.up)",
            f"{i}.gelu: {i}.g: {dtype}[{n}, {s}, d={2 * d}] = gelu({i}.up)",
            f"{i}.down: {i}.down: {wide} = linear({i}.g, w{i}.down)",
            f"{i}.add2: h{i + 1}: {wide} = add({i}.down, {i}.r)",
        ]
    lines += [f"operator {line}" for line in body] + [f"output h{layers}"]
    return parse_graph("\n".join(lines))


def attention(text: str) -> OperatorGraph:
    """Two layers of attention over 4 heads of 4, as a text with {i} and the layer before, {x}."""
    wide = "float32[n=8, s=6, d=16]"
    texts = [text.format(i=i, x=f"h{i}", y=f"h{i + 1}") for i in range(2)]
    lines = [line.strip() for layer in texts for line in layer.splitlines() if line.strip()]
    lines.sort(key=lambda line: not line.startswith("parameter"))
    last = [f"operator last: y: {wide} = gelu(h2)", "output y"]
    return parse_graph("\n".join(["graph attention", f"input h0: {wide}", *lines, *last]))


WRITTEN = attention(
    "".join(f"parameter {w}{{i}}: float32[o=16, i=16]\n" for w in "qkvo")
    + "".join(
        f"""
    operator {{i}}.{w}: {{i}}.{w}: float32[n=8, s=6, d=16] = linear({{x}}, {w}{{i}})
    operator {{i}}.{w}u: {{i}}.{w}u: float32[n=8, s=6, h=4, e=4] = \
unflatten({{i}}.{w}) {{{{dim=2, sizes=[4, 4]}}}}
    operator {{i}}.{w}t: {{i}}.{w}t: float32[n=8, h=4, s=6, e=4] = \
transpose({{i}}.{w}u) {{{{dim0=1, dim1=2}}}}
    """
        for w in "qkv"
    )
    + """
    operator {i}.ke: {i}.ke: float32[n=8, h=4, e=4, s=6] = transpose({i}.kt) {{dim0=2, dim1=3}}
    operator {i}.s: {i}.s: float32[n=8, h=4, s=6, t=6] = matmul({i}.qt, {i}.ke)
    operator {i}.p: {i}.p: float32[n=8, h=4, s=6, t=6] = softmax({i}.s) {{dim=3}}
    operator {i}.a: {i}.a: float32[n=8, h=4, s=6, e=4] = matmul({i}.p, {i}.vt)
    operator {i}.at: {i}.at: float32[n=8, s=6, h=4, e=4] = transpose({i}.a) {{dim0=1, dim1=2}}
    operator {i}.f: {i}.f: float32[n=8, s=6, d=16] = flatten({i}.at) {{start_dim=2}}
    operator {i}.o: {i}.o: float32[n=8, s=6, d=16] = linear({i}.f, o{i})
    operator {i}.r: {y}: float32[n=8, s=6, d=16] = add({i}.o, {x})
    """
)
"""Attention written as matmul, softmax, matmul."""

FUSED = attention(
    """
    parameter w{i}: float32[o=48, i=16]
    parameter p{i}: float32[o=16, i=16]
    operator {i}.qkv: {i}.qkv: float32[n=8, s=6, d=48] = linear({x}, w{i})
    operator {i}.c: {i}.q: float32[n=8, s=6, d=16], {i}.k: float32[n=8, s=6, d=16], \
{i}.v: float32[n=8, s=6, d=16] = chunk({i}.qkv) {{chunks=3, dim=2}}
    operator {i}.qu: {i}.qu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.q) {{dim=2, sizes=[4, 4]}}
    operator {i}.ku: {i}.ku: float32[n=8, s=6, h=4, e=4] = unflatten({i}.k) {{dim=2, sizes=[4, 4]}}
    operator {i}.vu: {i}.vu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.v) {{dim=2, sizes=[4, 4]}}
    operator {i}.qt: {i}.qt: float32[n=8, h=4, s=6, e=4] = transpose({i}.qu) {{dim0=1, dim1=2}}
    operator {i}.kt: {i}.kt: float32[n=8, h=4, s=6, e=4] = transpose({i}.ku) {{dim0=1, dim1=2}}
    operator {i}.vt: {i}.vt: float32[n=8, h=4, s=6, e=4] = transpose({i}.vu) {{dim0=1, dim1=2}}
    operator {i}.a: {i}.a: float32[n=8, h=4, s=6, e=4] = \
scaled_dot_product_attention({i}.qt, {i}.kt, {i}.vt)
    operator {i}.at: {i}.at: float32[n=8, s=6, h=4, e=4] = transpose({i}.a) {{dim0=1, dim1=2}}
    operator {i}.f: {i}.f: float32[n=8, s=6, d=16] = flatten({i}.at) {{start_dim=2}}
    operator {i}.o: {y}: float32[n=8, s=6, d=16] = linear({i}.f, p{i})
    """
)
"""Queries, keys and values out of one product."""

PLAIN = attention(
    """
    parameter q{i}: float32[o=16, i=16]
    parameter k{i}: float32[o=16, i=16]
    parameter v{i}: float32[o=16, i=16]
    parameter p{i}: float32[o=16, i=16]
    operator {i}.q: {i}.q: float32[n=8, s=6, d=16] = linear({x}, q{i})
    operator {i}.k: {i}.k: float32[n=8, s=6, d=16] = linear({x}, k{i})
    operator {i}.v: {i}.v: float32[n=8, s=6, d=16] = linear({x}, v{i})
    operator {i}.qu: {i}.qu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.q) {{dim=2, sizes=[4, 4]}}
    operator {i}.ku: {i}.ku: float32[n=8, s=6, h=4, e=4] = unflatten({i}.k) {{dim=2, sizes=[4, 4]}}
    operator {i}.vu: {i}.vu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.v) {{dim=2, sizes=[4, 4]}}
    operator {i}.qt: {i}.qt: float32[n=8, h=4, s=6, e=4] = transpose({i}.qu) {{dim0=1, dim1=2}}
    operator {i}.kt: {i}.kt: float32[n=8, h=4, e=4, s=6] = permute({i}.ku) {{dims=[0, 2, 3, 1]}}
    operator {i}.vt: {i}.vt: float32[n=8, h=4, s=6, e=4] = transpose({i}.vu) {{dim0=1, dim1=2}}
    operator {i}.score: {i}.score: float32[n=8, h=4, s=6, t=6] = matmul({i}.qt, {i}.kt)
    operator {i}.soft: {i}.soft: float32[n=8, h=4, s=6, t=6] = softmax({i}.score) {{dim=3}}
    operator {i}.a: {i}.a: float32[n=8, h=4, s=6, e=4] = matmul({i}.soft, {i}.vt)
    operator {i}.at: {i}.at: float32[n=8, s=6, h=4, e=4] = transpose({i}.a) {{dim0=1, dim1=2}}
    operator {i}.f: {i}.f: float32[n=8, s=6, d=16] = flatten({i}.at) {{start_dim=2}}
    operator {i}.o: {y}: float32[n=8, s=6, d=16] = linear({i}.f, p{i})
    """
)
"""Attention of products and a softmax."""


def recurrent() -> OperatorGraph:
    """Two layers of two steps each after an embedding, a head after the last step."""
    step, state = "float32[n=6, t=1, d=8]", "float32[l=1, n=6, d=8]"
    lines = ["graph rnn", "input ids: int64[n=6, t=2]", "parameter table: float32[v=9, d=8]"]
    for i in range(2):
        lines += [f"parameter w{i}: float32[g=32, d=8]", f"parameter r{i}: float32[g=32, d=8]"]
    lines += ["parameter head: float32[v=9, d=8]"]
    lines += ["operator embed: e: float32[n=6, t=2, d=8] = embedding(table, ids)"]
    lines += [f"operator split: x0.0: {step}, x0.1: {step} = split(e) {{dim=1, split_size=1}}"]
    for i in range(2):
        lines += [f"operator zeros{i}: s{i}: {state} = zeros() {{size=[1, 6, 8]}}"]
        for t in range(2):
            before = f"h{i}.{t - 1}, c{i}.{t - 1}" if t else f"s{i}, s{i}"
            lines += [
                f"operator lstm{i}.{t}: x{i + 1}.{t}: {step}, h{i}.{t}: {state}, c{i}.{t}: {state} "
                f"= lstm(x{i}.{t}, {before}, w{i}, r{i}) {{batch_first=true, has_biases=false}}"
            ]
    lines += ["operator head: y: float32[n=6, t=1, v=9] = linear(x2.1, head)", "output y"]
    return parse_graph("\n".join(lines))


def recommendation(*sizes: int) -> OperatorGraph:
    """Three tables of so many rows."""
    lines = ["graph dlrm", "input x: float32[n=12, d=4]"]
    lines += [f"input i{t}: int64[n=12]" for t in range(3)]
    lines += [f"parameter t{t}: float32[v={rows}, d=4]" for t, rows in enumerate(sizes)]
    lines += ["parameter w: float32[o=2, i=16]"]
    lines += [f"operator e{t}: e{t}: float32[n=12, d=4] = embedding(t{t}, i{t})" for t in range(3)]
    lines += ["operator cat: c: float32[n=12, d=16] = cat(x, e0, e1, e2) {dim=1}"]
    lines += ["operator top: y: float32[n=12, o=2] = linear(c, w)", "output y"]
    return parse_graph("\n".join(lines))
