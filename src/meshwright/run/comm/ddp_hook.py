"""DDP communication hook that runs reduction programs. Enters: a model under
DistributedDataParallel and a reduction plan. Leaves: the same model, whose gradients are averaged
by the plan's program.

DDP hands over its buckets in the same order on every rank. A communication stream (`comm_stream`)
carries the programs out while the backward pass goes on: its thread waits between the steps of a
program, on a GPU its stream does, and what computes waits for neither before DDP needs the bucket.
"""

# Annotations are not put off to later here: DDP compares those of its hooks with types.

import weakref
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.run.comm.comm_stream import CommStream
from meshwright.run.comm.programs import AnyReductionPlan, Reducer, reducer


def use_reduction_plan(model: DistributedDataParallel, plan: AnyReductionPlan) -> None:
    """Average the gradients of a model by the plan's program; every rank calls it once."""
    ranks = tuple(dist.get_process_group_ranks(model.process_group))
    _refuse_others(ranks, plan)
    device = _device_of(model)
    # Messages of the thread must not mix with what the script sends meanwhile.
    apart = dist.new_group()
    state = _State(reducer(plan, apart), len(ranks), device)
    model.register_comm_hook(state, _averaged)


def _refuse_others(ranks: tuple[int, ...], plan: AnyReductionPlan) -> None:
    """Refuse a plan by which a rank would sum up with others than those of its model."""
    together = next((group for group in plan.groups if dist.get_rank() in group), ())
    if together != ranks:
        raise InputError(
            f"the model is trained by ranks {list(ranks)} together, and the reduction plan sums "
            f"over ranks {list(together)}",
            "choose a plan for these ranks, or give the model a process group of those",
        )


def _device_of(model: DistributedDataParallel) -> torch.device:
    """Where the gradients of a model are."""
    first, *others = {
        parameter.device for parameter in model.parameters() if parameter.requires_grad
    }
    if others:
        raise InputError(
            f"the model lies on {len(others) + 1} devices of this rank, and its gradients are "
            "reduced in one stream",
            "give DistributedDataParallel a model on one device",
        )
    return first


ENDING = Seconds(10.0)
"""How long Python's end waits for the last promise: a thread that is ended while it keeps one would
abort the process."""


class _State:
    """What the hook needs: the program, by how much to divide, and a communication stream."""

    def __init__(self, reducer: Reducer, ranks: int, device: torch.device) -> None:
        self._own, self._ranks, self._device = reducer, ranks, device
        self._lane = CommStream(device)
        weakref.finalize(self, self._lane.close, ENDING)

    def begin(self, data: Tensor) -> Future[Tensor]:
        """Begin to average a bucket, in place.

        The lane holds the bucket while its kernels may run, and begins after what computed it. The
        promise is kept in the lane's stream: whoever waits for it has his stream wait, and the
        bucket is recorded for that stream (`torch.futures.Future` does both).
        """
        on_gpu = self._device.type != "cpu"
        promised: Future[Tensor] = Future(devices=[self._device] if on_gpu else [])
        self._lane.begin(partial(_average, self._own, self._ranks, data, promised))
        return promised


def _average(program: Reducer, ranks: int, data: Tensor, promised: Future[Tensor]) -> None:
    try:
        data.div_(ranks)
        program.all_reduce(data)
    except Exception as error:  # DDP raises it where it waits for the bucket.
        promised.set_exception(error)  # type: ignore[arg-type]
    else:
        promised.set_result(data)


def _averaged(state: _State, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    return state.begin(bucket.buffer())
