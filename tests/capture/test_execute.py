"""A captured graph, run operator by operator, is the module: outputs and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example, Step
from meshwright.capture.zoo import ENTRIES
from meshwright.capture.zoo.entry import Entry
from meshwright.graph.validation import check
from meshwright.sharding.micro_batches import supports_micro_batches

SEED = 1


@pytest.fixture(autouse=True)
def _float64() -> Any:
    """So that equality is not a matter of rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_same(example: Example) -> None:
    """The graph's outputs and gradients are the module's, with the same random draws."""
    graph = capture(example)
    assert check(graph) == ()
    parameters = [p for p in example.model.parameters() if p.requires_grad]
    # The graph first: unlike the module it leaves statistics as they are.
    torch.manual_seed(SEED)
    outputs = tuple(execute(graph, values_of(example, graph)).values())
    torch.manual_seed(SEED)
    expected = Step(example)(example.inputs, example.named, example.targets)
    expected = tuple(pytree.tree_leaves(expected))
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    weights = [torch.randn_like(output) for output in outputs]
    for ours, its in zip(
        torch.autograd.grad(outputs, parameters, weights, allow_unused=True),
        torch.autograd.grad(expected, parameters, weights, allow_unused=True),
        strict=True,
    ):
        assert (ours is None) == (its is None)
        if ours is not None:
            torch.testing.assert_close(ours, its, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)
def test_every_tiny_model(model: Entry[Any]) -> None:
    torch.manual_seed(0)
    assert_same(model.example(model.tiny, 3))


class Forward(nn.Module):
    """A function of an input and a weight, as a module with some state."""

    running: Tensor

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight)


def write_into_slice(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y[:, 1:3] = y[:, :1]
    y[0] *= 2
    return y


def write_then_read_older_view(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).clone()
    row, turned = y[1], y.t()
    y.mul_(3)
    turned[2].add_(1)
    return row + turned.sum()


def write_then_read_a_view_that_was_written(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    turned = y.t()
    turned.neg_()
    y.mul_(3)
    return turned + 1


def write_through_reshapes(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).contiguous()
    flat = y.view(-1).unsqueeze(0)
    flat.mul_(2)
    y.permute(1, 0).view(2, 2, 4)[1].sub_(5)
    return y * 2


def write_into_copies(x: Tensor, w: Tensor) -> Tensor:
    """What looks like a view is a copy where strides or dtype demand one."""
    y = x @ w
    y.t().reshape(-1).mul_(2)
    y.t().contiguous().sub_(1)
    y.to(torch.float32).zero_()
    y.contiguous().add_(3)
    y.reshape(-1)[0] = 7
    return y * 2


def write_through_windows(x: Tensor, w: Tensor) -> Tensor:
    """A view that no single operator undoes, beside values without a gradient."""
    y = x @ w
    with torch.no_grad():
        scale = y.abs().mean()
    y.unfold(1, 2, 2)[0].add_(1)
    return y / scale


def assignments(x: Tensor, w: Tensor) -> Tensor:
    """Of a number, of whole numbers, of one number for many, of nothing."""
    y = x @ w
    y[:, 0] = 3
    y[1] = torch.arange(4)
    y[2, 1:3] = x[0, 0]
    y[3, 2:].zero_()
    y[3, :2].fill_(7)
    return y + torch.empty_like(y).copy_(x[0])


def written_out(x: Tensor, w: Tensor) -> Tensor:
    """A result that is written into a tensor that was there."""
    with torch.no_grad():
        y = torch.zeros(4, 4)
        torch.mul(x, 2, out=y)
        torch.add(x[:2], 1, out=y[2:])
    return y @ w


def without_gradient(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x @ w).abs().mean()
        with torch.enable_grad():
            kept = (w * w).sum()
    return (x @ w) / scale + kept


def several_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    values, places = (x @ w).sort(dim=1)
    top, _ = values.topk(2)
    return top, values.gather(1, places)


def scalars_and_constants(x: Tensor, w: Tensor) -> Tensor:
    limit = torch.tensor(0.5)
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    y = torch.where(x > limit, 2.0, x @ w) * table
    return 2 ** y.clamp(max=3) - (1 - y).masked_fill(y > 1, -torch.inf).softmax(0)


def mixed_lists(x: Tensor, w: Tensor) -> Tensor:
    y = torch.cat([x @ w, torch.zeros(0), x])
    y = y.index_put((torch.tensor([0, 1]), torch.tensor([2, 3])), x[0, :2])
    return torch.stack([y[:, [1, 0]], y[:, 2:]]) + torch.einsum("ij,jk->ik", y, w)[:, :2]


def dtypes(x: Tensor, w: Tensor) -> Tensor:
    whole = (x * 10).to(torch.int64) // 3
    return (x @ w).float().double() + whole.remainder(4).type_as(w)


def overlapping_windows(x: Tensor, w: Tensor) -> Tensor:
    """Of memory in which the dims lie in another order than in the tensor."""
    y = (x @ w).t()
    rows, columns = y.shape
    return y.as_strided((columns - 1, 2, rows), (rows, rows, 1)) * 2


FUNCTIONS = [
    overlapping_windows,
    write_into_slice,
    write_then_read_older_view,
    write_then_read_a_view_that_was_written,
    write_through_reshapes,
    write_into_copies,
    write_through_windows,
    assignments,
    written_out,
    without_gradient,
    several_results,
    scalars_and_constants,
    mixed_lists,
    dtypes,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_models_do(function: Callable[[Tensor, Tensor], Any]) -> None:
    torch.manual_seed(0)
    assert_same(Example(model=Forward(function), inputs=(torch.randn(4, 4),)))


class Statistics(nn.Module):
    """State that operators update."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.linear(self.norm(x)))
        return y.sum()


def test_state_is_not_changed() -> None:
    example = Example(model=Statistics(), inputs=(torch.randn(5, 4),))
    graph = capture(example)
    values = values_of(example, graph)
    before = {name: value.clone() for name, value in values.items()}
    first, second = execute(graph, values), execute(graph, values)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(values, before, rtol=0, atol=0)
    expected = Step(example)(example.inputs, {}, ())
    torch.testing.assert_close(first[graph.outputs[0]], expected, rtol=1e-12, atol=0)


LIBRARY: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "transformer": (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
    "gru": (nn.GRU(4, 5, 2, bidirectional=True, dropout=0.1), (6, 2, 4)),
    "projected lstm": (nn.LSTM(4, 6, proj_size=3, batch_first=True), (2, 6, 4)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), (2, 4, 5, 5)),
    "same": (nn.Conv1d(4, 8, 3, groups=4, padding="same", dilation=2), (2, 4, 9)),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5)),
    "resized": (nn.Sequential(nn.Conv2d(4, 8, 1), nn.Upsample(scale_factor=1.5)), (2, 4, 4, 4)),
    "spectral norm": (spectral_norm(nn.Linear(4, 4)).eval(), (2, 4)),
    "weight norm": (weight_norm(nn.Linear(4, 4)), (2, 4)),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_modules_of_the_library(name: str) -> None:
    torch.manual_seed(0)
    model, shape = LIBRARY[name]
    assert_same(Example(model=copy.deepcopy(model).double(), inputs=(torch.randn(shape),)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    """Bags of equal size are rows; bags of any size keep their offsets."""
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(6, 3, mode=mode)
    rows = torch.randint(0, 6, (4, 2))
    equal = capture(Example(model=bag, inputs=(rows,)))
    assert [operator.inputs for operator in equal.operators] == [("weight", "input")]
    assert_same(Example(model=bag, inputs=(rows,)))
    assert_same(Example(model=bag, inputs=(rows.flatten(), torch.tensor([0, 3, 3]))))


def test_bags_with_weights_are_rows_too() -> None:
    torch.manual_seed(0)

    class Weighted(nn.EmbeddingBag):
        def forward(self, rows: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(rows, per_sample_weights=weights)

    bag = Weighted(6, 3, mode="sum")
    example = Example(model=bag, inputs=(torch.randint(0, 6, (4, 2)), torch.rand(4, 2)))
    (operator,) = capture(example).operators
    assert operator.inputs == ("weight", "rows", None, "weights")
    assert_same(example)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.cov(x @ w, correction=0) + torch.corrcoef(w),
        lambda x, w: torch.combinations((x @ w)[0], 3) @ w[:3],
        lambda x, w: torch.combinations(w[0], with_replacement=True).sum(0) * x[:, :2],
    ],
)
def test_what_looks_at_values_that_shapes_decide(function: Any) -> None:
    torch.manual_seed(0)
    assert_same(Example(model=Forward(function), inputs=(torch.randn(4, 4),)))


def test_memory_made_like_a_tensor_has_nothing_of_its_samples() -> None:
    class DropPath(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            mask = x.new_empty((len(x), 1)).bernoulli_(0.8)
            return super().forward(x) * mask.div_(0.8)

    graph = capture(Example(model=DropPath(4, 4), inputs=(torch.rand(8, 4),)))
    assert graph.operators[0].inputs == ()
    assert supports_micro_batches(graph, 4)


def test_one_tensor_given_twice_enters_twice() -> None:
    class Difference(Forward):
        def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]
            return functional.mse_loss(x @ self.weight, y)

    x = torch.randn(4, 4)
    example = Example(model=Difference(lambda x, w: x), inputs=(x, x))
    graph = capture(example)
    assert [tensor.name for tensor in graph.inputs] == ["x", "y"]
    assert_same(example)


def test_a_missing_value_is_named() -> None:
    example = Example(model=nn.Linear(4, 4), inputs=(torch.randn(4, 4),))
    graph = capture(example)
    values = values_of(example, graph)
    del values["bias"]
    with pytest.raises(InputError, match="no value for 'bias' of graph 'Linear'"):
        execute(graph, values)
