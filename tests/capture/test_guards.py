"""Branches on data and on chance: guards that hold, sides that are taken, and refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.export import Capture, captured
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example, Step
from meshwright.graph.batch import with_batch
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check


class Layers(nn.Module):
    """Three layers and a function that calls them."""

    threshold: Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("threshold", torch.tensor(2))
        self.stats: dict[str, object] = {}
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def example(function: Callable[..., Any], *inputs: Tensor) -> Example:
    torch.manual_seed(0)
    return Example(model=Layers(function), inputs=(torch.randn(2, 4), *inputs))


def capture_same(function: Callable[..., Any], *inputs: Tensor) -> Capture:
    """What is captured, after its outputs proved to be the model's."""
    case = example(function, *inputs)
    capture = captured(case)
    assert check(capture.graph) == ()
    torch.manual_seed(1)
    (output,) = execute(capture.graph, values_of(case, capture.graph)).values()
    torch.manual_seed(1)
    torch.testing.assert_close(output, Step(case)(case.inputs, case.named, case.targets))
    return capture


def masked(self: Layers, x: Tensor, mask: Tensor) -> Tensor:
    y: Tensor = self.layers[0](x)
    return y if mask.all() else y * mask


def counted(self: Layers, x: Tensor, lengths: Tensor) -> Tensor:
    for layer in self.layers[: int(lengths.max())]:
        x = layer(x)
    return x


def sliced(self: Layers, x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([self.layers[0](x)[:, :n].sum() for n in lengths.tolist()])


def by_buffer(self: Layers, x: Tensor) -> Tensor:
    y: Tensor = self.layers[0](x)
    return y * 2 if self.threshold == 2 else y


def checked(self: Layers, x: Tensor, labels: Tensor) -> Tensor:
    assert labels.min() >= 0
    if 9 in labels:
        raise ValueError("no such label")
    return functional.cross_entropy(self.layers[0](x), labels)


ONES = torch.ones(2, 4)
ZEROS = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("function", "given", "other", "guards"),
    [
        (masked, ONES, ZEROS, 1),
        (masked, ZEROS, ONES, 1),
        (counted, torch.tensor([1, 2]), torch.tensor([1, 3]), 1),
        (sliced, torch.tensor([1, 2]), torch.tensor([2, 2]), 2),
        (checked, torch.tensor([0, 3]), torch.tensor([-1, 3]), 2),
    ],
)
def test_what_inputs_decide_is_guarded(
    function: Callable[..., Any], given: Tensor, other: Tensor, guards: int
) -> None:
    graph = capture_same(function, given).graph
    assert len(graph.guards) == guards
    case = example(function, other)
    with pytest.raises(InputError, match=rf"branches on data at {__file__}:\d+, where it read"):
        execute(graph, values_of(case, graph))


ENDS, NO_END = torch.tensor([[3, 1], [5, 1]]), torch.tensor([[3, 1], [5, 5]])
SELECTIONS: dict[str, Callable[..., Any]] = {
    "mask": lambda self, x, ids: self.layers[0](x)[:, :2][ids == 1],
    "mask of rows": lambda self, x, ids: self.layers[0](x)[(ids == 1).any(1), 1:],
    "places": lambda self, x, ids: self.layers[0](x)[torch.nonzero(ids == 1, as_tuple=True)],
    "where": lambda self, x, ids: self.layers[0](x)[torch.where(ids == 1)],
    "masked_select": lambda self, x, ids: self.layers[0](x)[:, :2].masked_select(ids == 1),
    "unique": lambda self, x, ids: self.layers[0](x) * len(torch.unique((ids == 1).sum(1))),
    "consecutive": lambda self, x, ids: self.layers[0](x) * len((ids == 1).unique_consecutive()),
    "counts": lambda self, x, ids: self.layers[0](x).sum() * torch.bincount((ids == 1).sum(0)),
    "classes": lambda self, x, ids: self.layers[0](x).sum() * functional.one_hot((ids == 1).sum(0)),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_how_many_elements_inputs_select_is_guarded(name: str) -> None:
    """Classifiers of Transformers that read a decoder's last token (T5, BART) do so."""
    graph = capture_same(SELECTIONS[name], ENDS).graph
    assert graph.guards
    case = example(SELECTIONS[name], NO_END)
    with pytest.raises(InputError, match=r"branches on data at .* where it read"):
        execute(graph, values_of(case, graph))


def test_as_many_elements_as_were_selected_are_of_this_batch_alone() -> None:
    graph = capture_same(SELECTIONS["mask"], ENDS).graph
    with pytest.raises(InputError, match="batch"):
        with_batch(graph, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: self.layers[0](x)[x > 0].sum(),
        lambda self, x: x[self.layers[0](x) > 0].sum(),
        lambda self, x: x[torch.rand(2, 4) > 0.5].sum(),
        lambda self, x: self.layers[0](torch.unique(x, dim=0)),
        lambda self, x: self.layers[0](torch.unique_consecutive(x, dim=0)),
    ],
)
def test_shapes_that_numbers_decide_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=rf"depends on data at {__file__}:\d+; select"):
        captured(example(function))


def clamped(self: Layers, x: Tensor) -> Tensor:
    y: Tensor = self.layers[0](x)
    if not torch.isfinite(y).all() or torch.isnan(y).any():
        y = y.clamp(-1, 1)
    return y


def test_whether_numbers_are_finite_is_what_the_example_says_with_a_warning() -> None:
    capture = capture_same(clamped)
    assert [operator.kind for operator in capture.graph.operators] == ["linear"]
    (warning,) = capture.warnings
    assert "whether its numbers are finite" in warning


def test_what_a_loss_of_pytorch_asserts_is_guarded() -> None:
    variance = torch.rand(2, 4) + 0.1
    graph = capture_same(
        lambda self, x, var: functional.gaussian_nll_loss(self.layers[0](x), x, var), variance
    ).graph
    assert [guard.value for guard in graph.guards] == [False]
    capture_same(lambda self, x: functional.gaussian_nll_loss(x, x * 2, self.layers[0](x).exp()))


def test_counts_of_what_parameters_decide_are_as_many_as_asked_for() -> None:
    capture_same(
        lambda self, x: self.layers[0](x) * torch.bincount(self.layers[0](x).argmax(1), minlength=4)
    )


def test_what_a_buffer_decides_is_guarded() -> None:
    graph = capture_same(by_buffer).graph
    assert [guard.value for guard in graph.guards] == [True]
    assert "threshold" in graph.tensors


def test_a_guard_survives_text_and_json_and_changes_of_the_graph() -> None:
    graph = capture_same(masked, ONES).graph
    assert parse_graph(str(graph)) == msgspec.structs.replace(graph, traced=None)
    assert msgspec.json.decode(msgspec.json.encode(graph), type=OperatorGraph) == graph
    (guard,) = graph.guards
    other = msgspec.structs.replace(graph, guards=(msgspec.structs.replace(guard, value=False),))
    assert canonical_hash(other) != canonical_hash(graph)
    for changed in (cast_graph(graph, "float64"), with_batch(graph, 2)):
        assert changed.guards == graph.guards
        assert check(changed) == ()
    assert with_batch(graph, 2).checks[0].inputs == ("inputs.1",)


def test_a_check_reads_no_parameter() -> None:
    graph = capture_same(masked, ONES).graph
    first = msgspec.structs.replace(graph.checks[0], inputs=("layers.0.weight",))
    wrong = msgspec.structs.replace(graph, checks=(first, *graph.checks[1:]))
    assert check(wrong) == (f"operator {first.name} reads layers.0.weight, which nobody makes",)


def normalised(self: Layers, x: Tensor) -> Tensor:
    y: Tensor = self.layers[0](x)
    self.stats["mean"] = y.mean().item()
    self.stats["shown"] = f"{y.std():.3f}"
    return y / (y > 0).sum().item() + y.abs().max().item()


def test_a_number_that_only_arithmetic_needs_is_not_read() -> None:
    capture = capture_same(normalised)
    assert (capture.graph.guards, capture.warnings) == ((), ())


def asserting(self: Layers, x: Tensor) -> Tensor:
    y: Tensor = self.layers[0](x)
    if not torch.isfinite(y).all():
        raise ValueError("not finite")
    if y.abs().max() > 1000:
        print("large")
    return torch.distributions.Normal(y, 1.0, validate_args=True).mean


def test_an_assertion_on_activations_is_left_out_with_a_warning() -> None:
    capture = capture_same(asserting)
    assert capture.graph.guards == ()
    assert len(capture.warnings) == 2
    assert all("is not checked when it runs" in warning for warning in capture.warnings)


def checking(self: Layers, x: Tensor) -> Tensor:
    torch._check((x > -100).sum().item() == x.numel(), lambda: "far below")  # type: ignore[no-untyped-call]
    torch._check_tensor_all(x < 100)  # type: ignore[no-untyped-call]
    y: Tensor = self.layers[0](x)
    return y


def test_a_check_of_inputs_is_guarded() -> None:
    guards = capture_same(checking).graph.guards
    assert [guard.value for guard in guards] == [True, True]


def by_activation(self: Layers, x: Tensor) -> Tensor:
    y: Tensor = self.layers[0](x)
    return y if y.sum() > 0 else -y


def by_number(self: Layers, x: Tensor) -> Tensor:
    return x[:, : int(self.layers[0](x).argmax()) + 1]


def by_noise(self: Layers, x: Tensor) -> Tensor:
    noisy = x + torch.randn_like(x)
    return self.layers[0](x) if noisy.sum() > 0 else x


@pytest.mark.parametrize("function", [by_activation, by_number, by_noise])
def test_what_parameters_or_noise_decide_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=rf"branches on the values of a tensor at {__file__}:\d+"):
        captured(example(function))


def random_size(self: Layers, x: Tensor) -> Tensor:
    for _ in range(int(torch.randint(1, 3, (1,)))):
        x = self.layers[0](x)
    return x


def test_a_random_number_of_layers_is_refused() -> None:
    with pytest.raises(InputError, match="makes a Python number of one drawn at random"):
        captured(example(random_size))


def _dropping(dropped: Callable[[], object]) -> Callable[..., Any]:
    def forward(self: Layers, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and dropped():
                continue
            x = x + layer(x)
        return x

    return forward


@pytest.mark.parametrize(
    "dropped",
    [
        lambda: torch.rand([]) < 0.1,
        lambda: torch.rand(1).item() < 0.0,
        lambda: torch.rand(1) > 0.9,
        lambda: torch.bernoulli(torch.tensor(0.9)) == 0,
        lambda: torch.empty(1).uniform_(0, 1) < 0.1,
        lambda: random.random() < 0.1,
        lambda: not random.uniform(0, 1) >= 0.1,
        lambda: np.random.uniform(0, 1) < 0.1,
    ],
)
def test_layers_are_never_dropped(dropped: Callable[[], object]) -> None:
    capture = captured(example(_dropping(dropped)))
    kinds = [operator.kind for operator in capture.graph.operators]
    assert kinds == ["linear", "add"] * 3
    assert capture.graph.guards == ()
    assert len(capture.warnings) == 1
    assert "LayerDrop and the like are off" in capture.warnings[0]


def mixed_up(self: Layers, x: Tensor) -> Any:
    return float(np.random.beta(1.0, 1.0)) * self.layers[0](x)


def test_numbers_drawn_in_python_are_told() -> None:
    state = random.getstate()
    (warning,) = captured(example(mixed_up)).warnings
    assert "draws random numbers in Python" in warning
    assert random.getstate() == state


def test_looking_at_data_changes_no_state_of_the_model() -> None:
    case = Example(model=_Normalised(), inputs=(torch.randn(2, 4), ONES))
    before = {name: value.clone() for name, value in case.model.state_dict().items()}
    state = torch.get_rng_state()
    assert len(captured(case).graph.guards) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(case.model.state_dict()[name], value) for name, value in before.items())


class _Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y if mask.all() else y * mask


def test_a_scalar_place_beside_longer_ones_is_not_read() -> None:
    """PyTorch would read its value, which a trace has none of; elements are the same."""

    def picked(model: Any, x: Tensor, rows: Tensor, place: Tensor) -> Any:
        return model.layers[0](x)[rows, place] + model.layers[1](x)[:, place + rows[:1]].sum()

    capture = capture_same(picked, torch.tensor([1, 0, 1]), torch.tensor(2))
    assert capture.graph.guards == ()
