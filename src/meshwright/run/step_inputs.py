"""Input binding of a step: a call's arguments as the graph's inputs, checked across ranks. Enters:
a call's arguments. Leaves: the graph's inputs by name, if they are what the plan is for, and the
same on every rank.

Arguments by name go to the inputs of that name, those by order to the first ones. Values that are
no tensors were part of the trace: others than those are refused. Every rank gives the whole batch,
or its share of the samples (`lower.data_shares`); whether all, or those of one share, give the same
is compared by digests in the first calls of each mode.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import counted
from meshwright.capture.operators.node_names import leaf_names
from meshwright.capture.trace.fingerprint import constant_text
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.data_shares import DataShares

COMPARED = 3
"""Calls of each mode whose inputs are compared between ranks."""

WIDTH = 16
"""Bytes of a digest."""

NOT_GIVEN = b"not given".ljust(WIDTH)
"""The digest of targets that a call leaves out."""


class Entered(NamedTuple):
    """A call's inputs by name, on this rank's device."""

    values: dict[str, Tensor]
    share: bool
    """Whether they are this rank's share of the samples."""
    complete: bool
    """Whether the call has targets, or needs none for its loss."""


class StepInputs:
    """Takes the arguments of calls apart."""

    def __init__(
        self,
        graph: OperatorGraph,
        device: torch.device,
        shares: DataShares,
        rank: int,
        *,
        optional: Sequence[str] = (),
    ) -> None:
        self._graph, self._device = graph, device
        self._optional = frozenset(optional)
        """Inputs that a call may leave out, all of them: it is for outputs then."""
        self._shares, self._rank = shares, rank
        self._compared: Counter[bool] = Counter()
        fixed = {} if graph.traced is None else dict(graph.traced.fixed)
        self._fixed: Mapping[str, str] = fixed

    def values(
        self, inputs: Sequence[object], named: Mapping[str, object], *, training: bool
    ) -> Entered:
        """The inputs of a call."""
        comparing = dist.get_world_size() > 1 and self._compared[training] < COMPARED
        self._compared[training] += 1
        try:
            bound = self._bound(inputs, named)
            self._refuse_other_kinds(bound)
        except InputError:
            if comparing:
                # The others wait for what this rank was given.
                self._told({})
            raise
        if comparing:
            self._refuse_other_batches(bound)
        share = self._is_share(bound)
        entered = {name: tensor.to(self._device) for name, tensor in bound.items()}
        if share:
            entered = {name: self._placed(name, tensor) for name, tensor in entered.items()}
        return Entered(entered, share, len(bound) == len(self._graph.inputs))

    def _is_share(self, values: Mapping[str, Tensor]) -> bool:
        """Whether samples are this rank's share of the batch."""
        shares, shapes = self._shares, {tensor.name: tensor.shape for tensor in self._graph.inputs}
        return shares.shares > 1 and all(
            values[name].shape[:1] == (shapes[name][0] // shares.shares,)
            for name in (shares.cut | shares.gathered) & values.keys()
        )

    def _placed(self, name: str, share: Tensor) -> Tensor:
        """A share at its rows of the whole batch; of what is cut nobody here reads the rest."""
        shares = self._shares
        if name not in shares.cut | shares.gathered:
            return share
        parts = {shares.own[self._rank]: share}
        if name in shares.gathered:
            heard = [torch.empty_like(share) for _ in shares.own]
            dist.all_gather(heard, share.contiguous())
            parts = dict(zip(shares.own, heard, strict=True))
        whole = share.new_zeros((share.shape[0] * shares.shares, *share.shape[1:]))
        for place, part in parts.items():
            whole[list(shares.rows[place])] = part
        return whole

    def _bound(self, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, Tensor]:
        wanted = [tensor.name for tensor in self._graph.inputs]
        by_order = [leaf for leaf in pytree.tree_leaves(list(inputs)) if isinstance(leaf, Tensor)]
        by_name = dict(self._by_name(named))
        if len(by_order) + len(by_name) == len(wanted) - len(self._optional) > 0:
            kept = [name for name in wanted if name not in self._optional]
            wanted = kept if by_name.keys() <= set(kept) else wanted
        if len(by_order) + len(by_name) != len(wanted):
            raise InputError(
                f"the step got {counted(len(by_order) + len(by_name), 'tensor')}",
                f"give {len(wanted)}, in this order: {', '.join(wanted)}",
            )
        self._refuse_other_constants(inputs)
        bound = dict(zip(wanted, by_order, strict=False))
        for name, value in by_name.items():
            if name in bound:
                raise InputError(
                    f"the step got {name!r} by order and by name", f"give {', '.join(wanted)} once"
                )
            bound[name] = value
        return bound

    def _by_name(self, named: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
        wanted = [tensor.name for tensor in self._graph.inputs]
        for key, value in named.items():
            leaves = pytree.tree_leaves(value)
            for name, leaf in zip(leaf_names(key, value), leaves, strict=True):
                if not isinstance(leaf, Tensor):
                    self._refuse_other_constant(name, leaf)
                elif name not in wanted:
                    raise InputError(
                        f"the step got {name!r}, and the plan's graph has no such input",
                        nearest(name, wanted),
                    )
                else:
                    yield name, leaf

    def _refuse_other_constants(self, inputs: Sequence[object]) -> None:
        """Refuse values by order that are none of those that were traced, in their order."""
        fixed = iter(self._fixed.values())
        for leaf in pytree.tree_leaves(list(inputs)):
            if isinstance(leaf, Tensor) or leaf is None:
                continue
            traced = next((t for t in fixed if t == constant_text(leaf)), "")
            if not traced:
                raise InputError(
                    f"the step got {leaf!r}, and the plan was not made for such a call",
                    self._calls(),
                )

    def _refuse_other_constant(self, name: str, value: object) -> None:
        traced = self._fixed.get(name, "None")
        if constant_text(value) != traced:
            raise InputError(
                f"the step got {name}={value!r}, and the plan is for {name}={traced}", self._calls()
            )

    def _calls(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self._fixed.items())
        return f"plan for this call, or call it with {said or 'tensors alone'}"

    def _refuse_other_kinds(self, values: Mapping[str, Tensor]) -> None:
        share = self._is_share(values)
        for tensor in self._graph.inputs:
            if tensor.name not in values:
                continue
            value = values[tensor.name]
            if value.requires_grad and torch.is_grad_enabled():
                raise InputError(
                    f"input {tensor.name!r} requires a gradient, and a plan gives none to inputs",
                    "detach it, or make it a parameter of the model before it is captured; two "
                    "models in a row, as a GAN has them, are planned as one module",
                )
            known = tensor.shape
            if share and tensor.name in self._shares.cut | self._shares.gathered:
                known = (known[0] // self._shares.shares, *known[1:])
            if tuple(value.shape) != known:
                raise InputError(
                    f"input {tensor.name!r} has shape {tuple(value.shape)}, and the plan is for "
                    f"{tensor.shape}",
                    f"give batches of that shape{self._own_share()}, or plan for this one",
                )
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype != tensor.dtype:
                raise InputError(
                    f"input {tensor.name!r} is of {dtype}, and the plan is for {tensor.dtype}",
                    f"convert it with .to(torch.{tensor.dtype})",
                )

    def _refuse_other_batches(self, values: Mapping[str, Tensor]) -> None:
        by_rank = self._told(values)
        names = [tensor.name for tensor in self._graph.inputs]
        share = self._is_share(values)
        owner = self._shares.own if share else (0,) * len(by_rank)
        wrong = [rank for rank, digests in enumerate(by_rank) if not any(map(any, digests))]
        if wrong and names:
            raise InputError(
                f"rank {wrong[0]} was given inputs that the plan is not for",
                "give every rank the same whole batch",
            )
        for place, name in enumerate(names):
            cut = share and name in self._shares.cut | self._shares.gathered
            for rank, rank_digests in enumerate(by_rank):
                first = owner.index(owner[rank]) if cut else 0
                if rank_digests[place] != by_rank[first][place]:
                    raise InputError(
                        f"rank {rank} was given another {name!r} than rank {first}",
                        "give every rank the same whole batch, of which the plan takes its parts"
                        f"{self._own_share() or ': no DistributedSampler'}, and the same seed for "
                        "shuffling on every rank",
                    )

    def _own_share(self) -> str:
        """How a rank gives its share of the samples, if it may."""
        if self._shares.shares == 1:
            return ""
        return (
            f", or its share of {self._shares.shares} of the samples (DistributedSampler with "
            "num_replicas, rank = model.data_share)"
        )

    def _told(self, values: Mapping[str, Tensor]) -> list[list[bytes]]:
        """The digests of every rank's inputs; zeros of one that has none."""
        names = [tensor.name for tensor in self._graph.inputs]
        kind = b"share" if values and self._is_share(values) else b"whole"
        digests = b"".join(
            _digest(values[name], kind) if name in values else NOT_GIVEN if values else bytes(WIDTH)
            for name in names
        )
        device = self._device if dist.get_backend() == "nccl" else torch.device("cpu")
        sent = torch.frombuffer(bytearray(digests or bytes(WIDTH)), dtype=torch.uint8).to(device)
        heard = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        dist.all_gather(heard, sent)
        rows = [bytes(one.cpu().tolist()) for one in heard]
        return [
            [row[at * WIDTH : (at + 1) * WIDTH] for at in range(max(1, len(names)))] for row in rows
        ]


def _digest(tensor: Tensor, kind: bytes) -> bytes:
    data: Any = tensor.detach().resolve_conj().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=WIDTH, key=kind).digest()


def refuse_other_gradients(
    gradients: Sequence[Tensor], owners: Sequence[int], device: torch.device
) -> None:
    """Refuse gradients of outputs that are not the same on ranks of one share: all ranks compute
    the loss of the same samples, so targets differ.
    """
    on = device if dist.get_backend() == "nccl" else torch.device("cpu")
    sums = [value for gradient in gradients for value in (gradient.sum(), gradient.abs().sum())]
    sent = torch.stack([value.detach().abs().double().to(on) for value in sums])
    heard = [torch.empty_like(sent) for _ in owners]
    dist.all_gather(heard, sent)
    for rank, share in enumerate(owners):
        first = owners.index(share)
        # Kernels that add in no fixed order give other last bits on every rank.
        near = torch.isclose(heard[rank], heard[first], rtol=1e-3, atol=1e-12, equal_nan=True)
        if not near[1::2].all():
            raise InputError(
                f"rank {rank} gives other gradients of the model's outputs than rank {first}, "
                "which has the same samples",
                "compute the same loss of the same targets on both",
            )
