"""BERT-Large and ViT-L/16: transformers that see their whole input."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.zoo.entry import Entry, class_loss, token_loss, tokens


class BertSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Words, positions, layers, width, heads and inner width of the feed-forward layers."""

    vocabulary: int = 30_522
    sequence: int = 512
    positions: int = 512
    layers: int = 24
    hidden: int = 1024
    heads: int = 16
    inner: int = 4096
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.sequence > self.positions:
            raise InputError(
                f"a sequence of {self.sequence} on {self.positions} positions",
                f"give positions={self.sequence} or more too",
            )


class Attention(nn.Module):
    """Self-attention with a projection each for queries, keys and values."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        """What each position gathers from all."""
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        gathered = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0
        )
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """Two dense layers with GELU between them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Each position on its own."""
        y: Tensor = self.down(functional.gelu(self.up(x)))
        return y


class BertLayer(nn.Module):
    """Attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.attention = Attention(sizes.hidden, sizes.heads, sizes.dropout)
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=1e-12)
        self.feed_forward = FeedForward(sizes.hidden, sizes.inner)
        self.feed_forward_norm = nn.LayerNorm(sizes.hidden, eps=1e-12)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's hidden states."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        y: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return y


class Bert(nn.Module):
    """BERT for masked words: the projection to words shares the embedding's weight."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.segments = nn.Embedding(2, sizes.hidden)
        self.embedding_norm = nn.LayerNorm(sizes.hidden, eps=1e-12)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.ModuleList(BertLayer(sizes) for _ in range(sizes.layers))
        self.transform = nn.Linear(sizes.hidden, sizes.hidden)
        self.transform_norm = nn.LayerNorm(sizes.hidden, eps=1e-12)
        self.decoder = nn.Linear(sizes.hidden, sizes.vocabulary)
        self.decoder.weight = self.words.weight

    def forward(self, words: Tensor, segments: Tensor) -> Tensor:
        """Logits of each word at each position."""
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.words(words) + self.positions(positions) + self.segments(segments)
        x = self.dropout(self.embedding_norm(x))
        for layer in self.layers:
            x = layer(x)
        x = self.transform_norm(functional.gelu(self.transform(x)))
        logits: Tensor = self.decoder(x)
        return logits


BERT_LARGE = Entry(
    name="bert-large",
    sizes=BertSizes(),
    tiny=BertSizes(vocabulary=20, sequence=6, positions=8, layers=2, hidden=16, heads=4, inner=32),
    batch=4,
    parameters=335_174_458,
    source="Devlin et al. 2019; count of Transformers' BertForMaskedLM; batch of Unity",
    build=Bert,
    inputs=lambda s, n: (tokens(s.vocabulary, n, s.sequence), tokens(2, n, s.sequence)),
    targets=lambda s, n: (tokens(s.vocabulary, n, s.sequence),),
    loss=token_loss,
)


class VitSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Side of the image and of a patch, layers, width, heads, inner width, classes."""

    image: int = 224
    patch: int = 16
    layers: int = 24
    hidden: int = 1024
    heads: int = 16
    inner: int = 4096
    classes: int = 1000


class VitLayer(nn.Module):
    """Attention and feed-forward, each over its normalised input and added to it."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=1e-6)
        self.attention = Attention(sizes.hidden, sizes.heads, dropout=0.0)
        self.feed_forward_norm = nn.LayerNorm(sizes.hidden, eps=1e-6)
        self.feed_forward = FeedForward(sizes.hidden, sizes.inner)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's hidden states."""
        x = x + self.attention(self.attention_norm(x))
        y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Vit(nn.Module):
    """Patches as words, and a class token whose last state gives the class."""

    def __init__(self, sizes: VitSizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.hidden, sizes.patch, stride=sizes.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, sizes.hidden))
        positions = (sizes.image // sizes.patch) ** 2 + 1
        self.positions = nn.Parameter(0.02 * torch.randn(1, positions, sizes.hidden))
        self.layers = nn.ModuleList(VitLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden, eps=1e-6)
        self.head = nn.Linear(sizes.hidden, sizes.classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of each class."""
        patches = self.patches(image).flatten(2).transpose(1, 2)
        first = self.class_token.expand(image.shape[0], -1, -1)
        x = torch.cat([first, patches], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


VIT_LARGE = Entry(
    name="vit-large",
    sizes=VitSizes(),
    tiny=VitSizes(image=8, patch=4, layers=2, hidden=16, heads=4, inner=32, classes=10),
    batch=64,
    parameters=304_326_632,
    source="Dosovitskiy et al. 2021, L/16; count of torchvision's vit_l_16; batch chosen",
    build=Vit,
    inputs=lambda s, n: (torch.randn(n, 3, s.image, s.image),),
    targets=lambda s, n: (tokens(s.classes, n),),
    loss=class_loss,
)
