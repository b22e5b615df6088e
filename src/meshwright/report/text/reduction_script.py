"""Self-contained torch.distributed script of a reduction program. Enters: a lowered program.
Leaves: the text of a Python file that needs nothing but torch and performs the program with
`torch.distributed` groups.

Run by itself under torchrun, the file compares the program with a plain AllReduce.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.collectives.dsl import Program
from meshwright.collectives.lowering import Groups, LoweredStep
from meshwright.report.words import describe_program


def torch_script(
    program: Program, steps: Sequence[LoweredStep], reduction_groups: Groups, devices: int
) -> str:
    """The text of a self-contained script that performs a lowered program."""
    lines = [f"    ({step.collective.value!r}, {_rank_lists(step.groups)})," for step in steps]
    return _TEMPLATE.format(
        program=program,
        words=describe_program(program),
        devices=devices,
        steps="\n".join(lines),
        groups=_rank_lists(reduction_groups),
    )


def _rank_lists(groups: Groups) -> str:
    return str([list(group) for group in groups])


_TEMPLATE = '''\
"""{words}.

Written by Meshwright for {devices} ranks; rank i is device i of the placement. The program:
    {program}
Check it against a plain AllReduce:  torchrun --nproc-per-node {devices} THIS_FILE
"""

import torch
import torch.distributed as dist

STEPS = [
{steps}
]
REDUCTION_GROUPS = {groups}


class ReductionProgram:
    """Sums a tensor over this rank's reduction group. Make it once, on every rank."""

    def __init__(self):
        self.rank = dist.get_rank()
        self.pieces = len(REDUCTION_GROUPS[0])
        self.plan = []
        made = {{}}
        held = {{rank: list(range(self.pieces)) for group in REDUCTION_GROUPS for rank in group}}
        for collective, groups in STEPS:
            for ranks in groups:
                if tuple(ranks) not in made:  # every rank takes part in making every group
                    made[tuple(ranks)] = dist.new_group(ranks)
                before = [held[rank] for rank in ranks]
                for position, rank in enumerate(ranks):
                    held[rank] = self.held_after(collective, position, before)
                if self.rank in ranks:
                    gathered = [piece for pieces in before for piece in pieces]
                    order = sorted(range(len(gathered)), key=gathered.__getitem__)
                    held_by_root = len(before[0])
                    self.plan.append((collective, ranks, made[tuple(ranks)], order, held_by_root))

    @staticmethod
    def held_after(collective, position, before):
        """The numbers of the pieces that a member holds after a collective."""
        if collective == "ReduceScatter":
            share = len(before[0]) // len(before)
            return before[0][position * share : (position + 1) * share]
        if collective == "AllGather":
            return sorted(piece for pieces in before for piece in pieces)
        if collective == "Reduce" and position > 0:
            return []
        return before[0]

    @torch.no_grad()
    def __call__(self, tensor):
        flat = tensor.reshape(-1)
        padding = -flat.numel() % self.pieces
        data = torch.nn.functional.pad(flat, (0, padding)).view(self.pieces, -1).clone()
        width = data.shape[1]
        for collective, ranks, group, order, held_by_root in self.plan:
            if collective == "AllReduce":
                dist.all_reduce(data, group=group)
            elif collective == "ReduceScatter":
                part = data.new_empty(data.shape[0] // len(ranks), width)
                dist.reduce_scatter_tensor(part, data, group=group)
                data = part
            elif collective == "AllGather":
                whole = data.new_empty(data.shape[0] * len(ranks), width)
                dist.all_gather_into_tensor(whole, data, group=group)
                data = whole if order == sorted(order) else whole[order]
            elif collective == "Reduce":
                dist.reduce(data, dst=ranks[0], group=group)
            elif collective == "Broadcast":
                if self.rank != ranks[0]:
                    data = data.new_empty(held_by_root, width)
                dist.broadcast(data, src=ranks[0], group=group)
        return data.reshape(-1)[: tensor.numel()].view_as(tensor)


if __name__ == "__main__":
    import os

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(dist.get_rank())
    mine = torch.randint(-1000, 1000, (1009,), device=device, dtype=torch.int64)
    plain = mine.clone()
    for ranks in REDUCTION_GROUPS:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            dist.all_reduce(plain, group=group)
    same = torch.equal(ReductionProgram()(mine), plain)
    verdict = torch.tensor(int(same), device=device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        print("equal to AllReduce" if verdict else "DIFFERENT from AllReduce")
    dist.destroy_process_group()
    raise SystemExit(0 if verdict else 1)
'''
