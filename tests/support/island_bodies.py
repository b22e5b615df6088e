"""Training over islands, for ranks: many plans one after the other on the same ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from meshwright import parallelize
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.island_plan import IslandPlan
from meshwright.plan.plan import Plan
from meshwright.run.islands import parallelize_islands
from meshwright.run.launch.gpus import device_of_rank
from support.module_bodies import batch_of, example_of

STEPS = 2


def trained_on_islands(
    source: str, plans: list[IslandPlan], graph: OperatorGraph | None = None
) -> list[tuple[list[float], Any]]:
    """The losses and the state after some steps by each plan, on every rank; where parts have
    some of the inputs, the whole graph tells the values of all.
    """
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    world, backend = dist.get_world_size(), dist.get_backend()
    outcomes = []
    for number, plan in enumerate(plans):
        if number:
            dist.destroy_process_group()
            again = PrefixStore(f"world{number}", store)
            dist.init_process_group(backend, store=again, rank=rank, world_size=world)
        outcomes.append(_trained(source, plan, graph))
    return outcomes


def _trained(
    source: str, plan: IslandPlan, graph: OperatorGraph | None
) -> tuple[list[float], dict[str, Any] | None]:
    example = example_of(source)
    batch: list[Tensor] = batch_of(example, graph or plan.parts[0].plan.graph)
    losses = []
    device = device_of_rank()
    with parallelize_islands(example.model, plan, device=device) as model:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        state = model.whole_state()
    return losses, None if state is None else {
        key: tensor.cpu().numpy() for key, tensor in state.items()
    }


def went_on(
    source: str, plan: IslandPlan | Plan, state: dict[str, Any] | None, graph: OperatorGraph
) -> dict[str, Any] | None:
    """The state after a step by a plan, from a state or from the beginning."""
    example = example_of(source)
    if state is not None:
        example.model.load_state_dict(
            {key: torch.from_numpy(array) for key, array in state.items()}
        )
    run = parallelize if isinstance(plan, Plan) else parallelize_islands
    with run(example.model, plan) as model:  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(*batch_of(example, graph)).backward()
        optimizer.step()
        left = model.whole_state()
    return None if left is None else {key: tensor.numpy() for key, tensor in left.items()}
