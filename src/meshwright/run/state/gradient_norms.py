"""Gradient norm and clipping over all ranks: each sharded or replicated element counts once.
Enters: an executor after a backward pass. Leaves: the norm that one device would compute; or its
gradients, clipped by it.

Ranks hold pieces, some of them the same ones. Each element has one owner (`lower.ownership`), so
    |g|_p = (sum over ranks of the sum over owned elements of |g|^p)^(1/p),   p = inf: the largest
counts it once for every plan: tensor parallelism, ZeRO 1 to 3, stages and plain copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.lower.ownership import Holdings
from meshwright.run.exec.executor import Executor
from meshwright.run.state.model_state import view_of_box
from meshwright.sharding.states import is_at

TINY = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm that it divides by."""


class Norms:
    """The norms of one executor's gradients; all ranks ask together."""

    def __init__(self, executor: Executor, holdings: Holdings) -> None:
        self._executor, self._holdings = executor, holdings

    @property
    def everywhere(self) -> bool:
        """Whether every rank has some of every parameter and sees it as what it is: whole, or as
        a DTensor, so that PyTorch's own norms of some of them are right.
        """
        script = self._executor.script
        pieces = self._executor.parameters.pieces
        placements = script.parallel.made
        read = [
            parameter
            for parameter in script.plan.graph.parameters
            if parameter.tensor.name in placements
        ]
        spread = all(
            not any(map(is_at, placements[parameter.tensor.name].forward.states))
            for parameter in read
        )
        return spread and all(
            tuple(pieces[parameter.tensor.name].parameter.shape) == parameter.stored.shape
            for parameter in read
        )

    def norm(self, kind: float = 2.0, *, error_if_nonfinite: bool = False) -> Tensor:
        """The norm of all gradients that parameters have now, on every rank; what
        `torch.nn.utils.clip_grad_norm_` raises if that is asked for and it is no number.
        """
        if kind <= 0:
            raise InputError(f"the norm_type is {kind}", "give a positive number, or inf")
        total = self._own(kind)
        if dist.get_world_size() > 1:
            highest = dist.ReduceOp.MAX if math.isinf(kind) else dist.ReduceOp.SUM
            dist.all_reduce(total, highest)
        norm = total if math.isinf(kind) else total ** (1 / kind)
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise RuntimeError(
                f"The total norm of order {kind} for gradients is non-finite, so it cannot be "
                "clipped. To disable this error and scale the gradients by the non-finite norm "
                "anyway, set `error_if_nonfinite=False`"
            )
        return norm

    def _own(self, kind: float) -> Tensor:
        """What this rank adds to the norm."""
        device = self._executor.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        for part in self._owned():
            size = torch.linalg.vector_norm(part, kind).double()
            total = torch.maximum(total, size) if math.isinf(kind) else total + size**kind
        return total

    def _owned(self) -> Iterator[Tensor]:
        rank = self._executor.rank
        for name, piece in self._executor.parameters.pieces.items():
            gradient = piece.accumulated
            if gradient is not None and gradient.numel():
                regions = self._holdings.regions(name, rank)
                for box in self._holdings.owned(name, rank):
                    yield view_of_box(gradient, regions, box)

    def clip(self, most: float, kind: float, *, error_if_nonfinite: bool) -> Tensor:
        """Make the gradients shorter where their norm is more, in place; the norm before."""
        norm = self.norm(kind, error_if_nonfinite=error_if_nonfinite)
        rate = torch.clamp(most / (norm + TINY), max=1.0)
        pieces = self._executor.parameters.pieces.values()
        for gradient in (piece.accumulated for piece in pieces):
            if gradient is not None:
                gradient.mul_(rate.to(gradient.dtype))
        return norm
