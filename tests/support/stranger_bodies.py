"""Training scripts as strangers write them: logits back, a loss outside of the model, outputs of
Transformers, trainers; each gives numbers that a test compares with the same script on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from meshwright import parallelize
from meshwright.base.errors import InputError
from meshwright.plan.plan import Plan
from support.loop_bodies import BATCH, WIDTH, WORDS, Samples, batch_of, net_of, same, told


def accumulated(model: nn.Module) -> list[float]:
    """Two micro-steps a step, a schedule, gradients zeroed in place, accuracy of the logits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    measures = []
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        for part in range(2):
            tokens, scale, targets = batch_of(2 * step + part)
            logits = model(tokens, scale)
            loss: Any = functional.cross_entropy(logits, targets, label_smoothing=0.1) / 2
            loss.backward()
            measures += [loss.item(), (logits.argmax(-1) == targets).double().mean().item()]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
    return measures


def summed(model: nn.Module) -> list[float]:
    """Two calls before one backward pass, then an evaluation."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    measures = []
    for step in range(2):
        optimizer.zero_grad()
        first, other = (model(*batch_of(2 * step + part)[:2]) for part in range(2))
        loss = (first - other).square().mean() + first.logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        measures.append(loss.item())
    model.eval()
    with torch.no_grad():
        tokens, scale, targets = batch_of(9)
        logits = model(tokens, scale)
        measures += [functional.cross_entropy(logits, targets).item(), logits.square().sum().item()]
    model.train()
    return measures


LOOPS: dict[str, Callable[[nn.Module], list[float]]] = {
    "accumulated": accumulated,
    "summed": summed,
}


def strange(plans: dict[str, Plan]) -> dict[str, dict[str, Any]]:
    """What each script gives by each plan."""
    return {name: _strange(plan) for name, plan in plans.items()}


def _strange(plan: Plan) -> dict[str, Any]:
    outcomes: dict[str, Any] = {}
    for name, loop in LOOPS.items():
        with parallelize(net_of(), plan) as model:
            try:
                outcomes[name] = loop(model)
            except InputError as error:
                outcomes[name] = str(error)
    with parallelize(net_of(), plan) as model:
        outcomes["shares"] = shared(model)
    with parallelize(net_of(), plan) as model:
        outcomes["refused"] = refused(model)
    return outcomes


def shared(model: Any) -> list[float]:
    """The mean over ranks of losses of shares, with a DistributedSampler."""
    samples = Samples()
    shares, share = model.data_share
    sampler: Any = DistributedSampler(samples, shares, share, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for tokens, scale, targets in DataLoader(samples, BATCH // shares, sampler=sampler):
        optimizer.zero_grad()
        logits = model(tokens, scale)
        assert len(logits) == len(tokens)
        loss: Any = functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def refused(model: Any) -> dict[str, str]:
    """What is said of what no plan does."""
    tokens, scale, targets = batch_of()
    logits = model(tokens, scale)
    loss: Any = functional.cross_entropy(logits, (targets + torch.distributed.get_rank()) % 10)
    messages = {"targets": told(loss.backward)}
    logits = model(tokens, scale)
    loss = functional.cross_entropy(logits, targets)
    loss.backward(retain_graph=True)
    messages["twice"] = told(loss.backward)
    with torch.autocast("cpu", torch.bfloat16):
        messages["autocast"] = told(lambda: model(tokens, scale))
    return messages


def alone() -> dict[str, list[float]]:
    return {name: loop(net_of()) for name, loop in LOOPS.items()}


class Inside(nn.Module):
    """Computes its loss itself, if it is given targets; what else it returns is a dict's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(
        self, tokens: Tensor, scale: Tensor, targets: Tensor | None = None
    ) -> dict[str, Any]:
        x = self.words(tokens) * scale[:, None]
        for layer in self.layers:
            x = x + layer(x).tanh()
        logits = self.head(self.norm(x))
        loss = None if targets is None else functional.cross_entropy(logits, targets)
        return {"loss": loss, "logits": logits, "hidden": (x, 3)}


def inside_of() -> Inside:
    torch.manual_seed(2)
    return Inside().double()


def inside(model: nn.Module) -> list[float]:
    """Losses and accuracies by the model's own outputs, then a loss outside of hidden values."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    measures = []
    for step in range(2):
        tokens, scale, targets = batch_of(step)
        out = model(tokens, targets=targets, scale=scale)
        out["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        right = (out["logits"].argmax(-1) == targets).double().mean()
        measures += [out["loss"].item(), right.item(), out["hidden"][0].square().sum().item()]
    for step in range(2):
        tokens, scale, targets = batch_of(step)
        out = model(tokens, scale)
        assert out["loss"] is None
        x, _ = out["hidden"]
        loss = functional.nll_loss(out["logits"].log_softmax(-1), targets) + x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        measures.append(loss.item())
    return measures


class Wrapped(nn.Module):
    """As Lightning's modules hold a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model


def insides(plans: dict[str, Plan]) -> dict[str, dict[str, Any]]:
    """What a model that computes its loss gives by each plan, and what is said of mistakes."""
    return {name: _inside(plan) for name, plan in plans.items()}


def _inside(plan: Plan) -> dict[str, Any]:
    outcomes: dict[str, Any] = {}
    with parallelize(inside_of(), plan, outputs=True) as model:
        outcomes["losses"] = inside(model)
        tokens, scale, targets = batch_of()
        out = model(tokens, scale, targets)
        outcomes["both"] = told((out["loss"] + out["logits"].mean()).backward)
        wrapped, before = Wrapped(model), model.whole_state(to_rank=None)
        other = Wrapped(parallelize(inside_of(), plan))
        other.load_state_dict(wrapped.state_dict())
        outcomes["wrapped"] = same(other.model.whole_state(to_rank=None), before or {})
        out = other.model(tokens, scale, targets)
        outcomes["loss alone"] = told(lambda: out["logits"].argmax())
        outcomes["as told"] = told(lambda: torch.softmax(out["logits"], 0))
    return outcomes
