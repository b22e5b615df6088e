"""Random tensors: rand, randn, bernoulli, uniform, exponential ...; multinomial, randperm.

Each element is drawn by itself, so that every dim may be cut: parts are the same in distribution
as the whole, and a run that draws by place (`run.exec.random_bits`) gives each element what it has
on any plan. Rows of multinomial are drawn by themselves; a permutation stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.graph.families.creation import Filled
from meshwright.graph.families.elementwise import DEFAULT_REAL, Elementwise
from meshwright.graph.family import Family, Split, along, integer, tensor
from meshwright.graph.operator_graph import Call, Spec

SIZED = ("rand", "randn", "randint")
"""Kinds that are told a size."""
LIKE = ("rand_like", "randn_like", "randint_like")
"""Kinds that take the size of a tensor, whose values they do not read."""
ELEMENTS = (
    "bernoulli", "uniform", "normal", "normal_functional", "exponential", "cauchy", "geometric",
    "log_normal",
)  # fmt: skip
"""Kinds that draw each element of a tensor: written anew, or with its values for parameters."""


@final
class Multinomial(Family):
    """So many classes for each row of weights."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A class for each draw."""
        rows = tensor(call, 0).shape[:-1]
        return (Spec("int64", (*rows, integer(call, "num_samples"))),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Rows, if there are several."""
        return (along(0, call, (0,)),) if len(tensor(call, 0).shape) > 1 else ()

    def flops(self, call: Call) -> int:
        """A random number and a comparison for each class."""
        return 3 * tensor(call, 0).elements


@final
class Permutation(Family):
    """randperm: the numbers below n in random order."""

    differentiable = False

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """So many."""
        return (Spec(str(call.get("dtype") or "int64"), (integer(call, "n"),)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """None."""
        return ()


_DRAWN = Elementwise(result="first", flops=3, differentiable=False, numbers=())

KINDS: Mapping[str, Family] = {
    **{kind: Filled(DEFAULT_REAL) for kind in ("rand", "randn")},
    "randint": Filled("int64"),
    **dict.fromkeys((*LIKE, *ELEMENTS), _DRAWN),
    "rrelu": Elementwise(keeps="inputs", result="first", flops=3),
    "multinomial": Multinomial(),
    "randperm": Permutation(),
}
