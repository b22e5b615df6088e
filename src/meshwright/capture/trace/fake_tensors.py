"""Meta tensors as fake tensors of the CPU (`FakeTensorMode`). Enters: a step on meta tensors.
Leaves: the same step for as long as it is traced, on tensors without a byte that say "cpu".

Code tells devices apart: a tensor that `forward` makes without `device=` lies on the CPU, kernels
have no meta implementation, a library takes another path for an accelerator. On the CPU everything
has an implementation, and what is traced there runs on GPUs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from meshwright.capture.source.example import Step

Arguments = tuple[object, ...]

_STATE = ("_parameters", "_buffers")
"""Attributes of a module in which its tensors lie that are no plain attributes."""


@contextmanager
def with_fake_tensors(step: Step, arguments: Arguments) -> Iterator[Arguments]:
    """The arguments, and meanwhile the step's own tensors, with none of them on meta."""
    places = list(_meta_places(step))
    meta_leaves = [leaf for leaf in pytree.tree_leaves(arguments) if _has_meta(leaf)]
    if not places and not meta_leaves:
        yield arguments
        return
    fake = _faker()
    before = [(place, key, place[key]) for place, key in places]
    for place, key, value in before:
        place[key] = pytree.tree_map_only(Tensor, fake, value)
    try:
        yield pytree.tree_map_only(Tensor, fake, arguments)
    finally:
        for place, key, value in before:
            place[key] = value


def is_on_meta(step: Step, arguments: Arguments) -> bool:
    """Whether any tensor of a step has no values."""
    return any(map(_has_meta, pytree.tree_leaves(arguments))) or any(_meta_places(step))


def _meta_places(step: nn.Module) -> Iterator[tuple[MutableMapping[str, object], str]]:
    """Where modules keep meta tensors: as parameters, as buffers, or as plain attributes."""
    for module in step.modules():
        places: tuple[Any, ...] = (module._parameters, module._buffers, module.__dict__)
        for place in places:
            for key, value in place.items():
                held = () if key in _STATE else pytree.tree_leaves(value)
                if any(map(_has_meta, held)):
                    yield place, key


def _has_meta(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _faker() -> Callable[[Tensor], Tensor]:
    """What makes fake tensors, one for each meta tensor however often it is asked."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fakes: dict[int, tuple[Tensor, Tensor]] = {}

    def fake(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in fakes:
            with mode:
                stand_in = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
                )
            stand_in.requires_grad_(tensor.requires_grad)
            if isinstance(tensor, nn.Parameter):
                stand_in = nn.Parameter(stand_in, tensor.requires_grad)
            # The meta tensor is kept, so that no other one gets its id.
            fakes[id(tensor)] = tensor, stand_in
        return fakes[id(tensor)][1]

    return fake
