"""Pieces of operators, run by PyTorch and put together again.

Enters: calls, splits and tensors. Leaves: tensors. Whole calls run by the capture's own table of
kernels; here are only the attributes that pieces have and ATen has not (`first`, `first_row`,
`first_class`, `first_hidden`, `edges`, `divisor`) and operands that a piece lacks. Combining is
written from the definition of a `Split`, not from any code that uses splits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from meshwright.capture.execution.kernels import run_operator
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import Attributes, Call, Value
from meshwright.graph.pieces import Box, pieces
from support.slow_experts import slow_experts

Tensors = Sequence[torch.Tensor | None]


def run(call: Call, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """What a call, whole or a piece, gives."""
    attributes = dict(call.attributes)
    if call.kind == "_grouped_mm":
        return (_grouped_product(tensors, attributes),)
    if call.kind == "routed_experts":
        return (slow_experts(tensors, attributes),)
    if "first_class" in attributes:
        return (_of_some_classes(call, tensors, attributes),)
    if "first_hidden" in attributes:
        return _of_some_units(call, tensors, attributes)
    if "first" in attributes:
        return (_with_first(call, tensors, attributes),)
    if "edges" in attributes:
        return (_with_edges(call.kind, tensors, attributes),)
    if "divisor" in attributes:
        return (_with_divisor(call.kind, tensors, attributes),)
    return run_operator(call.kind, _filled(call, tensors), call.attributes)


def _filled(call: Call, tensors: Tensors) -> Tensors:
    """With zeros where a piece lacks what another piece adds."""
    needed = {"addmm", "baddbmm", "addbmm", "addmv", "addr", "scatter_add", "index_add"}
    if call.kind in needed and tensors[0] is None:
        zeros = torch.zeros(call.outputs[0].shape, dtype=torch.float64)
        return (zeros, *tensors[1:])
    return tensors


def _sorted(attributes: dict[str, Value]) -> Attributes:
    return tuple(sorted(attributes.items()))


def _given(tensors: Tensors) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _with_first(call: Call, tensors: Tensors, attributes: dict[str, Value]) -> torch.Tensor:
    start = attributes.pop("first")
    assert isinstance(start, int)
    match call.kind:
        case "embedding" | "embedding_bag":
            table, indices = _given(tensors)[:2]
            rows, mine = _own_rows(table, indices, start)
            padding = attributes.get("padding_idx", -1)
            assert isinstance(padding, int)
            rows = torch.where(indices[..., None] == padding, rows.detach(), rows)
            rows = rows * mine[..., None]
            if call.kind == "embedding":
                return rows
            if indices.dim() == 2:
                return rows.sum(-2)
            ends = _given(tensors)[2].tolist()[1:]
            return torch.stack([bag.sum(0) for bag in rows.tensor_split(ends)])
        case "scaled_dot_product_attention":
            q, k, v = _given(tensors)
            queries = torch.arange(start, start + q.shape[-2])[:, None]
            seen = queries >= torch.arange(k.shape[-2])
            return functional.scaled_dot_product_attention(q, k, v, seen)
        case _:
            return _classes_from(call.kind, tensors, attributes, start)


def _grouped_product(tensors: Tensors, attributes: dict[str, Value]) -> torch.Tensor:
    """Row by row from the definition: the kernel of the capture knows no pieces."""
    rows, matrices, ends = _given(tensors)
    first, first_row = attributes.get("first", 0), attributes.get("first_row", 0)
    assert isinstance(first, int)
    assert isinstance(first_row, int)
    products = []
    for place, row in enumerate(rows, first_row):
        expert = int((ends <= place).sum()) - first
        mine = 0 <= expert < len(matrices)
        products.append(row @ matrices[expert] if mine else row.new_zeros(matrices.shape[2]))
    return torch.stack(products)


def _own_rows(
    table: torch.Tensor, indices: torch.Tensor, start: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A row for each index, and whether it is one of the rows of this piece."""
    local = indices - start
    mine = (local >= 0) & (local < table.shape[0])
    return table[local.clamp(0, table.shape[0] - 1)], mine


def _of_some_classes(call: Call, tensors: Tensors, attributes: dict[str, Value]) -> torch.Tensor:
    """Targets that are not among this piece's classes are told to be ignored."""
    scores, target, *rest = tensors
    assert scores is not None
    assert target is not None
    begin, first = attributes["first_class"], attributes.get("first", 0)
    assert isinstance(begin, int)
    assert isinstance(first, int)
    ignored = attributes.get("ignore_index", -100)
    assert isinstance(ignored, int)
    counts = target.ne(ignored)
    weight = rest[0] if rest else None
    inside = (target >= begin) & (target < begin + scores.shape[1])
    local = torch.where(counts & inside, target - begin, -100)[first : first + scores.shape[0]]
    class_weights = None if weight is None else weight[begin : begin + scores.shape[1]]
    reduction = attributes.get("reduction", 1)
    options = (("ignore_index", -100), ("reduction", 2 if reduction == 1 else reduction))
    (loss,) = run_operator(call.kind, (scores, local, class_weights), options)
    if reduction != 1:
        return loss
    return loss / (counts.sum() if weight is None else weight[target[counts]].sum())


def _of_some_units(
    call: Call, tensors: Tensors, attributes: dict[str, Value]
) -> tuple[torch.Tensor, ...]:
    """One step of a recurrent layer whose other units have no weights."""
    first, states = attributes.pop("first_hidden"), 2 if call.kind.startswith("lstm") else 1
    x, hidden, *others = tensors
    assert isinstance(first, int)
    assert hidden is not None
    count, every = call.outputs[0].shape[-1], hidden.shape[-1]

    def widened(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        shape = (*tensor.shape[:dim], every, *tensor.shape[dim + 1 :])
        place = torch.arange(first, first + count)
        return tensor.new_zeros(shape).index_copy(dim, place, tensor)

    wide_states = [widened(c, c.dim() - 1) for c in _given(others[: states - 1])]
    weights = [None if w is None else widened(w, 1) for w in others[states - 1 :]]
    outputs = run_operator(call.kind, (x, hidden, *wide_states, *weights), _sorted(attributes))
    return tuple(result[..., first : first + count] for result in outputs)


def _classes_from(
    kind: str, tensors: Tensors, attributes: dict[str, Value], start: int
) -> torch.Tensor:
    """The sum over this piece's targets, divided by the weight of all targets."""
    scores, target, *rest = tensors
    assert scores is not None
    assert target is not None
    piece_targets = target[start : start + scores.shape[0]]
    summed = _sorted(attributes | {"reduction": 2})
    (total,) = run_operator(kind, (scores, piece_targets, *rest), summed)
    counted = target[target != attributes.get("ignore_index", -100)]
    weight = rest[0][counted].sum() if rest and rest[0] is not None else counted.numel()
    return total / weight


def _with_edges(kind: str, tensors: Tensors, attributes: dict[str, Value]) -> torch.Tensor:
    edges = attributes.pop("edges")
    assert isinstance(edges, tuple)
    spatial = len(edges) // 2
    attributes["padding"] = (0,) * spatial
    # `functional.pad` begins with the last dim.
    around = [edge for i in reversed(range(spatial)) for edge in edges[2 * i : 2 * i + 2]]
    x, *rest = tensors
    assert x is not None
    if kind.startswith("conv_transpose"):
        return _spread(kind, tensors, attributes, edges)
    filler = float("-inf") if kind.startswith("max_pool") else 0.0
    padded = functional.pad(x, around, value=filler)
    (result,) = run_operator(kind, (padded, *rest), _sorted(attributes))
    if attributes.get("count_include_pad", True):
        return result
    inside = functional.pad(torch.ones_like(x), around)
    (share,) = run_operator(kind, (inside,), _sorted(attributes))
    return result / share


def _spread(
    kind: str, tensors: Tensors, attributes: dict[str, Value], edges: tuple[int, ...]
) -> torch.Tensor:
    """With zeros beyond its inputs on both sides, so that edges may lie anywhere."""
    x, weight, bias = (*tensors, None)[:3]
    assert x is not None
    assert weight is not None
    spatial, far = len(edges) // 2, 4
    attributes |= {"padding": (0,) * spatial, "output_padding": (0,) * spatial}
    (output,) = run_operator(
        kind, (functional.pad(x, [far, far] * spatial), weight), _sorted(attributes)
    )
    strides = attributes.get("stride", 1)
    for i in range(spatial):
        dim = i - spatial
        stride = strides[i % len(strides)] if isinstance(strides, tuple) else strides
        assert isinstance(stride, int)
        first = far * stride + edges[2 * i]
        last = output.shape[dim] - far * stride - edges[2 * i + 1]
        output = output.narrow(dim, first, last - first)
    return output if bias is None else output + bias.view(-1, *(1,) * spatial)


def _with_divisor(kind: str, tensors: Tensors, attributes: dict[str, Value]) -> torch.Tensor:
    divisor = attributes.pop("divisor")
    assert isinstance(divisor, int)
    if kind.startswith("adaptive_avg_pool"):
        (x,) = _given(tensors)
        spatial = tuple(range(-int(kind[-2]), 0))
        return x.sum(spatial, keepdim=True) / divisor
    if kind == "mean":
        (result,) = run_operator("sum", tensors, _sorted(attributes))
    else:
        (result,) = run_operator(kind, tensors, _sorted(attributes | {"reduction": 2}))
    return result / divisor


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """A box of a tensor."""
    for dim, (first, last) in enumerate(box):
        tensor = tensor.narrow(dim, first, last - first)
    return tensor


def assembled(call: Call, split: Split, parts: int, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, made piece by piece."""
    results = []
    for piece in pieces(call, split, parts):
        inputs = [
            None if tensor is None or box is None else cut(tensor, box)
            for tensor, box in zip(tensors, piece.inputs, strict=True)
        ]
        outputs = run(piece.call, inputs)
        assert [tuple(m.shape) for m in outputs] == [spec.shape for spec in piece.call.outputs]
        results.append(outputs)
    return tuple(
        torch.stack(parts_of_one).sum(0, dtype=parts_of_one[0].dtype)
        if dim is None
        else torch.cat(parts_of_one, dim)
        for dim, parts_of_one in zip(split.outputs, zip(*results, strict=True), strict=True)
    )
