"""What enters a step. Enters: a call's arguments. Leaves: the graph's inputs by name, if they are
what the plan is for, and the same on every rank.

Arguments by name go to the inputs of that name, those by order to the first ones. Values that are
no tensors were part of the trace: others than those are refused. Every rank gives the whole batch;
whether all give the same one is compared by digests in the first calls of each mode.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError, nearest
from meshwright.base.units import counted
from meshwright.capture.names import leaf_names
from meshwright.capture.settings import constant_text
from meshwright.graph.model import OperatorGraph

COMPARED = 3
"""Calls of each mode whose inputs are compared between ranks."""

WIDTH = 16
"""Bytes of a digest."""


class Entering:
    """Takes the arguments of calls apart."""

    def __init__(self, graph: OperatorGraph, device: torch.device) -> None:
        self._graph, self._device = graph, device
        self._compared: Counter[bool] = Counter()
        fixed = {} if graph.traced is None else dict(graph.traced.fixed)
        self._fixed: Mapping[str, str] = fixed

    def values(
        self, inputs: Sequence[object], named: Mapping[str, object], *, training: bool
    ) -> dict[str, Tensor]:
        """The inputs by name, on this rank's device."""
        comparing = dist.get_world_size() > 1 and self._compared[training] < COMPARED
        self._compared[training] += 1
        try:
            found = self._bound(inputs, named)
            self._refuse_other_kinds(found)
        except InputError:
            if comparing:
                # The others wait for what this rank was given.
                self._told({})
            raise
        if comparing:
            self._refuse_other_batches(found)
        return {name: own.to(self._device) for name, own in found.items()}

    def _bound(self, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, Tensor]:
        wanted = [tensor.name for tensor in self._graph.inputs]
        by_order = [own for own in pytree.tree_leaves(list(inputs)) if isinstance(own, Tensor)]
        by_name = dict(self._by_name(named))
        if len(by_order) + len(by_name) != len(wanted):
            raise InputError(
                f"the step got {counted(len(by_order) + len(by_name), 'tensor')}",
                f"give {len(wanted)}, in this order: {', '.join(wanted)}",
            )
        self._refuse_other_constants(inputs)
        found = dict(zip(wanted, by_order, strict=False))
        for name, own in by_name.items():
            if name in found:
                raise InputError(
                    f"the step got {name!r} by order and by name", f"give {', '.join(wanted)} once"
                )
            found[name] = own
        return found

    def _by_name(self, named: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
        wanted = [tensor.name for tensor in self._graph.inputs]
        for key, value in named.items():
            leaves = pytree.tree_leaves(value)
            for name, own in zip(leaf_names(key, value), leaves, strict=True):
                if not isinstance(own, Tensor):
                    self._refuse_other_constant(name, own)
                elif name not in wanted:
                    raise InputError(
                        f"the step got {name!r}, and the plan's graph has no such input",
                        nearest(name, wanted),
                    )
                else:
                    yield name, own

    def _refuse_other_constants(self, inputs: Sequence[object]) -> None:
        """Refuse values by order that are none of those that were traced, in their order."""
        fixed = iter(self._fixed.values())
        for own in pytree.tree_leaves(list(inputs)):
            if isinstance(own, Tensor) or own is None:
                continue
            traced = next((t for t in fixed if t == constant_text(own)), "")
            if not traced:
                raise InputError(
                    f"the step got {own!r}, and the plan was not made for such a call",
                    self._calls(),
                )

    def _refuse_other_constant(self, name: str, own: object) -> None:
        traced = self._fixed.get(name, "None")
        if constant_text(own) != traced:
            raise InputError(
                f"the step got {name}={own!r}, and the plan is for {name}={traced}", self._calls()
            )

    def _calls(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self._fixed.items())
        return f"plan for this call, or call it with {said or 'tensors alone'}"

    def _refuse_other_kinds(self, found: Mapping[str, Tensor]) -> None:
        for tensor in self._graph.inputs:
            own = found[tensor.name]
            if own.requires_grad and torch.is_grad_enabled():
                raise InputError(
                    f"input {tensor.name!r} requires a gradient, and a plan gives none to inputs",
                    "detach it, or make it a parameter of the model before it is captured",
                )
            if tuple(own.shape) != tensor.shape:
                raise InputError(
                    f"input {tensor.name!r} has shape {tuple(own.shape)}, and the plan is for "
                    f"{tensor.shape}",
                    "give batches of that shape, or plan for this one",
                )
            dtype = str(own.dtype).removeprefix("torch.")
            if dtype != tensor.dtype:
                raise InputError(
                    f"input {tensor.name!r} is of {dtype}, and the plan is for {tensor.dtype}",
                    f"convert it with .to(torch.{tensor.dtype})",
                )

    def _refuse_other_batches(self, found: Mapping[str, Tensor]) -> None:
        told = self._told(found)
        names = [tensor.name for tensor in self._graph.inputs]
        wrong = [rank for rank, digests in enumerate(told) if not any(map(any, digests))]
        if wrong and names:
            raise InputError(
                f"rank {wrong[0]} was given inputs that the plan is not for",
                "give every rank the same whole batch",
            )
        for place, name in enumerate(names):
            others = [rank for rank, own in enumerate(told) if own[place] != told[0][place]]
            if others:
                raise InputError(
                    f"rank {others[0]} was given another {name!r} than rank 0",
                    "give every rank the same whole batch, of which the plan takes its parts: no "
                    "DistributedSampler, and the same seed for shuffling on every rank",
                )

    def _told(self, found: Mapping[str, Tensor]) -> list[list[bytes]]:
        """The digests of every rank's inputs; zeros of one that has none."""
        names = [tensor.name for tensor in self._graph.inputs]
        own = b"".join(_digest(found[name]) if found else bytes(WIDTH) for name in names)
        device = self._device if dist.get_backend() == "nccl" else torch.device("cpu")
        sent = torch.frombuffer(bytearray(own or bytes(WIDTH)), dtype=torch.uint8).to(device)
        heard = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        dist.all_gather(heard, sent)
        rows = [bytes(one.cpu().tolist()) for one in heard]
        return [
            [row[at * WIDTH : (at + 1) * WIDTH] for at in range(max(1, len(names)))] for row in rows
        ]


def _digest(own: Tensor) -> bytes:
    data: Any = own.detach().resolve_conj().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=WIDTH).digest()
