"""Unity's recommendation models, DLRM and XDL: large embedding tables under dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, class_loss, tokens


class Tables(nn.Module):
    """Embedding tables, each summing the rows that one feature of a sample names."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))

    def forward(self, bags: Sequence[Tensor]) -> list[Tensor]:
        """One vector for each sample from each table."""
        return [table(bag) for table, bag in zip(self.tables, bags, strict=True)]


def dense_layers(widths: Sequence[int], *, bias: bool) -> nn.Sequential:
    """Dense layers from width to width with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DlrmSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tables, rows of each, width of a row, rows a sample names; widths of the dense layers."""

    tables: int = 24
    rows: int = 1_000_000
    width: int = 256
    bag: int = 100
    bottom: tuple[int, ...] = (2048, 4096, 4096, 4096, 4096, 4096)
    top: tuple[int, ...] = (4096, 4096, 4096, 4096, 1)


class Dlrm(nn.Module):
    """Dense features through the bottom layers, sparse ones through tables, all through the top."""

    def __init__(self, sizes: DlrmSizes) -> None:
        super().__init__()
        self.embedding = Tables(sizes.tables, sizes.rows, sizes.width)
        self.bottom = dense_layers(sizes.bottom, bias=True)
        joined = sizes.bottom[-1] + sizes.tables * sizes.width
        self.top = dense_layers((joined, *sizes.top), bias=True)

    def forward(self, dense: Tensor, bags: Sequence[Tensor]) -> Tensor:
        """The logit of a click."""
        features = [functional.relu(self.bottom(dense)), *self.embedding(bags)]
        logit: Tensor = self.top(torch.cat(features, dim=1))
        return logit


def _bags(tables: int, rows: int, batch: int, bag: int) -> tuple[Tensor, ...]:
    return tuple(tokens(rows, batch, bag) for _ in range(tables))


DLRM = Entry(
    name="dlrm",
    sizes=DlrmSizes(),
    tiny=DlrmSizes(tables=4, rows=20, width=6, bag=3, bottom=(5, 8, 8), top=(8, 8, 1)),
    batch=1024,
    parameters=6_311_813_121,
    source="Unity's Summit scripts: bottom 2048-4096×5, top 10240-4096×4-1, bags of 100. 24 "
    "tables of 1 M × 256 is the variant whose concatenation is 10240 wide and, as the paper says, "
    "does not fit one V100.",
    build=Dlrm,
    inputs=lambda s, n: (torch.randn(n, s.bottom[0]), _bags(s.tables, s.rows, n, s.bag)),
    targets=lambda s, n: (torch.rand(n, 1),),
    loss=functional.binary_cross_entropy_with_logits,
)


class XdlSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tables, rows of each, width of a row, rows a sample names; widths of the dense layers."""

    tables: int = 4
    rows: int = 1_000_000
    width: int = 64
    bag: int = 1
    top: tuple[int, ...] = (256, 256, 2)


class Xdl(nn.Module):
    """Tables, their concatenation, dense layers without bias."""

    def __init__(self, sizes: XdlSizes) -> None:
        super().__init__()
        self.embedding = Tables(sizes.tables, sizes.rows, sizes.width)
        self.top = dense_layers((sizes.tables * sizes.width, *sizes.top), bias=False)

    def forward(self, *bags: Tensor) -> Tensor:
        """Logits of click and no click."""
        logits: Tensor = self.top(torch.cat(self.embedding(bags), dim=1))
        return logits


XDL = Entry(
    name="xdl",
    sizes=XdlSizes(),
    tiny=XdlSizes(rows=20, width=4, top=(8, 8, 2)),
    batch=1024,
    parameters=256_131_584,
    source="Unity's code: 4 tables of 1 M × 64, top 256-256-256-2 without bias; bags of 1 chosen; "
    "the count follows.",
    build=Xdl,
    inputs=lambda s, n: _bags(s.tables, s.rows, n, s.bag),
    targets=lambda s, n: (tokens(s.top[-1], n),),
    loss=class_loss,
)
