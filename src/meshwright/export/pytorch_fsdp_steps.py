"""FSDP2 reduce-scatter and all-gather in hierarchical steps over mesh factors. Enters: a plan, the
mesh factors of its shards. Leaves: the steps in which its gradients are reduce-scattered and its
parameters gathered, and the script's text that carries them out through `set_custom_reduce_scatter`
and `set_custom_all_gather`.

A chain of the plan (`PlannedChain`) names the factors of each step. With the data axis a product of
factors d0 x d1 x ..., a gradient is d0 x d1 x ... pieces; a step along some factors sums over the
ranks that differ along them and leaves each rank its own piece along these. All steps together are
the reduce-scatter over the axis, whatever their order; gathering is the same backwards.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.cost.collective import Collective
from meshwright.plan.plan import Plan

Steps = tuple[tuple[int, ...], ...]


class DataSteps(NamedTuple):
    """Steps by positions among the factors of shards; nothing where one collective does."""

    scatter: Steps
    gather: Steps


def fsdp_collective_steps(plan: Plan, taken: tuple[int, ...], zero: int) -> DataSteps:
    """The steps of the largest reduction and gathering over some factors that a plan has."""
    if zero < 2:
        return DataSteps((), ())
    scatter, gather = (
        _steps(plan, kind.value, taken)
        for kind in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    )
    return DataSteps(scatter, gather)


def _steps(plan: Plan, kind: str, taken: tuple[int, ...]) -> Steps:
    known = [
        chain for chain in plan.chains if chain.collective == kind and set(chain.over) == set(taken)
    ]
    largest = max(known, key=lambda chain: chain.bytes, default=None)
    if largest is None or len(largest.steps) < 2:
        return ()
    return tuple(tuple(taken.index(factor) for factor in step) for step in largest.steps)


CONSTANTS = """DATA_FACTORS = {sizes}  # of the shards: {words}
SCATTER_STEPS = {scatter}  # the factors of each step, by their place; none: one collective
GATHER_STEPS = {gather}"""

TEXT = '''
class InSteps:
    """A collective over the shards in steps, each among the ranks that differ along some of
    their factors, as the plan has it."""

    def __init__(self, mesh, steps):
        ranks = mesh.mesh.reshape(PIPELINE * REPLICATE, *DATA_FACTORS, TENSOR)
        self.steps, self.groups = steps, []
        for step in steps:
            along = [factor + 1 for factor in step]
            others = [dim for dim in range(ranks.dim()) if dim not in along]
            ways = math.prod(DATA_FACTORS[factor] for factor in step)
            grid = ranks.permute(*others, *along).reshape(-1, ways)
            own = DeviceMesh(mesh.device_type, grid, mesh_dim_names=("beside", "along"))
            self.groups.append(own.get_group("along"))

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)


class ScatterInSteps(InSteps):
    """Sums gradients; each rank keeps its piece."""

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        left = list(range(len(DATA_FACTORS)))
        piece = input_tensor.reshape(*DATA_FACTORS, -1)
        for step, own in zip(self.steps, self.groups):
            piece = piece.movedim([left.index(f) for f in step], list(range(len(step))))
            left = [factor for factor in left if factor not in step]
            shape = piece.shape[len(step) :]
            part = piece.new_empty(math.prod(shape))
            dist.reduce_scatter_tensor(part, piece.reshape(-1), op=op, group=own)
            piece = part.view(shape)
        output_tensor.copy_(piece.reshape(output_tensor.shape))


class GatherInSteps(InSteps):
    """Gathers parameters of which each rank has a piece."""

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        have, piece = [], input_tensor.reshape(-1).clone()
        for step, own in zip(self.steps, self.groups):
            ways = math.prod(DATA_FACTORS[factor] for factor in step)
            more = piece.new_empty(ways * piece.numel())
            dist.all_gather_into_tensor(more, piece, group=own)
            have, piece = [*step, *have], more
        piece = piece.view(*(DATA_FACTORS[factor] for factor in have), -1)
        order = [have.index(factor) for factor in range(len(DATA_FACTORS))]
        output_tensor.copy_(piece.permute(*order, len(order)).reshape(output_tensor.shape))
'''

COMMUNICATION = """    modules = [own for own in model.modules() if isinstance(own, FSDPModule)]
    scatter = ScatterInSteps(mesh, SCATTER_STEPS) if SCATTER_STEPS else None
    gather = GatherInSteps(mesh, GATHER_STEPS) if GATHER_STEPS else None
    for own in modules:
        if scatter:
            own.set_custom_reduce_scatter(scatter)
        if gather:
            own.set_custom_all_gather(gather)
"""
