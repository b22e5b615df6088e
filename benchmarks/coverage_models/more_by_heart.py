"""More training models written from memory, as people bring them: each function returns (model,
inputs, loss, targets). None was changed so that it passes.
"""

# ruff: noqa: N806, N812 (as people write)

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[Any, ...]
VOCAB, DIM, LENGTH = 40, 32, 10


def ids(count: int) -> Tensor:
    return torch.randint(0, VOCAB, (count, LENGTH))


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek's: keys and values by a low rank, rotary dims apart."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.q = nn.Linear(DIM, 4 * 12)
        self.kv_down = nn.Linear(DIM, 8 + 4)
        self.norm = nn.LayerNorm(8)
        self.kv_up = nn.Linear(8, 4 * 16)
        self.o, self.head = nn.Linear(32, DIM), nn.Linear(DIM, VOCAB)

    @staticmethod
    def rotate(x: Tensor) -> Tensor:
        T, d = x.shape[1], x.shape[-1]
        freq = torch.outer(torch.arange(T), 1e4 ** -(torch.arange(0, d, 2) / d))
        cis = torch.polar(torch.ones_like(freq), freq)[None, :, None]
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * cis).flatten(3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.emb(x)
        B, T, _ = h.shape
        q_nope, q_rope = self.q(h).view(B, T, 4, 12).split([8, 4], -1)
        c, k_rope = self.kv_down(h).split([8, 4], -1)
        k_nope, v = self.kv_up(self.norm(c)).view(B, T, 4, 16).split([8, 8], -1)
        q = torch.cat([q_nope, self.rotate(q_rope)], -1)
        k = torch.cat([k_nope, self.rotate(k_rope.unsqueeze(2)).expand(-1, -1, 4, -1)], -1)
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(12)
        s = s + torch.full((T, T), float("-inf")).triu(1)
        y = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v).reshape(B, T, 32)
        return self.head(h + self.o(y)).transpose(1, 2)


def latent_attention(batch: int = 8) -> Built:
    return MultiHeadLatentAttention(), (ids(batch),), F.cross_entropy, (ids(batch),)


class RWKV(nn.Module):
    """Time mixing by token shift and an exponential decay in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.ln = nn.Embedding(VOCAB, DIM), nn.LayerNorm(DIM)
        self.mix = nn.Parameter(torch.rand(3, 1, 1, DIM))
        self.k, self.v, self.r = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.decay, self.first = nn.Parameter(torch.zeros(DIM)), nn.Parameter(torch.zeros(DIM))
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(self.emb(x))
        mixed = h * self.mix + self.shift(h) * (1 - self.mix)
        k, v, r = self.k(mixed[0]), self.v(mixed[1]), torch.sigmoid(self.r(mixed[2]))
        num = den = torch.zeros_like(k[:, 0])
        out = []
        w = -torch.exp(self.decay)
        for t in range(x.size(1)):
            e = torch.exp(self.first + k[:, t])
            out.append((num + e * v[:, t]) / (den + e))
            num, den = (
                torch.exp(w) * num + torch.exp(k[:, t]) * v[:, t],
                torch.exp(w) * den + torch.exp(k[:, t]),
            )
        logits = self.head(r * torch.stack(out, dim=1))
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))


def rwkv(batch: int = 8) -> Built:
    return RWKV(), (ids(batch),)


class DiTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(DIM, 64), nn.GELU(approximate="tanh"), nn.Linear(64, DIM)
        )
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, dim=-1)
        h = self.norm(x) * (1 + s1) + b1
        x = x + g1 * self.attn(h, h, h, need_weights=False)[0]
        return x + g2 * self.mlp(self.norm(x) * (1 + s2) + b2)


class DiT(nn.Module):
    """A diffusion transformer with adaptive norms and a sinusoidal time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, DIM, 2, 2)
        self.pos = nn.Parameter(torch.randn(1, 16, DIM) * 0.02)
        self.label = nn.Embedding(11, DIM)
        self.time = nn.Sequential(nn.Linear(16, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.blocks = nn.ModuleList([DiTBlock(), DiTBlock()])
        self.out = nn.Linear(DIM, 16)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(1e4) * torch.arange(8, dtype=torch.float32) / 8)
        args = t[:, None].float() * freqs[None]
        c = self.time(torch.cat([args.cos(), args.sin()], -1)) + self.label(y)
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        for b in self.blocks:
            h = b(h, c)
        h = self.out(h).view(-1, 4, 4, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", h).reshape(x.shape)


def dit(batch: int = 8) -> Built:
    inputs = (
        torch.randn(batch, 4, 8, 8),
        torch.randint(0, 100, (batch,)),
        torch.randint(0, 11, (batch,)),
    )
    return DiT(), inputs, nn.MSELoss(), (torch.randn(batch, 4, 8, 8),)


class TCN(nn.Module):
    """Causal convolutions with weight norm, residuals and the last step."""

    def __init__(self) -> None:
        super().__init__()
        wn = nn.utils.parametrizations.weight_norm
        self.c1 = wn(nn.Conv1d(3, 16, 3, dilation=1))
        self.c2 = wn(nn.Conv1d(16, 16, 3, dilation=2))
        self.down, self.fc = nn.Conv1d(3, 16, 1), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.c1(F.pad(x, (2, 0))))
        h = F.relu(self.c2(F.pad(h, (4, 0))) + self.down(x))
        return self.fc(h[:, :, -1])


def temporal_convolution(batch: int = 8) -> Built:
    return (
        TCN(),
        (torch.randn(batch, 3, 20),),
        nn.CrossEntropyLoss(),
        (torch.randint(0, 2, (batch,)),),
    )


class SegHead(nn.Module):
    """ASPP: dilated branches and a pooled one, dice and cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish())
        self.branches = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU())
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        f = self.stem(x)
        parts = [b(f) for b in self.branches]
        parts.append(
            F.interpolate(self.pool(f), f.shape[-2:], mode="bilinear", align_corners=False)
        )
        return F.interpolate(self.out(torch.cat(parts, 1)), scale_factor=2, mode="bicubic")


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    onehot = F.one_hot(target, 3).permute(0, 3, 1, 2).float()
    p = logits.softmax(1)
    dims = (0, 2, 3)
    dice = (2 * (p * onehot).sum(dims) + 1) / (p.sum(dims) + onehot.sum(dims) + 1)
    return F.cross_entropy(logits, target) + 1 - dice.mean()


def aspp(batch: int = 8) -> Built:
    return (
        SegHead(),
        (torch.randn(batch, 3, 16, 16),),
        dice_loss,
        (torch.randint(0, 3, (batch, 16, 16)),),
    )


class RealNVP(nn.Module):
    """Coupling layers with alternating masks, the likelihood as loss."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]))
        self.s = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 4), nn.Tanh())
            for _ in range(3)
        )
        self.t = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 4)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        logdet = x.new_zeros(x.shape[0])
        for i in reversed(range(3)):
            z = self.mask[i] * x
            s, t = self.s[i](z) * (1 - self.mask[i]), self.t[i](z) * (1 - self.mask[i])
            x = (1 - self.mask[i]) * (x - t) * torch.exp(-s) + z
            logdet -= s.sum(dim=1)
        prior = -0.5 * (x**2 + math.log(2 * math.pi)).sum(1)
        return -(prior + logdet).mean()


def normalizing_flow(batch: int = 8) -> Built:
    return RealNVP(), (torch.randn(batch, 4),)


class PPO(nn.Module):
    """The clipped objective with a value function and an entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mu, self.value = nn.Linear(32, 2), nn.Linear(32, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, obs: Tensor, act: Tensor, old: Tensor, adv: Tensor, ret: Tensor) -> Any:
        h = self.body(obs)
        dist: Any = torch.distributions.Normal(self.mu(h), self.log_std.exp())
        ratio = torch.exp(dist.log_prob(act).sum(-1) - old)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        policy = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        return (
            -policy
            + 0.5 * F.mse_loss(self.value(h).squeeze(-1), ret)
            - 0.01 * dist.entropy().sum(-1).mean()
        )


def ppo(batch: int = 8) -> Built:
    return PPO(), (
        torch.randn(batch, 6),
        torch.randn(batch, 2),
        torch.randn(batch),
        torch.randn(batch),
        torch.randn(batch),
    )


class DPO(nn.Module):
    """A policy against a frozen reference that shares its embedding's start."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB))
        self.ref = nn.Sequential(nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB))
        self.ref.load_state_dict(self.policy.state_dict())
        for p in self.ref.parameters():
            p.requires_grad = False

    @staticmethod
    def logp(logits: Tensor, y: Tensor) -> Tensor:
        lp = logits[:, :-1].log_softmax(-1).gather(2, y[:, 1:, None]).squeeze(2)
        return (lp * (y[:, 1:] != 0)).sum(-1)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        both = torch.cat([chosen, rejected])
        pi = self.logp(self.policy(both), both)
        with torch.no_grad():
            ref = self.logp(self.ref(both), both)
        pc, pr = pi.chunk(2)
        rc, rr = ref.chunk(2)
        return -F.logsigmoid(0.1 * ((pc - pr) - (rc - rr))).mean()


def dpo(batch: int = 8) -> Built:
    return DPO(), (ids(batch), ids(batch))


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.A.T @ self.B.T) * 2.0


def low_rank_adapters(batch: int = 8) -> Built:
    model = nn.Sequential(LoRALinear(nn.Linear(16, 32)), nn.GELU(), LoRALinear(nn.Linear(32, 4)))
    return model, (torch.randn(batch, 16),), nn.CrossEntropyLoss(), (torch.randint(0, 4, (batch,)),)


class SetTransformer(nn.Module):
    """Inducing points and pooling by a seed, Deep Sets' baseline added."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(3, DIM)
        self.points = nn.Parameter(torch.randn(1, 4, DIM))
        self.a, self.b = (
            nn.MultiheadAttention(DIM, 2, batch_first=True),
            nn.MultiheadAttention(DIM, 2, batch_first=True),
        )
        self.seed = nn.Parameter(torch.randn(1, 1, DIM))
        self.pma = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.inp(x))
        i, _ = self.a(self.points.repeat(len(x), 1, 1), x, x)
        x = x + self.b(x, i, i)[0]
        p = self.pma(self.seed.expand(x.shape[0], -1, -1), x, x)[0].squeeze(1)
        return self.out(p + x.amax(1)).squeeze(-1)


def set_transformer(batch: int = 8) -> Built:
    return SetTransformer(), (torch.randn(batch, 9, 3),), nn.SmoothL1Loss(), (torch.randn(batch),)


class NeRF(nn.Module):
    """Positional encoding, a skip, and alpha compositing along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2 = nn.Linear(39, 32), nn.Linear(32 + 39, 32)
        self.sigma, self.rgb = nn.Linear(32, 1), nn.Linear(32 + 3, 3)

    def encode(self, x: Tensor) -> Tensor:
        f = 2.0 ** torch.arange(6, device=x.device)
        y = (x[..., None] * f).flatten(-2)
        return torch.cat([x, y.sin(), y.cos()], dim=-1)

    def forward(self, o: Tensor, d: Tensor) -> Tensor:
        t = torch.linspace(0.1, 2.0, 8)
        p = o[:, None] + d[:, None] * t[:, None]
        e = self.encode(p)
        h = F.relu(self.l2(torch.cat([F.relu(self.l1(e)), e], -1)))
        sigma = F.softplus(self.sigma(h)).squeeze(-1)
        rgb = torch.sigmoid(self.rgb(torch.cat([h, d[:, None].expand(-1, 8, -1)], -1)))
        delta = torch.cat([t[1:] - t[:-1], torch.tensor([1e2])])
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(
            torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1
        )[:, :-1]
        return ((alpha * trans)[..., None] * rgb).sum(1)


def nerf(batch: int = 8) -> Built:
    return (
        NeRF(),
        (torch.randn(batch, 3), torch.randn(batch, 3)),
        nn.MSELoss(),
        (torch.rand(batch, 3),),
    )


class MultiTask(nn.Module):
    """Homoscedastic weights of three losses, with missing labels."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.PReLU(), nn.Dropout(0.0), nn.LayerNorm(32))
        self.heads = nn.ModuleDict(
            {"reg": nn.Linear(32, 1), "cls": nn.Linear(32, 5), "rank": nn.Linear(32, 1)}
        )
        self.log_vars = nn.ParameterDict(
            {k: nn.Parameter(torch.zeros(())) for k in ("reg", "cls", "rank")}
        )

    def forward(self, x: Tensor, target: dict[str, Tensor]) -> dict[str, Tensor]:
        h = self.trunk(x)
        out = {k: head(h) for k, head in self.heads.items()}
        r = out["rank"].squeeze(-1)
        pairs = F.softplus(
            -(r[:, None] - r[None, :]) * (target["rank"][:, None] - target["rank"][None, :]).sign()
        )
        losses = {
            "reg": (
                F.mse_loss(out["reg"].squeeze(-1), target["reg"].nan_to_num(), reduction="none")
                * ~target["reg"].isnan()
            ).mean(),
            "cls": F.cross_entropy(out["cls"], target["cls"], ignore_index=-1),
            "rank": pairs.mean(),
        }
        total = torch.stack(
            [losses[k] * torch.exp(-self.log_vars[k]) + self.log_vars[k] for k in losses]
        ).sum()
        return {"loss": total, **losses}


def multi_task(batch: int = 8) -> Built:
    reg = torch.randn(batch)
    reg[1] = float("nan")
    cls = torch.randint(0, 5, (batch,))
    cls[2] = -1
    return MultiTask(), (
        torch.randn(batch, 10),
        {"reg": reg, "cls": cls, "rank": torch.randn(batch)},
    )


class Pointer(nn.Module):
    """GRU cells that point back into the input, teacher forced."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.GRU(2, 16, batch_first=True)
        self.cell = nn.GRUCell(2, 16)
        self.w1, self.w2, self.v = (
            nn.Linear(16, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 1, bias=False),
        )

    def forward(self, x: Tensor, order: Tensor) -> Any:
        e, h = self.enc(x)
        loss: Any = 0.0
        h, inp = h[0], torch.zeros_like(x[:, 0])
        used = torch.zeros(x.shape[:2], dtype=torch.bool)
        for t in range(x.size(1)):
            h = self.cell(inp, h)
            score = self.v(torch.tanh(self.w1(e) + self.w2(h)[:, None])).squeeze(-1)
            score = score.masked_fill(used, -1e4)
            loss = loss + F.cross_entropy(score, order[:, t])
            used = used.scatter(1, order[:, t : t + 1], True)
            inp = x.gather(1, order[:, t].view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
        return loss / x.size(1)


def pointing_cells(batch: int = 8) -> Built:
    order = torch.stack([torch.randperm(5, device="cpu") for _ in range(batch)])
    return Pointer(), (torch.randn(batch, 5, 2), order)


class ArcFace(nn.Module):
    """An angular margin on normalised weights, a triplet term on the side."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.PReLU(8),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 9, 16),
            nn.BatchNorm1d(16, affine=False),
        )
        self.weight = nn.Parameter(torch.empty(6, 16))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(self.net(x))
        cos = F.linear(z, F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        phi = torch.cos(torch.acos(cos) + 0.3)
        logits = 16 * torch.where(F.one_hot(y, 6).bool(), phi, cos)
        dist = torch.cdist(z, z)
        same = y[:, None] == y[None]
        triplet = F.relu(
            dist.masked_fill(~same, 0).max(1).values
            - dist.masked_fill(same, 9.0).min(1).values
            + 0.2
        )
        return F.cross_entropy(logits, y) + 0.1 * triplet.mean()


def arc_face(batch: int = 8) -> Built:
    return ArcFace(), (torch.randn(batch, 1, 8, 8), torch.randint(0, 6, (batch,)))


class KAN(nn.Module):
    """A Kolmogorov-Arnold layer by B-splines of degree 2."""

    grid: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 10).expand(5, -1).contiguous())
        self.base, self.spline = (
            nn.Parameter(torch.randn(3, 5) * 0.3),
            nn.Parameter(torch.randn(3, 5, 7) * 0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        g, u = self.grid, x.unsqueeze(-1)
        b = ((u >= g[:, :-1]) & (u < g[:, 1:])).to(x.dtype)
        for k in range(1, 3):
            b = (u - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)]) * b[..., :-1] + (
                g[:, k + 1 :] - u
            ) / (g[:, k + 1 :] - g[:, 1:-k]) * b[..., 1:]
        return F.linear(F.silu(x), self.base) + torch.einsum("nik,oik->no", b, self.spline)


def kan(batch: int = 8) -> Built:
    return KAN(), (torch.randn(batch, 5),), nn.MSELoss(), (torch.randn(batch, 3),)


class Hyper(nn.Module):
    """A hypernetwork: weights for each sample, applied by bmm."""

    def __init__(self) -> None:
        super().__init__()
        self.hyper = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8 * 6 + 8))
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        p = self.hyper(task)
        w, b = p[:, :48].view(-1, 8, 6), p[:, 48:]
        return self.out(torch.relu(torch.baddbmm(b.unsqueeze(-1), w, x.unsqueeze(-1)).squeeze(-1)))


def hypernetwork(batch: int = 8) -> Built:
    return (
        Hyper(),
        (torch.randn(batch, 6), torch.randn(batch, 4)),
        nn.HuberLoss(),
        (torch.randn(batch, 2),),
    )
