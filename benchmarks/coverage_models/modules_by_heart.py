"""Training models written from memory, as people bring them: each function returns (model, inputs,
loss, targets). None was changed so that it passes.
"""

# ruff: noqa: N806, N812, B905 (as people write)

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[Any, ...]
WORDS, WIDTH, LENGTH = 48, 32, 12


def tokens(count: int) -> Tensor:
    return torch.randint(1, WORDS, (count, LENGTH))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).to(dtype) * self.weight


class GroupedQueryBlock(nn.Module):
    """RoPE by rotate_half, key and value heads repeated, SwiGLU."""

    def __init__(self, dim: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = heads, groups, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * groups * self.head_dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.w1, self.w2, self.w3 = (
            nn.Linear(dim, 64, bias=False),
            nn.Linear(64, dim, bias=False),
            nn.Linear(dim, 64, bias=False),
        )

    def rope(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
        inv = 1.0 / 10000 ** (
            torch.arange(0, self.head_dim, 2, device=x.device).float() / self.head_dim
        )
        emb = torch.cat([torch.outer(t, inv)] * 2, dim=-1)
        x1, x2 = x.chunk(2, dim=-1)
        return (x * emb.cos() + torch.cat((-x2, x1), dim=-1) * emb.sin()).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(h).view(b, t, 2, self.groups, self.head_dim).permute(2, 0, 3, 1, 4)
        k = k.repeat_interleave(self.heads // self.groups, dim=1)
        v = v.repeat_interleave(self.heads // self.groups, dim=1)
        a = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).contiguous().view(b, t, d))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class TinyLlama(nn.Module):
    """Gives logits and loss itself, as nanoGPT does; the last layer is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(GroupedQueryBlock(WIDTH, 4, 2) for _ in range(2))
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.embed.weight = self.head.weight
        self.apply(self._init)

    def _init(self, m: nn.Module) -> None:
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def tiny_llama(batch: int = 8) -> Built:
    ids = tokens(batch)
    labels = torch.roll(ids, -1, 1)
    labels[:, -1] = -1
    return TinyLlama(), (ids, labels)


class ALiBi(nn.Module):
    """Slopes for each head, key padding from token 0."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / 4) for i in range(4)])
        self.register_buffer("slopes", slopes.view(1, 4, 1, 1), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        pad = ids.eq(0)
        x = self.emb(ids)
        B, T, C = x.size()
        q, k, v = (y.reshape(B, T, 4, C // 4).permute(0, 2, 1, 3) for y in self.qkv(x).split(C, 2))
        pos = torch.arange(T, device=ids.device)
        bias = -(pos[None, :] - pos[:, None]).abs()[None, None] * self.slopes
        att = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1)) + bias
        att = att.masked_fill(pad[:, None, None, :], float("-inf"))
        att = att.masked_fill(torch.ones(T, T, dtype=torch.bool, device=ids.device).triu(1), -1e9)
        y = att.softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def alibi(batch: int = 8) -> Built:
    ids = tokens(batch)
    ids[:, -3:] = 0
    return ALiBi(), (ids,), token_loss, (tokens(batch),)


class MoCo(nn.Module):
    """InfoNCE over in-batch negatives with a learnt temperature, two towers that share a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        a = F.normalize(self.a(self.trunk(one)), dim=-1)
        b = F.normalize(self.b(self.trunk(two)), dim=-1)
        logits = self.logit_scale.exp() * a @ b.T
        labels = torch.arange(len(a), device=a.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def info_nce(batch: int = 8) -> Built:
    return MoCo(), (torch.randn(batch, 3, 16, 16), torch.randn(batch, 3, 16, 16))


class CharTagger(nn.Module):
    """Characters by a CNN, words by a BiLSTM, emissions for a CRF computed by logsumexp."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.chars = nn.Embedding(30, 8)
        self.conv = nn.Conv1d(8, 16, 3, padding=1)
        self.words = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(32, 16, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(32, tags)
        self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, words: Tensor, chars: Tensor, gold: Tensor) -> Tensor:
        B, T, C = chars.shape
        c = self.conv(self.chars(chars.view(B * T, C)).transpose(1, 2)).relu().max(dim=-1).values
        x = torch.cat([self.words(words), c.view(B, T, -1)], dim=-1)
        emit = self.tags(self.lstm(x)[0])
        alpha = emit[:, 0]
        score = emit[:, 0].gather(1, gold[:, :1]).squeeze(1)
        for t in range(1, T):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + emit[:, t]
            step = emit[:, t].gather(1, gold[:, t : t + 1]).squeeze(1)
            score = score + step + self.transitions[gold[:, t - 1], gold[:, t]]
        return (torch.logsumexp(alpha, dim=1) - score).mean()


def crf_tagger(batch: int = 8) -> Built:
    inputs = (
        torch.randint(0, WORDS, (batch, 6)),
        torch.randint(0, 30, (batch, 6, 5)),
        torch.randint(0, 5, (batch, 6)),
    )
    return CharTagger(), inputs


class GAT(nn.Module):
    """Dense graph attention with a given adjacency, node features of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(8, 16, bias=False)
        self.a_src, self.a_dst = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.w(x).unflatten(-1, (4, 4))
        src, dst = (h * self.a_src).sum(-1), (h * self.a_dst).sum(-1)
        e = F.leaky_relu(src[:, :, None] + dst[:, None], 0.2)
        e = torch.where(adj[..., None] > 0, e, torch.full_like(e, -9e15))
        h = torch.einsum("bijh,bjhd->bihd", e.softmax(2), h).flatten(2)
        return F.log_softmax(self.out(F.elu(h)).mean(1), dim=-1)


def graph_attention(batch: int = 8) -> Built:
    adj = (torch.rand(batch, 7, 7) > 0.5).float() + torch.eye(7)
    return GAT(), (torch.randn(batch, 7, 8), adj), nn.NLLLoss(), (torch.randint(0, 3, (batch,)),)


class DeepFM(nn.Module):
    offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        fields = [11, 7, 13]
        self.register_buffer("offsets", torch.tensor([0, 11, 18]))
        self.embed, self.linear = nn.Embedding(sum(fields), 4), nn.Embedding(sum(fields), 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets
        e = self.embed(x)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        y = self.linear(x).sum(1) + self.bias + fm + self.mlp(e.view(-1, 12))
        return y.squeeze(1)


def deep_fm(batch: int = 8) -> Built:
    x = torch.stack([torch.randint(0, n, (batch,)) for n in (11, 7, 13)], 1)
    return DeepFM(), (x,), nn.BCEWithLogitsLoss(), (torch.randint(0, 2, (batch,)).float(),)


class Output(NamedTuple):
    """What a detector gives."""

    boxes: Tensor
    scores: Tensor


class SSD(nn.Module):
    """Anchors at two scales, hard masks, smooth L1 and focal loss."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.1)
        )
        self.c2 = nn.Sequential(
            nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.1)
        )
        self.box = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)])
        self.cls = nn.ModuleList([nn.Conv2d(8, 6, 1), nn.Conv2d(16, 6, 1)])

    def forward(self, x: Tensor) -> Output:
        one = self.c1(x)
        two = self.c2(one)
        boxes = [
            h(f).permute(0, 2, 3, 1).reshape(x.size(0), -1, 4) for h, f in zip(self.box, (one, two))
        ]
        scores = [
            h(f).permute(0, 2, 3, 1).reshape(x.size(0), -1, 3) for h, f in zip(self.cls, (one, two))
        ]
        return Output(torch.cat(boxes, 1), torch.cat(scores, 1))


def detection_loss(out: Any, boxes: Tensor, labels: Tensor) -> Tensor:
    positive = labels > 0
    l1 = F.smooth_l1_loss(out[0], boxes, reduction="none").sum(-1)
    regression = (l1 * positive).sum() / positive.sum().clamp(min=1)
    p = out[1].log_softmax(-1)
    pt = p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return regression + (-((1 - pt.exp()) ** 2) * pt).mean()


def ssd(batch: int = 8) -> Built:
    anchors = 2 * (8 * 8 + 4 * 4)
    targets = torch.rand(batch, anchors, 4), torch.randint(0, 3, (batch, anchors))
    return SSD(), (torch.randn(batch, 3, 16, 16),), detection_loss, targets


class Mamba(nn.Module):
    """A selective scan in a Python loop over time, gated, with a causal depthwise convolution."""

    def __init__(self, d: int = 16, n: int = 4) -> None:
        super().__init__()
        self.d, self.n = d, n
        self.embed = nn.Embedding(WORDS, d)
        self.in_proj = nn.Linear(d, 2 * d)
        self.conv = nn.Conv1d(d, d, 3, padding=2, groups=d)
        self.x_proj, self.dt = nn.Linear(d, 2 * n + 1), nn.Linear(1, d)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(d, 1)))
        self.D = nn.Parameter(torch.ones(d))
        self.head = nn.Linear(d, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x, z = self.in_proj(self.embed(ids)).chunk(2, -1)
        x = F.silu(self.conv(x.mT)[..., : ids.size(1)].mT)
        dt, B, C = self.x_proj(x).split([1, self.n, self.n], -1)
        dt = F.softplus(self.dt(dt))
        A = -self.A_log.exp()
        h = x.new_zeros(x.size(0), self.d, self.n)
        ys = []
        for t in range(x.size(1)):
            h = (
                torch.exp(dt[:, t, :, None] * A) * h
                + dt[:, t, :, None] * B[:, t, None, :] * x[:, t, :, None]
            )
            ys.append((h * C[:, t, None, :]).sum(-1))
        y = torch.stack(ys, 1) + x * self.D
        return self.head(y * F.silu(z))


def selective_scan(batch: int = 8) -> Built:
    return Mamba(), (tokens(batch),), token_loss, (tokens(batch),)


class VQ(nn.Module):
    """An autoencoder with a codebook by straight-through."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1))
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 1, 3, 1, 1), nn.Sigmoid()
        )
        self.codes = nn.Embedding(10, 8)
        nn.init.uniform_(self.codes.weight, -0.1, 0.1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.enc(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, 8)
        dist = (
            flat.pow(2).sum(1, keepdim=True)
            - 2 * flat @ self.codes.weight.t()
            + self.codes.weight.pow(2).sum(1)
        )
        q = self.codes(dist.argmin(1)).view_as(z)
        commit = F.mse_loss(z, q.detach()) * 0.25 + F.mse_loss(q, z.detach())
        q = z + (q - z).detach()
        recon = self.dec(q.permute(0, 3, 1, 2))
        return {"loss": F.binary_cross_entropy(recon, x) + commit, "recon": recon}


def vector_quantised(batch: int = 8) -> Built:
    return VQ(), (torch.rand(batch, 1, 16, 16),), lambda out: out["loss"], ()


class NBeats(nn.Module):
    """Residual stacks of backcasts and forecasts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 30)
            )
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        x = (x - mean) / std
        forecast = 0
        for block in self.blocks:
            backcast, fore = block(x).split([24, 6], dim=-1)
            x, forecast = x - backcast, forecast + fore
        return forecast * std + mean


def n_beats(batch: int = 8) -> Built:
    return NBeats(), (torch.randn(batch, 24),), nn.L1Loss(), (torch.randn(batch, 6),)


class Neural(nn.Module):
    """An ODE by RK4, a Hamiltonian's gradient inside of forward is not asked."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))

    def rhs(self, t: float, y: Tensor) -> Tensor:
        return self.f(torch.cat([y, torch.full_like(y[:, :1], t)], 1))

    def forward(self, y: Tensor) -> Tensor:
        h, path = 0.1, [y]
        for i in range(4):
            k1 = self.rhs(i * h, y)
            k2 = self.rhs(i * h + h / 2, y + h / 2 * k1)
            k3 = self.rhs(i * h + h / 2, y + h / 2 * k2)
            k4 = self.rhs(i * h + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return torch.stack(path)


def neural_ode(batch: int = 8) -> Built:
    return Neural(), (torch.randn(batch, 2),), F.mse_loss, (torch.randn(5, batch, 2),)


class CoordConvUNet(nn.Module):
    """Upsampling by bilinear interpolation, time embedding, attention at the bottom (DDPM)."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, c))
        self.inc = nn.Conv2d(5, c, 3, padding=1)
        self.down = nn.Conv2d(c, c, 3, stride=2, padding=1)
        self.norm, self.attn = nn.GroupNorm(2, c), nn.MultiheadAttention(c, 2, batch_first=True)
        self.up = nn.Conv2d(2 * c, c, 3, padding=1)
        self.outc = nn.Conv2d(c, 3, 1)
        self.c = c

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        half = self.c // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        args = t[:, None].float() * freqs[None]
        emb = self.time(torch.cat([args.sin(), args.cos()], -1))[:, :, None, None]
        H, W = x.shape[-2:]
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, H), torch.linspace(-1, 1, W), indexing="ij")
        x = torch.cat([x, torch.stack([yy, xx]).to(x).expand(x.size(0), -1, -1, -1)], 1)
        skip = F.silu(self.inc(x)) + emb
        h = F.silu(self.down(skip))
        b, c, hh, ww = h.shape
        seq = self.norm(h).view(b, c, -1).transpose(1, 2)
        h = h + self.attn(seq, seq, seq, need_weights=False)[0].transpose(1, 2).reshape(
            b, c, hh, ww
        )
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        return self.outc(F.silu(self.up(torch.cat([h, skip], 1))))


def ddpm_unet(batch: int = 8) -> Built:
    noise = torch.randn(batch, 3, 8, 8)
    return (
        CoordConvUNet(),
        (noise, torch.randint(0, 1000, (batch,))),
        nn.MSELoss(),
        (torch.randn_like(noise),),
    )


class Hypernet(nn.Module):
    """Low-rank adapters over frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(4, 16) / 4), nn.Parameter(torch.randn(32, 4) / 4)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.base[0](x) + x @ self.A.t() @ self.B.t() * (8 / 4)
        return self.head(self.base[2](self.base[1](h)))


def lora(batch: int = 8) -> Built:
    return (
        Hypernet(),
        (torch.randn(batch, 16),),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        (torch.randint(0, 4, (batch,)),),
    )


class ViTCls(nn.Module):
    """Patches by unfold, a class token, learnt places, pre-norm, stochastic depth of 0."""

    def __init__(self, d: int = 24) -> None:
        super().__init__()
        self.proj = nn.Linear(48, d)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 17, d) * 0.02)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(d),
                    "att": nn.MultiheadAttention(d, 3, batch_first=True),
                    "n2": nn.LayerNorm(d),
                    "mlp": nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)),
                }
            )
            for _ in range(2)
        )
        self.gamma = nn.Parameter(1e-4 * torch.ones(d))
        self.fc = nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Tensor:
        B = x.shape[0]
        p = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(B, 16, 48)
        x = torch.cat((self.cls.expand(B, -1, -1), self.proj(p)), dim=1) + self.pos
        for layer in self.layers:
            y = layer["n1"](x)
            x = x + self.gamma * layer["att"](y, y, y)[0]
            x = x + self.gamma * layer["mlp"](layer["n2"](x))
        return self.fc(x[:, 0])


def patch_transformer(batch: int = 8) -> Built:
    return (
        ViTCls(),
        (torch.randn(batch, 3, 16, 16),),
        nn.CrossEntropyLoss(),
        (torch.randint(0, 10, (batch,)),),
    )


class Dueling(nn.Module):
    """A dueling network with its frozen target inside, Huber loss on the chosen action."""

    def __init__(self) -> None:
        super().__init__()

        def net() -> nn.Sequential:
            return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))

        self.online, self.target = net(), net()
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    @staticmethod
    def q(net: nn.Module, s: Tensor) -> Tensor:
        va = net(s)
        v, a = va[:, :1], va[:, 1:]
        return v + a - a.mean(1, keepdim=True)

    def forward(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, done: Tensor) -> Tensor:
        q = self.q(self.online, s).gather(1, a[:, None]).squeeze(-1)
        with torch.no_grad():
            best = self.q(self.online, s2).argmax(1, keepdim=True)
            y = r + 0.99 * (1 - done) * self.q(self.target, s2).gather(1, best)[:, 0]
        return F.smooth_l1_loss(q, y)


def dueling_dqn(batch: int = 8) -> Built:
    s, s2 = torch.randn(batch, 6), torch.randn(batch, 6)
    return Dueling(), (s, torch.randint(0, 4, (batch,)), torch.randn(batch), s2, torch.zeros(batch))


class Conformer(nn.Module):
    """A macaron block with GLU and depthwise convolution, a CTC loss of given lengths."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.sub = nn.Conv1d(20, d, 3, stride=2, padding=1)
        self.ff1, self.ff2 = (
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, d))
            for _ in range(2)
        )
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.pw, self.dw, self.bn = (
            nn.Conv1d(d, 2 * d, 1),
            nn.Conv1d(d, d, 5, padding=2, groups=d),
            nn.BatchNorm1d(d),
        )
        self.pw2, self.out = nn.Conv1d(d, d, 1), nn.Linear(d, 11)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.sub(mel).transpose(1, 2)
        x = x + 0.5 * self.ff1(x)
        x = x + self.att(x, x, x)[0]
        y = F.glu(self.pw(x.transpose(1, 2)), dim=1)
        x = x + self.pw2(F.silu(self.bn(self.dw(y)))).transpose(1, 2)
        x = x + 0.5 * self.ff2(x)
        return self.out(x).log_softmax(-1).transpose(0, 1)


def conformer_ctc(batch: int = 8) -> Built:
    def loss(logp: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        frames = torch.full((logp.size(1),), logp.size(0), dtype=torch.long)
        return F.ctc_loss(logp, targets, frames, lengths, zero_infinity=True)

    lengths = torch.randint(2, 5, (batch,))
    return (
        Conformer(),
        (torch.randn(batch, 20, 24),),
        loss,
        (torch.randint(1, 11, (batch, 5)), lengths),
    )


class Pointer(nn.Module):
    """A GRU cell that points into its input, unrolled, with masks that grow."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.enc, self.cell = nn.GRU(2, d, batch_first=True), nn.GRUCell(2, d)
        self.w1, self.w2, self.v = (
            nn.Linear(d, d, bias=False),
            nn.Linear(d, d, bias=False),
            nn.Linear(d, 1, bias=False),
        )

    def forward(self, points: Tensor, order: Tensor) -> Tensor:
        memory, h = self.enc(points)
        h = h[-1]
        mask = torch.zeros(points.shape[:2], dtype=torch.bool)
        x, loss = points.mean(1), torch.zeros(())
        for t in range(points.size(1)):
            h = self.cell(x, h)
            u = self.v(torch.tanh(self.w1(memory) + self.w2(h).unsqueeze(1))).squeeze(-1)
            u = u.masked_fill(mask, -1e4)
            loss = loss + F.cross_entropy(u, order[:, t])
            mask = mask.scatter(1, order[:, t : t + 1], True)
            x = points.gather(1, order[:, t : t + 1, None].expand(-1, -1, 2)).squeeze(1)
        return loss / points.size(1)


def pointer_network(batch: int = 8) -> Built:
    order = torch.stack([torch.randperm(5) for _ in range(batch)])
    return Pointer(), (torch.rand(batch, 5, 2), order)


class Kan(nn.Module):
    """B-splines of order 1 as hats, a low-rank bilinear pooling, cosine logits with a margin."""

    grid: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 9))
        self.coef = nn.Parameter(torch.randn(6, 9, 12) * 0.1)
        self.u, self.v = nn.Linear(12, 8), nn.Linear(12, 8)
        self.prototypes = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        hats = (1 - (x.unsqueeze(-1) - self.grid).abs() / 0.5).clamp_min(0)
        h = torch.einsum("big,igo->bo", hats, self.coef)
        z = F.normalize(self.u(h) * self.v(h), dim=1)
        cos = z @ F.normalize(self.prototypes, dim=1).t()
        margin = torch.zeros_like(cos).scatter_(1, labels.view(-1, 1), 0.2)
        return F.cross_entropy(16.0 * (cos - margin), labels)


def splines_and_margin(batch: int = 8) -> Built:
    return Kan(), (torch.randn(batch, 6), torch.randint(0, 5, (batch,)))
