"""Connectionist temporal classification (Graves et al. 2006), traced as one operator.

Enters: a forward pass, as a context around it. Leaves: `ctc_losses`, a loss of each
sample, where the pass calls PyTorch's `ctc_loss`, whose trace would depend on the lengths.

Libraries hand over targets without their padding, `labels.masked_select(mask)`, with lengths
`mask.sum(-1)`: as many elements as the data says. The same targets, each row moved to its front,
have the shape of the labels. Selections are put off until another function reads them; targets in
one row that come from elsewhere are left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary


def ctc_losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The loss of each sample: log_probs[t, n, classes], targets[n, s], lengths[n]."""
    return functional.ctc_loss(
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        blank,
        reduction="none",
        zero_infinity=zero_infinity,
    )


_traced = torch.library.custom_op("meshwright::ctc_losses", ctc_losses, mutates_args=())


@_traced.register_fake
def _losses_of(log_probs: Tensor, *_: object) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


class CtcLoss(TorchFunctionMode):
    """The context around a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._selected: Any = WeakIdKeyDictionary()
        """Labels and mask of each selection that is put off, and which mask it was."""
        self._counts: Any = WeakIdKeyDictionary()
        """Which mask each sum along rows counts."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """What a function gives; selected labels are gathered only where another one reads them."""
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "masked_select" and len(args) == 2 and _are_rows(*args):
            labels, mask = args
            waiting = labels.new_empty(0)
            # Copies: what is written into either later is not selected.
            self._selected[waiting] = labels.clone(), mask.clone(), _as_it_is(mask)
            return waiting
        if name == "ctc_loss":
            losses = self._loss(*args, **named)
            if losses is not None:
                return losses
        args, named = self.gathered((tuple(args), named))
        result = func(*args, **named)
        if name == "sum" and len(args) == 2 and args[1] in (-1, 1) and not named:
            self._counts[result] = _as_it_is(args[0])
        return result

    def gathered(self, values: Any) -> Any:
        """The same values with all selections made that were put off; outside of this context, or
        while it answers a call.
        """

        def made(tensor: Tensor) -> Tensor:
            if tensor not in self._selected:
                return tensor
            labels, mask, _ = self._selected[tensor]
            return torch.masked_select(labels, mask)

        return pytree.tree_map_only(Tensor, made, values)

    def _loss(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> Tensor | None:
        padded = self._padded(targets, target_lengths)
        if padded is None or log_probs.dim() != 3:
            return None
        frames, lengths = (torch.as_tensor(counts) for counts in (input_lengths, target_lengths))
        losses: Tensor = _traced(log_probs, padded, frames, lengths, blank, zero_infinity)
        match reduction:
            case "mean":
                return (losses / lengths.clamp_min(1).to(losses.dtype)).mean()
            case "sum":
                return losses.sum()
            case _:
                return losses

    def _padded(self, targets: Tensor, lengths: object) -> Tensor | None:
        """The targets of each sample in a row of its own, those that count first."""
        if targets.dim() == 2:
            return targets
        if targets not in self._selected or not isinstance(lengths, Tensor):
            return None
        labels: Tensor
        labels, mask, selecting = self._selected[targets]
        counted = self._counts.get(lengths, (None, 0))
        if counted[0] is not selecting[0] or counted[1] != selecting[1]:
            return None
        order = (~mask).to(torch.int8).sort(dim=1, stable=True)[1]
        return labels.gather(1, order)


def _as_it_is(mask: Tensor) -> tuple[Tensor, int]:
    """A tensor, which is another one once it is written into.

    It is held, so that no later tensor lies where it lay.
    """
    return mask, mask._version


def _are_rows(labels: object, mask: object) -> bool:
    tensors = isinstance(labels, Tensor) and isinstance(mask, Tensor)
    return tensors and labels.dim() == 2 and labels.shape == mask.shape  # type: ignore[attr-defined]
