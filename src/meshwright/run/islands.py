"""Training on islands (uneven data parallelism with exact gradients). Enters: a module and an
`IslandPlan`, on every rank. Leaves: a module that gives the loss of the whole batch. Of several
stages see `run.stages`.

    with parallelize_islands(model, plan) as model:
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in batches:                     # the whole batch on every rank
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()

Ranks are numbered part by part, in the order of the plan. The ranks of a part become the default
process group and run their regular plan on their share of the samples as if they were alone; then
gradients are summed across parts, weighted by samples (`across`). As every part has the same
gradients, so it has the same parameters: a checkpoint of the first part's is the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds, counted
from meshwright.graph.batch import sample_dims
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.run.exec.across_islands import Across, Members
from meshwright.run.health.watchdog import LIMIT, Watchdog
from meshwright.run.island_stages import OnStages, parallelize_stages
from meshwright.run.module import Parallelized, parallelize
from meshwright.sharding.loss_law import loss_law, target_and_ignore_index


class OnIslands(nn.Module):
    """A model whose steps run by a plan over islands: what `parallelize_islands` gives."""

    def __init__(self, plan: IslandPlan, number: int, inner: Parallelized, across: Across) -> None:
        super().__init__()
        self.plan, self.inner, self._number, self._across = plan, inner, number, across
        before = sum(part.share for part in plan.parts[:number])
        self._rows = (before, before + plan.parts[number].share)
        graph = plan.parts[number].plan.graph
        # Of a share of one sample nobody can tell which dim it lies along.
        largest = max(plan.parts, key=lambda part: part.share).plan.graph
        self._graph, self._dims, self._law = graph, sample_dims(largest), loss_law(graph)
        self._counted = target_and_ignore_index(graph)
        self._weight = 0.0
        inner.executor.finished = self._finished

    @property
    def part(self) -> IslandPart:
        """What this rank is in."""
        return self.plan.parts[self._number]

    def __enter__(self) -> Self:
        """Watch the ranks of this part."""
        self.inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inner.__exit__(kind, error, trace)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The loss of a batch, of which every rank gives all."""
        names = [tensor.name for tensor in self._graph.inputs]
        if len(inputs) != len(names):
            raise InputError(
                f"the model gets {counted(len(inputs), 'input')}",
                f"give {', '.join(names)} in this order",
            )
        pieces = {name: self._cut(name, value) for name, value in zip(names, inputs, strict=True)}
        self._weight = self._weight_of(dict(zip(names, inputs, strict=True)), pieces)
        loss: Tensor = self.inner(*pieces.values())
        return loss

    def _cut(self, name: str, value: Tensor) -> Tensor:
        """The samples of an input that are for this part."""
        dim = self._dims.get(name)
        if dim is None:
            return value
        if value.shape[dim] != self.plan.batch:
            raise InputError(
                f"input {name!r} has {value.shape[dim]} samples, and the plan is for "
                f"{self.plan.batch}",
                "give every rank the whole batch",
            )
        first, last = self._rows
        return value.narrow(dim, first, last - first).contiguous()

    def _weight_of(self, whole: dict[str, Tensor], pieces: dict[str, Tensor]) -> float:
        """What this part's loss and gradients count: its share of all terms of a mean."""
        if self._law == "sum":
            return 1.0
        if self._counted is None:
            return self.part.share / self.plan.batch
        name, ignored = self._counted
        total = int((whole[name] != ignored).sum())
        return int((pieces[name] != ignored).sum()) / max(total, 1)

    def _finished(self, loss: Tensor, train: bool) -> Tensor:
        """The loss of all parts; gradients are summed across them."""
        if train:
            self._across.reduce(self.inner.executor, self._weight)
        return self._across.total(loss * self._weight, self.part.plan.cluster.devices)

    def whole_state(self) -> dict[str, Tensor] | None:
        """The plain model's state_dict on the first rank of each part; all ranks call it."""
        return self.inner.whole_state()


def rank_parts(plan: IslandPlan) -> tuple[Members, ...]:
    """The ranks of each part.

    Devices of an island that no part uses have none.
    """
    ranks, first = [], 0
    for part in plan.parts:
        ranks.append(tuple(range(first, first + part.plan.cluster.devices)))
        first += part.plan.cluster.devices
    return tuple(ranks)


def parallelize_islands(
    model: nn.Module,
    plan: IslandPlan,
    *,
    device: torch.device | str = "cpu",
    constants: Mapping[str, Tensor] | None = None,
    limit: Seconds = LIMIT,
) -> OnIslands | OnStages:
    """The model, run by a plan over islands on the ranks of the default process group, which
    becomes that of this rank's part. `constants` are as for `parallelize`.
    """
    ranks = rank_parts(plan)
    total = sum(map(len, ranks))
    if not dist.is_initialized() or dist.get_world_size() != total:
        have = dist.get_world_size() if dist.is_initialized() else 0
        raise InputError(
            f"the plan is for {counted(total, 'rank')}, and there are {have}",
            f"start {counted(total, 'rank')} with torchrun, and init_process_group",
        )
    backend = str(dist.get_backend())
    loss_law(plan.parts[-1].plan.graph)
    rank = dist.get_rank()
    number = next(n for n, members in enumerate(ranks) if rank in members)
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(
        backend,
        store=PrefixStore(f"meshwright/part{number}", store),
        rank=rank - ranks[number][0],
        world_size=len(ranks[number]),
    )
    across = PrefixStore("meshwright/across", store)
    if plan.stages > 1:
        watch = Watchdog(PrefixStore("meshwright/watch", store), rank, total, limit=limit)
        tensors = constants or {}
        return parallelize_stages(
            model, plan, ranks, rank, across, watch, device=device, constants=tensors
        )
    plans = [part.plan for part in plan.parts]
    inner = parallelize(
        model, plans[number], device=device, constants=constants, limit=limit, dtensors=False
    )
    return OnIslands(plan, number, inner, Across(plans, ranks, rank, across, backend))
