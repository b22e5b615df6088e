"""Training models as people publish them, written down from memory, small: a function returns
(model, inputs), (model, inputs, loss) or (model, inputs, loss, targets).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = tuple[object, ...]


def _classified(model: nn.Module, batch: int, *shape: int, classes: int = 10) -> Built:
    targets = torch.randint(0, classes, (batch,))
    return model, (torch.randn(batch, *shape),), functional.cross_entropy, (targets,)


class Critic(nn.Module):
    """WGAN-GP, with the gradient penalty by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, real: Any, fake: Any, alpha: Any) -> Any:
        mixed = alpha * real + (1 - alpha) * fake
        slope = torch.vmap(torch.func.grad(lambda x: self.net(x).squeeze()))(mixed)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        return self.net(fake).mean() - self.net(real).mean() + 10 * penalty


def wgan_gp(batch: int = 8) -> Built:
    return Critic(), (torch.randn(batch, 16), torch.randn(batch, 16), torch.rand(batch, 1))


class Burgers(nn.Module):
    """A physics-informed network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)
        )

    def forward(self, points: Any, nu: float = 0.01) -> Any:
        def u(p: Any) -> Any:
            return self.net(p).squeeze(-1)

        def residual(p: Any) -> Any:
            first = torch.func.grad(u)(p)
            second = torch.func.hessian(u)(p)
            return first[1] + u(p) * first[0] - nu * second[0, 0]

        return torch.vmap(residual)(points).pow(2).mean()


def pinn_burgers(batch: int = 8) -> Built:
    return Burgers(), (torch.rand(batch, 2),)


class SimClr(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, one: Any, two: Any, temperature: float = 0.5) -> Any:
        z = functional.normalize(torch.cat([self.net(one), self.net(two)]), dim=1)
        n = one.shape[0]
        scores = (z @ z.t() / temperature).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
        return functional.cross_entropy(scores, targets)


def simclr(batch: int = 8) -> Built:
    return SimClr(), (torch.randn(batch, 16), torch.randn(batch, 16))


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(12, 8), nn.EmbeddingBag(50, 8)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: Any, text: Any) -> Any:
        i = self.image(image)
        i = i / i.norm(dim=-1, keepdim=True)
        t = self.text(text)
        t = t / t.norm(dim=-1, keepdim=True)
        logits = self.scale.exp().clamp(max=100) * i @ t.T
        labels = torch.arange(len(logits), device=logits.device)
        return (
            functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)
        ) / 2


def tiny_clip(batch: int = 8) -> Built:
    return Clip(), (torch.randn(batch, 12), torch.randint(0, 50, (batch, 6)))


class GraphConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges
        degree = torch.zeros(x.size(0)).index_add_(0, target, torch.ones(target.size(0)))
        for layer in (self.a, self.b):
            h = layer(x)
            x = torch.zeros_like(h).index_add_(0, target, h[source])
            x = functional.relu(x / degree.clamp(min=1).unsqueeze(-1))
        return self.out(x)


def gnn_index_add(batch: int = 16) -> Built:
    edges = torch.randint(0, batch, (2, 4 * batch))
    return (
        GraphConv(),
        (torch.randn(batch, 8), edges),
        functional.cross_entropy,
        (torch.randint(0, 4, (batch,)),),
    )


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.out = nn.Linear(8, 16), nn.Linear(32, 1), nn.Linear(16, 4)

    def forward(self, x: Any, edges: Any) -> Any:
        h = self.w(x)
        s, t = edges[0], edges[1]
        e = functional.leaky_relu(self.a(torch.cat([h[s], h[t]], -1))).squeeze(-1)
        top = torch.full((x.size(0),), -1e9).scatter_reduce(0, t, e, "amax")
        e = (e - top[t]).exp()
        total = torch.zeros(x.size(0)).scatter_add(0, t, e)
        alpha = e / (total[t] + 1e-9)
        return self.out(
            torch.zeros_like(h).scatter_add(0, t[:, None].expand(-1, 16), alpha[:, None] * h[s])
        )


def gat_scatter(batch: int = 16) -> Built:
    edges = torch.randint(0, batch, (2, 4 * batch))
    return (
        GraphAttention(),
        (torch.randn(batch, 8), edges),
        functional.cross_entropy,
        (torch.randint(0, 4, (batch,)),),
    )


class Selective(nn.Module):
    """Mamba's block, its scan a loop."""

    def __init__(self, d: int = 16, n: int = 4) -> None:
        super().__init__()
        self.inner, self.conv = nn.Linear(d, 2 * d), nn.Conv1d(d, d, 3, groups=d, padding=2)
        self.project, self.dt = nn.Linear(d, 2 * n + 1), nn.Linear(1, d)
        self.log_a = nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(d, 1))
        self.skip, self.out, self.n = nn.Parameter(torch.ones(d)), nn.Linear(d, d), n

    def forward(self, x: Any) -> Any:
        _, length, _ = x.shape
        u, gate = self.inner(x).chunk(2, -1)
        u = functional.silu(self.conv(u.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, b, c = self.project(u).split([1, self.n, self.n], -1)
        dt = functional.softplus(self.dt(dt))
        a = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.log_a))
        driven = (dt * u).unsqueeze(-1) * b.unsqueeze(2)
        h = torch.zeros_like(driven[:, 0])
        rows = []
        for t in range(length):
            h = a[:, t] * h + driven[:, t]
            rows.append((h * c[:, t].unsqueeze(1)).sum(-1))
        y = torch.stack(rows, 1) + u * self.skip
        return self.out(y * functional.silu(gate))


class MambaLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.block = nn.Embedding(40, 16), nn.LayerNorm(16), Selective()
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        x = x + self.block(self.norm(x))
        return functional.cross_entropy(
            self.head(x[:, :-1]).reshape(-1, 40), ids[:, 1:].reshape(-1)
        )


def mamba_loop(batch: int = 8) -> Built:
    return MambaLM(), (torch.randint(0, 40, (batch, 9)),)


def _double(i: Any, o: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2, self.mid = _double(1, 8), _double(8, 16), _double(16, 32)
        self.u2, self.c2 = nn.ConvTranspose2d(32, 16, 2, 2), _double(32, 16)
        self.u1, self.c1, self.out = (
            nn.ConvTranspose2d(16, 8, 2, 2),
            _double(16, 8),
            nn.Conv2d(8, 1, 1),
        )

    def forward(self, x: Any) -> Any:
        a = self.d1(x)
        b = self.d2(functional.max_pool2d(a, 2))
        m = self.mid(functional.max_pool2d(b, 2))
        y = self.u2(m)
        y = functional.pad(y, (0, b.size(3) - y.size(3), 0, b.size(2) - y.size(2)))
        y = self.c2(torch.cat([b, y], 1))
        return self.out(self.c1(torch.cat([a, self.u1(y)], 1)))


def _dice(logits: Any, mask: Any) -> Any:
    p = logits.sigmoid().flatten(1)
    m = mask.flatten(1)
    dice = 1 - (2 * (p * m).sum(1) + 1) / (p.sum(1) + m.sum(1) + 1)
    return dice.mean() + functional.binary_cross_entropy_with_logits(logits, mask)


def unet_dice(batch: int = 8) -> Built:
    return (
        UNet(),
        (torch.randn(batch, 1, 16, 16),),
        _dice,
        (torch.randint(0, 2, (batch, 1, 16, 16)).float(),),
    )


class ViT(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, 8)
        self.token, self.place = (
            nn.Parameter(torch.randn(1, 1, d)),
            nn.Parameter(torch.randn(1, 17, d)),
        )
        layer = nn.TransformerEncoderLayer(
            d, 4, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).mT
        x = torch.cat((self.token.repeat(x.size(0), 1, 1), x), dim=1) + self.place
        return self.head(self.norm(self.layers(x))[:, 0])


def vit_class_token(batch: int = 8) -> Built:
    return _classified(ViT(), batch, 3, 32, 32)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 10, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(20, 7)

    def forward(self, ids: Any) -> Any:
        y, _ = self.lstm(self.words(ids))
        return self.tags(y).log_softmax(-1)


def bilstm_tagger(batch: int = 8) -> Built:
    def loss(scores: Any, tags: Any) -> Any:
        return functional.nll_loss(scores.flatten(0, 1), tags.flatten(), ignore_index=-1)

    return Tagger(), (torch.randint(0, 60, (batch, 7)),), loss, (torch.randint(-1, 7, (batch, 7)),)


class Experts(nn.Module):
    """A mixture by Python's loop over selected tokens."""

    def __init__(self, d: int = 16, n: int = 4) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(d, n), nn.Linear(d, 10)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d)) for _ in range(n)
        )

    def forward(self, x: Any) -> Any:
        w, chosen = self.gate(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == n)
            y[rows] += w[rows, place, None] * expert(x[rows])
        return self.out(y)


def moe_loop(batch: int = 8) -> Built:
    return _classified(Experts(), batch, 16)


class Compressed(nn.Module):
    """Attention whose keys and values are compressed to a latent (MLA)."""

    def __init__(self, d: int = 32, heads: int = 4, latent: int = 8) -> None:
        super().__init__()
        self.h, self.q, self.down = heads, nn.Linear(d, d), nn.Linear(d, latent + 4)
        self.norm, self.up, self.out = nn.RMSNorm(latent), nn.Linear(latent, 2 * d), nn.Linear(d, d)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        c, shared = self.down(x).split([8, 4], -1)
        k, v = self.up(self.norm(c)).view(b, t, self.h, -1).chunk(2, -1)
        q = self.q(x).view(b, t, self.h, -1)
        k = torch.cat([k[..., :4], shared[:, :, None].expand(-1, -1, self.h, -1)], -1)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


def latent_keys(batch: int = 8) -> Built:
    return (
        Compressed(),
        (torch.randn(batch, 6, 32),),
        functional.mse_loss,
        (torch.randn(batch, 6, 32),),
    )


def weight_normed_convs(batch: int = 8) -> Built:
    norm = nn.utils.parametrizations.weight_norm
    net = nn.Sequential(
        norm(nn.Conv1d(1, 8, 3, padding=2, dilation=2)), nn.ReLU(),
        norm(nn.Conv1d(8, 8, 3, padding=4, dilation=4)), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    return _classified(net, batch, 1, 32)


def old_weight_norm(batch: int = 8) -> Built:
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(16, 32)), nn.Tanh(), nn.Linear(32, 10))
    return _classified(net, batch, 16)


def spectral_norm_critic(batch: int = 8) -> Built:
    norm = nn.utils.parametrizations.spectral_norm
    net = nn.Sequential(norm(nn.Linear(16, 32)), nn.LeakyReLU(0.1), norm(nn.Linear(32, 1)))
    return net, (torch.randn(batch, 16),), lambda y: functional.relu(1 - y).mean()


class Teacher(nn.Module):
    """A student that follows a teacher, which is moved outside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def move(self, rate: float = 0.99) -> None:
        for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            old.lerp_(new, 1 - rate)

    def forward(self, one: Any, two: Any) -> Any:
        with torch.no_grad():
            target = functional.softmax(self.teacher(two) / 0.04, -1)
        return -(target * functional.log_softmax(self.student(one) / 0.1, -1)).sum(-1).mean()


def dino_teacher(batch: int = 8) -> Built:
    return Teacher(), (torch.randn(batch, 16), torch.randn(batch, 16))


class Diffusion(nn.Module):
    """DDPM's loss, noise and times given."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 8)
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

    def forward(self, x: Any, t: Any, noise: Any) -> Any:
        a = self.alphas[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        f = torch.exp(-math.log(10000) * torch.arange(8) / 8)
        e = t[:, None].float() * f[None]
        h = functional.silu(self.a(noisy) + self.time(torch.cat([e.sin(), e.cos()], -1)))
        return functional.mse_loss(self.b(h), noise)


def ddpm(batch: int = 8) -> Built:
    return Diffusion(), (
        torch.randn(batch, 8),
        torch.randint(0, 100, (batch,)),
        torch.randn(batch, 8),
    )


class Coupling(nn.Module):
    """RealNVP."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        total: Any = 0
        for n, net in enumerate(self.nets):
            a, b = x.chunk(2, 1) if n % 2 else x.chunk(2, 1)[::-1]
            s, t = net(a).chunk(2, 1)
            s = torch.tanh(s)
            x = torch.cat([a, b * s.exp() + t], 1)
            total = total + s.sum(1)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(1)
        return -(prior + total).mean()


def real_nvp(batch: int = 8) -> Built:
    return Coupling(), (torch.randn(batch, 8),)


class Ppo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.actor, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, state: Any, action: Any, old: Any, advantage: Any, returns: Any) -> Any:
        h = self.body(state)
        policy = torch.distributions.Categorical(logits=self.actor(h))
        ratio = (policy.log_prob(action) - old).exp()
        clipped = ratio.clamp(0.8, 1.2) * advantage
        value = functional.mse_loss(self.value(h).squeeze(-1), returns)
        return (
            -torch.min(ratio * advantage, clipped).mean()
            + 0.5 * value
            - 0.01 * policy.entropy().mean()
        )


def ppo_clipped(batch: int = 8) -> Built:
    one = [torch.randn(batch) for _ in range(3)]
    return Ppo(), (torch.randn(batch, 6), torch.randint(0, 3, (batch,)), *one)


class Ranking(nn.Module):
    """A factorisation machine with BPR's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.bias = (
            nn.Embedding(20, 8),
            nn.Embedding(30, 8),
            nn.Embedding(30, 1),
        )

    def forward(self, user: Any, good: Any, bad: Any) -> Any:
        u = self.users(user)
        gap = (u * (self.items(good) - self.items(bad))).sum(-1)
        gap = gap + (self.bias(good) - self.bias(bad)).squeeze(-1)
        return -functional.logsigmoid(gap).mean() + 1e-4 * u.pow(2).sum() / len(user)


def bpr(batch: int = 8) -> Built:
    items = torch.randint(0, 30, (2, batch))
    return Ranking(), (torch.randint(0, 20, (batch,)), items[0], items[1])


class Deep(nn.Module):
    """DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Any, sparse: Any) -> Any:
        d = self.bottom(dense)
        rows = torch.stack(
            [d] + [t(s) for t, s in zip(self.tables, sparse.unbind(1), strict=True)], 1
        )
        i, j = torch.tril_indices(4, 4, -1)
        pairs = torch.bmm(rows, rows.mT)[:, i, j]
        return self.top(torch.cat([d, pairs], 1)).squeeze(1)


def dlrm_pairs(batch: int = 8) -> Built:
    loss = functional.binary_cross_entropy_with_logits
    return (
        Deep(),
        (torch.randn(batch, 5), torch.randint(0, 20, (batch, 3, 2))),
        loss,
        (torch.rand(batch),),
    )


class Points(nn.Module):
    """PointNet with its transform."""

    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.fc, self.f, self.head = nn.Linear(16, 9), nn.Conv1d(3, 32, 1), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        m = self.fc(self.t(x).max(-1)[0]).view(-1, 3, 3) + torch.eye(3)
        y = torch.bmm(x.transpose(2, 1), m).transpose(2, 1)
        loss = torch.linalg.norm(m @ m.mT - torch.eye(3), dim=(1, 2)).mean()
        return self.head(self.f(y).amax(-1)), loss


def pointnet_transform(batch: int = 8) -> Built:
    def loss(output: Any, targets: Any) -> Any:
        return functional.cross_entropy(output[0], targets) + 0.001 * output[1]

    return Points(), (torch.randn(batch, 3, 24),), loss, (torch.randint(0, 10, (batch,)),)


class Linear(nn.Module):
    """RWKV-like linear attention with a decayed state by cumulative sums."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.r, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.mix, self.decay = nn.Parameter(torch.rand(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x: Any) -> Any:
        shifted = functional.pad(x, (0, 0, 1, -1))
        x = x * self.mix + shifted * (1 - self.mix)
        k = torch.exp(self.k(x).clamp(max=10))
        t = torch.arange(x.size(1))[None, :, None]
        w = torch.exp(-functional.softplus(self.decay) * (t.max() - t))
        top, bottom = (k * self.v(x) * w).cumsum(1), (k * w).cumsum(1)
        return self.o(self.r(x).sigmoid() * top / (bottom + 1e-6))


def rwkv_like(batch: int = 8) -> Built:
    return Linear(), (torch.randn(batch, 7, 16),), functional.mse_loss, (torch.randn(batch, 7, 16),)


class Nerf(nn.Module):
    """Volume rendering along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(27, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, origin: Any, direction: Any, colour: Any) -> Any:
        z = torch.linspace(2.0, 6.0, 12)
        p = origin[:, None] + direction[:, None] * z[None, :, None]
        powers = 2.0 ** torch.arange(4)
        e = (p[..., None] * powers).flatten(-2)
        raw = self.net(torch.cat([p, e.sin(), e.cos()], -1))
        step = torch.cat([z[1:] - z[:-1], torch.tensor([1e10])])
        alpha = 1 - torch.exp(-functional.relu(raw[..., 3]) * step)
        kept = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[
            :, :-1
        ]
        rendered = ((alpha * kept)[..., None] * raw[..., :3].sigmoid()).sum(1)
        return ((rendered - colour) ** 2).mean()


def nerf_rays(batch: int = 8) -> Built:
    return Nerf(), (torch.randn(batch, 3), torch.randn(batch, 3), torch.rand(batch, 3))


class Amp(nn.Module):
    """A network in autocast, its loss in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, x: Any, targets: Any) -> Any:
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            logits = self.net(x)
        return functional.cross_entropy(logits.float(), targets)


def autocast_inside(batch: int = 8) -> Built:
    return Amp(), (torch.randn(batch, 16), torch.randint(0, 10, (batch,)))


class Perceiver(nn.Module):
    """Latents that read a long input, and Gumbel codes besides."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, d))
        self.read, self.think = (nn.MultiheadAttention(d, 2, batch_first=True) for _ in range(2))
        self.out = nn.Linear(d, 10)

    def forward(self, x: Any, mask: Any) -> Any:
        q = self.latents.expand(x.size(0), -1, -1)
        y, weights = self.read(q, x, x, key_padding_mask=~mask, need_weights=True)
        y = y + self.think(y, y, y, need_weights=False)[0]
        return self.out(y.mean(1)), weights


def latent_reader(batch: int = 8) -> Built:
    mask = torch.arange(9)[None] < torch.randint(3, 10, (batch, 1))
    return (
        Perceiver(),
        (torch.randn(batch, 9, 16), mask),
        lambda o, t: functional.cross_entropy(o[0], t),
        (torch.randint(0, 10, (batch,)),),
    )
