"""Kernels of shards: what PyTorch runs for a piece of an operator. Enters: a call, whole or a
piece, and tensors. Leaves: results.

A whole call runs by the capture's table of kernels. A piece may carry attributes that ATen does
not have (`first`, `edges`, `divisor` ...: see `graph.family`), lack what another piece adds, or
have to talk to the other pieces (`JointReductions`); here is what PyTorch runs instead. Only
grouped products, whose sizes are data, wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from meshwright.capture.execution import sharded_losses, sharded_recurrent
from meshwright.capture.execution.kernels import prepared_operator, run_operator
from meshwright.capture.execution.sharded_softmax import (
    ALONE,
    Attending,
    JointReductions,
    attention,
    softmax,
)
from meshwright.graph.operator_graph import Attributes, Call, Value

Operands = tuple[Tensor | None, ...]

SUM = 2
"""ATen's number for a loss that is summed."""

ADD_TO_FIRST = {"addmm", "baddbmm", "addbmm", "addmv", "addr", "scatter_add", "index_add"}
"""Kinds that cannot do without the operand that only the first piece has."""


LYING = {"first", "first_class", "first_key", "first_hidden", "edges", "divisor"}
"""Attributes of pieces."""

SOFTMAX = {"softmax", "log_softmax", "_softmax", "_log_softmax"}


def run_call(
    call: Call, operands: Operands, together: JointReductions = ALONE
) -> tuple[Tensor, ...]:
    """The results of a call, which may talk to the other pieces of its operator.

    >>> from meshwright.graph.operator_graph import Spec
    >>> half = Call(
    ...     kind="mean", inputs=(Spec("float32", (2,)),), outputs=(Spec("float32", ()),),
    ...     attributes=(("divisor", 4),),
    ... )
    >>> run_call(half, (torch.tensor([1.0, 2.0]),))
    (tensor(0.7500),)
    """
    attributes = dict(call.attributes)
    if call.kind == "_grouped_mm":
        return (_groups(operands, attributes),)
    if call.kind in SOFTMAX and together is not ALONE:
        return (_softmax(call, operands, together),)
    if "first_class" in attributes:
        return (sharded_losses.loss(call, operands, together),)
    if "first_hidden" in attributes:
        return sharded_recurrent.states(call, operands, together)
    if "first_key" in attributes:
        return (_keys(call, operands, together),)
    if "first" in attributes and call.kind != "routed_experts":
        return (_from_first(call, operands, attributes),)
    if "edges" in attributes:
        return (_with_edges(call, operands, attributes),)
    if "divisor" in attributes:
        return (_divided(call.kind, operands, attributes),)
    return run_operator(call.kind, _completed(call, operands), call.attributes)


def prepared_call(
    call: Call, together: JointReductions = ALONE
) -> Callable[[Operands], tuple[Tensor, ...]]:
    """What gives the results of a call, again and again."""
    special = call.kind == "_grouped_mm" or any(key in LYING for key, _ in call.attributes)
    if special or call.kind in ADD_TO_FIRST or together is not ALONE:
        return lambda operands: run_call(call, operands, together)
    present = [spec is not None for spec in call.inputs]
    return prepared_operator(call.kind, present, call.attributes)


def _completed(call: Call, operands: Operands) -> Operands:
    """With zeros where a piece lacks what another piece adds."""
    if call.kind not in ADD_TO_FIRST or operands[0] is not None:
        return operands
    like = next(o for o in operands if o is not None and o.is_floating_point())
    return (like.new_zeros(call.outputs[0].shape), *operands[1:])


def _sorted(attributes: Mapping[str, Value]) -> Attributes:
    return tuple(sorted(attributes.items()))


def _given(operands: Operands) -> list[Tensor]:
    return [operand for operand in operands if operand is not None]


def _from_first(call: Call, operands: Operands, attributes: dict[str, Value]) -> Tensor:
    first = attributes.pop("first")
    assert isinstance(first, int)
    match call.kind:
        case "embedding":
            return _rows(operands, attributes, first)
        case "embedding_bag":
            return _bags(operands, attributes, first)
        case "scaled_dot_product_attention":
            return _queries(operands, attributes, first)
        case _:
            return _targets(call.kind, operands, attributes, first)


def _own(indices: Tensor, rows: int, first: int) -> tuple[Tensor, Tensor]:
    """Each index within this piece's rows, and whether it belongs there."""
    shifted = indices - first
    return shifted.clamp(0, rows - 1), (shifted >= 0) & (shifted < rows)


def _rows(operands: Operands, attributes: Mapping[str, Value], first: int) -> Tensor:
    """A row for each index, zeros for rows that another piece holds."""
    table, indices = _given(operands)
    local, mine = _own(indices, table.shape[0], first)
    padding = attributes.get("padding_idx")
    inside = isinstance(padding, int) and first <= padding < first + table.shape[0]
    known = padding - first if isinstance(padding, int) and inside else None
    return functional.embedding(local, table, padding_idx=known) * mine[..., None]


def _bags(operands: Operands, attributes: Mapping[str, Value], first: int) -> Tensor:
    """Sums of bags, to which rows that another piece holds add nothing."""
    table, indices, offsets, weights = (*operands, None, None)[:4]
    assert table is not None
    assert indices is not None
    local, mine = _own(indices, table.shape[0], first)
    padding = attributes.get("padding_idx")
    if isinstance(padding, int) and padding >= 0:
        mine = mine & (indices != padding)
    share = mine.to(table.dtype) if weights is None else mine * weights
    return functional.embedding_bag(
        local,
        table,
        offsets,
        mode="sum",
        per_sample_weights=share,
        include_last_offset=bool(attributes.get("include_last_offset", False)),
    )


def _groups(operands: Operands, attributes: Mapping[str, Value]) -> Tensor:
    """The rows of this piece's experts, zeros for all others."""
    rows, matrices, ends = _given(operands)
    first, first_row = attributes.get("first", 0), attributes.get("first_row", 0)
    assert isinstance(first, int)
    assert isinstance(first_row, int)
    local_ends = (ends - first_row).clamp(0, rows.shape[0])
    begin = int(local_ends[first - 1]) if first else 0
    expert_ends = local_ends[first : first + matrices.shape[0]]
    last = int(expert_ends[-1])
    product = run_operator("_grouped_mm", (rows[begin:last], matrices, expert_ends - begin), ())[0]
    return functional.pad(product, (0, 0, begin, rows.shape[0] - last))


def _softmax(call: Call, operands: Operands, together: JointReductions) -> Tensor:
    (x,) = _given(operands)
    dim = call.get("dim")
    assert isinstance(dim, int)
    real = x.to(getattr(torch, call.outputs[0].dtype))
    return softmax(real, dim, together, log="log" in call.kind)


def _keys(call: Call, operands: Operands, together: JointReductions) -> Tensor:
    """Attention to a piece of the keys."""
    q, k, v, mask = (*operands, None)[:4]
    assert q is not None
    assert k is not None
    assert v is not None
    return attention(q, k, v, mask, attending(call), together)


def attending(call: Call, dropped: Callable[[Tensor], Tensor] = lambda shares: shares) -> Attending:
    """How the queries of a piece attend to its keys."""
    scale, query = call.get("scale"), call.inputs[0]
    first, first_key = call.get("first", 0), call.get("first_key", 0)
    assert query is not None
    assert isinstance(first, int)
    assert isinstance(first_key, int)
    return Attending(
        rate=scale if isinstance(scale, int | float) else query.shape[-1] ** -0.5,
        causal=bool(call.get("is_causal", False)),
        first_query=first,
        first_key=first_key,
        dropped=dropped,
    )


def _queries(operands: Operands, attributes: dict[str, Value], first: int) -> Tensor:
    """Causal attention of queries that do not begin with the first."""
    query, key, value = _given(operands)
    rows = torch.arange(first, first + query.shape[-2], device=query.device)
    seen = rows[:, None] >= torch.arange(key.shape[-2], device=query.device)
    others = {name: setting for name, setting in attributes.items() if name != "is_causal"}
    kind = "scaled_dot_product_attention"
    return run_operator(kind, (query, key, value, seen), _sorted(others))[0]


def _targets(kind: str, operands: Operands, attributes: Mapping[str, Value], first: int) -> Tensor:
    """The sum over this piece's targets, divided by the weight of all targets."""
    scores, targets, *rest = operands
    assert scores is not None
    assert targets is not None
    labels = targets[first : first + scores.shape[0]]
    summed = run_operator(kind, (scores, labels, *rest), _sorted({**attributes, "reduction": SUM}))
    ignored = attributes.get("ignore_index", -100)
    assert isinstance(ignored, int)
    counted = targets.ne(ignored)
    weights = rest[0] if rest else None
    if weights is None:
        return summed[0] / counted.sum()
    return summed[0] / (weights[targets.clamp(0, weights.shape[0] - 1)] * counted).sum()


def _with_edges(call: Call, operands: Operands, attributes: dict[str, Value]) -> Tensor:
    """A window over a piece whose padding differs from side to side."""
    kind, edges = call.kind, attributes.pop("edges")
    assert isinstance(edges, tuple)
    before, after = edges[::2], edges[1::2]
    x, *rest = operands
    assert x is not None
    if kind.startswith("conv_transpose"):
        return _cropped(call, operands, attributes, edges)
    if kind.startswith("conv") and before == after:
        return run_operator(kind, operands, _sorted(attributes | {"padding": before}))[0]
    attributes["padding"] = (0,) * len(before)
    # `functional.pad` begins with the last dim.
    around = [edge for pair in reversed(list(zip(before, after, strict=True))) for edge in pair]
    filler = float("-inf") if kind.startswith("max_pool") else 0.0
    padded = functional.pad(x, around, value=filler)
    result = run_operator(kind, (padded, *rest), _sorted(attributes))[0]
    if attributes.get("count_include_pad", True):
        return result
    inside = functional.pad(torch.ones_like(x), around)
    return result / run_operator(kind, (inside,), _sorted(attributes))[0]


def _cropped(
    call: Call, operands: Operands, attributes: dict[str, Value], edges: tuple[int, ...]
) -> Tensor:
    """A piece of a transposed convolution: what its inputs are spread over, less the edges."""
    x, weight, bias = (*operands, None)[:3]
    assert x is not None
    assert weight is not None
    spatial = len(edges) // 2
    unpadded = _sorted(attributes | {"padding": (0,) * spatial, "output_padding": (0,) * spatial})
    if x.numel():
        output = run_operator(call.kind, (x, weight), unpadded)[0]
        # `functional.pad` begins with the last dim, and cuts off what is less than nothing.
        pairs = list(zip(edges[::2], edges[1::2], strict=True))
        output = functional.pad(output, [-edge for pair in reversed(pairs) for edge in pair])
    else:
        # A piece of which no input is near; its gradients are zero.
        output = x.new_zeros(call.outputs[0].shape) + (x.sum() + weight.sum()) * 0
    return output if bias is None else output + bias.view(-1, *(1,) * spatial)


def _divided(kind: str, operands: Operands, attributes: dict[str, Value]) -> Tensor:
    """A mean over part of what is averaged."""
    divisor = attributes.pop("divisor")
    assert isinstance(divisor, int)
    if kind.startswith("adaptive_avg_pool"):
        (x,) = _given(operands)
        return x.sum(tuple(range(-int(kind[-2]), 0)), keepdim=True) / divisor
    if kind == "mean":
        return run_operator("sum", operands, _sorted(attributes))[0] / divisor
    return run_operator(kind, operands, _sorted(attributes | {"reduction": SUM}))[0] / divisor
