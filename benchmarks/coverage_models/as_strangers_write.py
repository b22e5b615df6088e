"""Training models as a stranger writes them, from memory, for what others leave out: odd losses,
odd layers, odd inputs. Each function returns (model, inputs, loss, targets). None was changed so
that it passes.
"""

# ruff: noqa: N806, N812 (as people write)

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Built = tuple[Any, ...]
V, D, T = 48, 32, 12


def words(count: int, length: int = T) -> Tensor:
    return torch.randint(0, V, (count, length))


class Gan(nn.Module):
    """Both halves in one step, the generator's gradients cut by detach."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh())
        self.d = nn.Sequential(
            spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def forward(self, z: Tensor, real: Tensor) -> dict[str, Tensor]:
        fake = self.g(z)
        on_fake, on_real = self.d(fake.detach()), self.d(real)
        d_loss = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
        return {"loss": d_loss - self.d(fake).mean()}


def hinge_gan(batch: int = 8) -> Built:
    return Gan(), (torch.randn(batch, 16), torch.randn(batch, 64))


class Wgan(nn.Module):
    """Least squares with a penalty on the scores' scale."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3 * 8 * 8))
        self.d = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(16 * 16, 1)
        )

    def forward(self, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        fake = self.g(z).unflatten(1, (3, 8, 8))
        return self.d(x), self.d(fake)


def lsgan(batch: int = 8) -> Built:
    def loss(out: tuple[Tensor, Tensor]) -> Tensor:
        real, fake = out
        return (real - 1).pow(2).mean() + fake.pow(2).mean() + 1e-3 * (real**2 + fake**2).mean()

    return Wgan(), (torch.randn(batch, 8), torch.randn(batch, 3, 8, 8)), loss


class VqVae(nn.Module):
    """Straight through, codebook learnt by its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, 1, 1))
        self.codebook = nn.Embedding(32, 8)
        self.codebook.weight.data.uniform_(-1 / 32, 1 / 32)
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 3, 3, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        z = self.enc(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, 8)
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codebook.weight.t()
        d = d + self.codebook.weight.pow(2).sum(1)
        q = self.codebook(d.argmin(1)).view_as(z)
        commit = F.mse_loss(q.detach(), z) * 0.25 + F.mse_loss(q, z.detach())
        q = z + (q - z).detach()
        return F.mse_loss(self.dec(q.permute(0, 3, 1, 2)), x) + commit


def vq_vae(batch: int = 8) -> Built:
    return VqVae(), (torch.randn(batch, 3, 16, 16),)


class Nerf(nn.Module):
    """Positional encoding, a skip, and the volume's integral."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(4) * math.pi)
        self.a = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.b = nn.Sequential(nn.Linear(32 + 24, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, rays: Tensor) -> Tensor:
        o, d = rays.split(3, -1)
        t = torch.linspace(0.1, 4, 16, device=rays.device)
        pts = o[:, None] + d[:, None] * t[None, :, None]
        x = (pts[..., None] * self.freq).flatten(-2)
        x = torch.cat([x.sin(), x.cos()], -1)
        raw = self.b(torch.cat([self.a(x), x], -1))
        rgb, sigma = raw[..., :3].sigmoid(), F.softplus(raw[..., 3])
        delta = torch.cat([t[1:] - t[:-1], t.new_full((1,), 1e3)])
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], 1), 1)
        return ((alpha * trans[:, :-1])[..., None] * rgb).sum(1)


def nerf_volume(batch: int = 8) -> Built:
    return Nerf(), (torch.randn(batch, 6),), F.mse_loss, (torch.rand(batch, 3),)


class UNet(nn.Module):
    """With attention in the middle, time given, and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.inp = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 4, 2, 1)
        self.norm = nn.GroupNorm(4, 32)
        self.qkv, self.proj = nn.Conv2d(32, 96, 1), nn.Conv2d(32, 32, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(48, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        f = torch.exp(-math.log(1e4) * torch.arange(8, device=t.device) / 8)
        emb = torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], dim=1)
        skip = F.silu(self.inp(x))
        h = self.down(skip) + self.t(emb)[:, :, None, None]
        B, C, H, W = h.shape
        q, k, v = self.qkv(self.norm(h)).reshape(B, 3, C, H * W).unbind(1)
        att = torch.einsum("bci,bcj->bij", q * C**-0.5, k).softmax(-1)
        h = h + self.proj(torch.einsum("bij,bcj->bci", att, v).reshape(B, C, H, W))
        return self.out(torch.cat([self.up(h), skip], 1))


def unet_attention(batch: int = 8) -> Built:
    x, t = torch.randn(batch, 3, 16, 16), torch.rand(batch)
    return UNet(), (x, t), F.mse_loss, (torch.randn(batch, 3, 16, 16),)


class Seq2Seq(nn.Module):
    """GRU, teacher forcing, Bahdanau's attention step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(V, D, padding_idx=0), nn.Embedding(V, D, padding_idx=0)
        self.enc = nn.GRU(D, D, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * D, D)
        self.cell = nn.GRUCell(D + 2 * D, D)
        self.w, self.u, self.v = nn.Linear(D, D), nn.Linear(2 * D, D), nn.Linear(D, 1, bias=False)
        self.out = nn.Linear(D, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, last = self.enc(self.src(src))
        h = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        mask, keys, steps = src == 0, self.u(memory), []
        for i in range(tgt.size(1)):
            e = self.v(torch.tanh(self.w(h).unsqueeze(1) + keys)).squeeze(-1)
            a = e.masked_fill(mask, -1e9).softmax(-1)
            c = torch.bmm(a.unsqueeze(1), memory).squeeze(1)
            h = self.cell(torch.cat([self.tgt(tgt[:, i]), c], -1), h)
            steps.append(self.out(h))
        return torch.stack(steps, 1)


def gru_seq2seq(batch: int = 8) -> Built:
    def loss(out: Tensor, want: Tensor) -> Tensor:
        return F.cross_entropy(out.reshape(-1, V), want.reshape(-1), ignore_index=0)

    return Seq2Seq(), (words(batch), words(batch, 5)), loss, (words(batch, 5),)


class Normed(nn.Module):
    """Weight-normed and spectral-normed convolutions of a vocoder's critic."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                weight_norm(nn.Conv1d(1, 8, 15, 1, 7)),
                weight_norm(nn.Conv1d(8, 16, 11, 4, 5, groups=4)),
                weight_norm(nn.Conv1d(16, 16, 5, 1, 2)),
            ]
        )
        self.post = weight_norm(nn.Conv1d(16, 1, 3, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        maps = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            maps.append(x)
        return torch.flatten(self.post(x), 1, -1), maps


def vocoder_critic(batch: int = 8) -> Built:
    def loss(out: tuple[Tensor, list[Tensor]]) -> Tensor:
        score, maps = out
        return ((score - 1) ** 2).mean() + 0.1 * sum(m.abs().mean() for m in maps)

    return Normed(), (torch.randn(batch, 1, 64),), loss


class RoundSte(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        scale = 2**bits - 1
        ctx.save_for_backward(x)
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ((x >= 0) & (x <= 1)).to(grads[0].dtype), None


class Quantised(nn.Module):
    """Fake quantisation by a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, 10)

    def forward(self, x: Tensor) -> Tensor:
        w = RoundSte.apply(torch.sigmoid(self.a.weight), 4)
        return self.b(RoundSte.apply(torch.relu(F.linear(x, w, self.a.bias)), 4))


def own_function(batch: int = 8) -> Built:
    return (
        Quantised(),
        (torch.randn(batch, D),),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        (torch.randint(10, (batch,)),),
    )


class DictIn(nn.Module):
    """A dict of tensors, a tuple inside, a flag, and a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.ModuleDict({k: nn.Embedding(n, 8) for k, n in (("user", 20), ("item", 30))})
        self.dense = nn.Linear(4, 8)
        self.top = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> dict[str, Tensor]:
        user, item = (self.emb[k](v) for k, v in zip(("user", "item"), batch["ids"], strict=True))
        x = torch.cat([user, item, self.dense(batch["dense"])], -1) * scale
        return {"logit": self.top(x).squeeze(-1), "reg": user.pow(2).mean()}


def dict_of_inputs(batch: int = 8) -> Built:
    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out["logit"], y) + 1e-2 * out["reg"]

    ids = (torch.randint(20, (batch,)), torch.randint(30, (batch,)))
    features = {"ids": ids, "dense": torch.randn(batch, 4)}
    return DictIn(), (features,), loss, (torch.rand(batch).round(),)


class Tied(nn.Module):
    """Causal language model, head tied to words, sinusoids, attention by hand with dropout 0."""

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([nn.MultiheadAttention(D, 4, batch_first=True) for _ in "ab"])
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in "ab"])
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.tok.weight
        pe = torch.zeros(T, D)
        pos, div = torch.arange(T).unsqueeze(1), torch.exp(torch.arange(0, D, 2) * -0.3)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe.unsqueeze(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tok(x) * D**0.5 + self.pe[:, : x.size(1)]
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        for att, norm in zip(self.blocks, self.norms, strict=True):
            h = norm(h + att(h, h, h, attn_mask=mask, need_weights=False, is_causal=True)[0])
        return self.head(h)


def tied_language_model(batch: int = 8) -> Built:
    def loss(out: Tensor, x: Tensor) -> Tensor:
        return F.cross_entropy(out[:, :-1].flatten(0, 1), x[:, 1:].flatten())

    x = words(batch)
    return Tied(), (x,), loss, (x.clone(),)


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.02)
        self.B = nn.Parameter(torch.zeros(base.out_features, r) + 0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.A.T @ self.B.T) * 2.0


def lora_layers(batch: int = 8) -> Built:
    layers = [nn.Linear(D, D), nn.GELU(), nn.Linear(D, D), nn.GELU(), nn.Linear(D, 5)]
    model = nn.Sequential(*(LoraLinear(m) if isinstance(m, nn.Linear) else m for m in layers))
    return model, (torch.randn(batch, D),), F.cross_entropy, (torch.randint(5, (batch,)),)


class Frozen(nn.Module):
    """A frozen backbone under no_grad, a probe above."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1)
        )
        for p in self.body.parameters():
            p.requires_grad = False
        self.body[1].eval()
        self.probe = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            f = self.body(x)
        return self.probe(f.mean((2, 3)))


def frozen_backbone(batch: int = 8) -> Built:
    x, y = torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))
    return Frozen(), (x,), F.cross_entropy, (y,)


class FNet(nn.Module):
    """Fourier mixing and a spectral convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.ff = nn.Embedding(V, D), nn.Sequential(nn.Linear(D, 64), nn.GELU())
        self.backward, self.norm = nn.Linear(64, D), nn.LayerNorm(D)
        self.spec = nn.Parameter(torch.randn(T // 2 + 1, D, 2) * 0.1)
        self.head = nn.Linear(D, V)

    def forward(self, x: Tensor) -> Tensor:
        h = self.emb(x)
        h = self.norm(h + torch.fft.fft2(h, dim=(-2, -1)).real)
        f = torch.fft.rfft(h, dim=1, norm="ortho") * torch.view_as_complex(self.spec)
        h = h + torch.fft.irfft(f, n=T, dim=1, norm="ortho")
        return self.head(h + self.backward(self.ff(h))).transpose(1, 2)


def fourier_mixing(batch: int = 8) -> Built:
    return FNet(), (words(batch),), F.cross_entropy, (words(batch),)


class Blocks(nn.Module):
    """Activation checkpointing of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))
            for _ in range(3)
        )
        self.tail = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D), nn.ReLU())
        self.head = nn.Linear(D, 7)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(checkpoint_sequential(self.tail, 2, x, use_reentrant=False))


def checkpointed_blocks(batch: int = 8) -> Built:
    return Blocks(), (torch.randn(batch, D),), F.cross_entropy, (torch.randint(7, (batch,)),)


class Deq(nn.Module):
    """A fixed point found without gradients, then one step with them."""

    def __init__(self) -> None:
        super().__init__()
        self.inject, self.cell, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)
        self.head = nn.Linear(D, 4)

    def step(self, z: Tensor, u: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.cell(z) + u))

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.inject(x), torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(6):
                z = self.step(z, u)
        return self.head(self.step(z.detach(), u))


def deep_equilibrium(batch: int = 8) -> Built:
    return Deq(), (torch.randn(batch, D),), F.cross_entropy, (torch.randint(4, (batch,)),)


class Norms(nn.Module):
    """Batch normalisations of all dims, one without weights, one without statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.c3, self.b3 = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4)
        self.c2, self.b2 = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8, affine=False)
        self.c1 = nn.Conv1d(8, 8, 3, padding=1)
        self.b1 = nn.BatchNorm1d(8, track_running_stats=False)
        self.fc, self.b0 = nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=0.01, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b3(self.c3(x))).mean(2)
        x = F.relu(self.b2(self.c2(x))).amax(2)
        x = F.elu(self.b1(self.c1(x)))
        return self.b0(self.fc(F.adaptive_avg_pool1d(x, 1).flatten(1)))


def batch_norms(batch: int = 8) -> Built:
    return (
        Norms(),
        (torch.randn(batch, 1, 4, 8, 8),),
        F.cross_entropy,
        (torch.randint(6, (batch,)),),
    )


class Upscaler(nn.Module):
    """Pixel shuffle, and its reverse, with a residual scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(12, 32, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.PReLU(32))
        self.tail = nn.Sequential(nn.Conv2d(32, 3 * 16, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(F.pixel_unshuffle(x, 2))
        up = F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        return self.tail(h + 0.1 * self.body(h)) + up


def pixel_shuffle(batch: int = 8) -> Built:
    x, y = torch.randn(batch, 3, 8, 8), torch.randn(batch, 3, 16, 16)
    return Upscaler(), (x,), F.smooth_l1_loss, (y,)


class Bags(nn.Module):
    """Bags by offsets, means, and weights of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(V, D, mode="mean")
        self.total = nn.EmbeddingBag(V, D, mode="sum")
        self.fc = nn.Linear(2 * D, 3)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return self.fc(torch.cat([self.mean(x), self.total(x, per_sample_weights=w)], 1))


def embedding_bags(batch: int = 8) -> Built:
    arguments = (words(batch, 6), torch.rand(batch, 6))
    return Bags(), arguments, nn.MultiMarginLoss(), (torch.randint(3, (batch,)),)


class Ctc(nn.Module):
    """Deep Speech: convolutions in time, a bidirectional GRU, log-probabilities in time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(16, 32, 5, 2, 2), nn.BatchNorm1d(32), nn.Hardtanh(0, 20)
        )
        self.rnn = nn.GRU(32, 16, 2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(32, 11)

    def forward(self, mel: Tensor) -> Tensor:
        h, _ = self.rnn(self.conv(mel).transpose(1, 2))
        return self.fc(h).log_softmax(-1).transpose(0, 1)


def deep_speech(batch: int = 8) -> Built:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        frames = torch.full((y.size(0),), out.size(0), dtype=torch.long)
        lengths = torch.full((y.size(0),), y.size(1), dtype=torch.long)
        return F.ctc_loss(out, y, frames, lengths, zero_infinity=True)

    return Ctc(), (torch.randn(batch, 16, 40),), loss, (torch.randint(1, 11, (batch, 6)),)


class TwoTower(nn.Module):
    """In-batch negatives both ways, a learnt temperature, and a triplet with hardest negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.p = nn.Linear(20, D), nn.Linear(24, D)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, q: Tensor, p: Tensor) -> Tensor:
        a, b = F.normalize(self.q(q), dim=-1), F.normalize(self.p(p), dim=-1)
        logits = self.logit_scale.exp() * a @ b.t()
        labels = torch.arange(len(q), device=q.device)
        clip = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        dist = torch.cdist(a, b)
        eye = torch.eye(len(q), dtype=torch.bool, device=q.device)
        hardest = dist.masked_fill(eye, float("inf")).min(1).values
        return clip + F.relu(dist.diagonal() - hardest + 0.2).mean()


def in_batch_negatives(batch: int = 8) -> Built:
    return TwoTower(), (torch.randn(batch, 20), torch.randn(batch, 24))


class Mixed(nn.Module):
    """Half inside, a norm in float32, ints and bools among the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 64), nn.Linear(64, D)
        self.weight = nn.Parameter(torch.ones(D))
        self.head = nn.Linear(D, 3)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        v = x.float().pow(2).mean(-1, keepdim=True)
        h = (x.float() * torch.rsqrt(v + 1e-6)).type_as(x) * self.weight
        h = self.down(F.silu(self.up(h))).double().tanh().to(x.dtype)
        h = torch.where(keep[:, None].bool(), h, h * 0.5)
        bins = torch.bucketize(x[:, 0], torch.linspace(-1, 1, 4)).clamp(0, 2)
        return self.head(h + x) + F.one_hot(bins, 3).to(x.dtype)


def mixed_dtypes(batch: int = 8) -> Built:
    keep = torch.randint(0, 2, (batch,), dtype=torch.uint8)
    return Mixed(), (torch.randn(batch, D), keep), F.cross_entropy, (torch.randint(3, (batch,)),)


class EmaTeacher(nn.Module):
    """BYOL with its teacher's weights moved inside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.predictor = nn.Linear(D, 16), nn.Linear(16, 16)
        self.register_buffer("teacher", self.student.weight.detach().clone())

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.mul_(0.99).add_(self.student.weight, alpha=0.01)
        p = F.normalize(self.predictor(self.student(a)), dim=-1)
        return 2 - 2 * (p * F.normalize(F.linear(b, self.teacher), dim=-1)).sum(-1).mean()


def ema_teacher(batch: int = 8) -> Built:
    return EmaTeacher(), (torch.randn(batch, D), torch.randn(batch, D))


class Rearranged(nn.Module):
    """Window attention by hand, rolls and windows as einops would make them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, D, 2, 2)
        self.qkv, self.proj, self.fc = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, 10)
        self.bias = nn.Parameter(torch.zeros(4, 7 * 7))
        c = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        rel = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0) + 3
        self.register_buffer("index", rel[..., 0] * 7 + rel[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        B, H, W, C = x.shape
        y = torch.roll(x, (-2, -2), (1, 2)).view(B, H // 4, 4, W // 4, 4, C)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, C)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, 4, C // 4).permute(2, 0, 3, 1, 4)
        a = q @ k.mT * (C // 4) ** -0.5 + self.bias[:, self.index]
        y = self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, C))
        y = y.view(B, H // 4, W // 4, 4, 4, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)
        return self.fc((x + torch.roll(y, (2, 2), (1, 2))).mean((1, 2)))


def shifted_windows(batch: int = 8) -> Built:
    x, y = torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))
    return Rearranged(), (x,), F.cross_entropy, (y,)


class Mdn(nn.Module):
    """Mixture density, with torch.distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, 64), nn.Tanh())
        self.pi, self.mu, self.sigma = nn.Linear(64, 3), nn.Linear(64, 3), nn.Linear(64, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.body(x)
        mixture = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=self.pi(h)),
            torch.distributions.Normal(self.mu(h), F.softplus(self.sigma(h)) + 1e-3),
        )
        return -mixture.log_prob(y).mean()


def mixture_density(batch: int = 8) -> Built:
    return Mdn(), (torch.randn(batch, D), torch.randn(batch))


class Snake(nn.Module):
    """Parameters in plain containers: lists, dicts, a bare scalar; layers shared and repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.ps = nn.ParameterList([nn.Parameter(torch.ones(D)) for _ in range(2)])
        self.pd = nn.ParameterDict({"gain": nn.Parameter(torch.tensor(0.5))})
        self.shared = nn.Linear(D, D)
        self.net = nn.Sequential(
            OrderedDict([("one", self.shared), ("two", nn.Mish()), ("three", self.shared)])
        )
        self.bil = nn.Bilinear(D, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        for p in self.ps:
            x = x + torch.sin(p * x).square() / (p + 1e-9)
        y = self.net(x) * self.pd["gain"]
        return self.bil(x, y).squeeze(-1)


def shared_layers(batch: int = 8) -> Built:
    return (
        Snake(),
        (torch.randn(batch, D),),
        nn.GaussianNLLLoss(),
        (
            torch.randn(batch),
            torch.rand(batch) + 0.1,
        ),
    )


class Ranker(nn.Module):
    """ListNet and a pairwise hinge over all pairs of a list, padded items masked."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 1))

    def forward(self, x: Tensor, y: Tensor, n: Tensor) -> Tensor:
        s = self.score(x).squeeze(-1)
        valid = torch.arange(x.size(1))[None] < n[:, None]
        s = s.masked_fill(~valid, -1e4)
        target = y.masked_fill(~valid, float("-inf")).softmax(-1)
        listwise = -(target * s.log_softmax(-1)).nan_to_num().sum(-1).mean()
        diff = s[:, :, None] - s[:, None, :]
        better = (y[:, :, None] > y[:, None, :]) & valid[:, :, None] & valid[:, None, :]
        return listwise + (F.relu(1 - diff) * better).sum() / better.sum().clamp(min=1)


def learning_to_rank(batch: int = 8) -> Built:
    arguments = (torch.randn(batch, 6, 12), torch.rand(batch, 6), torch.randint(2, 7, (batch,)))
    return Ranker(), arguments


class MessagePassing(nn.Module):
    """A graph network with scatter_add by edges, and pooling by graph."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.msg, self.upd = nn.Linear(6, 16), nn.Linear(32, 16), nn.GRUCell(16, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        B, N, _ = x.shape
        h = self.enc(x)
        for _ in range(2):
            i = src.unsqueeze(-1).expand(-1, -1, 16)
            j = dst.unsqueeze(-1).expand(-1, -1, 16)
            m = F.relu(self.msg(torch.cat([h.gather(1, i), h.gather(1, j)], -1)))
            agg = torch.zeros_like(h).scatter_add(1, j, m)
            h = self.upd(agg.reshape(B * N, 16), h.reshape(B * N, 16)).view(B, N, 16)
        return self.out(h.mean(1)).squeeze(-1)


def message_passing(batch: int = 8) -> Built:
    edges = (torch.randint(5, (batch, 9)), torch.randint(5, (batch, 9)))
    return MessagePassing(), (torch.randn(batch, 5, 6), *edges), F.l1_loss, (torch.randn(batch),)


class Warped(nn.Module):
    """A spatial transformer: affine_grid and grid_sample, total variation in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.theta = nn.Linear(32, 6)
        self.net = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(self.loc(x)).view(-1, 2, 3)
        x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False))
        return self.net(F.pad(x, (1, 1, 1, 1), mode="reflect"))[:, :, 1:-1, 1:-1]


def spatial_transformer(batch: int = 8) -> Built:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        tv = (out[..., 1:] - out[..., :-1]).abs().mean() + out.diff(dim=2).abs().mean()
        return F.cross_entropy(out, y) + 0.1 * tv

    return Warped(), (torch.randn(batch, 1, 8, 8),), loss, (torch.randint(4, (batch, 8, 8)),)


class Memory(nn.Module):
    """MoCo's queue, which forward moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(D, 16)
        self.register_buffer("queue", F.normalize(torch.randn(16, 32), dim=0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.q(b), dim=1)
        pos, neg = (q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()
        self.queue = torch.cat([self.queue[:, len(k) :], k.t()], 1)
        labels = torch.zeros(len(q), dtype=torch.long)
        return F.cross_entropy(torch.cat([pos, neg], 1) / 0.2, labels)


def moco_queue(batch: int = 8) -> Built:
    return Memory(), (torch.randn(batch, D), torch.randn(batch, D))
