"""GPT-2 XL and GPT-3 175B: decoders with learnt positions and one projection for q, k and v."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, token_loss, tokens


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Words, positions, layers, width and heads."""

    vocabulary: int = 50_257
    sequence: int
    layers: int
    hidden: int
    heads: int
    dropout: float = 0.1
    inner: int = 0
    """Width of feed-forward layers; 0: four times the width."""
    key_value_heads: int = 0
    """Heads of keys and values, which then have projections of their own, as tensor parallelism
    orders their columns; 0: all heads, by one projection."""


class CausalAttention(nn.Module):
    """Self-attention to earlier positions."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)
        self.heads, self.dropout = sizes.heads, sizes.dropout

    def forward(self, x: Tensor) -> Tensor:
        """What each position gathers from the earlier ones."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        gathered = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


class GroupedAttention(nn.Module):
    """Self-attention to earlier positions with a projection each for queries, keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.hidden // sizes.heads
        shared = sizes.key_value_heads * self.width
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key = nn.Linear(sizes.hidden, shared)
        self.value = nn.Linear(sizes.hidden, shared)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)
        self.grouped = sizes.key_value_heads != sizes.heads

    def forward(self, x: Tensor) -> Tensor:
        """What each position gathers from the earlier ones."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        gathered = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.grouped
        )
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


class Layer(nn.Module):
    """Attention and feed-forward, each over its normalised input and added to it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.hidden)
        attention = GroupedAttention if sizes.key_value_heads else CausalAttention
        self.attention = attention(sizes)
        self.feed_forward_norm = nn.LayerNorm(sizes.hidden)
        inner = sizes.inner or 4 * sizes.hidden
        self.up = nn.Linear(sizes.hidden, inner)
        self.down = nn.Linear(inner, sizes.hidden)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's hidden states."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        inner = functional.gelu(self.up(self.feed_forward_norm(x)), approximate="tanh")
        y: Tensor = x + self.dropout(self.down(inner))
        return y


class Gpt(nn.Module):
    """The next word at every position; the projection to words is the embedding's weight."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.sequence, sizes.hidden)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Logits of each word at each position."""
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.words(words) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _entry(name: str, sizes: Sizes, batch: int, parameters: int, source: str) -> Entry[Sizes]:
    return Entry(
        name=name,
        sizes=sizes,
        tiny=Sizes(vocabulary=20, sequence=6, layers=2, hidden=16, heads=4),
        batch=batch,
        parameters=parameters,
        source=source,
        build=Gpt,
        inputs=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
        targets=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
        loss=token_loss,
    )


GPT2_XL = _entry(
    "gpt2-xl",
    Sizes(sequence=1024, layers=48, hidden=1600, heads=25),
    8,
    1_557_611_200,
    "Radford et al. 2019; count of Transformers' GPT2LMHeadModel; batch chosen",
)
GPT3_175B = _entry(
    "gpt3-175b",
    Sizes(sequence=2048, layers=96, hidden=12_288, heads=96, dropout=0.0),
    1,
    174_604_259_328,
    "Brown et al. 2020, whose appendix D says 174,600 M; batch chosen. Attention is dense in "
    "every layer, where the paper alternates with a banded pattern.",
)
