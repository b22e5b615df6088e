"""A GPT of bytes trained on the documentation of Python as a PyTorch user trains: AdamW with
groups, a schedule, clipping, accumulation, evaluation, checkpoints by DCP, an end by SIGKILL.
"""

from __future__ import annotations

import os
import pydoc_data.topics
import signal
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from meshwright import parallelize
from meshwright.plan.plan import Plan


class Sizes(NamedTuple):
    """Of the model and of its training."""

    width: int = 128
    layers: int = 5
    heads: int = 4
    tokens: int = 48
    batch: int = 8
    accumulated: int = 2
    steps: int = 300
    evaluated: int = 50
    """Steps between evaluations."""


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, width = sizes.heads, sizes.width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (
            projection(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return out


class Gpt(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(256, sizes.width)
        self.places = nn.Embedding(sizes.tokens, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.last = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, 256, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.last(x))
        return out


def gpt_of(sizes: Sizes) -> Gpt:
    torch.manual_seed(0)
    return Gpt(sizes).double()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text() -> Tensor:
    whole = "\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))
    return torch.frombuffer(bytearray(whole.encode()), dtype=torch.uint8).long()


def batch_of(
    data: Tensor, sizes: Sizes, number: int, *, held_out: bool = False
) -> tuple[Tensor, Tensor]:
    """Bytes and those that follow, from the first nine tenths, or from the last."""
    draw = torch.Generator().manual_seed(number)
    border = len(data) * 9 // 10
    part = data[border:] if held_out else data[:border]
    starts = torch.randint(0, len(part) - sizes.tokens - 1, (sizes.batch,), generator=draw)
    rows = starts[:, None] + torch.arange(sizes.tokens)
    return part[rows], part[rows + 1]


def optimizer_of(model: nn.Module, sizes: Sizes) -> tuple[Any, Any]:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, sizes.steps)
    return optimizer, schedule


class Alone(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.model = gpt_of(sizes)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return loss_of(self.model(tokens), targets)


class Trained(NamedTuple):
    """By step: the loss, and the norm of its gradients; the loss of held out text now and then."""

    losses: dict[int, float]
    norms: dict[int, float]
    held_out: dict[int, float]


def trained_by(model: nn.Module, sizes: Sizes, run: Run) -> Trained:
    """The loop, as it is written for one device; `run` says from where to where."""
    data, (optimizer, schedule) = text(), optimizer_of(model, sizes)
    if run.resumed:
        load(model, optimizer, schedule, run.folder)
    trained = Trained({}, {}, {})
    for step in range(run.first, run.last):
        if step == run.killed and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        total = 0.0
        for part in range(sizes.accumulated):
            loss: Any = model(*batch_of(data, sizes, step * sizes.accumulated + part))
            (loss / sizes.accumulated).backward()
            total += loss.item() / sizes.accumulated
        trained.norms[step] = float(clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        schedule.step()
        trained.losses[step] = total
        if (step + 1) % sizes.evaluated == 0:
            model.eval()
            with torch.no_grad():
                trained.held_out[step] = float(model(*batch_of(data, sizes, step, held_out=True)))
            model.train()
        if step + 1 == run.saved:
            save(model, optimizer, schedule, run.folder)
            Path(run.folder, f"losses{dist.get_rank()}").write_text(repr(trained._asdict()))
    return trained


class Run(NamedTuple):
    """A part of a training."""

    folder: str = ""
    first: int = 0
    last: int = 300
    saved: int = -1
    killed: int = -1
    resumed: bool = False


def save(model: nn.Module, optimizer: Any, schedule: Any, folder: str) -> None:
    state, optim = get_state_dict(model, optimizer)
    checkpoint = {"model": state, "optim": optim, "schedule": schedule.state_dict()}
    state_dict_saver.save(checkpoint, checkpoint_id=folder)


def load(model: nn.Module, optimizer: Any, schedule: Any, folder: str) -> None:
    state, optim = get_state_dict(model, optimizer)
    checkpoint: dict[str, Any] = {"model": state, "optim": optim, "schedule": schedule.state_dict()}
    state_dict_loader.load(checkpoint, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=checkpoint["model"], optim_state_dict=checkpoint["optim"]
    )
    schedule.load_state_dict(checkpoint["schedule"])


def by_plan(plan: Plan, sizes: Sizes, run: Run) -> Trained:
    """The loop by a plan, on a rank."""
    with parallelize(gpt_of(sizes), plan) as model:
        return trained_by(model, sizes, run)


def alone(sizes: Sizes) -> Trained:
    """The loop by plain PyTorch."""
    return trained_by(Alone(sizes), sizes, Run(last=sizes.steps))
