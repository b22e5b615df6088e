"""Training loops as users write them, of which some train wrongly, for ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from meshwright import parallelize
from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.plan.plan import Plan
from meshwright.run.module import Parallelized

BATCH, WIDTH = 8, 12


class Tied(nn.Module):
    """A small model with a tied head, dropout, a number of heads, and an argument that is none."""

    def __init__(
        self, layers: int = 2, heads: int = 2, rate: float = 0.0, *, tied: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(rate)
        self.words = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, 10, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, scale: Tensor, *, power: float = 1.0) -> Tensor:
        x = self.words(tokens) * scale[:, None] ** power
        for layer in self.layers:
            parts = layer(self.drop(x)).unflatten(-1, (self.heads, -1)).softmax(-1).flatten(-2)
            x = x + parts
        out: Tensor = self.head(self.norm(x))
        return out


def model_of(**settings: Any) -> Tied:
    torch.manual_seed(1)
    return Tied(**settings).double()


def batch_of(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 10, (BATCH,), generator=draw)
    scale = torch.rand(BATCH, generator=draw, dtype=torch.float64)
    return tokens, scale, torch.randint(0, 10, (BATCH,), generator=draw)


def plain_loss(model: nn.Module, seed: int = 0) -> Tensor:
    tokens, scale, targets = batch_of(seed)
    return functional.cross_entropy(model(tokens, scale), targets)


def told(action: Callable[[], object]) -> str:
    """What is said about a mistake; nothing if it is none."""
    try:
        action()
    except InputError as error:
        return str(error)
    return ""


def given_model(plan: Plan, settings: dict[str, Any], change: str = "") -> str:
    """What `parallelize` says of a model."""
    model = model_of(**settings)
    if change == "frozen":
        model.words.weight.requires_grad_(False)
    if change == "hooked":
        model.layers[0].register_full_backward_hook(lambda *_: None)
    if change == "on one" and dist.get_rank() == 1:
        model = model_of(rate=0.3)
    return told(lambda: parallelize(model, plan))


def called(plan: Plan) -> list[float | str]:
    """Losses and sentences of calls by order and by name."""
    model = parallelize(model_of(), plan)
    tokens, scale, targets = batch_of()
    outcomes: list[float | str] = []
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((tokens, scale, targets), {}),
        ((), {"targets": targets, "scale": scale, "tokens": tokens}),
        ((tokens,), {"targets": targets, "scale": scale}),
        ((tokens, scale), {"target": targets}),
        ((tokens, scale), {"tokens": tokens}),
        ((tokens, scale, targets), {"power": 2.0}),
        ((tokens, scale.float(), targets), {}),
        ((tokens, scale[:4], targets), {}),
    ]
    for by_order, by_name in calls:
        try:
            outcomes.append(model(*by_order, **by_name).item())
        except InputError as error:
            outcomes.append(str(error))
    return outcomes


def different_batches(plan: Plan, what: str) -> str:
    """What is said if a rank is given another batch than the others."""
    model = parallelize(model_of(), plan)
    other = dist.get_rank() == 1
    tokens, scale, targets = batch_of(int(other and what == "all"))
    if other and what == "targets":
        targets = (targets + 1) % 10
    if other and what == "shape":
        tokens = tokens[:4]
    return told(lambda: model(tokens, scale, targets))


def changed_parameters(plan: Plan, what: str) -> str:
    model = parallelize(model_of(), plan)
    for param in model.parameters():
        hanging: Any = param
        if what == "frozen":
            param.requires_grad_(False)
        elif what == "hook":
            hanging.register_hook(lambda gradient: gradient * 2)
        else:
            hanging.register_post_accumulate_grad_hook(lambda parameter: None)
    return told(lambda: model(*batch_of()))


def clipped(plan: Plan) -> tuple[float, float, float, list[float], dict[str, Any] | None, str]:
    """Norms, losses and the state after steps with clipping; what PyTorch's own clipping says."""
    model = parallelize(model_of(), plan)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(*batch_of(step))
        loss.backward()
        norms = [model.grad_norm(kind).item() for kind in (2, 1, torch.inf)]
        model.clip_grad_norm_(0.1)
        optimizer.step()
        losses.append(loss.item())
    said = told(lambda: clip_grad_norm_(model.parameters(), 0.1))
    state = model.whole_state()
    kept = None if state is None else {key: tensor.numpy() for key, tensor in state.items()}
    first, second, third = norms
    return first, second, third, losses, kept, said


def clipped_alone() -> tuple[float, float, float, list[float], dict[str, Any]]:
    """The same by plain PyTorch."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = plain_loss(model, step)
        loss.backward()  # type: ignore[no-untyped-call]
        row = torch.cat(
            [
                parameter.grad.view(-1)
                for parameter in model.parameters()
                if parameter.grad is not None
            ]
        )
        norms = [float(torch.linalg.vector_norm(row, kind)) for kind in (2, 1, torch.inf)]
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    first, second, third = norms
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    return first, second, third, losses, state


def scaled(plan: Plan) -> list[bool]:
    """Whether steps are skipped by a GradScaler when one rank's gradients overflow."""
    model = parallelize(model_of(), plan)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    skipped = []
    for step in range(3):
        optimizer.zero_grad()
        loss: Any = scaler.scale(model(*batch_of(step)))
        loss.backward()
        if step == 1 and dist.get_rank() == 1:
            next(
                parameter.grad for parameter in model.parameters() if parameter.grad is not None
            ).fill_(torch.inf)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        same = map(torch.equal, before, (parameter.detach() for parameter in model.parameters()))
        skipped.append(all(same))
    return skipped


def paused(plan: Plan, seconds: float) -> float:
    """A loop in which ranks do something else between steps for longer than the watch's limit."""
    with parallelize(model_of(), plan, limit=Seconds(2.0)) as model:
        model(*batch_of()).backward()
        time.sleep(seconds * (1 + dist.get_rank()))
        return float(model(*batch_of()))


def in_other_mode(plan: Plan, model: nn.Module) -> tuple[str, str]:
    """What is said in the mode of the trace, and in the other."""
    module: Parallelized = parallelize(model, plan)
    x = torch.ones(BATCH, WIDTH)
    return told(lambda: module(x)), told(lambda: module.train(not model.training)(x))


def counted(plan: Plan) -> tuple[int, int]:
    """The counter of the batch norm after three steps, and one evaluation."""
    model = parallelize(model_of(), plan)
    for step in range(3):
        model(*batch_of(step))
    model.eval()(*batch_of())
    state = model.whole_state(to_rank=None)
    assert state is not None
    return int(state["norm.num_batches_tracked"]), model.executor.steps
