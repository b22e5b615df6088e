"""A census of ATen: which operators have a family, and which have not, literally.

`operators_without_family.txt` is to shrink. Three sets are counted: core ATen, to which PyTorch
reduces all others; pointwise operators; composites, which `torch.export` leaves whole, and of which
those in `support.composite_cases` are proved to be taken apart. Halves of the backward pass, sparse
and quantized tensors and PyTorch's own tests are no part of a captured graph.
"""

from __future__ import annotations

from pathlib import Path

import torch

from meshwright.capture.operators.composites import DEFINED, HANDLED
from meshwright.graph.families import BUILT_IN
from support.aten_operators import composites, tagged
from support.composite_cases import COMPOSITES

FILE = Path(__file__).with_name("operators_without_family.txt")

ELSEWHERE = (
    "_backward", "sparse", "_test_", "quantize", "fbgemm", "prepack", "_batch_dim", "nested",
    "mkldnn", "flatten_dense",
)  # fmt: skip

TURNED = {*HANDLED, "convolution"}
"""Kinds that a capture turns into others."""


def without_family(kinds: set[str]) -> list[str]:
    known = {*BUILT_IN, *DEFINED, *TURNED, *COMPOSITES}
    return sorted(kind for kind in kinds - known if not any(word in kind for word in ELSEWHERE))


def test_operators_without_family() -> None:
    sets = {
        "core": tagged(torch.Tag.core),
        "pointwise": tagged(torch.Tag.pointwise),
        "composite": composites(),
    }
    text = "".join(
        f"# {name}\n" + "".join(f"{kind}\n" for kind in without_family(kinds))
        for name, kinds in sets.items()
    )
    assert text == FILE.read_text()


def test_what_is_taken_apart_is_proved() -> None:
    internal = {"_weight_norm_interface", "diagonal_copy"}
    assert {*DEFINED} - internal <= {*COMPOSITES}
