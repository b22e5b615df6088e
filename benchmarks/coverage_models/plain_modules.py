"""Modules as people write them, without a library of models: each function returns (model, inputs,
loss, targets).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[Tensor, ...], object, tuple[Tensor, ...]]
WORDS, WIDTH, LENGTH = 64, 32, 16


def read(model: nn.Module, batch: int) -> Built:
    """A model that predicts a token for each position."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))

    ids = torch.randint(0, WORDS, (batch, LENGTH))
    return model, (ids,), loss, (torch.randint(0, WORDS, (batch, LENGTH)),)


def regressed(model: nn.Module, batch: int, *shape: int, out: tuple[int, ...] = (4,)) -> Built:
    """A model of rows of numbers."""
    return model, (torch.randn(batch, *shape),), nn.MSELoss(), (torch.randn(batch, *out),)


def linear_regression(batch: int = 8) -> Built:
    return regressed(nn.Linear(16, 4), batch, 16)


def mlp(batch: int = 8) -> Built:
    return regressed(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)), batch, 16)


def deep_mlp(batch: int = 8) -> Built:
    layers = [m for _ in range(4) for m in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ELU())]
    return regressed(nn.Sequential(*layers, nn.Linear(16, 4)), batch, 16)


class Minimal(nn.Module):
    """minGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)
        )
        self.register_buffer(
            "mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
        )
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.size()
        x = self.words(ids) + self.places(torch.arange(t, device=ids.device))
        q, k, v = self.qkv(self.norm(x)).split(WIDTH, dim=2)
        q, k, v = (one.view(b, t, 4, WIDTH // 4).transpose(1, 2) for one in (q, k, v))
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        weights = weights.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).contiguous().view(b, t, WIDTH))
        return self.head(x + self.mlp(x))


def mingpt(batch: int = 8) -> Built:
    return read(Minimal(), batch)


class Encoder(nn.Module):
    """The tutorial's transformer."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.words = first, nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, WORDS)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) * math.sqrt(WIDTH) + self.places[: ids.shape[1]]
        if self.first:
            return self.head(self.encoder(x))
        return self.head(self.encoder(x.transpose(0, 1)).transpose(0, 1))


def transformer_encoder(batch: int = 8) -> Built:
    return read(Encoder(True), batch)


def transformer_encoder_sequence_first(batch: int = 8) -> Built:
    return read(Encoder(False), batch)


class Translation(nn.Module):
    """nn.Transformer with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.body = nn.Transformer(WIDTH, 4, 1, 1, 64, dropout=0.0, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.body(x, x, tgt_mask=mask))


def transformer(batch: int = 8) -> Built:
    return read(Translation(), batch)


class Rotary(nn.Module):
    """Llama as its first release wrote it: rotary angles as complex numbers, RMS norm, SwiGLU."""

    def __init__(self, complex_angles: bool) -> None:
        super().__init__()
        self.complex_angles, self.words = complex_angles, nn.Embedding(WORDS, WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False)
        self.down, self.head = nn.Linear(64, WIDTH, bias=False), nn.Linear(WIDTH, WORDS, bias=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))
        angles = torch.outer(torch.arange(LENGTH).float(), frequencies)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def normed(self, x: Tensor) -> Tensor:
        return (
            x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).type_as(x) * self.scale
        )

    def turned(self, x: Tensor) -> Tensor:
        if self.complex_angles:
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            angles = torch.complex(self.cosine, self.sine)[None, :, None, :]
            return torch.view_as_real(pairs * angles).flatten(3).type_as(x)
        one, two = x[..., ::2], x[..., 1::2]
        c, s = self.cosine[None, :, None, :], self.sine[None, :, None, :]
        return torch.stack((one * c - two * s, one * s + two * c), dim=-1).flatten(-2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        b, t, _ = x.shape
        h = self.normed(x)
        q, k, v = (w(h).view(b, t, 4, 8) for w in (self.wq, self.wk, self.wv))
        q, k, v = (one.transpose(1, 2) for one in (self.turned(q), self.turned(k), v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(out.transpose(1, 2).reshape(b, t, -1))
        h = self.normed(x)
        return self.head(x + self.down(functional.silu(self.gate(h)) * self.up(h)))


def llama_complex(batch: int = 8) -> Built:
    return read(Rotary(True), batch)


def llama_real(batch: int = 8) -> Built:
    return read(Rotary(False), batch)


class Recurrent(nn.Module):
    """A language model of a recurrent module."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = kind(WIDTH, WIDTH, batch_first=True, **options)
        self.head = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.words(ids))[0])


def lstm_language_model(batch: int = 8) -> Built:
    return read(Recurrent(nn.LSTM, num_layers=2), batch)


def gru_language_model(batch: int = 8) -> Built:
    return read(Recurrent(nn.GRU), batch)


def bidirectional_lstm(batch: int = 8) -> Built:
    return read(Recurrent(nn.LSTM, bidirectional=True), batch)


def elman_rnn(batch: int = 8) -> Built:
    return read(Recurrent(nn.RNN), batch)


class Cells(nn.Module):
    """A loop over an LSTM's cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, c = x.new_zeros(x.shape[0], 16), x.new_zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


def lstm_cells(batch: int = 8) -> Built:
    return regressed(Cells(), batch, 5, 8)


class SequenceToSequence(nn.Module):
    """An encoder and a decoder with Luong's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * WIDTH, WORDS)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        seen, state = self.encoder(self.words(ids))
        said, _ = self.decoder(self.words(ids.flip(1)), state)
        weights = torch.bmm(said, seen.transpose(1, 2)).softmax(-1)
        return self.head(torch.cat([said, torch.bmm(weights, seen)], dim=-1))


def seq2seq_attention(batch: int = 8) -> Built:
    return read(SequenceToSequence(), batch)


class TextConvolution(nn.Module):
    """Kim's convolutions over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(24, 5)
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, 8, k) for k in (2, 3, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).permute(0, 2, 1)
        pooled = [functional.relu(conv(x)).max(dim=2).values for conv in self.convs]
        return self.head(torch.cat(pooled, dim=1))


def text_cnn(batch: int = 8) -> Built:
    ids = torch.randint(0, WORDS, (batch, LENGTH))
    return TextConvolution(), (ids,), functional.cross_entropy, (torch.randint(0, 5, (batch,)),)


class Bags(nn.Module):
    """fastText."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, WIDTH, mode="mean"), nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids))


def embedding_bag(batch: int = 8) -> Built:
    ids = torch.randint(0, WORDS, (batch, LENGTH))
    return Bags(), (ids,), functional.cross_entropy, (torch.randint(0, 5, (batch,)),)


class WaveBlock(nn.Module):
    """WaveNet's gated, dilated convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**n) for n in range(3))
        self.out = nn.Conv1d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for n, conv in enumerate(self.filters):
            a, b = conv(functional.pad(x, (2**n, 0))).chunk(2, dim=1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.out(x).squeeze(1)


def wavenet(batch: int = 8) -> Built:
    return regressed(WaveBlock(), batch, 8, 16, out=(16,))


class Wide(nn.Module):
    """DLRM: tables, pairwise products, an MLP; two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(3))
        self.bottom, self.top = nn.Linear(6, 8), nn.Linear(8 + 6, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        low = torch.relu(self.bottom(dense))
        rows = [table(sparse[:, n]) for n, table in enumerate(self.tables)]
        stacked = torch.stack([low, *rows], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, offset=-1)
        return torch.sigmoid(self.top(torch.cat([low, products[:, i, j]], dim=1))).squeeze(-1)


def dlrm(batch: int = 8) -> Built:
    inputs = (torch.randn(batch, 6), torch.randint(0, 50, (batch, 3)))
    return Wide(), inputs, nn.BCELoss(), (torch.rand(batch),)


class Factorization(nn.Module):
    """Matrix factorization."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(60, 8)
        self.bias = nn.Embedding(60, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)


def matrix_factorization(batch: int = 8) -> Built:
    inputs = (torch.randint(0, 40, (batch,)), torch.randint(0, 60, (batch,)))
    return Factorization(), inputs, nn.MSELoss(), (torch.randn(batch),)


class Graph(nn.Module):
    """A graph convolution over a dense adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1.0)
        x = torch.relu(self.one((adjacency / degree) @ x))
        return self.two((adjacency / degree) @ x).mean(dim=1)


def graph_convolution(batch: int = 8) -> Built:
    inputs = (torch.randn(batch, 6, 8), torch.rand(batch, 6, 6))
    return Graph(), inputs, nn.MSELoss(), (torch.randn(batch, 4),)


class Einsums(nn.Module):
    """Attention in index notation."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(WIDTH, 4, 8) / 6) for _ in range(3))
        self.o = nn.Parameter(torch.randn(4, 8, WIDTH) / 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = (torch.einsum("btd,dhe->bhte", x, w) for w in (self.q, self.k, self.v))
        weights = torch.einsum("bhie,bhje->bhij", q, k).div(8**0.5).softmax(-1)
        return self.head(x + torch.einsum("bhij,bhje,hed->bid", weights, v, self.o))


def einsum_attention(batch: int = 8) -> Built:
    return read(Einsums(), batch)


class Experts(nn.Module):
    """A soft mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gate(x).softmax(-1)
        out = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (weight.unsqueeze(-1) * out).sum(1)


def soft_experts(batch: int = 8) -> Built:
    return regressed(Experts(), batch, 16)


class TopExperts(nn.Module):
    """A sparse mixture of experts, computed densely and masked."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(4, 16, 16) / 4) for _ in range(2))
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        values, places = self.gate(x).softmax(-1).topk(2, dim=-1)
        weight = torch.zeros(x.shape[0], 4, device=x.device).scatter(1, places, values)
        hidden = functional.gelu(torch.einsum("bd,edh->ebh", x, self.up))
        return self.out(
            (torch.einsum("ebh,ehd->ebd", hidden, self.down) * weight.T[..., None]).sum(0)
        )


def top_k_experts(batch: int = 8) -> Built:
    return regressed(TopExperts(), batch, 16)


class Variational(nn.Module):
    """The encoder and decoder of a variational autoencoder, at its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean = nn.Linear(16, 32), nn.Linear(32, 4)
        self.spread, self.decode = nn.Linear(32, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.encode(x))
        mean, spread = self.mean(h), self.spread(h)
        divergence = -0.5 * torch.mean(1 + spread - mean.pow(2) - spread.exp())
        return functional.mse_loss(self.decode(mean), x) + 0.1 * divergence


def variational_autoencoder(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Variational(), (torch.randn(batch, 16),)


class Contrastive(nn.Module):
    """SimCLR's loss over two views."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        a, b = (functional.normalize(self.body(x), dim=-1) for x in (one, two))
        logits = a @ b.t() / 0.1
        return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def contrastive(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Contrastive(), (torch.randn(batch, 16), torch.randn(batch, 16))


class Triplets(nn.Module):
    """A siamese network with a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.PReLU(), nn.Linear(16, 8))

    def forward(self, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
        a, p, n = self.body(a), self.body(p), self.body(n)
        return torch.relu((a - p).norm(dim=-1) - (a - n).norm(dim=-1) + 1.0).mean()


def siamese(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Triplets(), tuple(torch.randn(batch, 16) for _ in range(3))


class Policy(nn.Module):
    """An actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        h = self.body(state)
        value = self.critic(h).squeeze(-1)
        chosen = self.actor(h).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
        return -(chosen * (reward - value).detach()).mean() + (reward - value).pow(2).mean()


def actor_critic(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Policy(), (torch.randn(batch, 8), torch.randint(0, 4, (batch,)), torch.randn(batch))


class Physics(nn.Module):
    """A network of coordinates, with sines (SIREN)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32)])
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30.0 * layer(x))
        return self.out(x)


def siren(batch: int = 8) -> Built:
    return regressed(Physics(), batch, 2)


class Fourier(nn.Module):
    """A filter of frequencies, learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, 8, 2) * 0.1)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x, dim=1) * torch.view_as_complex(self.filter)
        return self.out(torch.fft.irfft(spectrum, n=x.shape[1], dim=1).mean(1))


def fourier_filter(batch: int = 8) -> Built:
    return regressed(Fourier(), batch, 16, 8)


class Diffusion(nn.Module):
    """A denoiser with sinusoidal times and FiLM."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.one = nn.Linear(16, 32), nn.Conv2d(3, 16, 3, padding=1)
        self.norm, self.two = nn.GroupNorm(4, 16), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(8, device=x.device) / 8)
        angles = times[:, None].float() * rates[None]
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], -1)).chunk(2, -1)
        h = self.norm(self.one(x)) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        return self.two(functional.silu(h))


def diffusion(batch: int = 8) -> Built:
    inputs = (torch.randn(batch, 3, 8, 8), torch.randint(0, 1000, (batch,)))
    return Diffusion(), inputs, nn.MSELoss(), (torch.randn(batch, 3, 8, 8),)


class Perceiver(nn.Module):
    """Latents that attend to inputs, with nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 16))
        self.cross = nn.MultiheadAttention(16, 2, batch_first=True)
        self.self_attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)
        latents = latents + self.cross(latents, x, x, need_weights=False)[0]
        latents = latents + self.self_attention(latents, latents, latents)[0]
        return self.head(latents.mean(1))


def perceiver(batch: int = 8) -> Built:
    return regressed(Perceiver(), batch, 12, 16)


class Pointed(nn.Module):
    """PointNet: the same layers for every point, then the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 16), nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, points: Tensor) -> Tensor:
        h = torch.relu(self.two(torch.relu(self.one(points))))
        return self.head(h.amax(dim=1))


def pointnet(batch: int = 8) -> Built:
    return regressed(Pointed(), batch, 20, 3)


class Capsules(nn.Module):
    """Capsules with two rounds of routing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, 8, 4) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bid,ijde->bije", x.view(-1, 6, 8), self.weight)
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(2):
            sums = (logits.softmax(2).unsqueeze(-1) * votes).sum(1)
            length = sums.pow(2).sum(-1, keepdim=True)
            out = length / (1 + length) * sums / (length + 1e-8).sqrt()
            logits = logits + (votes * out.unsqueeze(1)).sum(-1)
        return out.norm(dim=-1)


def capsules(batch: int = 8) -> Built:
    return regressed(Capsules(), batch, 48)


class State(nn.Module):
    """A linear recurrence by a cumulative sum (a small state space model)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.decay, self.gate = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        rate = (
            -functional.softplus(self.decay) * torch.arange(ids.shape[1], device=x.device)[:, None]
        )
        mixed = torch.cumsum(x * torch.exp(-rate * 0.1), dim=1) * torch.exp(rate * 0.1)
        return self.head(mixed * torch.sigmoid(self.gate(x)))


def linear_recurrence(batch: int = 8) -> Built:
    return read(State(), batch)


def checkpointed(batch: int = 8) -> Built:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(checkpoint(lambda y: torch.relu(self.one(y)), x, use_reentrant=False))

    return regressed(Checkpointed(), batch, 16)


def weight_normed(batch: int = 8) -> Built:
    norm = nn.utils.parametrizations.weight_norm
    return regressed(nn.Sequential(norm(nn.Linear(16, 32)), nn.Tanh(), nn.Linear(32, 4)), batch, 16)


def class_weighted(batch: int = 8) -> Built:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0]))
    targets = torch.randint(0, 4, (batch,))
    return nn.Linear(16, 4), (torch.randn(batch, 16),), loss, (targets,)


def huber_quantiles(batch: int = 8) -> Built:
    return nn.Linear(16, 4), (torch.randn(batch, 16),), nn.SmoothL1Loss(), (torch.randn(batch, 4),)
