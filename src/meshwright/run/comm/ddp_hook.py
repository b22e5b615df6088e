"""Reduction programs in a DDP script. Enters: a model under DistributedDataParallel and a reduction
plan. Leaves: the same model, whose gradients are averaged by the plan's program.

DDP hands over its buckets in the same order on every rank. On CPUs a thread of its own carries the
programs out while the backward pass goes on; NCCL's collectives run beside it by themselves.
"""

# Annotations are not put off to later here: DDP compares those of its hooks with types.

from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from meshwright.base.errors import InputError
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.run.comm.programs import Reducer, reducer


def use_reduction_plan(model: DistributedDataParallel, plan: ReductionPlan) -> None:
    """Average the gradients of a model by the plan's program; every rank calls it once."""
    ranks = tuple(dist.get_process_group_ranks(model.process_group))
    _refuse_others(ranks, plan)
    # Messages of the thread must not mix with what the script sends meanwhile.
    apart = dist.new_group()
    state = _State(reducer(plan, apart), len(ranks))
    model.register_comm_hook(state, _averaged)


def _refuse_others(ranks: tuple[int, ...], plan: ReductionPlan) -> None:
    """Refuse a plan by which a rank would sum up with others than those of its model."""
    together = next((group for group in plan.groups if dist.get_rank() in group), ())
    if together != ranks:
        raise InputError(
            f"the model is trained by ranks {list(ranks)} together, and the reduction plan sums "
            f"over ranks {list(together)}",
            "choose a plan for these ranks, or give the model a process group of those",
        )


class _State:
    """What the hook needs: the program, by how much to divide, and a thread."""

    def __init__(self, own: Reducer, ranks: int) -> None:
        self._own, self._ranks = own, ranks
        self._thread = ThreadPoolExecutor(1, "meshwright-reduction")

    def begin(self, data: Tensor) -> Future[Tensor]:
        """Begin to average a bucket, in place."""
        if data.device.type != "cpu":
            done: Future[Tensor] = Future(devices=[data.device])
            self._average(data, done)
            return done
        promised: Future[Tensor] = Future()
        self._thread.submit(self._average, data, promised)
        return promised

    def _average(self, data: Tensor, promised: Future[Tensor]) -> None:
        try:
            data.div_(self._ranks)
            self._own.all_reduce(data)
        except Exception as error:  # DDP raises it where it waits for the bucket.
            promised.set_exception(error)  # type: ignore[arg-type]
        else:
            promised.set_result(data)


def _averaged(state: _State, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    return state.begin(bucket.buffer())
