"""Data-dependent control flow: values that Python reads out of tensors (`if mask.all()`).

Enters: a forward pass, as a context around it. Leaves: a `ValueRead` for each value that Python has
seen, with the scalar tensor that it came from. While a trace has no values, they come from an
earlier run of the same model on the same inputs, read by read (`known`).

`item()` and `tolist()` give scalar tensors that arithmetic goes on with; a value is read only where
Python needs one: in a branch, as a size, as an index. So `loss / mask.sum().item()` reads nothing.
A branch on random numbers alone (LayerDrop) is not read but decided, by `sides`, line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.base.errors import InputError
from meshwright.capture.operators.source_lines import model_line
from meshwright.capture.trace.data_sized import fixed_size_replacement

Number = bool | int | float

_READS: Mapping[str, Callable[[Any], Number]] = {
    "__bool__": bool, "is_nonzero": bool, "__int__": int, "__index__": int, "__float__": float,
}  # fmt: skip
"""Functions that make a Python number of a tensor."""

_ARITHMETIC = {
    *("abs", "add", "bool", "ceil", "clamp", "clone", "cos", "detach", "div", "double", "eq"),
    *("exp", "float", "floor", "floor_divide", "fmod", "ge", "gt", "half", "int", "isfinite"),
    *("isinf", "isnan", "le", "log", "logical_and", "logical_not", "logical_or", "long", "lt"),
    *("masked_fill", "maximum", "minimum", "mul", "ne", "neg", "pow", "reciprocal", "remainder"),
    *("round", "rsqrt", "rsub", "sin", "sqrt", "square", "stack", "sub", "subtract", "to"),
    *("true_divide", "trunc", "type", "type_as", "where", "multiply", "divide", "negative"),
    *("__add__", "__and__", "__div__", "__eq__", "__floordiv__", "__ge__", "__gt__", "__iadd__"),
    *("__idiv__", "__imul__", "__invert__", "__isub__", "__itruediv__", "__le__", "__lt__"),
    *("__mod__", "__mul__", "__ne__", "__neg__", "__or__", "__pow__", "__radd__", "__rdiv__"),
    *("__rfloordiv__", "__rmod__", "__rmul__", "__rpow__", "__rsub__", "__rtruediv__"),
    *("__sub__", "__truediv__", "add_", "div_", "masked_fill_", "mul_", "sub_"),
}
"""Functions that take a scalar tensor wherever they take a number."""

_DRAWS = {
    *("bernoulli", "bernoulli_", "exponential_", "multinomial", "normal", "normal_", "rand"),
    *("rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm"),
    "uniform_",
}
_FORGETS = {
    *("empty_like", "exponential_", "new_empty", "new_full", "new_ones", "new_zeros", "normal_"),
    *("ones_like", "rand_like", "randint_like", "randn_like", "random_", "uniform_", "zeros_like"),
}
"""Functions whose result has nothing of the values of what they are given."""


_SIZED = {
    *("arange", "empty", "expand", "full", "interpolate", "multinomial", "narrow", "new_empty"),
    *("new_full", "new_ones", "new_zeros", "ones", "pad", "rand", "randn", "repeat", "reshape"),
    *("view", "zeros"),
}
"""Functions whose further arguments are sizes, in which a whole scalar tensor is a number too."""


class ValueRead(NamedTuple):
    """A value that Python has seen."""

    tensor: Tensor
    value: Number
    line: str
    """FILE:LINE of the model, or nothing."""
    asserted: bool = False
    """Whether the model raises an error where it is not so."""
    counts: bool = False
    """Whether it is how many elements the model selects."""


class ValuesNeededError(Exception):
    """A trace without values has come to where Python needs one."""

    def __init__(self, line: str, *, counts: bool = False) -> None:
        super().__init__(line)
        self.line, self.counts = line, counts


def values_needed(error: BaseException | None) -> ValuesNeededError | None:
    """The want of a value that an error followed from."""
    if error is None or isinstance(error, ValuesNeededError):
        return error
    return values_needed(error.__cause__ or error.__context__)


class ValueReader(TorchFunctionMode):
    """What a forward pass reads while this is the context around it."""

    def __init__(
        self,
        known: Sequence[tuple[str, Number]] | None = None,
        sides: Mapping[str, bool] | None = None,
        *,
        turned: int | None = None,
    ) -> None:
        super().__init__()
        self.reads: list[ValueRead] = []
        self.decided: dict[str, bool] = {}
        """Branches on random numbers, with the side that was taken."""
        self.drawing: list[str] = []
        """Lines that draw random numbers in Python, and do not only compare them."""
        self.operations = 0
        self._known, self._sides, self._turned = known, sides or {}, turned
        self._seen = 0
        self._numbers, self._free, self._drawn = (WeakIdKeyDictionary() for _ in range(3))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "__get__":
            return func(*args, **named)
        special = self._special(name, args) or fixed_size_replacement(
            name, args, named, self._count
        )
        if special is not None:
            return special()
        if name not in _ARITHMETIC:
            args, named = self._with_values(name, args, named)
        if name == "__getitem__":
            args = (args[0], _without_scalars(args[1]))
        self.operations += 1
        result = func(*args, **named)
        self._mark(name, (args, named), result)
        return result

    def decide(self, line: str) -> bool:
        """Which side of a branch on random numbers is taken."""
        self.decided[line] = self._sides.get(line, False)
        return self.decided[line]

    def _special(self, name: str, args: Sequence[Any]) -> Callable[[], object] | None:
        """What is done instead of a function that makes numbers of tensors."""
        if name == "_pack_padded_sequence":
            raise InputError(
                f"the model packs sequences at {model_line()}, and how many elements that gives "
                "depends on data",
                "compute on padded sequences, and mask what is beyond their ends",
            )
        if name in ("equal", "allclose"):
            one, other = args[:2]
            close = torch.eq if name == "equal" else torch.isclose
            alike = one.shape == other.shape
            return lambda: alike and self._read(close(one, other).all(), bool)
        tensor = args[0] if args else None
        if not isinstance(tensor, Tensor):
            return None
        if name in ("_assert", "_assert_async"):
            return lambda: self._assert(tensor, *args[1:])
        if name in _READS and tensor.numel() == 1:
            return lambda: self._read(tensor, _READS[name])
        if name == "item" and tensor.numel() == 1:
            return lambda: self._number(_constant(tensor).reshape(()), tensor)
        if name == "tolist":
            return lambda: self._listed(_constant(tensor), tensor)
        if name == "__contains__":
            return lambda: self._read((tensor == args[1]).any(), bool)
        if name == "__format__":
            return lambda: repr(tensor)
        return None

    def _read(self, tensor: Tensor, kind: Callable[[Any], Number]) -> Number:
        line = model_line()
        if tensor in self._drawn:
            if kind is not bool:
                raise InputError(
                    f"the model makes a Python number of one drawn at random at {line}",
                    "keep it a tensor, or draw it before the step and give it as an input",
                )
            return self.decide(line)
        value = self._value(tensor, kind, line)
        if len(self.reads) == self._turned:
            value = not value
        self.reads.append(ValueRead(_constant(tensor).reshape(()).clone(), value, line))
        return value

    def _count(self, tensor: Tensor) -> int:
        """How many elements are selected, which decides a shape."""
        before = len(self.reads)
        try:
            number = self._read(tensor, int)
        except ValuesNeededError as error:
            raise ValuesNeededError(error.line, counts=True) from error
        self.reads[before:] = [read._replace(counts=True) for read in self.reads[before:]]
        return int(number)

    def _assert(self, condition: Tensor, message: object = "") -> None:
        """What is asserted holds in a trace, which needs no value for it."""
        holds = _has_no_value(condition) or bool(condition)
        if len(self.reads) == self._turned or not holds:
            raise AssertionError(message)
        tensor = _constant(condition).reshape(()).clone()
        self.reads.append(ValueRead(tensor, True, model_line(), asserted=True))

    def _value(self, tensor: Tensor, kind: Callable[[Any], Number], line: str) -> Number:
        if not _has_no_value(tensor):
            return kind(tensor.detach())
        constant = getattr(tensor, "constant", None)
        if self._known is not None:
            return self._next_known(line)
        if constant is not None:
            return kind(constant)
        raise ValuesNeededError(line)

    def _next_known(self, line: str) -> Number:
        """The next known value of a line; libraries leave out some reads while they are traced."""
        assert self._known is not None
        for place in range(self._seen, len(self._known)):
            if self._known[place][0] == line:
                self._seen = place + 1
                return self._known[place][1]
        raise ValuesNeededError(line)

    def _number(self, tensor: Tensor, source: Tensor) -> Tensor:
        """A scalar out of a source, as a number that arithmetic goes on with."""
        self._numbers[tensor] = True
        _flag(self._free, tensor, source in self._free)
        _flag(self._drawn, tensor, source in self._drawn)
        return tensor

    def _listed(self, tensor: Tensor, source: Tensor) -> object:
        if tensor.dim() == 0:
            return self._number(tensor, source)
        return [self._listed(part, source) for part in tensor.unbind()]

    def _with_values(
        self, name: str, args: Sequence[Any], named: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments with values for what `item` gave, save for the tensor a method is of."""

        def value(leaf: object) -> object:
            if isinstance(leaf, slice):
                return slice(*(value(end) for end in (leaf.start, leaf.stop, leaf.step)))
            if not isinstance(leaf, Tensor) or not (leaf in self._numbers or _is_size(leaf)):
                return leaf
            return self._read(leaf, float if leaf.is_floating_point() else int)

        def _is_size(leaf: Tensor) -> bool:
            return name in _SIZED and leaf.dim() == 0 and not leaf.is_floating_point()

        method = bool(args) and isinstance(args[0], Tensor) and hasattr(Tensor, name)
        kept, rest = tuple(args[:method]), tuple(args[method:])
        rest, named = pytree.tree_map(value, (rest, named))
        return (*kept, *rest), named

    def _mark(self, name: str, arguments: object, result: object) -> None:
        """Tell of a result whether it is a number, and whether chance alone made it."""
        tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
        free = name in _FORGETS or all(tensor in self._free for tensor in tensors)
        drawn = free and (name in _DRAWS or any(tensor in self._drawn for tensor in tensors))
        written = tensors[:1] if name.endswith("_") or name == "__setitem__" else []
        for value in [*pytree.tree_leaves(result), *written]:
            if isinstance(value, Tensor):
                _flag(self._free, value, free)
                _flag(self._drawn, value, drawn)
                if value.dim() == 0 and tensors and all(one in self._numbers for one in tensors):
                    self._numbers[value] = True


def _without_scalars(index: object) -> object:
    """An index in which no scalar tensor stands beside longer ones, where PyTorch reads its value.

    As a tensor of one number it is broadcast to the others, which gives the same elements; only
    where all of them are adjacent does that leave the dims in their order.
    """
    if not isinstance(index, tuple):
        return index
    places = [place for place, part in enumerate(index) if _counts(part)]
    adjacent = places == list(range(places[0], places[-1] + 1)) if places else False
    if not adjacent or not any(index[place].dim() for place in places):
        return index
    return tuple(
        part.reshape(1) if place in places and not part.dim() else part
        for place, part in enumerate(index)
    )


def _counts(part: object) -> bool:
    """Whether a part of an index is a tensor of places."""
    return isinstance(part, Tensor) and part.dtype in (torch.int64, torch.int32)


def _flag(kept: Any, tensor: Tensor, holds: bool) -> None:
    if holds:
        kept[tensor] = True
    else:
        kept.pop(tensor, None)


def _has_no_value(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def _constant(tensor: Tensor) -> Tensor:
    """The same values without a gradient."""
    return tensor.detach() if tensor.requires_grad else tensor
