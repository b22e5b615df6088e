"""All operators of ATen. Enters: nothing. Leaves: kinds, by what PyTorch says of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace
from torch._ops import OpOverload

from meshwright.capture.operators.aten import kind_of


def _overloads() -> Iterator[OpOverload]:
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    for full in sorted(name for name in names if name.startswith("aten::")):
        try:
            packet = getattr(torch.ops.aten, full.removeprefix("aten::"))
        except AttributeError:
            continue
        for variant in packet.overloads():
            yield getattr(packet, variant)


@cache
def overloads() -> tuple[OpOverload, ...]:
    """Those that give a tensor and write into none."""
    return tuple(
        overload
        for overload in _overloads()
        if not overload._schema.is_mutable
        and any("Tensor" in str(r.type) for r in overload._schema.returns)
    )


def tagged(tag: torch.Tag) -> set[str]:
    """Kinds of which some overload has a tag."""
    return {kind_of(overload) for overload in overloads() if tag in overload.tags}


def composites() -> set[str]:
    """Kinds that `torch.export` leaves whole though PyTorch defines them by others."""
    left = _collect_all_valid_cia_ops_for_aten_namespace()
    return {kind_of(overload) for overload in overloads() if overload in left}
