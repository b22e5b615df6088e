"""Element-wise operators, with broadcasting: every dim of the output may be cut.

An operand is cut along a dim unless it is stretched along it. The dtype follows PyTorch's rule of
promotion: the highest category (bool, whole, real, complex) wins; inside it, tensors with dims
before tensors without, before plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, final

from meshwright.base.quantities import Bytes
from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    along,
    other_factors,
    tensor,
)
from meshwright.graph.operator_graph import Call, Spec, Value

Result = Literal["promoted", "real", "bool", "first", "magnitude", "complex", "wide"]
"""Which dtype comes out: that of promotion, the same but never whole, bool, the first input's; of
a complex number the real one of its parts, of real parts the complex one, the widest there is."""
Keeps = Literal["nothing", "inputs", "output", "first", "second", "factors", "quotient"]
"""What the backward pass needs: of a product the other factor, of a quotient the divisor."""

Number = bool | int | float | complex | None
"""A plain number among the operands."""

DEFAULT_REAL = "float32"

_CATEGORIES: Mapping[str, int] = {
    "bool": 0, "uint8": 1, "int8": 1, "int16": 1, "int32": 1, "int64": 1,
    "float8_e4m3fn": 2, "float8_e5m2": 2, "float16": 2, "bfloat16": 2, "float32": 2, "float64": 2,
    "complex64": 3, "complex128": 3,
}  # fmt: skip
_ORDER = list(_CATEGORIES)

PARTS: Mapping[str, str] = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the real and the imaginary part of a complex number."""
COMPLEX = {part: whole for whole, part in PARTS.items()}
"""The dtype of a complex number of two real parts."""


def promoted(specs: tuple[Spec, ...], numbers: tuple[Number, ...] = ()) -> str:
    """The dtype of a result of these operands; a complex number leaves their width.

    >>> promoted((Spec("int64", (2,)), Spec("float64", ())), ())
    'float64'
    >>> promoted((Spec("float16", (2,)), Spec("float32", ())), (1.0,))
    'float16'
    >>> promoted((Spec("float64", (2,)),), (1j,))
    'complex128'
    """
    if any(isinstance(number, complex) for number in numbers):
        dtype = promoted(specs, (1.0,))
        return COMPLEX.get(dtype, dtype)
    plain = [
        "bool" if isinstance(n, bool) else "int64" if isinstance(n, int) else DEFAULT_REAL
        for n in numbers
        if n is not None
    ]
    ranks = (
        [spec.dtype for spec in specs if spec.shape],
        [spec.dtype for spec in specs if not spec.shape],
        plain,
    )
    highest = max(_CATEGORIES[dtype] for dtypes in ranks for dtype in dtypes)
    for dtypes in ranks:
        candidates = [dtype for dtype in dtypes if _CATEGORIES[dtype] == highest]
        if candidates:
            return _widest(candidates)
    raise AssertionError("some operand has the highest category")


def _widest(dtypes: list[str]) -> str:
    """Of one category; float16 and bfloat16 meet in float32, int8 and uint8 in int16."""
    kinds = set(dtypes)
    if kinds == {"float16", "bfloat16"}:
        return "float32"
    if kinds == {"uint8", "int8"}:
        return "int16"
    return max(kinds, key=_ORDER.index)


@final
class Elementwise(Family):
    """out[i] = f(a[i], b[i], ...).

    `numbers` are the attributes that take part in promotion, `conditions` how many operands in
    front do not.
    """

    def __init__(
        self,
        *,
        result: Result = "promoted",
        keeps: Keeps = "nothing",
        flops: int = 1,
        view: bool = False,
        differentiable: bool = True,
        numbers: tuple[str, ...] = ("other",),
        conditions: int = 0,
    ) -> None:
        self._result, self._keeps, self._flops = result, keeps, flops
        self._numbers, self._conditions = numbers, conditions
        self.view, self.differentiable = view, differentiable

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The shape that all operands stretch to."""
        specs = tuple(spec for spec in call.inputs if spec is not None)
        if not specs:
            raise ShapeError("there is no operand")
        return (Spec(self._dtype(call, specs), broadcast(*(spec.shape for spec in specs))),)

    def _dtype(self, call: Call, specs: tuple[Spec, ...]) -> str:
        asked = call.get("dtype")
        if isinstance(asked, str):
            return asked
        if self._result == "bool":
            return "bool"
        if self._result == "first":
            return specs[0].dtype
        dtype = promoted(
            specs[self._conditions :], tuple(_number(call.get(key)) for key in self._numbers)
        )
        return self._resulting(dtype, rounds=call.get("rounding_mode") is not None)

    def _resulting(self, dtype: str, *, rounds: bool) -> str:
        """The dtype of a result of operands that meet in a dtype."""
        whole = _CATEGORIES[dtype] < _CATEGORIES[DEFAULT_REAL]
        match self._result:
            case "real" if whole and not rounds:
                return DEFAULT_REAL
            case "magnitude":
                return PARTS.get(dtype, dtype)
            case "complex":
                return COMPLEX.get(dtype, dtype)
            case "wide":
                return "complex128" if dtype in PARTS else "float64"
            case _:
                return dtype

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        rank = len(call.outputs[0].shape)
        return tuple(
            along(
                dim,
                call,
                tuple(
                    None if spec is None else stretched(spec.shape, dim, rank)
                    for spec in call.inputs
                ),
            )
            for dim in range(rank)
        )

    def flops(self, call: Call) -> int:
        """So many for each element."""
        return self._flops * call.outputs[0].elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """As the kind says."""
        match self._keeps:
            case "nothing":
                return Saved()
            case "inputs":
                return Saved(inputs=tuple(range(len(call.inputs))))
            case "output":
                return Saved(outputs=(0,))
            case "first":
                return Saved(inputs=(0,))
            case "second":
                return Saved(inputs=(1,))
            case "factors":
                return other_factors(wanted, 0, 1) if len(call.inputs) > 1 else Saved()
            case "quotient":
                both = (0, 1) if wanted[-1] else (1,)
                return Saved(inputs=both) if len(call.inputs) > 1 else Saved()


def _number(value: Value) -> Number:
    """An infinite or complex number is written as text."""
    if isinstance(value, str):
        return complex(value) if value.endswith("j") else float(value)
    assert not isinstance(value, tuple)
    return value


@final
class Dropout(Family):
    """Each element, or each channel, is dropped with probability p: cut, it is the same in
    distribution.
    """

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        return tuple(along(dim, call, (dim,)) for dim in range(len(tensor(call, 0).shape)))

    def _idle(self, call: Call) -> bool:
        return not call.get("train", True) or call.get("p", 0.5) == 0

    def flops(self, call: Call) -> int:
        """A random number, a comparison, a product."""
        return 0 if self._idle(call) else 3 * tensor(call, 0).elements

    def traffic(self, call: Call) -> Bytes:
        """Input, output and mask."""
        mask = tensor(call, 0).elements
        return Bytes(0) if self._idle(call) else Bytes(call.bytes + mask)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """A mask of bools."""
        return Saved(extra=Bytes(0 if self._idle(call) else tensor(call, 0).elements))


@final
class BroadcastTensors(Family):
    """broadcast_tensors: every operand stretched to the shape of all."""

    view = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One for each operand."""
        specs = [tensor(call, i) for i in range(len(call.inputs))]
        shape = broadcast(*(spec.shape for spec in specs))
        return tuple(Spec(spec.dtype, shape) for spec in specs)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        rank = len(call.outputs[0].shape)
        shapes = [tensor(call, i).shape for i in range(len(call.inputs))]
        return tuple(
            along(dim, call, tuple(stretched(shape, dim, rank) for shape in shapes))
            for dim in range(rank)
        )


@final
class Triangle(Family):
    """tril and triu: the last two dims stay whole, since position decides."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        return (tensor(call, 0),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """All other dims."""
        return tuple(along(dim, call, (dim,)) for dim in range(len(tensor(call, 0).shape) - 2))


_ADDITIVE = ("add", "sub", "rsub", "neg", "positive", "clone", "contiguous")
_FROM_INPUTS = (
    "maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "square",
    "pow", "remainder", "fmod",
)  # fmt: skip
_REAL_FROM_INPUTS = (
    "log", "log1p", "log2", "sin", "cos", "erf", "gelu", "silu",
    "mish", "softplus", "hardswish", "hardsigmoid", "elu", "selu", "log_sigmoid", "atan2",
)  # fmt: skip
_REAL_FROM_OUTPUT = ("exp", "expm1", "sqrt", "rsqrt", "sigmoid", "tanh", "reciprocal")
_FROM_OUTPUT = ("relu", "leaky_relu", "relu6", "hardtanh", "threshold")
_COMPARISONS = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor",
    "isnan", "isinf", "isfinite",
)  # fmt: skip
_INTEGRAL = (
    "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "__and__", "__or__", "__xor__",
    "floor_divide", "sign",
)  # fmt: skip
_ROUNDING = ("floor", "ceil", "round", "trunc")
_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like")

KINDS: Mapping[str, Family] = {
    **{kind: Elementwise() for kind in _ADDITIVE},
    **{
        kind: Elementwise(keeps="inputs", numbers=("other", "min", "max", "exponent"))
        for kind in _FROM_INPUTS
    },
    **{kind: Elementwise(keeps="inputs", result="real") for kind in _REAL_FROM_INPUTS},
    **{kind: Elementwise(keeps="output", result="real") for kind in _REAL_FROM_OUTPUT},
    **{kind: Elementwise(keeps="output", result="first") for kind in _FROM_OUTPUT},
    **{kind: Elementwise(result="bool", differentiable=False) for kind in _COMPARISONS},
    **{kind: Elementwise(differentiable=False) for kind in _INTEGRAL + _ROUNDING},
    **{kind: Elementwise(result="first", flops=0, differentiable=False) for kind in _LIKE},
    "to": Elementwise(result="first", flops=0),
    "_to_copy": Elementwise(result="first", flops=0),
    "lift_fresh_copy": Elementwise(result="first", flops=0),
    "alias": Elementwise(result="first", flops=0, view=True),
    "detach": Elementwise(result="first", flops=0, view=True, differentiable=False),
    "where": Elementwise(keeps="first", numbers=("other", "self"), conditions=1),
    "mul": Elementwise(keeps="factors"),
    "div": Elementwise(keeps="quotient", result="real"),
    "true_divide": Elementwise(keeps="quotient", result="real"),
    "masked_fill": Elementwise(keeps="second", result="first"),
    "abs": Elementwise(keeps="inputs", result="magnitude"),
    "addcmul": Elementwise(keeps="inputs", flops=3),
    "addcdiv": Elementwise(keeps="inputs", flops=3),
    **{kind: Dropout() for kind in ("dropout", "alpha_dropout")},
    **{kind: Dropout() for kind in ("feature_dropout", "feature_alpha_dropout")},
    "broadcast_tensors": BroadcastTensors(),
    "tril": Triangle(),
    "triu": Triangle(),
}
