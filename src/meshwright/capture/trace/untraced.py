"""Unsupported constructs: what PyTorch runs but `torch.export` cannot trace. Enters: an example
whose trace failed, and the error. Leaves: a sentence that names the construct, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Example

_DENSE = "multiply by the dense matrix, or take rows by their places and add them by index_add"


def untraced(error: Exception, example: Example, title: str, place: str) -> InputError | None:
    """The sentence about the construct at which a trace failed."""
    for name, module in example.model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            return InputError(
                f"module {name!r} of model {title!r} is compiled by torch.jit, which no trace sees",
                "give the module as it was before torch.jit.script or torch.jit.trace",
            )
    for name, tensor in _tensors(example):
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            return InputError(
                f"{name} of model {title!r} is sparse ({layout}), which is not captured", _DENSE
            )
    said = str(error)
    if "nested" in said:
        return InputError(
            f"model {title!r} makes nested tensors{place}, which are not captured",
            "pad to one length, and mask what is beyond the ends",
        )
    if "Sparse" in said:
        return InputError(
            f"model {title!r} computes with sparse tensors{place}, which are not captured", _DENSE
        )
    if isinstance(error, UnsupportedOperatorException):
        return InputError(
            f"model {title!r} calls {error.func}{place}, which PyTorch cannot trace: it has no "
            "implementation without values",
            "compute it with other operators, or before the step, as an input",
        )
    return None


def _tensors(example: Example) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*example.model.named_parameters(), *example.model.named_buffers()):
        yield repr(name), tensor
    leaves = pytree.tree_leaves((example.inputs, dict(example.named), example.targets))
    yield from (("an input", leaf) for leaf in leaves if isinstance(leaf, Tensor))
