"""Losses: those of classes (cross_entropy_loss, nll_loss) and those of pairs (mse_loss ...).

ATen writes the attribute `reduction` as 0 (none), 1 (mean, the default) or 2 (sum). A loss that is
not reduced is cut like an element-wise operator. One that is summed is a reduction over every dim
but the classes. The mean over class targets divides by the targets that are not ignored, which is
data: its pieces read all targets, which are small, and know by `first` which of them are theirs.

Along classes a loss is a sum too: each part has the terms of its classes. For the logarithms of
probabilities the parts of cross_entropy_loss all-reduce the maximum and the sum of each row
(vocabulary-parallel, Shoeybi et al. 2019), in the forward pass only where targets are classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.base.quantities import Bytes
from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.family import (
    Family,
    Role,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    name_of,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec

NONE, MEAN = 0, 1


@final
class ClassLoss(Family):
    """scores[n, classes, ...], target[n, ...] of classes or target of probabilities."""

    def __init__(self, *, per_element: int) -> None:
        self._per_element = per_element

    def _by_class(self, call: Call) -> bool:
        """Whether the targets are classes, not probabilities."""
        return not tensor(call, 1).dtype.startswith(("float", "bfloat"))

    def _target_dim(self, call: Call, dim: int) -> int:
        """The dim of the target that a dim of the scores runs along."""
        return dim - 1 if dim > 1 and self._by_class(call) else dim

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A number, or one for each target."""
        scores, target = tensor(call, 0), tensor(call, 1)
        without_classes = scores.shape[:1] + scores.shape[2:] if len(scores.shape) > 1 else ()
        wanted = without_classes if self._by_class(call) else scores.shape
        # A piece of a mean over class targets reads all of them.
        batch = 1 if call.get("first") is not None else 0
        if target.shape[batch:] != wanted[batch:]:
            raise ShapeError(f"scores are {scores.shape} and target {target.shape}, not {wanted}")
        whole = integer(call, "reduction", MEAN) != NONE
        return (Spec(scores.dtype, () if whole else without_classes),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim; of a mean over class targets only the first, and classes; of a single sample
        without a dim of samples none.
        """
        scores = tensor(call, 0).shape
        if len(scores) == 1:
            return ()
        reduction = integer(call, "reduction", MEAN)
        rest = (None,) * (len(call.inputs) - 2)
        counted = reduction == MEAN and self._by_class(call)
        dims = [dim for dim in range(len(scores)) if dim != 1]
        splits = []
        for dim in dims[:1] if counted else dims:
            role: Role = role_of(dim) if reduction == NONE else "reduction"
            out = dim - 1 if dim > 1 else dim
            splits.append(
                Split(
                    name=name_of(dim),
                    role=role,
                    extent=scores[dim],
                    inputs=(dim, None if counted else self._target_dim(call, dim), *rest),
                    outputs=(out if reduction == NONE else None,),
                )
            )
        return (*splits, self._classes(call, scores))

    def _classes(self, call: Call, scores: tuple[int, ...]) -> Split:
        """Class weights stay whole: every part tells by them what a mean divides by."""
        by_class, normed = self._by_class(call), self._per_element > 1
        return Split(
            name="class",
            role="reduction",
            extent=scores[1],
            inputs=(1, None if by_class else 1, *(None,) * (len(call.inputs) - 2)),
            outputs=(None,),
            statistics=tensor(call, 0).elements // max(1, scores[1]) if normed else 0,
            rounds=(2, 0 if by_class else 1),
        )

    def flops(self, call: Call) -> int:
        """As a log-softmax, where there is one."""
        return self._per_element * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Log-probabilities (as large as the scores, if not the scores themselves) and targets.

        A part of the classes keeps the scores as they are, and two numbers of each row.
        """
        targets = tuple(range(1, len(call.inputs)))
        scores = tensor(call, 0)
        if self._per_element == 1:
            return Saved(inputs=targets)
        if call.get("classes") is not None:
            rows = scores.elements // max(1, scores.shape[1])
            return Saved(inputs=(0, *targets), extra=Bytes(2 * 4 * rows))
        return Saved(inputs=targets, extra=scores.bytes)

    def scratch(self, call: Call) -> Bytes:
        """The gradient of the log-probabilities, on the way to that of the scores.

        A part of the classes goes without it in 32 bits; in 16 an H200's peak has it all the same.
        """
        scores = tensor(call, 0)
        in_place = call.get("classes") is not None and scores.bytes >= 4 * scores.elements
        return Bytes(0) if self._per_element == 1 or in_place else scores.bytes

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """Where the piece's classes or targets begin, or what its mean divides by."""
        if split.name == "class":
            classes = integer(call, "classes", tensor(call, 0).shape[1])
            first = integer(call, "first_class", 0) + start
            return replaced(call.attributes, first_class=first, classes=classes)
        if integer(call, "reduction", MEAN) != MEAN:
            return call.attributes
        if self._by_class(call):
            return replaced(call.attributes, first=integer(call, "first", 0) + start)
        scores = tensor(call, 0).shape
        targets = math.prod(scores) // scores[1]
        return replaced(call.attributes, divisor=call.get("divisor", targets))


@final
class PairLoss(Family):
    """A number for each pair of elements, then their mean, their sum or all of them."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A number, or one for each pair."""
        whole = integer(call, "reduction", MEAN) != NONE
        return (Spec(tensor(call, 0).dtype, () if whole else self._shape(call)),)

    def _shape(self, call: Call) -> tuple[int, ...]:
        return broadcast(*(spec.shape for spec in call.inputs if spec is not None))

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        shape = self._shape(call)
        whole = integer(call, "reduction", MEAN) != NONE
        return tuple(
            Split(
                name=name_of(dim),
                role="reduction" if whole else role_of(dim),
                extent=size,
                inputs=tuple(
                    None if spec is None else stretched(spec.shape, dim, len(shape))
                    for spec in call.inputs
                ),
                outputs=(None if whole else dim,),
            )
            for dim, size in enumerate(shape)
        )

    def flops(self, call: Call) -> int:
        """Compare, square or scale, add."""
        return 3 * math.prod(self._shape(call))

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """All that was compared."""
        return Saved(inputs=tuple(range(len(call.inputs))))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """What the mean of the whole divides by."""
        if integer(call, "reduction", MEAN) != MEAN:
            return call.attributes
        total = math.prod(self._shape(call))
        return replaced(call.attributes, divisor=call.get("divisor", total))


@final
class SequenceLoss(Family):
    """ctc_losses (ours): log_probs[t, n, classes], targets[n, s], lengths[n] of both."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A number for each sample."""
        scores = tensor(call, 0)
        return (Spec(scores.dtype, scores.shape[1:2]),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Samples."""
        extent = tensor(call, 0).shape[1]
        sample = Split(
            name="sample", role="sample", extent=extent, inputs=(1, 0, 0, 0), outputs=(0,)
        )
        return (sample,)

    def flops(self, call: Call) -> int:
        """A logarithm of a sum of three for each frame and state."""
        return 6 * self._states(call)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """What is compared, the losses, and the logarithm of every state in every frame."""
        states = self._states(call) * tensor(call, 0).bytes // max(1, tensor(call, 0).elements)
        return Saved(inputs=(0, 1, 2, 3), outputs=(0,), extra=Bytes(states))

    def _states(self, call: Call) -> int:
        """Labels with blanks around them, in every frame."""
        frames, samples, _ = tensor(call, 0).shape
        return frames * samples * (2 * tensor(call, 1).shape[1] + 1)


_PAIRS = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits",
)  # fmt: skip

KINDS: Mapping[str, Family] = {
    "cross_entropy_loss": ClassLoss(per_element=5),
    "nll_loss": ClassLoss(per_element=1),
    "nll_loss_nd": ClassLoss(per_element=1),
    "ctc_losses": SequenceLoss(),
    **{kind: PairLoss() for kind in _PAIRS},
}
