"""Patched DTensor operators, for loops over the parameters of a plan. Enters: DTensors of plans.
Leaves: what PyTorch refuses, ignores or does otherwise than one device does.

- `item()` of a pending sum, as of a norm, is of the sum: PyTorch gives this rank's term.
- Plain tensors beside DTensors, as masks and noise, are taken as the same on all ranks.
- Random numbers of a tensor that is cut on CPUs are drawn whole, by each rank, and cut: PyTorch
  draws as many as a rank has, the same on all ranks that have the same seed.
- A write into rows along which a tensor is cut is refused: PyTorch makes a copy of them.
- `parameter.data = values` copies the values: PyTorch changes what nobody reads.
- `copy.deepcopy` copies what begins inside of other memory, as shards of ZeRO 1 do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from meshwright.base.errors import InputError

ATEN = torch.ops.aten

RANDOM = (
    ATEN.normal_.default,
    ATEN.uniform_.default,
    ATEN.bernoulli_.float,
    ATEN.rand_like.default,
    ATEN.randn_like.default,
    ATEN.randint_like.default,
    ATEN.randint_like.low_dtype,
)
"""Operators that draw by the shape of a tensor alone."""

PARTS = (ATEN.select.int, ATEN.slice.Tensor)
WRITES = (
    *(ATEN.zero_.default, ATEN.fill_.Scalar, ATEN.fill_.Tensor, ATEN.copy_.default),
    *(ATEN.add_.Tensor, ATEN.sub_.Tensor, ATEN.mul_.Tensor, ATEN.div_.Tensor),
)
"""Views of a part of a tensor, and what is mostly written into such."""

_copied = "copied from ranks"
_planned_data = "of a plan"
"""An attribute of DTensors that are parameters of plans."""


def mark_as_planned(parameter: Tensor) -> None:
    """Note that a plan reads the memory of a parameter."""
    setattr(parameter, _planned_data, True)


def patch_dtensors() -> None:
    """Have DTensors act so; once."""
    dispatcher: Any = DTensor._op_dispatcher
    dispatcher._allow_implicit_replication = True
    handlers = dispatcher._custom_op_handlers
    handlers.setdefault(ATEN._local_scalar_dense.default, _item)
    for operator in RANDOM:
        handlers.setdefault(operator, _draw)
    handlers |= dict.fromkeys(PARTS, _take_part) | dict.fromkeys(WRITES, _write)
    patched: Any = DTensor
    patched.data = property(_data, _put_data)
    patched.__deepcopy__ = _deepcopy


def _item(call: Any, arguments: Any, _: Any) -> Any:
    tensor = arguments[0]
    if any(placement.is_partial() for placement in tensor.placements):
        tensor = tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)
    return call(tensor.to_local())


def _draw(call: Any, arguments: Any, named: Any) -> Any:
    tensor: DTensor = arguments[0]
    if tensor.device.type != "cpu" or all(p.is_replicate() for p in tensor.placements):
        return _by_pytorch(call, arguments, named)
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    drawn = call(whole, *arguments[1:], **named)
    part = distribute_tensor(drawn, tensor.device_mesh, tensor.placements, src_data_rank=None)
    if drawn is not whole:
        return part
    tensor._local_tensor.copy_(part.to_local())
    return tensor


def _take_part(call: Any, arguments: Any, named: Any) -> Any:
    tensor: DTensor = arguments[0]
    part = _by_pytorch(call, arguments, named)
    dim = arguments[1] if len(arguments) > 1 else 0
    if any(placement.is_shard(dim % tensor.ndim) for placement in tensor.placements):
        setattr(part, _copied, True)
    return part


def _write(call: Any, arguments: Any, named: Any) -> Any:
    if hasattr(arguments[0], _copied):
        raise InputError(
            "a part of a tensor that is cut over ranks is written, which is a copy of it",
            "write all of it: multiply by a mask, or copy_ a whole tensor into it",
        )
    return _by_pytorch(call, arguments, named)


def _by_pytorch(call: Any, arguments: Any, named: Any) -> Any:
    dispatcher: Any = DTensor._op_dispatcher
    handler = dispatcher._custom_op_handlers.pop(call)
    try:
        return call(*arguments, **named)
    finally:
        dispatcher._custom_op_handlers[call] = handler


def _deepcopy(tensor: DTensor, memo: dict[int, object]) -> object:
    if id(tensor) not in memo:
        copied: Any = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            copied = nn.Parameter(copied)
        memo[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _data(tensor: DTensor) -> Tensor:
    whole: Any = Tensor.data
    data: Tensor = whole.__get__(tensor)
    return data


def _put_data(tensor: DTensor, values: Tensor) -> None:
    if not hasattr(tensor, _planned_data):
        whole: Any = Tensor.data
        whole.__set__(tensor, values)
        return
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        raise InputError(
            f"a parameter of {tensor.dtype}{list(tensor.shape)} is given data of "
            f"{values.dtype}{list(values.shape)}",
            "give it values of its shape and dtype, of the whole parameter",
        )
    with torch.no_grad():
        tensor.copy_(values)
