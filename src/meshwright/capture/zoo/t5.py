"""T5-large: an encoder and a decoder whose positions are a learnt bias of the attention."""

from __future__ import annotations

import math

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, token_loss, tokens


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Words, positions of both sides, layers of each, width, heads, inner width."""

    vocabulary: int = 32_128
    sequence: int = 512
    layers: int = 24
    hidden: int = 1024
    heads: int = 16
    inner: int = 4096
    buckets: int = 32
    farthest: int = 128
    dropout: float = 0.1


class Attention(nn.Module):
    """Attention without scaling, from one sequence to another or to itself."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.query = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.key = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.value = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.output = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.heads, self.dropout = sizes.heads, sizes.dropout

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        """What each position of `x` gathers from `memory`."""
        query, key, value = (
            project(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, source in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        dropout = self.dropout if self.training else 0.0
        gathered = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0
        )
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


class PositionBias(nn.Module):
    """One number for each head and each bucket of distances, shared by all layers of a side."""

    bucket: Tensor
    hidden_ahead: Tensor

    def __init__(self, sizes: Sizes, *, causal: bool) -> None:
        super().__init__()
        self.bias = nn.Embedding(sizes.buckets, sizes.heads)
        positions = torch.arange(sizes.sequence)
        ahead = positions[None, :] - positions[:, None]
        bucket = distance_bucket(ahead, sizes.buckets, sizes.farthest, causal=causal)
        self.register_buffer("bucket", bucket, persistent=False)
        self.causal = causal
        if causal:
            self.register_buffer("hidden_ahead", ahead > 0, persistent=False)

    def forward(self) -> Tensor:
        """The bias of each head, query and key; minus infinity where a key is hidden."""
        bias: Tensor = self.bias(self.bucket).permute(2, 0, 1).unsqueeze(0)
        return bias.masked_fill(self.hidden_ahead, -math.inf) if self.causal else bias


def distance_bucket(ahead: Tensor, buckets: int, farthest: int, *, causal: bool) -> Tensor:
    """T5's bucket of each distance: exact when near, logarithmic up to the farthest.

    >>> distance_bucket(torch.tensor([-200, -9, -1, 0, 1]), 32, 128, causal=True).tolist()
    [31, 9, 1, 0, 0]
    >>> distance_bucket(torch.tensor([-200, -9, -1, 0, 1]), 32, 128, causal=False).tolist()
    [15, 8, 1, 0, 17]
    """
    if causal:
        offset, distance = torch.zeros_like(ahead), (-ahead).clamp(min=0)
    else:
        buckets //= 2
        offset, distance = (ahead > 0) * buckets, ahead.abs()
    exact = buckets // 2
    ratio = (distance.clamp(min=1) / exact).log() / math.log(farthest / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


class Layer(nn.Module):
    """Self-attention, in a decoder attention to the encoder, and feed-forward."""

    def __init__(self, sizes: Sizes, *, crossed: bool) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.attention = Attention(sizes)
        self.crossed = crossed
        if crossed:
            self.cross_norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
            self.cross = Attention(sizes)
        self.feed_forward_norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.up = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        """The layer's hidden states."""
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, normed, bias))
        if memory is not None:
            x = x + self.dropout(self.cross(self.cross_norm(x), memory, None))
        inner = self.dropout(functional.relu(self.up(self.feed_forward_norm(x))))
        y: Tensor = x + self.dropout(self.down(inner))
        return y


class Side(nn.Module):
    """The encoder or the decoder."""

    def __init__(self, sizes: Sizes, *, decoder: bool) -> None:
        super().__init__()
        self.bias = PositionBias(sizes, causal=decoder)
        self.layers = nn.ModuleList(Layer(sizes, crossed=decoder) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """The normalised hidden states of the last layer."""
        bias = self.bias()
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, bias, memory)
        states: Tensor = self.dropout(self.norm(x))
        return states


class T5(nn.Module):
    """Text to text; both embeddings and the projection to words share one weight."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.encoder = Side(sizes, decoder=False)
        self.decoder = Side(sizes, decoder=True)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        self.head.weight = self.words.weight
        self.scale = sizes.hidden**-0.5

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of each target word at each position."""
        memory = self.encoder(self.words(source))
        states = self.decoder(self.words(target), memory)
        logits: Tensor = self.head(states * self.scale)
        return logits


T5_LARGE = Entry(
    name="t5-large",
    sizes=Sizes(),
    tiny=Sizes(
        vocabulary=20,
        sequence=6,
        layers=2,
        hidden=16,
        heads=4,
        inner=32,
        buckets=8,
        farthest=16,
    ),
    batch=8,
    parameters=737_668_096,
    source="Raffel et al. 2020; count of Transformers' T5ForConditionalGeneration; batch chosen",
    build=T5,
    inputs=lambda s, n: (tokens(s.vocabulary, n, s.sequence), tokens(s.vocabulary, n, s.sequence)),
    targets=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
    loss=token_loss,
)
