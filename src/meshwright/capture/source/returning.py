"""Flattening of model outputs (pytrees): structure and tensors apart. Enters: the output of one
call. Leaves: its structure (`graph.returned`), and the tensors in it through which gradients flow.

Tuples, lists and mappings (of Transformers too) are gone into; what else a model returns, as caches
of keys and values, is no part of a training step and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from meshwright.graph.returned import Returned

PLAIN = (dict, tuple, list)


def flatten_output(output: object) -> tuple[Returned, tuple[Tensor, ...]]:
    """The structure, whose tensors are named by their numbers, and the tensors."""
    tensors: list[Tensor] = []
    return _structure(output, tensors), tuple(tensors)


def _structure(output: object, tensors: list[Tensor]) -> Returned:
    match output:
        case Tensor() if output.requires_grad:
            tensors.append(output)
            return Returned(kind="tensor", tensor=str(len(tensors) - 1))
        case Mapping():
            named = tuple((str(key), _structure(value, tensors)) for key, value in output.items())
            return Returned(kind="mapping", type=_type(output), entries=named)
        case tuple() | list():
            numbered = tuple((str(n), _structure(value, tensors)) for n, value in enumerate(output))
            if isinstance(output, list):
                return Returned(kind="list", entries=numbered)
            return Returned(kind="tuple", type=_type(output), entries=numbered)
        case _:
            return Returned(kind="other")


def _type(output: object) -> str:
    kind = type(output)
    return "" if kind in PLAIN else f"{kind.__module__}:{kind.__qualname__}"
