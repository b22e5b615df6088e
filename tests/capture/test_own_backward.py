"""Users' own backward passes: kept if they are the derivative, else refused with their line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.utils.checkpoint import checkpoint

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.operators.autograd_functions import apply_function, named
from meshwright.capture.recognised.independence import with_independent_samples
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example


class StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        ctx.rate = rate
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.rate * gradients[0], None


class Clipped(Function):
    """Right for small gradients alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-5.0, 5.0)


class Swish(Function):
    """Keeps less than autograd would, as in EfficientNet; the derivative is the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        part = torch.sigmoid(x)
        product: Tensor = gradients[0] * part * (1 + x * (1 - part))
        return product


class Product(Function):
    """In the newer style."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return gradients[0] @ w, gradients[0].t() @ x


class Outer(Function):
    """One inside of another, both with a backward of their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return applied(StraightThrough, x * 2)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 7


class RightAround(Function):
    """The derivative of its forward, in which there is one that is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return applied(Reversed, x, 0.5) * 2  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Noisy(Function):
    """Draws in forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.rand_like(x) > 0.5
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        product: Tensor = gradients[0] * kept
        return product


class NoisyBackward(Function):
    """Draws in backward alone, as stochastic rounding of gradients does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return (gradients[0] * 2 + torch.rand_like(gradients[0])).floor()


class OfSingles(Function):
    """Its table is of float32, which no float64 can be multiplied with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x @ torch.eye(x.shape[-1], dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 3


class Broken(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("not here")


straight_through: Any = StraightThrough.apply
"""Kept before any trace, as people do."""


Part = Callable[[Any, Tensor, Tensor], Any]


class Model(nn.Module):
    def __init__(self, function: Part) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.words = nn.Embedding(6, 4, scale_grad_by_freq=True, padding_idx=1)
        self.function = function

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        y = self.function(self, self.first(x), places)
        total: Tensor = (y * y).sum() + y.sum()
        return total


def example_of(function: Part) -> Example:
    torch.manual_seed(0)
    inputs = torch.randn(3, 4, dtype=torch.float64), torch.tensor([1, 1, 2])
    return Example(model=Model(function).double(), inputs=inputs)


def straight_by_hand(model: Any, y: Tensor, places: Tensor) -> Any:
    return y + (y.round() - y).detach()


def reversed_by_hand(model: Any, y: Tensor, places: Tensor) -> Any:
    return 2 * y.detach() - y


def without_gradients(model: Any, y: Tensor, places: Tensor) -> Any:
    with torch.no_grad():
        fixed = model.second(y)
    return y * fixed


def with_gradients_inside(model: Any, y: Tensor, places: Tensor) -> Any:
    with torch.no_grad():
        fixed = model.second(y)
        with torch.enable_grad():
            free = model.second(y) * 2
        product = fixed * free
    return y * fixed + free + product


def mask_written_without_gradients(model: Any, y: Tensor, places: Tensor) -> Any:
    mask = torch.ones_like(y)
    with torch.no_grad():
        mask[:, 0] = 0.0
    return y * mask


def gradient_of_gradient(model: Any, y: Tensor, places: Tensor) -> Any:
    (slope,) = torch.autograd.grad((y**3).sum(), model.first.weight, create_graph=True)
    return y * slope.square().sum()


def applied(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


RIGHT: dict[str, Part] = {
    "swish": lambda own, y, places: applied(Swish, y),
    "product": lambda own, y, places: applied(Product, y, own.second.weight),
    "checkpoint": lambda own, y, places: checkpoint(own.second, y, use_reentrant=False),
    "reentrant": lambda own, y, places: checkpoint(own.second, y, use_reentrant=True),
    "words": lambda own, y, places: y + own.words(places),
    "straight": straight_by_hand,
    "reversed": reversed_by_hand,
    "no_grad": without_gradients,
    "enable_grad": with_gradients_inside,
    "mask": mask_written_without_gradients,
    "gradient": gradient_of_gradient,
    "own straight": lambda own, y, places: straight_through(y),
    "own reversed": lambda own, y, places: applied(Reversed, y, 0.5),
    "own clipped": lambda own, y, places: applied(Clipped, y),
    "own outer": lambda own, y, places: applied(Outer, y),
    "own inside": lambda own, y, places: applied(RightAround, y),
}


@pytest.mark.parametrize("name", RIGHT)
def test_gradients_are_those_of_the_module(name: str) -> None:
    example = example_of(RIGHT[name])
    loss = example.model(*example.inputs)
    loss.backward()
    graph = capture(example)
    parameters = dict(example.model.named_parameters())
    values = {
        key: tensor.detach().requires_grad_() if key in parameters else tensor
        for key, tensor in values_of(example, graph).items()
    }
    output = execute(graph, values)[graph.outputs[0]]
    torch.autograd.backward(output)
    torch.testing.assert_close(output, loss)
    for key, parameter in parameters.items():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient = torch.zeros_like(parameter) if values[key].grad is None else values[key].grad
        torch.testing.assert_close(gradient, expected)


def test_a_backward_of_its_own_is_an_operator() -> None:
    graph = with_independent_samples(capture(example_of(RIGHT["own reversed"])))
    (operator,) = (candidate for candidate in graph.operators if candidate.kind == "own_function")
    attributes = dict(operator.attributes)
    assert attributes["arguments"] == '[{"tensor": 0}, 0.5]'
    assert str(attributes["function"]).partition("#")[0].endswith("test_own_backward:Reversed")
    assert attributes["independent"] == (0, 0)
    with pytest.raises(InputError, match="is not the one that was captured"):
        apply_function([torch.ones(1)], named(Reversed)[:-1] + "?", "[]")


def test_a_function_of_one_precision_is_tried_in_it() -> None:
    model = Model(lambda module, y, places: applied(OfSingles, y))
    example = Example(model=model, inputs=(torch.randn(3, 4), torch.tensor([1, 1, 2])))
    assert "own_function" in {operator.kind for operator in capture(example).operators}


class Averaging(Function):
    """Samples are alone in forward and together in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.mean(0, keepdim=True).expand_as(gradient)


def test_samples_that_backward_mixes_are_not_independent() -> None:
    graph = capture(example_of(lambda model, y, places: applied(Averaging, y)))
    graph = with_independent_samples(graph)
    (operator,) = (candidate for candidate in graph.operators if candidate.kind == "own_function")
    assert "independent" not in dict(operator.attributes)


def in_inference_mode(model: Any, y: Tensor, places: Tensor) -> Any:
    with torch.inference_mode():
        fixed = model.second(y)
    return y * fixed.clone()


def written_without_gradients(model: Any, y: Tensor, places: Tensor) -> Any:
    with torch.no_grad():
        y.mul_(2.0)
    return y


def hooked(model: Any, y: Tensor, places: Tensor) -> Any:
    hanging: Any = y
    hanging.register_hook(lambda gradient: gradient * 2)
    return y


def local_straight_through() -> type[Function]:
    """Another process cannot import this one."""

    class Local(StraightThrough):
        pass

    return Local


WRONG: dict[str, tuple[Part, str]] = {
    "straight": (
        lambda own, y, places: applied(local_straight_through(), y),
        r"'local_straight_through.*' at .*test_own_backward\.py:\d+ has a backward that is not the",
    ),
    "noisy": (
        lambda own, y, places: applied(Noisy, y),
        r"'Noisy' at .*backward\.py:\d+ draws random numbers, others on each device; give it",
    ),
    "noisy backward": (
        lambda own, y, places: applied(NoisyBackward, y),
        r"'NoisyBackward' at .*test_own_backward\.py:\d+ draws random numbers",
    ),
    "broken": (
        lambda own, y, places: applied(Broken, y),
        r"'Broken' at .* cannot be run by itself \(RuntimeError: not here\)",
    ),
    "inference": (in_inference_mode, r"torch.inference_mode at .*test_own_backward\.py:\d+"),
    "written": (written_without_gradients, r"a write without gradients .*backward\.py:\d+"),
    "hooked": (hooked, r"a hook on a tensor's gradient at .*test_own_backward\.py:\d+"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_trace_loses_is_refused_with_its_line(name: str) -> None:
    function, sentence = WRONG[name]
    with pytest.raises(InputError, match=sentence):
        capture(example_of(function))


@pytest.mark.parametrize(
    ("hang", "sentence"),
    [
        (
            lambda model: model.first.register_full_backward_hook(lambda *_: None),
            r"module 'first' \(Linear\) has a backward hook at .*test_own_backward\.py:\d+",
        ),
        (
            lambda model: model.first.weight.register_hook(lambda gradient: gradient * 0),
            r"parameter 'first\.weight' has a hook on its gradient at .*backward\.py:\d+",
        ),
        (
            lambda model: model.first.weight.register_post_accumulate_grad_hook(lambda _: None),
            r"parameter 'first\.weight' has a hook on its gradient",
        ),
    ],
)
def test_hooks_on_gradients_are_refused(hang: Callable[[Any], Any], sentence: str) -> None:
    example = example_of(RIGHT["straight"])
    hang(example.model)
    with pytest.raises(InputError, match=sentence):
        capture(example)


def test_a_hook_that_changes_an_output_is_part_of_the_graph() -> None:
    example = example_of(RIGHT["straight"])
    first = example.model.get_submodule("first")
    first.register_forward_hook(lambda module, inputs, output: output * 3)
    graph = capture(example)
    computed = execute(graph, values_of(example, graph))[graph.outputs[0]]
    torch.testing.assert_close(computed, example.model(*example.inputs))


def test_nothing_of_pytorch_stays_changed() -> None:
    before = torch.Tensor.register_hook, torch.inference_mode.__enter__, vars(nn.Module).keys()
    with pytest.raises(InputError):
        capture(example_of(hooked))
    assert before == (
        torch.Tensor.register_hook,
        torch.inference_mode.__enter__,
        vars(nn.Module).keys(),
    )


def test_a_reentrant_checkpoint_that_trains_nothing_is_refused() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(checkpoint(self.first, x, use_reentrant=True))
            return y.sum()

    x = torch.randn(3, 4)
    with pytest.raises(InputError, match=r"at .*test_own_backward\.py:\d+ is given nothing"):
        capture(Example(model=Checkpointed(), inputs=(x,)))
    assert capture(Example(model=Checkpointed(), inputs=(x.requires_grad_(),))).loss
