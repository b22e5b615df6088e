"""Mixtral 8×7B: Llama's decoder whose feed-forward layers are experts, two of eight a token."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo import llama
from meshwright.capture.zoo.entry import Entry, token_loss, tokens
from meshwright.capture.zoo.grouped_products import grouped_mm
from meshwright.capture.zoo.latent import LatentAttention


class Sizes(llama.Sizes, frozen=True, kw_only=True):
    """Those of Llama, the number of experts, and how many of them a token uses."""

    experts: int = 8
    chosen: int = 2
    shared: int = 0
    """Inner width of an expert that every token uses besides; 0: there is none."""
    query_rank: int = 0
    latent: int = 0
    """Widths of narrow projections (multi-head latent attention); 0: attention as Llama's."""
    rotary: int = 64
    """How much of a head turns with the position, if there are narrow projections."""

    @property
    def turned(self) -> int:
        """How much of a head turns with the position."""
        return self.rotary if self.latent else self.head_width


class Experts(nn.Module):
    """Gated layers, one an expert, over rows that are sorted by expert."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        experts, hidden, inner = sizes.experts, sizes.hidden, sizes.inner
        self.gate = nn.Parameter(hidden**-0.5 * torch.randn(experts, hidden, inner))
        self.up = nn.Parameter(hidden**-0.5 * torch.randn(experts, hidden, inner))
        self.down = nn.Parameter(inner**-0.5 * torch.randn(experts, inner, hidden))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Each row through its expert; expert e owns the rows from ends[e - 1] to ends[e]."""
        inner = functional.silu(grouped_mm(rows, self.gate, ends))
        answers: Tensor = grouped_mm(inner * grouped_mm(rows, self.up, ends), self.down, ends)
        return answers


class Mixture(nn.Module):
    """A router, and the weighted sum of the experts that it chooses for each token.

    Nothing is dropped and no shape depends on the choice: rows are sorted by expert, so that the
    experts' products are three grouped products, however the tokens spread.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.router = nn.Linear(sizes.hidden, sizes.experts, bias=False)
        self.experts = Experts(sizes)
        self.count, self.chosen = sizes.experts, sizes.chosen

    def forward(self, x: Tensor) -> Tensor:
        """Each position on its own."""
        rows = x.flatten(0, 1)
        weights, experts = self.router(rows).topk(self.chosen, dim=-1)
        experts = experts.flatten()
        order = experts.argsort()
        ends = functional.one_hot(experts, self.count).sum(0).cumsum(0)
        sorted_rows = rows.repeat_interleave(self.chosen, dim=0).index_select(0, order)
        answers: Tensor = self.experts(sorted_rows, ends).index_select(0, order.argsort())
        answers = answers.view(-1, self.chosen, x.shape[-1])
        mixed: Tensor = (answers * weights.softmax(-1).unsqueeze(-1)).sum(1)
        return mixed.view(x.shape)


class Both(nn.Module):
    """A mixture of experts, and one that every token uses."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.mixture = Mixture(sizes)
        self.shared = llama.FeedForward(msgspec.structs.replace(sizes, inner=sizes.shared))

    def forward(self, x: Tensor) -> Tensor:
        """Each position on its own."""
        y: Tensor = self.mixture(x) + self.shared(x)
        return y


def build_mixtral(sizes: Sizes) -> llama.Decoder:
    """A decoder whose layers all have a mixture of experts."""
    feed_forward = Both if sizes.shared else Mixture
    layers = [llama.Layer(sizes, feed_forward(sizes)) for _ in range(sizes.layers)]
    for layer in layers if sizes.latent else ():
        layer.attention = LatentAttention(sizes)
    return llama.Decoder(sizes, layers)


MIXTRAL_8X7B = Entry(
    name="mixtral-8x7b",
    sizes=Sizes(
        vocabulary=32_000,
        sequence=4096,
        layers=32,
        hidden=4096,
        heads=32,
        inner=14_336,
        rotary_base=1e6,
    ),
    tiny=Sizes(**msgspec.structs.asdict(llama.TINY), experts=4),
    batch=1,
    parameters=46_702_792_704,
    source="Jiang et al. 2024; count of the published weights; sequence and batch chosen",
    build=build_mixtral,
    inputs=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
    targets=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
    loss=token_loss,
)
