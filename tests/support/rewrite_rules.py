"""Rules for tests of matching and rewriting: true ones, of every shape that a matcher meets."""

from __future__ import annotations

from meshwright.rewrite.language.syntax import parse_rules

ALGEBRA = parse_rules("""
fuse: relu(linear(x, w)) => linear_relu(x, w)
unfuse: linear_relu(x, w) => relu(linear(x, w))
bias-out: linear_bias(x, w, b) => bias(linear(x, w), b)
bias-in: bias(linear(x, w), b) => linear_bias(x, w, b)
merge: (linear(x, w), linear(x, v)) => (split[-1, n](linear(x, concat[0](w, v))), split[-1, n](linear(x, concat[0](w, v))).1) if n = w.0
merge-convolutions: (conv2d[s, t, a, b](x, w), conv2d[s, t, a, b](x, v)) => (split[1, n](conv2d[s, t, a, b](x, concat[0](w, v))), split[1, n](conv2d[s, t, a, b](x, concat[0](w, v))).1) if n = w.0
beside: (relu(x), relu(y)) => (split[0, n](relu(concat[0](x, y))), split[0, n](relu(concat[0](x, y))).1) if n = x.0
part-again: concat[k](split[k, n](x), split[k, n](x).1) => x
associate: matmul(matmul(x, y), z) => matmul(x, matmul(y, z))
associate-back: matmul(x, matmul(y, z)) => matmul(matmul(x, y), z)
turn-twice: transpose[a, b](transpose[a, b](x)) => x
turn-relu: relu(transpose[a, b](x)) => transpose[a, b](relu(x))
relu-turn: transpose[a, b](relu(x)) => relu(transpose[a, b](x))
turn-sum: add(transpose[a, b](x), transpose[a, b](y)) => transpose[a, b](add(x, y))
commute: add(x, y) => add(y, x)
regroup: add(add(x, y), z) => add(x, add(y, z))
distribute: mul(add(x, y), z) => add(mul(x, z), mul(y, z))
factor: add(mul(x, z), mul(y, z)) => mul(add(x, y), z)
join-products: add(linear(x, w), linear(y, v)) => linear(concat[-1](x, y), concat[1](w, v)) if rank(x) = rank(y)
last-turned: transpose[-2, -1](matmul(x, y)) => matmul(transpose[-2, -1](y), transpose[-2, -1](x)) if rank(x) != 1
""")  # noqa: E501  a rule is one line

PARALLEL = parse_rules("""
linear-data: linear(x, w) => combine[0, d](linear(partition[0, d](x), replicate[d](w))) if rank(x) != 1
linear-column: linear(x, w) => combine[-1, d](linear(replicate[d](x), partition[0, d](w)))
linear-row: linear(x, w) => reduce[d](linear(partition[-1, d](x), partition[1, d](w)))
linear-steps: linear(x, w) => batch[0, m](linear(pipeline[0, m](x), replicate[steps, m](w))) if rank(x) != 1
convolution-data: conv2d[s, t, a, b](x, w) => combine[0, d](conv2d[s, t, a, b](partition[0, d](x), replicate[d](w)))
norm-data: layer_norm[z](x, g, b) => combine[0, d](layer_norm[z](partition[0, d](x), replicate[d](g), replicate[d](b))) if rank(x) != 1
heads: attention[z](q, k, v) => combine[1, d](attention[z](partition[1, d](q), partition[1, d](k), partition[1, d](v))) if rank(q) = 4
experts: experts(x, w, e) => reduce[d](experts(replicate[d](x), partition[0, d](w), replicate[d](e)))
relu-cut: relu(x) => combine[k, d](relu(partition[k, d](x)))
relu-down: relu(combine[k, d](x)) => combine[k, d](relu(x))
gelu-down: gelu(combine[k, d](x)) => combine[k, d](gelu(x))
sum-down: add(combine[k, d](x), combine[k, d](y)) => combine[k, d](add(x, y))
turn-cut: partition[a, d](transpose[a, b](x)) => transpose[a, b](partition[b, d](x))
whole-again: partition[k, d](combine[k, d](x)) => x
cut-in-vain: combine[k, d](partition[k, d](x)) => x
cut-twice: partition[k, d](partition[l, e](x)) => partition[l, e](partition[k, d](x)) if k != l
""")  # noqa: E501

RULES = (*ALGEBRA, *PARALLEL)
PARAMETERS = {"d": (2, 4), "m": (2,)}
