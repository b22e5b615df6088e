"""Graphs with parallel operators beside the plain graphs that they compute, as text.

Each form of parallelism is one text; what enters is shared with the plain graph.
"""

from __future__ import annotations

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph

Form = tuple[str, str, str]
"""What enters; the plain operators; the operators in pieces. Both make `y`."""


def graphs(form: Form) -> tuple[OperatorGraph, OperatorGraph]:
    """The plain graph and the one in pieces."""
    enters, plain, sharded = form
    texts = (f"graph g\n{enters.strip()}\n{body.strip()}\noutput y\n" for body in (plain, sharded))
    one, other = map(parse_graph, texts)
    return one, other


LINEAR_ENTERS = """
input x: float64[n=4, k=6]
parameter w: float64[o=8, k=6]
"""
LINEAR_PLAIN = "operator y: y: float64[n=4, o=8] = linear(x, w)"

BIAS_ENTERS = f"{LINEAR_ENTERS.rstrip()}\nparameter b: float64[o=8]"
BIAS_PLAIN = "operator y: y: float64[n=4, o=8] = linear(x, w, b)"

MLP_ENTERS = """
input x: float64[n=4, s=2, k=6]
parameter w: float64[o=8, k=6]
parameter b: float64[o=8]
parameter v: float64[k=6, o=8]
parameter c: float64[k=6]
"""
MLP_PLAIN = """
operator h: h: float64[n=4, s=2, o=8] = linear(x, w, b)
operator a: a: float64[n=4, s=2, o=8] = gelu(h)
operator z: z: float64[n=4, s=2, k=6] = linear(a, v)
operator z2: z2: float64[n=4, s=2, k=6] = add(z, c)
operator y: y: float64[n=4, s=2, k=6] = add(z2, x)
"""

ATTENTION_ENTERS = """
input x: float64[n=2, s=4, e=12]
parameter wq: float64[o=12, e=12]
parameter wk: float64[o=12, e=12]
parameter wv: float64[o=12, e=12]
parameter wo: float64[o=12, e=12]
"""


def attention(x: str, *weights: str) -> str:
    """Causal attention with four heads of three from these tensors to `z`, cut or not."""
    lines = []
    for name, weight in zip("qkv", weights, strict=False):
        lines += [
            f"operator {name}: {name}: float64[n=2, s=4, o=12] = linear({x}, {weight})",
            f"operator {name}h: {name}h: float64[n=2, s=4, h=4, d=3] = view({name}) "
            "{size=[2, 4, 4, 3]}",
            f"operator {name}t: {name}t: float64[n=2, h=4, s=4, d=3] = transpose({name}h) "
            "{dim0=1, dim1=2}",
        ]
    lines += [
        "operator a: a: float64[n=2, h=4, s=4, d=3] = scaled_dot_product_attention(qt, kt, vt) "
        "{is_causal=true}",
        "operator at: at: float64[n=2, s=4, h=4, d=3] = transpose(a) {dim0=1, dim1=2}",
        "operator af: af: float64[n=2, s=4, o=12] = view(at) {size=[2, 4, 12]}",
        f"operator z: z: float64[n=2, s=4, e=12] = linear(af, {weights[3]})",
    ]
    return "\n".join(lines)


ATTENTION_PLAIN = f"""
{attention("x", "wq", "wk", "wv", "wo")}
operator y: y: float64[n=2, s=4, e=12] = add(z, x)
"""

QUERIES_ENTERS = """
input q: float64[n=2, h=3, s=4, d=5]
input k: float64[n=2, h=3, s=6, d=5]
input v: float64[n=2, h=3, s=6, d=4]
"""
QUERIES_PLAIN = (
    "operator y: y: float64[n=2, h=3, s=4, d=4] = scaled_dot_product_attention(q, k, v) "
    "{is_causal=true}"
)

CONV_ENTERS = """
input x: float64[n=2, c=4, h=8, w=12]
parameter k: float64[o=6, c=4, p=3, q=3]
"""
CONV_PLAIN = "operator y: y: float64[n=2, o=6, h=8, w=12] = conv2d(x, k) {padding=[1, 1]}"

STRIDED_ENTERS = f"{CONV_ENTERS.rstrip()}\nparameter b: float64[o=6]"
STRIDED_PLAIN = (
    "operator y: y: float64[n=2, o=6, h=4, w=6] = conv2d(x, k, b) {padding=[1, 1], stride=[2, 2]}"
)

TABLE_ENTERS = """
input t: int64[n=4, s=3]
parameter w: float64[v=6, j=8]
"""
TABLE_PLAIN = "operator y: y: float64[n=4, s=3, j=8] = embedding(w, t)"
BAGS_PLAIN = "operator y: y: float64[n=4, j=8] = embedding_bag(w, t)"

EXPERTS_ENTERS = """
input x: float64[t=8, k=6]
parameter w: float64[g=4, k=6, n=4]
input e: int32[g=4]
"""
EXPERTS_PLAIN = "operator y: y: float64[t=8, n=4] = _grouped_mm(x, w, e)"

SEQUENCE_ENTERS = """
input x: float64[n=2, s=4, k=6]
parameter g: float64[k=6]
parameter b: float64[k=6]
parameter w: float64[o=6, k=6]
"""
SEQUENCE_PLAIN = """
operator l: l: float64[n=2, s=4, k=6] = layer_norm(x, g, b) {normalized_shape=[6]}
operator m: m: float64[n=2, s=4, o=6] = linear(l, w)
operator p: p: float64[n=2, s=4, o=6] = softmax(m) {dim=-1}
operator y: y: float64[n=2, s=4, o=6] = add(p, x)
"""

PARTS_ENTERS = """
input x: float64[n=4, k=6]
input z: float64[n=4, k=2]
"""
PARTS_PLAIN = """
operator c: c: float64[n=4, k=8] = cat(x, z) {dim=1}
operator s: s: float64[n=4, k=3], r: float64[n=4, k=5] = split_with_sizes(c) \
{dim=1, split_sizes=[3, 5]}
operator y: y: float64[n=4, k=5] = tanh(r)
"""

FORMS: dict[str, Form] = {
    "data parallel linear": (LINEAR_ENTERS, LINEAR_PLAIN, """
operator xp: xp: float64[n=4, k=6] = partition(x) {axis=0, degree=2}
operator wr: wr: float64[o=8, k=6] = replicate(w) {axis="copies", degree=2}
operator yp: yp: float64[n=4, o=8] = linear(xp, wr)
operator y: y: float64[n=4, o=8] = combine(yp) {axis=0, degree=2}
"""),
    "column parallel linear": (BIAS_ENTERS, BIAS_PLAIN, """
operator xr: xr: float64[n=4, k=6] = replicate(x) {axis="copies", degree=4}
operator wp: wp: float64[o=8, k=6] = partition(w) {axis=0, degree=4}
operator bp: bp: float64[o=8] = partition(b) {axis=0, degree=4}
operator yp: yp: float64[n=4, o=8] = linear(xr, wp, bp)
operator y: y: float64[n=4, o=8] = combine(yp) {axis=1, degree=4}
"""),
    "row parallel linear": (LINEAR_ENTERS, LINEAR_PLAIN, """
operator xp: xp: float64[n=4, k=6] = partition(x) {axis=1, degree=3}
operator wp: wp: float64[o=8, k=6] = partition(w) {axis=1, degree=3}
operator yp: yp: float64[n=4, o=8] = linear(xp, wp)
operator y: y: float64[n=4, o=8] = reduce(yp) {axis="sums", degree=3}
"""),
    "all three at once": (LINEAR_ENTERS, LINEAR_PLAIN, """
operator xr: xr: float64[n=4, k=6] = replicate(x) {axis="copies", degree=4}
operator xn: xn: float64[n=4, k=6] = partition(xr) {axis=0, degree=2}
operator xp: xp: float64[n=4, k=6] = partition(xn) {axis=1, degree=3}
operator wr: wr: float64[o=8, k=6] = replicate(w) {axis="copies", degree=2}
operator wo: wo: float64[o=8, k=6] = partition(wr) {axis=0, degree=4}
operator wp: wp: float64[o=8, k=6] = partition(wo) {axis=1, degree=3}
operator yp: yp: float64[n=4, o=8] = linear(xp, wp)
operator yo: yo: float64[n=4, o=8] = combine(yp) {axis=1, degree=4}
operator yr: yr: float64[n=4, o=8] = reduce(yo) {axis="sums", degree=3}
operator y: y: float64[n=4, o=8] = combine(yr) {axis=0, degree=2}
"""),
    "micro-batches of a linear": (LINEAR_ENTERS, LINEAR_PLAIN, """
operator xs: xs: float64[n=2, k=6] = pipeline(x) {axis=0, count=2}
operator ws: ws: float64[o=8, k=6] = replicate(w) {axis="steps", degree=2}
operator ys: ys: float64[n=2, o=8] = linear(xs, ws)
operator y: y: float64[n=4, o=8] = batch(ys) {axis=0, count=2}
"""),
    "micro-batches in two stages, data parallel": (MLP_ENTERS, MLP_PLAIN, """
operator xs: xs: float64[n=2, s=2, k=6] = pipeline(x) {axis=0, count=2}
operator xp: xp: float64[n=2, s=2, k=6] = partition(xs) {axis=0, degree=2}
operator ws: ws: float64[o=8, k=6] = replicate(w) {axis="steps", degree=2}
operator wr: wr: float64[o=8, k=6] = replicate(ws) {axis="copies", degree=2}
operator bs: bs: float64[o=8] = replicate(b) {axis="steps", degree=2}
operator br: br: float64[o=8] = replicate(bs) {axis="copies", degree=2}
operator hp: hp: float64[n=2, s=2, o=8] = linear(xp, wr, br)
operator ap: ap: float64[n=2, s=2, o=8] = gelu(hp)
operator vs: vs: float64[k=6, o=8] = replicate(v) {axis="steps", degree=2}
operator vr: vr: float64[k=6, o=8] = replicate(vs) {axis="copies", degree=2}
operator zp: zp: float64[n=2, s=2, k=6] = linear(ap, vr)
operator cs: cs: float64[k=6] = replicate(c) {axis="steps", degree=2}
operator cr: cr: float64[k=6] = replicate(cs) {axis="copies", degree=2}
operator z2: z2: float64[n=2, s=2, k=6] = add(zp, cr)
operator yp: yp: float64[n=2, s=2, k=6] = add(z2, xp)
operator ys: ys: float64[n=2, s=2, k=6] = combine(yp) {axis=0, degree=2}
operator y: y: float64[n=4, s=2, k=6] = batch(ys) {axis=0, count=2}
"""),
    "Megatron's MLP": (MLP_ENTERS, MLP_PLAIN, """
operator xr: xr: float64[n=4, s=2, k=6] = replicate(x) {axis="copies", degree=2}
operator wp: wp: float64[o=8, k=6] = partition(w) {axis=0, degree=2}
operator bp: bp: float64[o=8] = partition(b) {axis=0, degree=2}
operator hp: hp: float64[n=4, s=2, o=8] = linear(xr, wp, bp)
operator ap: ap: float64[n=4, s=2, o=8] = gelu(hp)
operator vp: vp: float64[k=6, o=8] = partition(v) {axis=1, degree=2}
operator zp: zp: float64[n=4, s=2, k=6] = linear(ap, vp)
operator z: z: float64[n=4, s=2, k=6] = reduce(zp) {axis="sums", degree=2}
operator z2: z2: float64[n=4, s=2, k=6] = add(z, c)
operator y: y: float64[n=4, s=2, k=6] = add(z2, x)
"""),
    "Megatron's attention": (ATTENTION_ENTERS, ATTENTION_PLAIN, f"""
operator xr: xr: float64[n=2, s=4, e=12] = replicate(x) {{axis="copies", degree=2}}
operator wqp: wqp: float64[o=12, e=12] = partition(wq) {{axis=0, degree=2}}
operator wkp: wkp: float64[o=12, e=12] = partition(wk) {{axis=0, degree=2}}
operator wvp: wvp: float64[o=12, e=12] = partition(wv) {{axis=0, degree=2}}
operator wop: wop: float64[o=12, e=12] = partition(wo) {{axis=1, degree=2}}
{attention("xr", "wqp", "wkp", "wvp", "wop")}
operator zr: zr: float64[n=2, s=4, e=12] = reduce(z) {{axis="sums", degree=2}}
operator y: y: float64[n=2, s=4, e=12] = add(zr, x)
"""),
    "causal attention by queries and values": (QUERIES_ENTERS, QUERIES_PLAIN, """
operator qr: qr: float64[n=2, h=3, s=4, d=5] = replicate(q) {axis="copies", degree=2}
operator qp: qp: float64[n=2, h=3, s=4, d=5] = partition(qr) {axis=2, degree=4}
operator kr: kr: float64[n=2, h=3, s=6, d=5] = replicate(k) {axis="copies", degree=8}
operator vr: vr: float64[n=2, h=3, s=6, d=4] = replicate(v) {axis="copies", degree=4}
operator vp: vp: float64[n=2, h=3, s=6, d=4] = partition(vr) {axis=3, degree=2}
operator yp: yp: float64[n=2, h=3, s=4, d=4] = scaled_dot_product_attention(qp, kr, vp) \
{is_causal=true}
operator yv: yv: float64[n=2, h=3, s=4, d=4] = combine(yp) {axis=2, degree=4}
operator y: y: float64[n=2, h=3, s=4, d=4] = combine(yv) {axis=3, degree=2}
"""),
    "attention by samples and heads": (QUERIES_ENTERS, QUERIES_PLAIN, """
operator qn: qn: float64[n=2, h=3, s=4, d=5] = partition(q) {axis=0, degree=2}
operator qp: qp: float64[n=2, h=3, s=4, d=5] = partition(qn) {axis=1, degree=3}
operator kn: kn: float64[n=2, h=3, s=6, d=5] = partition(k) {axis=0, degree=2}
operator kp: kp: float64[n=2, h=3, s=6, d=5] = partition(kn) {axis=1, degree=3}
operator vn: vn: float64[n=2, h=3, s=6, d=4] = partition(v) {axis=0, degree=2}
operator vp: vp: float64[n=2, h=3, s=6, d=4] = partition(vn) {axis=1, degree=3}
operator yp: yp: float64[n=2, h=3, s=4, d=4] = scaled_dot_product_attention(qp, kp, vp) \
{is_causal=true}
operator yn: yn: float64[n=2, h=3, s=4, d=4] = combine(yp) {axis=1, degree=3}
operator y: y: float64[n=2, h=3, s=4, d=4] = combine(yn) {axis=0, degree=2}
"""),
    "convolution by rows and columns": (CONV_ENTERS, CONV_PLAIN, """
operator xp: xp: float64[n=2, c=4, h=8, w=12] = partition(x) {axis=2, degree=4}
operator xh: xh: float64[n=2, c=4, h=8, w=12] = halo(xp) {after=1, axis=2, before=1}
operator xq: xq: float64[n=2, c=4, h=8, w=12] = partition(xh) {axis=3, degree=3}
operator xx: xx: float64[n=2, c=4, h=8, w=12] = halo(xq) {after=1, axis=3, before=1}
operator kr: kr: float64[o=6, c=4, p=3, q=3] = replicate(k) {axis="copies", degree=12}
operator yp: yp: float64[n=2, o=6, h=8, w=12] = conv2d(xx, kr) {padding=[1, 1]}
operator yq: yq: float64[n=2, o=6, h=8, w=12] = combine(yp) {axis=2, degree=4}
operator y: y: float64[n=2, o=6, h=8, w=12] = combine(yq) {axis=3, degree=3}
"""),
    "convolution with a stride, by rows and samples": (STRIDED_ENTERS, STRIDED_PLAIN, """
operator xn: xn: float64[n=2, c=4, h=8, w=12] = partition(x) {axis=0, degree=2}
operator xp: xp: float64[n=2, c=4, h=8, w=12] = partition(xn) {axis=2, degree=2}
operator xh: xh: float64[n=2, c=4, h=8, w=12] = halo(xp) {after=0, axis=2, before=1}
operator kr: kr: float64[o=6, c=4, p=3, q=3] = replicate(k) {axis="copies", degree=4}
operator br: br: float64[o=6] = replicate(b) {axis="copies", degree=4}
operator yp: yp: float64[n=2, o=6, h=4, w=6] = conv2d(xh, kr, br) \
{padding=[1, 1], stride=[2, 2]}
operator yn: yn: float64[n=2, o=6, h=4, w=6] = combine(yp) {axis=2, degree=2}
operator y: y: float64[n=2, o=6, h=4, w=6] = combine(yn) {axis=0, degree=2}
"""),
    "convolution by channels, both ways": (CONV_ENTERS, CONV_PLAIN, """
operator xr: xr: float64[n=2, c=4, h=8, w=12] = replicate(x) {axis="copies", degree=3}
operator xp: xp: float64[n=2, c=4, h=8, w=12] = partition(xr) {axis=1, degree=2}
operator ko: ko: float64[o=6, c=4, p=3, q=3] = partition(k) {axis=0, degree=3}
operator kp: kp: float64[o=6, c=4, p=3, q=3] = partition(ko) {axis=1, degree=2}
operator yp: yp: float64[n=2, o=6, h=8, w=12] = conv2d(xp, kp) {padding=[1, 1]}
operator yo: yo: float64[n=2, o=6, h=8, w=12] = reduce(yp) {axis="sums", degree=2}
operator y: y: float64[n=2, o=6, h=8, w=12] = combine(yo) {axis=1, degree=3}
"""),
    "embedding by rows and columns of its table": (TABLE_ENTERS, TABLE_PLAIN, """
operator tr: tr: int64[n=4, s=3] = replicate(t) {axis="copies", degree=6}
operator wv: wv: float64[v=6, j=8] = partition(w) {axis=0, degree=3}
operator wp: wp: float64[v=6, j=8] = partition(wv) {axis=1, degree=2}
operator yp: yp: float64[n=4, s=3, j=8] = embedding(wp, tr)
operator yr: yr: float64[n=4, s=3, j=8] = reduce(yp) {axis="sums", degree=3}
operator y: y: float64[n=4, s=3, j=8] = combine(yr) {axis=2, degree=2}
"""),
    "bags by sample, content and row": (TABLE_ENTERS, BAGS_PLAIN, """
operator tr: tr: int64[n=4, s=3] = replicate(t) {axis="copies", degree=2}
operator tn: tn: int64[n=4, s=3] = partition(tr) {axis=0, degree=2}
operator tp: tp: int64[n=4, s=3] = partition(tn) {axis=1, degree=3}
operator wr: wr: float64[v=6, j=8] = replicate(w) {axis="copies", degree=6}
operator wp: wp: float64[v=6, j=8] = partition(wr) {axis=0, degree=2}
operator yp: yp: float64[n=4, j=8] = embedding_bag(wp, tp)
operator yr: yr: float64[n=4, j=8] = reduce(yp) {axis="sums", degree=6}
operator y: y: float64[n=4, j=8] = combine(yr) {axis=0, degree=2}
"""),
    "expert parallel": (EXPERTS_ENTERS, EXPERTS_PLAIN, """
operator xr: xr: float64[t=8, k=6] = replicate(x) {axis="copies", degree=4}
operator er: er: int32[g=4] = replicate(e) {axis="copies", degree=4}
operator wp: wp: float64[g=4, k=6, n=4] = partition(w) {axis=0, degree=4}
operator yp: yp: float64[t=8, n=4] = _grouped_mm(xr, wp, er)
operator y: y: float64[t=8, n=4] = reduce(yp) {axis="sums", degree=4}
"""),
    "experts by row, expert and inner dim": (EXPERTS_ENTERS, EXPERTS_PLAIN, """
operator xr: xr: float64[t=8, k=6] = replicate(x) {axis="copies", degree=2}
operator xt: xt: float64[t=8, k=6] = partition(xr) {axis=0, degree=4}
operator xp: xp: float64[t=8, k=6] = partition(xt) {axis=1, degree=3}
operator er: er: int32[g=4] = replicate(e) {axis="copies", degree=24}
operator wr: wr: float64[g=4, k=6, n=4] = replicate(w) {axis="copies", degree=4}
operator wg: wg: float64[g=4, k=6, n=4] = partition(wr) {axis=0, degree=2}
operator wp: wp: float64[g=4, k=6, n=4] = partition(wg) {axis=1, degree=3}
operator yp: yp: float64[t=8, n=4] = _grouped_mm(xp, wp, er)
operator yr: yr: float64[t=8, n=4] = reduce(yp) {axis="sums", degree=6}
operator y: y: float64[t=8, n=4] = combine(yr) {axis=0, degree=4}
"""),
    "sequence parallel": (SEQUENCE_ENTERS, SEQUENCE_PLAIN, """
operator xp: xp: float64[n=2, s=4, k=6] = partition(x) {axis=1, degree=4}
operator gr: gr: float64[k=6] = replicate(g) {axis="copies", degree=4}
operator br: br: float64[k=6] = replicate(b) {axis="copies", degree=4}
operator wr: wr: float64[o=6, k=6] = replicate(w) {axis="copies", degree=4}
operator lp: lp: float64[n=2, s=4, k=6] = layer_norm(xp, gr, br) {normalized_shape=[6]}
operator mp: mp: float64[n=2, s=4, o=6] = linear(lp, wr)
operator pp: pp: float64[n=2, s=4, o=6] = softmax(mp) {dim=-1}
operator yp: yp: float64[n=2, s=4, o=6] = add(pp, xp)
operator y: y: float64[n=2, s=4, o=6] = combine(yp) {axis=1, degree=4}
"""),
    "joined and parted in pieces": (PARTS_ENTERS, PARTS_PLAIN, """
operator xp: xp: float64[n=4, k=6] = partition(x) {axis=0, degree=2}
operator zp: zp: float64[n=4, k=2] = partition(z) {axis=0, degree=2}
operator c: c: float64[n=4, k=8] = cat(xp, zp) {dim=1}
operator s: s: float64[n=4, k=3], r: float64[n=4, k=5] = split_with_sizes(c) \
{dim=1, split_sizes=[3, 5]}
operator yp: yp: float64[n=4, k=5] = tanh(r)
operator y: y: float64[n=4, k=5] = combine(yp) {axis=0, degree=2}
"""),
}  # fmt: skip
