"""`state_dict` and `load_state_dict` of a module that runs by a plan. Enters: an executor. Leaves:
the plain model's names, each with what `torch.distributed.checkpoint` saves and loads as the whole
tensor: a DTensor, a plain tensor where every rank that has the name has all of it, or a `Sharded`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.base.errors import InputError
from meshwright.lower.boxes import full
from meshwright.lower.ownership import Holdings
from meshwright.run.comm.resharding import cut
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.parameters import ParameterPiece, local_part
from meshwright.run.state.model_state import buffer_names, local_regions_of, names_of, region_of
from meshwright.run.state.sharded import Sharded

REMEDY = "give the state_dict of this module, or of the plain one"


def named_pieces(executor: Executor) -> Iterator[tuple[str, ParameterPiece]]:
    """The pieces of this rank by each name that the plain model has for them."""
    for parameter in executor.script.plan.graph.parameters:
        piece = executor.parameters.pieces.get(parameter.tensor.name)
        if piece is not None:
            yield from ((name, piece) for name in names_of(parameter))


def entries(
    executor: Executor, holdings: Holdings, *, keep_vars: bool
) -> Iterator[tuple[str, Tensor]]:
    """What a state_dict has, on this rank."""
    stored = executor.script.plan.graph.stored
    for name, piece in named_pieces(executor):
        parameter = piece.parameter
        if isinstance(parameter, DTensor) or tuple(parameter.shape) == stored[piece.name].shape:
            yield name, parameter if keep_vars else parameter.detach()
        else:
            yield name, sharded(executor, holdings, piece.name)
    for names in buffer_names(executor):
        lies = names[0] in holdings.shares and not _everywhere(executor, holdings, names[0])
        buffer = sharded(executor, holdings, names[0]) if lies else executor.buffers[names[0]]
        yield from ((name, buffer) for name in names)


def _everywhere(executor: Executor, holdings: Holdings, name: str) -> bool:
    """Whether every rank computes with all of a buffer, so that each has all that was written."""
    whole = full(executor.script.plan.graph.stored[name].shape)
    return len(holdings.workers(name).get(whole, ())) == len(holdings.devices)


def sharded(executor: Executor, holdings: Holdings, name: str) -> Sharded:
    """A parameter or buffer, of which this rank has some."""
    shape = executor.script.plan.graph.stored[name].shape
    regions, kept = local_regions_of(executor, holdings, name)
    return Sharded(shape, kept, regions, holdings.owned(name, executor.rank))


@torch.no_grad()
def take(
    executor: Executor, holdings: Holdings, state: Mapping[str, object], *, strict: bool
) -> tuple[list[str], list[str]]:
    """Take over a state_dict, this rank's or the plain model's; keys that miss, and too many.

    What other ranks have, and the plain model too, is not too many.
    """
    pieces = dict(named_pieces(executor))
    known = {name for p in executor.script.plan.graph.parameters for name in names_of(p)}
    missing = [key for key in (*pieces, *executor.buffers) if key not in state]
    extra = [key for key in state if key not in known and key not in executor.buffers]
    if strict and (missing or extra):
        key = (missing or extra)[0]
        raise InputError(
            f"the state has {'no' if missing else 'a'} {key!r}, which the plan's model "
            f"{'needs' if missing else 'does not know'}",
            REMEDY,
        )
    for key, value in state.items():
        if key in pieces:
            _put(executor, holdings, key, pieces[key], value)
        elif key in executor.buffers:
            _put_buffer(executor, key, value)
    return missing, extra


def _put(
    executor: Executor, holdings: Holdings, key: str, piece: ParameterPiece, value: object
) -> None:
    shape = executor.script.plan.graph.stored[piece.name].shape
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        described = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"{key!r} of the state is {described}, and the plan's is {list(shape)}", REMEDY
        )
    if isinstance(value, Sharded):
        piece.seen.copy_(value.kept.view(piece.seen.shape))
    elif isinstance(value, DTensor):
        _refuse_elsewhere(key, piece, value)
        piece.seen.copy_(local_part(value).view(piece.seen.shape))
    else:
        for region in holdings.regions(piece.name, executor.rank):
            region_of(piece.seen, region).copy_(cut(value, region.box))


def _refuse_elsewhere(key: str, piece: ParameterPiece, value: DTensor) -> None:
    parameter = piece.parameter
    if not isinstance(parameter, DTensor) or (parameter.device_mesh, parameter.placements) != (
        value.device_mesh,
        value.placements,
    ):
        raise InputError(
            f"{key!r} of the state lies otherwise on the ranks than in this plan",
            "give its full_tensor(), or go by way of torch.distributed.checkpoint",
        )


def _put_buffer(executor: Executor, key: str, value: object) -> None:
    tensor = value.kept if isinstance(value, Sharded) else value
    assert isinstance(tensor, Tensor)
    executor.buffers[key].copy_(tensor)
