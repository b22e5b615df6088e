"""Llama-3 8B and 70B: decoders with rotary positions, shared key-value heads and gated layers."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.zoo.entry import Entry, token_loss, tokens

ROTARY_BASE = 500_000.0


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Words, positions, layers, width, heads of queries and of keys and values, inner width."""

    vocabulary: int = 128_256
    sequence: int = 8192
    layers: int
    hidden: int
    heads: int
    key_value_heads: int = 8
    inner: int
    rotary_base: float = ROTARY_BASE
    width: int = 0
    """Width of one head; 0: what heads leave of the hidden width."""

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width or self.hidden // self.heads

    @property
    def turned(self) -> int:
        """How much of a head turns with the position."""
        return self.head_width


TINY = Sizes(vocabulary=20, sequence=6, layers=2, hidden=16, heads=4, key_value_heads=2, inner=24)


class Rotation(nn.Module):
    """Turns each pair of a head's numbers by an angle that grows with the position."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        exponents = torch.arange(0, sizes.turned, 2) / sizes.turned
        angles = torch.outer(torch.arange(sizes.sequence), sizes.rotary_base**-exponents)
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The turned heads; the pairs are a head's first and second half."""
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat([-second, first], dim=-1) * self.sine


class Attention(nn.Module):
    """Causal self-attention in which several query heads share one head of keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        shared = sizes.key_value_heads * sizes.head_width
        together = sizes.heads * sizes.head_width
        self.query = nn.Linear(sizes.hidden, together, bias=False)
        self.key = nn.Linear(sizes.hidden, shared, bias=False)
        self.value = nn.Linear(sizes.hidden, shared, bias=False)
        self.output = nn.Linear(together, sizes.hidden, bias=False)
        self.head_width = sizes.head_width

    def forward(self, x: Tensor, rotation: nn.Module) -> Tensor:
        """What each position gathers from the earlier ones."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        gathered = functional.scaled_dot_product_attention(
            rotation(query), rotation(key), value, is_causal=True, enable_gqa=True
        )
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """A gated layer: SiLU of one projection times another, projected back."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each position on its own."""
        y: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return y


class Layer(nn.Module):
    """Attention and feed-forward, each over its normalised input and added to it."""

    def __init__(self, sizes: Sizes, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.attention: nn.Module = Attention(sizes)
        self.feed_forward_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, rotation: nn.Module) -> Tensor:
        """The layer's hidden states."""
        x = x + self.attention(self.attention_norm(x), rotation)
        y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Decoder(nn.Module):
    """The next word at every position, through layers that differ only in their feed-forward."""

    def __init__(self, sizes: Sizes, layers: list[Layer]) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.rotation = Rotation(sizes)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of each word at each position."""
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, self.rotation)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build_llama(sizes: Sizes) -> Decoder:
    """A decoder whose layers all have a dense feed-forward."""
    return Decoder(sizes, [Layer(sizes, FeedForward(sizes)) for _ in range(sizes.layers)])


def _entry(name: str, sizes: Sizes, parameters: int) -> Entry[Sizes]:
    return Entry(
        name=name,
        sizes=sizes,
        tiny=TINY,
        batch=1,
        parameters=parameters,
        source="Grattafiori et al. 2024; count of the published weights; batch chosen",
        build=build_llama,
        inputs=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
        targets=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
        loss=token_loss,
    )


LLAMA3_8B = _entry(
    "llama3-8b", Sizes(layers=32, hidden=4096, heads=32, inner=14_336), 8_030_261_248
)
LLAMA3_70B = _entry(
    "llama3-70b", Sizes(layers=80, hidden=8192, heads=64, inner=28_672), 70_553_706_496
)
