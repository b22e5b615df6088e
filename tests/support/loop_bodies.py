"""Training loops as PyTorch users write them, for ranks: each gives what a test compares with the
same loop on one device.
"""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

from meshwright import parallelize
from meshwright.base.errors import InputError
from meshwright.plan.plan import Plan
from meshwright.run.launch.gpus import device_of_rank
from meshwright.run.module import Parallelized

BATCH, WIDTH = 8, 12
WORDS = 11
"""An odd vocabulary, as GPT-2's 50257."""
LENGTH = 3
"""Of a sequence, where there is one."""
EMA: Any = get_ema_multi_avg_fn(0.5)  # type: ignore[no-untyped-call]


class Net(nn.Module):
    """A tied head, an embedding, matrices, a batch norm, biases: what groups and states know."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.width, self.drop = WIDTH, nn.Dropout(rate)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        x = self.words(tokens) * scale[:, None]
        for layer in self.layers:
            x = x + self.drop(layer(x).tanh())
        out: Tensor = self.head(self.norm(x))
        return out


class Lines(Net):
    """The same of sequences."""

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        x = self.words(tokens) * scale[:, None, None]
        for layer in self.layers:
            x = x + self.drop(layer(x).tanh())
        out: Tensor = self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return out.transpose(1, 2)


def net_of(rate: float = 0.0) -> Net:
    torch.manual_seed(1)
    return Net(rate).double()


def frozen_net() -> Net:
    """Its first layer does not learn."""
    net = net_of()
    net.layers[0].requires_grad_(False)
    return net


def lines_of() -> Lines:
    torch.manual_seed(1)
    return Lines().double()


def batch_of(seed: int = 0, *length: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, WORDS, (BATCH, *length), generator=draw)
    scale = torch.rand(BATCH, generator=draw, dtype=torch.float64)
    return tokens, scale, torch.randint(0, WORDS, (BATCH, *length), generator=draw)


class Alone(nn.Module):
    """The plain model, called as a plan's module is."""

    def __init__(self, net: Net | None = None) -> None:
        super().__init__()
        self.net = net_of() if net is None else net

    def forward(self, tokens: Tensor, scale: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(tokens, scale), targets)


class Lamb(torch.optim.Optimizer):
    """LAMB as people write it (You et al. 2020): a trust ratio of norms for each parameter."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                weight, update = parameter.norm().item(), parameter.grad.norm().item()
                parameter.add_(
                    parameter.grad, alpha=-group["lr"] * (weight / update if update else 1.0)
                )


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Decay for matrices alone."""
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.5},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=0.1,
        foreach=True,
    )


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, clip: bool, *length: int
) -> list[float]:
    """Losses and, where gradients are clipped, their norms."""
    measures = []
    for step in range(3):
        optimizer.zero_grad()
        loss: Any = model(*batch_of(step, *length))
        loss.backward()
        if clip:
            measures.append(float(clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
        measures.append(loss.item())
    return measures


LOOPS: dict[str, Callable[..., list[float]]] = {
    "clipping": lambda model, *length: trained(
        model, torch.optim.SGD(model.parameters(), 0.5), True, *length
    ),
    "groups": lambda model, *length: trained(model, grouped(model), False, *length),
    "lamb": lambda model, *length: trained(model, Lamb(model.parameters(), 0.1), False, *length),
}


def by_plan(net: Net, plan: Plan) -> Parallelized:
    """A net where this rank computes."""
    return parallelize(net, plan, device=device_of_rank())


def told(action: Callable[[], object]) -> str:
    """What is said about a mistake; nothing if it is none."""
    try:
        action()
    except InputError as error:
        return str(error)
    return ""


def looped(plans: dict[str, Plan]) -> dict[str, dict[str, Any]]:
    """What each loop gives by each plan."""
    return {name: _looped(plan) for name, plan in plans.items()}


def looped_on_device(plans: dict[str, Plan]) -> dict[str, dict[str, Any]]:
    """What depends on where ranks compute: the loops and states."""
    return {name: _trained_and_saved(plan) for name, plan in plans.items()}


def _trained_and_saved(plan: Plan) -> dict[str, Any]:
    outcomes: dict[str, Any] = {}
    for name, loop in LOOPS.items():
        try:
            outcomes[name] = loop(by_plan(net_of(), plan))
        except InputError as error:
            outcomes[name] = str(error)
    outcomes["states"] = states(plan)
    return outcomes


def _looped(plan: Plan) -> dict[str, Any]:
    outcomes = _trained_and_saved(plan)
    outcomes["kinds"] = kinds(plan)
    outcomes["averages"] = averages(plan)
    outcomes["refused"] = refused(plan)
    outcomes["shares"] = shared(plan)
    return outcomes


def lined(plans: dict[str, Plan]) -> dict[str, dict[str, list[float]]]:
    """What each loop gives of sequences, by each plan."""
    return {
        name: {kind: loop(by_plan(lines_of(), plan), LENGTH) for kind, loop in LOOPS.items()}
        for name, plan in plans.items()
    }


def lined_alone() -> dict[str, list[float]]:
    return {kind: loop(Alone(lines_of()), LENGTH) for kind, loop in LOOPS.items()}


def looped_or_refused(plans: list[Plan]) -> list[dict[str, list[float]] | str]:
    """What each loop gives by each plan, or what is said of it."""
    outcomes: list[dict[str, list[float]] | str] = []
    for plan in plans:
        try:
            outcomes.append({kind: loop(by_plan(net_of(), plan)) for kind, loop in LOOPS.items()})
        except InputError as error:
            outcomes.append(str(error))
    return outcomes


def looped_alone() -> dict[str, list[float]]:
    return {name: loop(Alone()) for name, loop in LOOPS.items()}


def kinds(plan: Plan) -> tuple[bool, list[str]]:
    """Whether parameters are DTensors of the plain shapes, and their names."""
    model, plain = by_plan(net_of(), plan), dict(net_of().named_parameters())
    named = dict(model.named_parameters())
    whole = all(
        parameter.shape == plain[name].shape for name, parameter in named.items() if name in plain
    )
    return whole and any(isinstance(parameter, DTensor) for parameter in named.values()), list(
        named
    )


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[k].cpu(), other[k].cpu()) for k in one
    )


def states(plan: Plan) -> dict[str, bool]:
    """Whether states go out and in as they are."""
    model = by_plan(net_of(), plan)
    trained(model, torch.optim.SGD(model.parameters(), 0.5), False)
    before = model.whole_state(to_rank=None)
    assert before is not None
    checks = {}
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    checks["full"] = same(full, before)
    path = [tempfile.mkdtemp()]
    dist.broadcast_object_list(path)
    state_dict_saver.save({"model": model.state_dict()}, checkpoint_id=Path(path[0]) / "own")
    other = by_plan(net_of(), plan)
    state = {"model": other.state_dict()}
    state_dict_loader.load(state, checkpoint_id=Path(path[0]) / "own")
    other.load_state_dict(state["model"])
    checks["loaded"] = same(other.whole_state(to_rank=None) or {}, before)
    plain = {"model": net_of().state_dict()}
    state_dict_loader.load(plain, checkpoint_id=Path(path[0]) / "own")
    checks["plain"] = same(plain["model"], before)
    set_model_state_dict(
        other, net_of().state_dict(), options=StateDictOptions(full_state_dict=True)
    )
    checks["set"] = same(other.whole_state(to_rank=None) or {}, dict(net_of().state_dict()))
    other.load_state_dict(before)
    doubled = {key: value.clone().mul_(2) for key, value in other.state_dict().items()}
    other.load_state_dict(doubled)
    twice = other.whole_state(to_rank=None) or {}
    checks["doubled"] = same(twice, {key: value * 2 for key, value in before.items()})
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    checks["whole"] = same(other.whole_state(to_rank=None) or {}, before)
    return checks


def masked(plans: list[Plan]) -> list[list[float]]:
    """Losses with dropout by each plan: with one seed twice, then of later steps, then with another
    seed; ranks have seeds of their own besides, as scripts of data parallelism give them.
    """
    losses_by_plan = []
    for plan in plans:
        losses = []
        for seed in (7, 7, 8):
            net = net_of(0.5)
            torch.manual_seed(seed + 100 * dist.get_rank())
            model = by_plan(net, plan)
            losses.append(model(*batch_of()).item())
        losses += [model(*batch_of()).item() for _ in range(2)]
        losses_by_plan.append(losses)
    return losses_by_plan


def averages(plan: Plan) -> tuple[float, str]:
    """The loss of averaged weights (EMA), and what is said of calling the copy."""
    model = by_plan(net_of(), plan)
    average: Any = AveragedModel(model, multi_avg_fn=EMA)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(2):
        optimizer.zero_grad()
        model(*batch_of(step)).backward()
        optimizer.step()
        average.update_parameters(model)
    said = told(lambda: average(*batch_of()))
    model.load_state_dict(average.module.state_dict())
    with torch.no_grad():
        return model.eval()(*batch_of(5)).item(), said


def averaged_alone() -> float:
    model = Alone()
    average: Any = AveragedModel(model, multi_avg_fn=EMA)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(2):
        optimizer.zero_grad()
        loss: Any = model(*batch_of(step))
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    with torch.no_grad():
        return float(model.eval()(*batch_of(5)))


class Samples(torch.utils.data.Dataset[tuple[Tensor, ...]]):
    """Samples that know which of them were read."""

    def __init__(self) -> None:
        batches = zip(*(batch_of(seed) for seed in range(3)), strict=True)
        self.columns = tuple(torch.cat(column) for column in batches)
        self.read = multiprocessing.Value("i", 0)
        """How many, in this process and in its workers."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, place: int) -> tuple[Tensor, ...]:
        with self.read.get_lock():
            self.read.value += 1
        return tuple(column[place] for column in self.columns)


def shared(plan: Plan, workers: int = 0) -> tuple[int, int, list[float]]:
    """Shares of the data, samples that were read, and losses with a DistributedSampler."""
    samples, model = Samples(), by_plan(net_of(), plan)
    shares, share = model.data_share
    sampler: Any = DistributedSampler(samples, shares, share, shuffle=False)
    loader = DataLoader(samples, BATCH // shares, sampler=sampler, num_workers=workers)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return shares, samples.read.value, losses


def fed(plans: dict[str, Plan]) -> dict[str, tuple[int, int, list[float]]]:
    """The same with workers, which ranks of a test, being daemons, are not allowed."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return {name: shared(plan, workers=2) for name, plan in plans.items()}


def refused(plan: Plan) -> dict[str, str]:
    """What is said of what no plan does."""
    net = net_of()
    before = torch.optim.SGD(net.parameters(), 0.1)
    model = by_plan(net, plan)
    tokens, scale, targets = batch_of()
    loss = model(tokens, scale, targets)
    graph = told(lambda: loss.backward(create_graph=True))
    loss.backward(retain_graph=True)
    found = {"graph": graph, "twice": told(loss.backward)}
    found["input"] = told(lambda: model(tokens, scale.requires_grad_(), targets))
    copy.deepcopy(model)
    inner = next(own for name, own in model.named_modules() if name)
    hook = inner.register_forward_hook(lambda *_: None)
    found["hook"] = told(lambda: model(*batch_of()))
    hook.remove()
    inner.eval()
    found["mode"] = told(lambda: model(*batch_of()))
    inner.train()
    found["inner"] = told(lambda: inner(tokens))
    found |= refused_of_modules(model)
    found["apply"] = told(lambda: model.apply(lambda _: None))
    found["before"] = told(before.step)
    if not model.norms_of_some:
        products: Any = torch.optim.LBFGS(model.parameters())
        found["products"] = told(lambda: products.step(model.loss))
    name, own = next(iter(model.named_parameters()))
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, nn.Parameter(own.detach().clone()))
    found["other"] = told(lambda: model(*batch_of()))
    setattr(model.get_submodule(path), last, own)
    model.to(torch.device("cpu", 0), torch.float64)
    found["to"] = told(lambda: model.to(torch.float32))
    model.float()
    found["memory"] = told(lambda: model(*batch_of()))
    return found


def refused_of_modules(model: Any) -> dict[str, str]:
    """What is said of modules that are found by type or by name, and changed."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    assert norms == [model.norm]
    assert len(model.layers[:1]) == 1
    assert [type(layer) for layer in model.layers] == [nn.Linear] * 2
    assert model.layers[1].in_features == model.width == WIDTH
    said = {}
    for norm in norms:
        norm.eval()
    said["norms"] = told(lambda: model(*batch_of()))
    assert "'norm'" in said["norms"]
    model.train()
    model.drop.p = 0.5
    said["rate"] = told(lambda: model(*batch_of()))
    assert "p of module 'drop' is 0.5 now" in said["rate"]
    model.drop.p, model.width = 0.0, 3
    said["attribute"] = told(lambda: model(*batch_of()))
    assert "width of the model is 3 now" in said["attribute"]
    model.width, drop = WIDTH, model.drop
    model.drop = nn.Identity()
    said["replaced"] = told(lambda: model(*batch_of()))
    model.drop = drop
    model.layers.append(nn.Identity())
    said["added"] = told(lambda: model(*batch_of()))
    model.layers.pop(-1)
    model.norm.reset_running_stats()
    assert not model.executor.buffers["norm.running_mean"].any()
    copied = copy.deepcopy(model)
    assert type(copied) is Net
    said["copy"] = told(lambda: copied(*batch_of()))
    state = model.layers.state_dict()
    said["part"] = told(lambda: model.layers.load_state_dict(state))
    assert told(lambda: model(*batch_of())) == ""
    return said
