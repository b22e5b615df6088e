"""Multi-head latent attention (DeepSeek-V2, 2024): queries, keys and values go through narrow
projections; each key has a part that turns with its position, the same for all heads.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Latent(Protocol):
    """The sizes that it reads."""

    @property
    def hidden(self) -> int:
        """Width of what enters and leaves."""

    @property
    def heads(self) -> int:
        """Heads."""

    @property
    def head_width(self) -> int:
        """Width of a head's values, and of its keys but for what turns."""

    @property
    def query_rank(self) -> int:
        """Width of the narrow projection of queries."""

    @property
    def latent(self) -> int:
        """Width of the narrow projection of keys and values."""

    @property
    def turned(self) -> int:
        """Width of what turns with the position."""


class LatentAttention(nn.Module):
    """Causal self-attention of which only the narrow projections would have to be remembered."""

    def __init__(self, sizes: Latent) -> None:
        super().__init__()
        self.heads, self.width, self.turned = sizes.heads, sizes.head_width, sizes.turned
        self.latent = sizes.latent
        inner = sizes.heads * (sizes.head_width + sizes.turned)
        self.query_down = nn.Linear(sizes.hidden, sizes.query_rank, bias=False)
        self.query_norm = nn.RMSNorm(sizes.query_rank, eps=1e-6)
        self.query_up = nn.Linear(sizes.query_rank, inner, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.latent + sizes.turned, bias=False)
        self.norm = nn.RMSNorm(sizes.latent, eps=1e-6)
        self.key_up = nn.Linear(sizes.latent, sizes.heads * sizes.head_width, bias=False)
        self.value_up = nn.Linear(sizes.latent, sizes.heads * sizes.head_width, bias=False)
        self.output = nn.Linear(sizes.heads * sizes.head_width, sizes.hidden, bias=False)

    def forward(self, x: Tensor, rotation: nn.Module) -> Tensor:
        """What each position gathers from the earlier ones."""
        query = self._by_head(self.query_up(self.query_norm(self.query_down(x))))
        still, turning = torch.split(query, [self.width, self.turned], dim=-1)
        narrow, place = torch.split(self.down(x), [self.latent, self.turned], dim=-1)
        narrow = self.norm(narrow)
        key, value = (self._by_head(up(narrow)) for up in (self.key_up, self.value_up))
        place = rotation(place.unsqueeze(1)).expand(-1, self.heads, -1, -1)
        gathered = functional.scaled_dot_product_attention(
            torch.cat([still, rotation(turning)], dim=-1),
            torch.cat([key, place], dim=-1),
            value,
            is_causal=True,
        )
        mixed: Tensor = self.output(gathered.transpose(1, 2).flatten(2))
        return mixed

    def _by_head(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)
