"""One example or more of every kind of operator, small enough to be cut and run in a millisecond.

Enters: nothing. Leaves: `CASES`, each with operands from which real tensors can be drawn. Sizes are
chosen so that 2, 3 and 4 parts come out uneven somewhere, and windows overlap.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from meshwright.graph.families import BUILT_IN, family_of, parallel, random_tensors
from meshwright.graph.operator_graph import Call, Spec, Value

Draw = Literal[
    "real", "positive", "chance", "whole", "flags", "rising", "offsets", "complex", "definite",
    "sorted", "large",
]  # fmt: skip


class Operand(NamedTuple):
    """How to draw one input.

    `below` bounds whole numbers; rising ones end with it, offsets begin with 0.
    """

    draw: Draw
    shape: tuple[int, ...]
    below: int = 0

    @property
    def spec(self) -> Spec:
        dtypes = {"flags": "bool", "complex": "complex128"}
        dtypes |= dict.fromkeys(("whole", "rising", "offsets"), "int64")
        return Spec(dtypes.get(self.draw, "float64"), self.shape)

    @property
    def learns(self) -> bool:
        """Chances are what PyTorch takes no gradient of: targets, statistics, class weights."""
        return self.draw in ("real", "positive", "complex", "definite")

    def tensor(self, generator: torch.Generator) -> torch.Tensor:
        match self.draw:
            case "real":
                return torch.randn(self.shape, dtype=torch.float64, generator=generator)
            case "positive":
                return torch.rand(self.shape, dtype=torch.float64, generator=generator) + 0.1
            case "large":
                return torch.rand(self.shape, dtype=torch.float64, generator=generator) + 1.5
            case "chance":
                return torch.rand(self.shape, dtype=torch.float64, generator=generator)
            case "whole":
                return torch.randint(0, self.below, self.shape, generator=generator)
            case "complex":
                return torch.randn(self.shape, dtype=torch.complex128, generator=generator)
            case "definite":
                root = torch.randn(self.shape, dtype=torch.float64, generator=generator)
                return root @ root.mT + self.shape[-1] * torch.eye(self.shape[-1])
            case "sorted":
                rows = torch.rand(self.shape, dtype=torch.float64, generator=generator)
                return rows.sort().values
            case "flags":
                return torch.rand(self.shape, generator=generator) > 0.5
            case "rising" | "offsets":
                ends = torch.randint(0, self.below + 1, self.shape, generator=generator)
                ends[0] = self.below if self.draw == "rising" else 0
                return ends.sort().values


class Case(NamedTuple):
    """A kind with operands and attributes."""

    kind: str
    operands: tuple[Operand | None, ...]
    attributes: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        operands = ", ".join("-" if o is None else str(list(o.shape)) for o in self.operands)
        return f"{self.kind}({operands}) {dict(self.attributes) or ''}"

    @property
    def call(self) -> Call:
        inputs = tuple(None if o is None else o.spec for o in self.operands)
        unfinished = Call(kind=self.kind, inputs=inputs, outputs=(), attributes=self.attributes)
        outputs = family_of(unfinished).outputs(unfinished)
        return Call(kind=self.kind, inputs=inputs, outputs=outputs, attributes=self.attributes)

    def tensors(self, seed: int = 0) -> list[torch.Tensor | None]:
        """Real values for the operands; those that can have a gradient ask for it."""
        generator = torch.Generator().manual_seed(seed)
        return [
            None if o is None else o.tensor(generator).requires_grad_(o.learns)
            for o in self.operands
        ]


def case(kind: str, *operands: Operand | None, **attributes: Value) -> Case:
    return Case(kind, operands, tuple(sorted(attributes.items())))


def real(*shape: int) -> Operand:
    return Operand("real", shape)


def positive(*shape: int) -> Operand:
    return Operand("positive", shape)


def chance(*shape: int) -> Operand:
    return Operand("chance", shape)


def whole(below: int, *shape: int) -> Operand:
    return Operand("whole", shape, below)


def flags(*shape: int) -> Operand:
    return Operand("flags", shape)


def complex_(*shape: int) -> Operand:
    return Operand("complex", shape)


def large(*shape: int) -> Operand:
    return Operand("large", shape)


def definite(*shape: int) -> Operand:
    return Operand("definite", shape)


def boundaries(*shape: int) -> Operand:
    return Operand("sorted", shape)


def weights(gates: int, width: int, hidden: int, layers: int, directions: int) -> list[Operand]:
    """The weights of a recurrent network, in the order of PyTorch."""
    operands = []
    for layer in range(layers):
        for _ in range(directions):
            wide = width if layer == 0 else directions * hidden
            rows = gates * hidden
            operands += [real(rows, wide), real(rows, hidden), real(rows), real(rows)]
    return operands


PRODUCTS = (
    case("linear", real(5, 4, 7), real(6, 7), real(6)),
    case("linear", real(8, 4), real(3, 4)),
    case("linear", real(6), real(5, 6), real(5)),
    case("linear_relu", real(5, 4, 7), real(6, 7)),
    case("matmul", real(5, 4), real(4, 6)),
    case("matmul", real(3, 1, 5, 4), real(2, 4, 6)),
    case("matmul", real(4), real(4, 6)),
    case("matmul", real(3, 5, 4), real(4)),
    case("matmul", real(6), real(6)),
    case("mm", real(5, 4), real(4, 7)),
    case("bmm", real(3, 5, 4), real(3, 4, 6)),
    case("addmm", real(6), real(5, 4), real(4, 6), beta=2, alpha=3),
    case("addmm", real(5, 1), real(5, 4), real(4, 6)),
    case("baddbmm", real(3, 1, 6), real(3, 5, 4), real(3, 4, 6)),
    case("_grouped_mm", real(9, 4), real(3, 4, 6), Operand("rising", (3,), 9)),
)

CONTRACTIONS = (
    case("einsum", real(3, 5, 4), real(3, 6, 4), equation="bij,bkj->bik"),
    case("einsum", real(2, 3, 5, 4), real(2, 6, 3, 4), equation="bhqd,bkhd->bhqk"),
    case("einsum", real(6, 4), real(3, 5, 4), equation="oi, bti -> bto"),
    case("einsum", real(3, 5, 4), real(4, 6), equation="...i,ij"),
    case("einsum", real(3, 2, 5), real(2, 5), real(5, 6), equation="b...i,...i,ij->...jb"),
    case("einsum", real(3, 5, 4), real(5, 1), equation="...ij,...ik->k"),
    case("einsum", real(4, 4), equation="ii"),
    case("einsum", real(5, 4, 4), equation="bii->bi"),
    case("einsum", real(5, 4, 3), equation="ijk->kj"),
    case("einsum", real(5, 4), real(5, 4), equation="ij,ij->"),
    case("einsum", real(5, 1), real(1, 4), equation="ij,ij->ji"),
    case("bilinear", real(5, 2, 4), real(5, 2, 3), real(6, 4, 3), real(6)),
    case("bilinear", real(5, 4), real(5, 3), real(6, 4, 3)),
    case("mv", real(5, 4), real(4)),
    case("dot", real(6), real(6)),
    case("vdot", real(6), real(6)),
    case("outer", real(5), real(4)),
    case("trace", real(4, 4)),
    case("addbmm", real(5, 6), real(3, 5, 4), real(3, 4, 6), beta=2, alpha=3),
    case("addmv", real(5), real(5, 4), real(4)),
    case("addr", real(5, 4), real(5), real(4), beta=0.5),
)

GATED = (
    "v0 = _grouped_mm(rows, w0, ends); v1 = silu(v0); v2 = _grouped_mm(rows, w1, ends); "
    "v3 = mul(v1, v2); v4 = _grouped_mm(v3, w2, ends)"
)
"""Mixtral's experts."""

FUSED = (
    "v0 = transpose(w0) {dim0=1, dim1=2}; v1 = _grouped_mm(rows, v0, ends); "
    "v2 = index(w1, ids); v3 = add(v1, v2); v4, v5 = chunk(v3) {chunks=2, dim=-1}; "
    "v6 = silu(v4); v7 = mul(v6, v5); v8 = _grouped_mm(v7, w2, ends)"
)
"""Gates and values in one product, with biases; as Transformers has them."""

BIASED = (
    "v0 = _grouped_mm(rows, w0, ends); v1 = index(w1, ids); v2 = add(v0, v1); v3 = relu(v2); "
    "v4 = transpose(w2) {dim0=1, dim1=2}; v5 = _grouped_mm(v3, v4, ends)"
)

EXPERTS = (
    case(
        "routed_experts", real(9, 4), whole(3, 9, 2), real(9, 2),
        real(3, 4, 6), real(3, 4, 6), real(3, 6, 5), body=GATED, experts=3,
    ),
    case(
        "routed_experts", real(8, 4), whole(4, 8, 2), real(8, 2),
        real(4, 12, 4), real(4, 12), real(4, 6, 4), body=FUSED, experts=4,
    ),
    case(
        "routed_experts", real(7, 4), whole(2, 7, 1), real(7, 1),
        real(2, 4, 6), real(2, 6), real(2, 4, 6), body=BIASED, experts=2,
    ),
)  # fmt: skip

CONVOLUTIONS = (
    case("conv1d", real(4, 6, 11), real(5, 6, 3), real(5), stride=(2,), padding=(1,)),
    case("conv1d", real(6, 11), real(5, 6, 3)),
    case("conv2d", real(3, 4, 9, 8), real(6, 4, 3, 3), real(6), padding=(1, 1)),
    case("conv2d", real(3, 4, 12, 9), real(6, 4, 3, 2), stride=(2, 3), dilation=(2, 1)),
    case("conv2d", real(2, 6, 8, 7), real(9, 2, 3, 3), real(9), groups=3, padding=(1, 2)),
    case("conv2d", real(2, 4, 8, 7), real(4, 1, 3, 3), real(4), groups=4),
    case("conv2d", real(2, 3, 8, 7), real(4, 3, 4, 3), real(4), padding="same"),
    case("conv2d", real(2, 3, 8, 7), real(4, 3, 4, 3), padding="valid"),
    case("conv3d", real(2, 3, 6, 5, 7), real(4, 3, 3, 2, 3), real(4), padding=(1, 0, 1)),
    case("conv_transpose1d", real(4, 6, 7), real(6, 5, 3), real(5), stride=(2,), padding=(1,)),
    case("conv_transpose2d", real(3, 6, 5, 4), real(6, 2, 3, 3), real(4), groups=2),
    case(
        "conv_transpose2d", real(3, 4, 5, 4), real(4, 5, 3, 2),
        stride=(2, 2), output_padding=(1, 0), dilation=(1, 2),
    ),
    case(
        "conv_transpose2d", real(2, 3, 4, 6), real(3, 4, 4, 3), real(4), stride=(2, 3),
        padding=(1, 1), output_padding=(1, 2), dilation=(1, 2),
    ),
    case("conv_transpose1d", real(2, 3, 4), real(3, 2, 2), real(2), stride=(3,)),
    case("conv_transpose3d", real(2, 3, 4, 3, 5), real(3, 4, 2, 2, 2), real(4)),
)  # fmt: skip

IMAGES = (
    case("upsample_nearest1d", real(3, 4, 5), output_size=None, scale_factors="2.5"),
    case("upsample_nearest2d", real(3, 4, 5, 6), output_size=(7, 12)),
    case("upsample_nearest3d", real(2, 3, 4, 5, 3), output_size=None, scale_factors="2.0 1.5 2.0"),
    case("_upsample_nearest_exact1d", real(3, 4, 5), output_size=(8,)),
    case("_upsample_nearest_exact2d", real(3, 4, 5, 6), output_size=None, scale_factors="2.0 2.0"),
    case("_upsample_nearest_exact3d", real(2, 3, 4, 5, 3), output_size=(5, 6, 7)),
    case("upsample_linear1d", real(3, 4, 5), output_size=(8,), align_corners=True),
    case(
        "upsample_bilinear2d", real(3, 4, 5, 6),
        output_size=None, scale_factors="2.0 2.0", align_corners=False,
    ),
    case("_upsample_bilinear2d_aa", real(3, 4, 9, 8), output_size=(4, 5), align_corners=False),
    case("upsample_trilinear3d", real(2, 3, 4, 5, 3), output_size=(5, 6, 7), align_corners=False),
    case("upsample_bicubic2d", real(3, 4, 5, 6), output_size=(7, 9), align_corners=True),
    case("_upsample_bicubic2d_aa", real(3, 4, 9, 8), output_size=(4, 5), align_corners=False),
    case(
        "grid_sampler_2d", real(3, 4, 5, 6), chance(3, 7, 2, 2),
        interpolation_mode=0, padding_mode=0, align_corners=False,
    ),
    case(
        "grid_sampler_3d", real(2, 3, 5, 6, 4), chance(2, 3, 4, 2, 3),
        interpolation_mode=0, padding_mode=1, align_corners=True,
    ),
    case(
        "im2col", real(3, 4, 7, 6),
        kernel_size=(3, 2), dilation=(1, 1), padding=(1, 0), stride=(2, 1),
    ),
    case(
        "im2col", real(4, 7, 6),
        kernel_size=(2, 2), dilation=(2, 1), padding=(0, 0), stride=(1, 1),
    ),
    case(
        "col2im", real(3, 24, 20), output_size=(7, 6),
        kernel_size=(3, 2), dilation=(1, 1), padding=(1, 0), stride=(2, 1),
    ),
    case("adaptive_max_pool1d", real(3, 4, 9), output_size=(4,)),
    case("adaptive_max_pool2d", real(3, 4, 7, 5), output_size=(3, 2)),
    case("adaptive_max_pool3d", real(2, 3, 4, 6, 5), output_size=(2, 3, 5)),
    case("max_pool1d_with_indices", real(3, 4, 13), kernel_size=(3,), stride=(2,), padding=(1,)),
    case("max_pool2d_with_indices", real(3, 4, 9, 10), kernel_size=(3, 2), ceil_mode=True),
    case("max_pool3d_with_indices", real(2, 3, 6, 5, 7), kernel_size=(2, 2, 3)),
)  # fmt: skip

POOLING = (
    case("max_pool1d", real(3, 4, 13), kernel_size=(3,), stride=(2,), padding=(1,)),
    case("max_pool2d", real(3, 4, 9, 10), kernel_size=(3, 2), stride=(2, 1), padding=(1, 0)),
    case("max_pool2d", real(2, 3, 10, 8), kernel_size=(3, 3), stride=(2, 2), ceil_mode=True),
    case("max_pool2d", real(3, 12, 9), kernel_size=(2, 2), dilation=(2, 1)),
    case("max_pool3d", real(2, 3, 6, 5, 7), kernel_size=(2, 2, 3), stride=(1, 1, 2)),
    case("avg_pool1d", real(3, 4, 13), kernel_size=(3,), stride=(2,), padding=(1,)),
    case("avg_pool2d", real(3, 4, 9, 10), kernel_size=(3, 3), stride=(1, 2), padding=(1, 1)),
    case(
        "avg_pool2d", real(3, 4, 9, 10),
        kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), count_include_pad=False,
    ),
    case("avg_pool2d", real(2, 3, 8, 8), kernel_size=(3, 3), stride=(2, 2), ceil_mode=True),
    case("avg_pool3d", real(2, 3, 6, 5, 7), kernel_size=(2, 3, 2)),
    case(
        "avg_pool2d", real(3, 4, 9, 10),
        kernel_size=(3, 2), padding=(1, 0), count_include_pad=False, divisor_override=2,
    ),
    case("adaptive_avg_pool1d", real(3, 4, 9), output_size=(1,)),
    case("adaptive_avg_pool2d", real(3, 4, 7, 5), output_size=(1, 1)),
    case("adaptive_avg_pool2d", real(3, 4, 12, 5), output_size=(4, 3)),
    case("adaptive_avg_pool3d", real(2, 3, 4, 6, 5), output_size=(2, 3, 5)),
)  # fmt: skip

ATTENTION = (
    case("scaled_dot_product_attention", real(3, 4, 7, 5), real(3, 4, 6, 5), real(3, 4, 6, 8)),
    case(
        "scaled_dot_product_attention", real(3, 4, 7, 5), real(3, 4, 7, 5), real(3, 4, 7, 5),
        is_causal=True,
    ),
    case(
        "scaled_dot_product_attention",
        real(3, 4, 7, 5), real(3, 4, 6, 5), real(3, 4, 6, 8), real(3, 1, 7, 6), scale=0.3,
    ),
    case(
        "scaled_dot_product_attention",
        real(2, 8, 5, 4), real(2, 4, 6, 4), real(2, 4, 6, 4), enable_gqa=True,
    ),
    case("scaled_dot_product_attention", real(4, 7, 5), real(4, 6, 5), real(4, 6, 5)),
)  # fmt: skip

EMBEDDING = (
    case("embedding", real(9, 6), whole(9, 5, 4)),
    case("embedding", real(9, 6), whole(9, 5), padding_idx=2),
    case("embedding", real(9, 6), whole(3, 5, 4), scale_grad_by_freq=True),
    case("embedding_bag", real(9, 6), whole(3, 5, 4), scale_grad_by_freq=True),
    case("embedding_bag", real(9, 6), whole(9, 5, 4)),
    case("embedding_bag", real(9, 6), whole(9, 5, 4), mode=1),
    case("embedding_bag", real(9, 6), whole(9, 12), Operand("offsets", (3,), 12)),
)

RECURRENT = (
    case(
        "lstm", real(6, 5, 4), real(2, 5, 3), real(2, 5, 3), *weights(4, 4, 3, 2, 1),
        has_biases=True, num_layers=2, dropout=0.0, train=True, bidirectional=False,
        batch_first=False,
    ),
    case(
        "gru", real(5, 6, 4), real(2, 5, 3), *weights(3, 4, 3, 1, 2),
        has_biases=True, num_layers=1, dropout=0.0, train=True, bidirectional=True,
        batch_first=True,
    ),
    case(
        "rnn_tanh", real(6, 5, 4), real(2, 5, 3), *weights(1, 4, 3, 2, 1),
        has_biases=True, num_layers=2, dropout=0.0, train=True, bidirectional=False,
        batch_first=False,
    ),
    case(
        "rnn_relu", real(5, 6, 4), real(2, 5, 3), *weights(1, 4, 3, 1, 2),
        has_biases=True, num_layers=1, dropout=0.0, train=True, bidirectional=True,
        batch_first=True,
    ),
    case(
        "lstm_cell", real(5, 4), real(5, 3), real(5, 3), real(12, 4), real(12, 3), real(12),
        real(12),
    ),
    case("gru_cell", real(5, 4), real(5, 3), real(9, 4), real(9, 3), real(9), real(9)),
    case(
        "lstm", real(4, 5, 3), real(1, 5, 8), real(1, 5, 8), real(4, 8, 3), real(4, 8, 8),
        real(4, 8), real(4, 8), has_biases=True, num_layers=1, dropout=0.0, train=True,
        bidirectional=False, batch_first=False,
    ),
    case(
        "lstm", real(5, 1, 3), real(1, 5, 8), real(1, 5, 8), real(4, 8, 3), real(4, 8, 8),
        has_biases=False, num_layers=1, dropout=0.0, train=True, bidirectional=False,
        batch_first=True,
    ),
    case(
        "gru", real(5, 3, 4), real(1, 5, 6), real(3, 6, 4), real(3, 6, 6), real(3, 6),
        real(3, 6), has_biases=True, num_layers=1, dropout=0.0, train=True,
        bidirectional=False, batch_first=True,
    ),
    case(
        "lstm_cell", real(5, 4), real(5, 6), real(5, 6), real(4, 6, 4), real(4, 6, 6),
        real(4, 6), real(4, 6),
    ),
    case("gru_cell", real(5, 4), real(5, 6), real(3, 6, 4), real(3, 6, 6), real(3, 6), real(3, 6)),
)  # fmt: skip

NORMALISATIONS = (
    case("layer_norm", real(5, 4, 6), real(6), real(6), normalized_shape=(6,)),
    case("layer_norm", real(5, 4, 6), normalized_shape=(4, 6)),
    case("native_layer_norm", real(5, 4, 6), real(6), real(6), normalized_shape=(6,), eps=1e-5),
    case("rms_norm", real(5, 4, 6), real(6), normalized_shape=(6,), eps=1e-6),
    case("group_norm", real(5, 8, 3, 2), real(8), real(8), num_groups=4),
    case(
        "instance_norm", real(5, 4, 6), real(4), real(4),
        use_input_stats=True, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
    case(
        "instance_norm", real(5, 4, 6), real(4), real(4), chance(4), chance(4),
        use_input_stats=True, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
    case(
        "instance_norm", real(5, 4, 6), None, None, chance(4), chance(4),
        use_input_stats=False, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
    case(
        "batch_norm", real(8, 4, 8, 7), real(4), real(4), chance(4), chance(4),
        training=True, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
    case(
        "batch_norm", real(5, 4, 6), None, None, chance(4), chance(4),
        training=False, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
    case(
        "batch_norm", real(5, 4, 6), real(4), real(4), chance(4), chance(4),
        training=False, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
)  # fmt: skip

SOFTMAX = (
    case("softmax", real(5, 4, 6), dim=-1),
    case("log_softmax", real(5, 4, 6), dim=1),
    case("_softmax", real(5, 4, 6), dim=2, half_to_float=False),
    case("_log_softmax", real(5, 4, 6), dim=0, half_to_float=False),
)

LOSSES = (
    case("cross_entropy_loss", real(5), whole(5)),
    case("cross_entropy_loss", real(8, 5), whole(5, 8)),
    case("cross_entropy_loss", real(8, 5), whole(5, 8), chance(5), label_smoothing=0.1),
    case("cross_entropy_loss", real(8, 5), whole(5, 8), ignore_index=2),
    case("cross_entropy_loss", real(6, 5, 4), whole(5, 6, 4), reduction=2),
    case("cross_entropy_loss", real(6, 5, 4), whole(5, 6, 4), reduction=0),
    case("cross_entropy_loss", real(6, 5, 4), positive(6, 5, 4)),
    case("nll_loss", real(8, 5), whole(5, 8), ignore_index=2),
    case("nll_loss_nd", real(6, 5, 4), whole(5, 6, 4), reduction=2),
    case("nll_loss_nd", real(6, 5), whole(5, 6)),
    case(
        "ctc_losses",
        real(7, 6, 5),
        whole(5, 6, 2),
        whole(8, 6),
        whole(3, 6),
        blank=0,
        zero_infinity=True,
    ),
    case("mse_loss", real(5, 4), real(5, 4)),
    case("mse_loss", real(5, 4), real(5, 4), reduction=2),
    case("mse_loss", real(5, 4), real(5, 4), reduction=0),
    case("l1_loss", real(5, 4), real(5, 4)),
    case("smooth_l1_loss", real(5, 4), real(5, 4)),
    case("huber_loss", real(5, 4), real(5, 4)),
    case("kl_div", real(5, 4), positive(5, 4)),
    case("binary_cross_entropy", chance(5, 4), chance(5, 4), reduction=2),
    case("binary_cross_entropy_with_logits", real(5, 4), chance(5, 4), None, chance(4)),
)

_BINARY = (
    "add", "sub", "mul", "div", "true_divide", "maximum", "minimum", "fmax", "fmin", "remainder",
    "fmod", "atan2", "pow",
)  # fmt: skip
_UNARY = (
    "neg", "positive", "clone", "contiguous", "abs", "square", "log", "log1p", "log2", "sin", "cos",
    "erf", "gelu", "silu", "mish", "softplus", "hardswish", "hardsigmoid", "elu", "selu",
    "log_sigmoid", "exp", "expm1", "sqrt", "rsqrt", "sigmoid", "tanh", "reciprocal", "relu",
    "leaky_relu", "relu6", "hardtanh", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf",
    "isfinite", "zeros_like", "ones_like", "lift_fresh_copy", "alias", "detach",
)  # fmt: skip

ELEMENTWISE = (
    *(case(kind, positive(5, 1, 6), positive(4, 6)) for kind in _BINARY),
    *(case(kind, positive(5, 6)) for kind in _UNARY),
    *(case(kind, real(5, 6), real(6)) for kind in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(case(f"logical_{word}", flags(5, 6), flags(6)) for word in ("and", "or", "xor")),
    *(case(f"bitwise_{word}", whole(9, 5, 6), whole(9, 6)) for word in ("and", "or", "xor")),
    case("logical_not", flags(5, 6)),
    case("bitwise_not", whole(9, 5, 6)),
    case("floor_divide", positive(5, 6), positive(6)),
    case("rsub", real(5, 6), other=2),
    case("div", whole(9, 5, 6), other=2),
    case("div", whole(9, 5, 6), other=2, rounding_mode="floor"),
    *(case(f"__{word}__", whole(9, 5, 6), whole(9, 6)) for word in ("and", "or", "xor")),
    case("add", whole(9, 5, 6), other=2.5),
    case("pow", real(5, 6), exponent=2),
    case("clamp", real(5, 6), min=-0.5, max=0.5),
    case("clamp_min", real(5, 6), min=0),
    case("clamp_max", real(5, 6), max=0),
    case("threshold", real(5, 6), threshold=0.1, value=0.0),
    case("full_like", real(5, 6), fill_value=3),
    case("to", real(5, 6), dtype="float64"),
    case("_to_copy", whole(9, 5, 6), dtype="float64"),
    case("where", flags(5, 1), real(5, 6), real(6)),
    case("masked_fill", real(5, 4, 6), flags(4, 6), value="-inf"),
    case("addcmul", real(5, 6), real(6), real(5, 1), value=2),
    case("addcdiv", real(5, 6), real(6), positive(5, 1)),
    case("dropout", real(5, 6), p=0.0, train=True),
    case("dropout", real(5, 6), p=1.0, train=True),
    case("alpha_dropout", real(5, 6), p=0.0, train=True),
    case("feature_dropout", real(5, 4, 6), p=0.0, train=True),
    case("feature_alpha_dropout", real(5, 4, 6), p=0.5, train=False),
    case("broadcast_tensors", real(5, 1), real(6)),
    case("tril", real(5, 4, 6), diagonal=1),
    case("triu", real(5, 4, 6)),
)

_OF_ONE = (
    "acos", "asin", "atan", "atanh", "cosh", "sinh", "asinh", "tan", "log10", "erfc", "erfinv",
    "digamma", "lgamma", "i0", "sinc", "logit", "deg2rad", "rad2deg", "exp2", "special_entr",
    "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
    "special_ndtri", "special_airy_ai", "special_bessel_j0", "special_bessel_j1",
    "special_bessel_y0", "special_bessel_y1", "special_modified_bessel_i0",
    "special_modified_bessel_i1", "special_modified_bessel_k0", "special_modified_bessel_k1",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0", "celu", "hardshrink", "softshrink", "sgn", "frac", "nan_to_num",
    "isneginf", "isposinf", "signbit",
)  # fmt: skip
_OF_TWO = (
    "logaddexp", "logaddexp2", "xlogy", "hypot", "copysign", "nextafter", "special_xlog1py",
    "special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w",
    "special_hermite_polynomial_h", "special_hermite_polynomial_he",
    "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
    "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w",
    "float_power",
)  # fmt: skip
_OF_WHOLE = ("gcd", "lcm", "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")

POINTWISE = (
    *(case(kind, chance(5, 6)) for kind in _OF_ONE),
    case("acosh", large(5, 6)),
    case("special_zeta", large(5, 6), large(6)),
    *(case(kind, chance(5, 1, 6), chance(4, 6)) for kind in _OF_TWO),
    *(case(kind, whole(5, 5, 6), whole(5, 6)) for kind in _OF_WHOLE),
    case("xlogy", real(5, 6), other=2.0),
    case("erfinv", whole(1, 5, 6)),
    case("float_power", whole(5, 5, 6), exponent=2),
    case("heaviside", chance(5, 6), chance(6)),
    case("ldexp", chance(5, 6), whole(4, 6)),
    case("igamma", chance(5, 6), chance(6)),
    case("igammac", chance(5, 6), chance(6)),
    case("polygamma", positive(5, 6), n=1),
    case("mvlgamma", large(5, 6), p=1),
    case("lerp", real(5, 6), real(6), weight=0.3),
    case("lerp", real(5, 6), real(6), real(5, 1)),
    case("_prelu_kernel", real(5, 4, 6), real(1, 4, 1)),
    case(
        "fake_quantize_per_tensor_affine", real(5, 6),
        scale=0.1, zero_point=2, quant_min=0, quant_max=255,
    ),
)  # fmt: skip

COMPLEX = (
    case("complex", real(5, 6), real(5, 6)),
    case("polar", positive(5, 1), real(5, 6)),
    case("angle", complex_(5, 6)),
    case("abs", complex_(5, 6)),
    case("_conj", complex_(5, 6)),
    case("conj_physical", complex_(5, 6)),
    case("mul", complex_(5, 6), real(6)),
    case("mul", real(5, 6), other="2j"),
    case("sum", complex_(5, 6), dim=(1,)),
    case("matmul", complex_(5, 4), complex_(4, 6)),
    case("slice_scatter", complex_(5, 8, 6), complex_(5, 3, 6), dim=1, start=2, end=5),
    case("select_scatter", complex_(5, 8, 6), complex_(5, 6), dim=1, index=3),
    case("diagonal_scatter", complex_(5, 4, 6), complex_(5, 4), dim1=1, dim2=2),
    case("view_as_real", complex_(5, 6)),
    case("view_as_complex", real(5, 6, 2)),
    case("_fft_c2c", complex_(5, 4, 6), dim=(1,), normalization=0, forward=True),
    case("_fft_c2c", complex_(5, 4, 6), dim=(2, 0), normalization=1, forward=False),
    case("_fft_r2c", real(5, 4, 6), dim=(2,), normalization=0, onesided=True),
    case("_fft_r2c", real(5, 4, 7), dim=(1, 2), normalization=2, onesided=False),
    case("_fft_c2r", complex_(5, 4, 4), dim=(2,), normalization=2, last_dim_size=7),
)

MATRICES = (
    *(
        case(kind, definite(5, 2, 4, 4))
        for kind in (
            "linalg_inv", "linalg_det", "linalg_slogdet", "logdet", "linalg_cholesky",
            "linalg_eigh", "linalg_eigvalsh", "linalg_matrix_exp", "linalg_pinv",
        )
    ),
    case("linalg_inv_ex", definite(5, 4, 4)),
    case("linalg_cholesky_ex", definite(5, 4, 4)),
    case("linalg_svdvals", real(5, 4, 3)),
    case("linalg_svd", real(5, 4, 4)),
    case("linalg_qr", real(5, 4, 3)),
    case("linalg_matrix_power", definite(5, 4, 4), n=3),
    case("linalg_solve", definite(5, 1, 4, 4), real(3, 4, 6)),
    case("linalg_solve_triangular", definite(5, 4, 4), real(5, 4, 3), upper=True),
    case("cholesky_solve", real(5, 4, 3), definite(5, 4, 4)),
    case("cdist", real(3, 5, 4), real(3, 6, 4)),
    case("cdist", real(3, 2, 5, 4), real(2, 6, 4), p=1.0),
    case("linalg_cross", real(5, 4, 3), real(1, 4, 3)),
    case("linalg_cross", real(5, 3, 4), real(5, 3, 1), dim=1),
    case("cosine_similarity", real(5, 4, 6), real(5, 4, 6)),
    case("cosine_similarity", real(5, 4, 6), real(4, 6), dim=-1),
)  # fmt: skip

REDUCTIONS = (
    case("sum", real(5, 4, 6)),
    case("sum", real(5, 4, 6), dim=(1,), keepdim=True),
    case("sum", whole(9, 5, 4), dim=(-1,)),
    case("mean", real(5, 4, 6)),
    case("mean", real(5, 4, 6), dim=(0, 2)),
    *(case(kind, real(5, 4, 6), dim=(1,)) for kind in ("amax", "amin", "logsumexp")),
    *(case(kind, real(5, 4, 6), dim=1) for kind in ("max", "min", "argmax", "argmin")),
    case("max", real(5, 4)),
    case("var", real(5, 4, 6), dim=(2,)),
    case("std", real(5, 4, 6), dim=(0,), keepdim=True),
    case("prod", real(5, 4, 6), dim=1),
    case("linalg_vector_norm", real(5, 4, 6), dim=(2,)),
    case("any", flags(5, 4, 6), dim=1),
    case("all", flags(5, 4, 6), dim=1),
    case("norm", real(5, 4, 6), p=2, dim=(1,)),
    case("norm", real(5, 4, 6), p=3, dim=(0, 2), keepdim=True),
    *(case(kind, real(5, 4, 6), dim=1) for kind in ("median", "nanmedian", "mode")),
    case("mode", whole(3, 5, 4, 6)),
    case("median", real(5, 4)),
    case("kthvalue", real(5, 4, 6), k=2, keepdim=True),
    case("kthvalue", real(5, 4, 6), k=2, dim=0),
    *(case(kind, real(5, 4, 6), dim=(1,)) for kind in ("var_mean", "std_mean")),
    case("aminmax", real(5, 4, 6), dim=1),
    case("nansum", real(5, 4, 6), dim=(1,)),
    case("count_nonzero", whole(2, 5, 4, 6), dim=(1,)),
    case("logcumsumexp", real(5, 4, 6), dim=1),
    case("cummax", real(5, 4, 6), dim=1),
    case("cummin", real(5, 4, 6), dim=0),
    case("cumsum", real(5, 4, 6), dim=1),
    case("cumprod", real(5, 4, 6), dim=2),
    case("diff", real(5, 4, 6)),
    case("diff", real(5, 4, 6), real(5, 1, 6), dim=1),
    case("histc", real(8, 5), bins=4, min=-2, max=2),
    case("histc", real(8, 5), bins=4),
    case("topk", real(5, 4, 8), k=3),
    case("topk", real(), k=1),
    case("sort", real(5, 4, 6), dim=1, descending=True),
    case("argsort", real(5, 4, 6)),
)

RESHAPES = (
    case("view", real(12, 5), size=(4, 3, 5)),
    case("view", real(4, 6, 5), size=(8, 3, 5)),
    case("_unsafe_view", real(5, 4, 6), size=(20, 6)),
    case("reshape", real(5, 4, 6), shape=(-1, 2, 3)),
    case("flatten", real(5, 4, 6), start_dim=1),
    case("unflatten", real(5, 12), dim=1, sizes=(4, -1)),
    case("squeeze", real(4, 1, 6)),
    case("squeeze", real(4, 1, 6), dim=1),
    case("squeeze", real(4, 1, 6), dim=(0, 1)),
    case("unsqueeze", real(4, 6), dim=1),
    case("permute", real(5, 4, 6), dims=(2, 0, -2)),
    case("transpose", real(5, 4, 6), dim0=0, dim1=-1),
    case("t", real(5, 4)),
    case("flip", real(5, 4, 6), dims=(1,)),
    case("roll", real(5, 4, 6), shifts=(2,), dims=(2,)),
)

SECTIONS = (
    case("slice", real(5, 8, 6), dim=1, start=1, end=7, step=2),
    case("slice", real(5, 8), start=-3, end=2**63 - 1),
    case("narrow", real(5, 8, 6), dim=1, start=2, length=4),
    case("select", real(5, 4, 6), dim=1, index=-1),
    case("split", real(5, 8, 6), split_size=3, dim=1),
    case("split_with_sizes", real(5, 8, 6), split_sizes=(3, 5), dim=1),
    case("chunk", real(5, 8, 6), chunks=3, dim=1),
    case("unbind", real(5, 3, 6), dim=1),
    case("cat", real(5, 4, 6), real(5, 3, 6), dim=1),
    case("stack", real(5, 4), real(5, 4), real(5, 4), dim=1),
    case("expand", real(5, 1, 6), size=(3, -1, 4, 6)),
    case("slice_scatter", real(5, 8, 6), real(5, 3, 6), dim=1, start=2, end=7, step=2),
    case("select_scatter", real(5, 8, 6), real(5, 6), dim=1, index=3),
    case("diagonal_scatter", real(5, 4, 6), real(5, 4), dim1=1, dim2=2, offset=1),
    case("diagonal", real(5, 4, 6), offset=-1, dim1=2, dim2=0),
    case("diagonal", real(5, 4, 6)),
    case("unfold", real(5, 8, 6), dimension=1, size=3, step=2),
    case("repeat", real(5, 4), repeats=(2, 1, 3)),
    case("repeat_interleave", real(5, 4), repeats=3, dim=1),
    case("constant_pad_nd", real(5, 4, 6), pad=(1, 2, 0, 0), value=1.0),
    case("pad", real(5, 4, 6), pad=(1, -1)),
    case("pad", real(5, 4, 6), pad=(1, 2), mode="circular"),
    case("reflection_pad1d", real(5, 4, 6), padding=(1, 2)),
    case("reflection_pad2d", real(5, 4, 6, 3), padding=(1, 2, 0, 0)),
    case("reflection_pad3d", real(2, 5, 4, 6, 3), padding=(1, 2, 0, 0, 1, 1)),
    case("replication_pad1d", real(5, 4, 6), padding=(1, 2)),
    case("replication_pad2d", real(5, 4, 6, 3), padding=(1, 2, 0, 0)),
    case("replication_pad3d", real(2, 5, 4, 6, 3), padding=(1, 2, 0, 0, 1, 1)),
)

INDEXING = (
    case("gather", real(5, 4, 6), whole(4, 5, 7, 6), dim=1),
    case("gather", real(5, 4, 6), whole(4, 3, 7, 6), dim=1),
    case("index_select", real(5, 4, 6), whole(4, 7), dim=1),
    case("scatter", real(5, 9), whole(9, 5, 1), dim=1, value=1.0),
    case("scatter_add", real(5, 4, 6), whole(4, 5, 7, 6), real(5, 7, 6), dim=1),
    case("scatter_add", real(), whole(1), real(), dim=0),
    case("index_add", real(5, 4, 6), whole(4, 7), real(5, 7, 6), dim=1),
    case("index", real(5, 4, 6), whole(5, 7)),
    case("index", real(5, 4, 6), None, whole(4, 3, 1), whole(6, 2)),
    case("index", real(5, 4, 6), whole(5, 3), None, whole(6, 3)),
    case("index_put", real(5, 4, 6), whole(5, 3), real(3, 4, 6), accumulate=True),
    case("index_put", real(5, 4, 6), None, Operand("offsets", (1,), 4), real(6)),
    case("scatter_reduce", real(5, 4, 6), whole(4, 5, 7, 6), real(5, 7, 6), dim=1, reduce="amax"),
    case("scatter_reduce", real(5, 4), whole(4, 5, 7), real(5, 7), dim=1, reduce="mean"),
    case("index_copy", real(5, 4, 6), Operand("offsets", (1,), 4), real(5, 1, 6), dim=1),
    case("index_fill", real(5, 4, 6), whole(4, 3), dim=1, value=2.5),
    case("index_fill", real(5, 4, 6), whole(6, 3), real(), dim=2),
    case("masked_scatter", real(5, 4), flags(5, 4), real(5, 4)),
    case("searchsorted", boundaries(6), chance(5, 4)),
    case("searchsorted", boundaries(5, 6), chance(5, 4), right=True),
    case("bucketize", chance(5, 4), boundaries(6), out_int32=True),
    case("take", real(5, 4), whole(20, 3, 6)),
    case("one_hot", whole(4, 5, 3), num_classes=4),
)

CREATION = (
    case("full", size=(5, 4), fill_value=2.5),
    case("zeros", size=(5, 4)),
    case("ones", size=(5, 4), dtype="int64"),
    case("new_full", real(2), size=(5, 4), fill_value=3),
    case("new_zeros", real(2), size=(5, 4)),
    case("new_ones", whole(3, 2), size=(5, 4)),
    case("scalar_tensor", s=2.0),
    case("arange", start=2, end=9),
    case("arange", end=7),
    case("eye", n=4),
    case("eye", n=4, m=3),
    case("linspace", start=0, end=1, steps=5),
    case("logspace", start=0, end=1, steps=5),
    case("tril_indices", row=4, col=3, offset=1),
    case("triu_indices", row=4, col=5, offset=-1),
    *(
        case(f"{word}_window", window_length=6)
        for word in ("hann", "hamming", "bartlett", "blackman", "kaiser")
    ),
)

CASES = (
    *PRODUCTS, *CONTRACTIONS, *CONVOLUTIONS, *IMAGES, *POOLING, *ATTENTION, *EMBEDDING, *RECURRENT,
    *NORMALISATIONS, *SOFTMAX, *LOSSES, *ELEMENTWISE, *POINTWISE, *COMPLEX, *MATRICES, *REDUCTIONS,
    *RESHAPES, *SECTIONS, *INDEXING, *CREATION,
    *EXPERTS,
)  # fmt: skip

WITHOUT_VALUES = {"empty", "empty_like", "new_empty", *random_tensors.KINDS}
"""Kinds whose results are not determined by their inputs: nothing can be compared."""

IN_PIECES = set(parallel.KINDS)
"""Kinds that say how tensors lie on several devices: nothing runs on one."""

assert {c.kind for c in CASES} | WITHOUT_VALUES | IN_PIECES == set(BUILT_IN), "a kind has no case"
