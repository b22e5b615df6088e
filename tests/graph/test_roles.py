"""Roles of dims: FlexFlow's published table, literally, and the splits of today's operators."""

from __future__ import annotations

import pytest

from meshwright.graph.pieces import splits_of
from support.operator_cases import Case, case, real, whole

ONE_DIM_POOLING = case("max_pool1d", real(4, 6, 12), kernel_size=(3,))
ONE_DIM_CONVOLUTION = case("conv1d", real(4, 6, 12), real(8, 6, 3))
TWO_DIM_CONVOLUTION = case("conv2d", real(4, 6, 12, 12), real(8, 6, 3, 3))
MATRIX_MULTIPLICATION = case("linear", real(4, 6), real(8, 6))

FLEXFLOW_TABLE = [
    # operator, sample, attribute, parameter
    (ONE_DIM_POOLING, {"sample"}, {"length", "channel"}, set()),
    (ONE_DIM_CONVOLUTION, {"sample"}, {"length"}, {"channel"}),
    (TWO_DIM_CONVOLUTION, {"sample"}, {"height", "width"}, {"channel"}),
    (MATRIX_MULTIPLICATION, {"sample"}, set(), {"channel"}),
]
"""Table 1 of FlexFlow (MLSys 2019); it has no reductions, which later work added."""


@pytest.mark.parametrize(("operator", "sample", "attribute", "parameter"), FLEXFLOW_TABLE)
def test_flexflow_table(
    operator: Case, sample: set[str], attribute: set[str], parameter: set[str]
) -> None:
    names: dict[str, set[str]] = {"sample": set(), "attribute": set(), "parameter": set()}
    for split in splits_of(operator.call):
        if split.role != "reduction":
            names[split.role].add(split.name)
    assert names == {"sample": sample, "attribute": attribute, "parameter": parameter}


def roles(operator: Case) -> list[tuple[str, str, int]]:
    return [(split.name, split.role, split.extent) for split in splits_of(operator.call)]


def test_reductions_beyond_the_table() -> None:
    assert roles(MATRIX_MULTIPLICATION)[-1] == ("inner", "reduction", 6)
    assert roles(TWO_DIM_CONVOLUTION)[-1] == ("input-channel", "reduction", 6)


def test_grouped_convolution_is_cut_between_groups() -> None:
    resnext = case("conv2d", real(4, 128, 7, 7), real(128, 4, 3, 3), padding=(1, 1), groups=32)
    assert roles(resnext) == [
        ("sample", "sample", 4),
        ("height", "attribute", 7),
        ("width", "attribute", 7),
        ("channel", "parameter", 32),
    ]


def test_attention_with_fewer_key_heads_is_cut_in_key_heads() -> None:
    llama = case(
        "scaled_dot_product_attention",
        real(2, 32, 16, 8), real(2, 8, 16, 8), real(2, 8, 16, 8), enable_gqa=True, is_causal=True,
    )  # fmt: skip
    assert roles(llama) == [
        ("sample", "sample", 2),
        ("head", "attribute", 8),
        ("query", "attribute", 16),
        ("value", "parameter", 8),
        ("key", "reduction", 16),
    ]


def test_embedding_may_be_cut_by_vocabulary() -> None:
    assert roles(case("embedding", real(100, 16), whole(100, 4, 8))) == [
        ("sample", "sample", 4),
        ("dim1", "attribute", 8),
        ("channel", "parameter", 16),
        ("vocabulary", "reduction", 100),
    ]


def test_only_samples_of_a_recurrent_layer_are_independent() -> None:
    cell = case("gru_cell", real(5, 4), real(5, 3), real(9, 4), real(9, 3))
    assert roles(cell) == [("sample", "sample", 5)]
