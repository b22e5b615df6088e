"""Symbolic execution of a graph of terms on tensors of any size. Enters: terms and a world. Leaves:
for every output its axes and its elements.

That a task computes the same from its pieces as the law of the whole says is what the tests of the
definitions show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.graph.notation import Definition, Label
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import AXES, Rule, Tensor, Term, Variable, nodes
from meshwright.rewrite.language.types import COPY, DIMS, FRONT
from meshwright.rewrite.verify.case_split import ChooseError, World
from meshwright.rewrite.verify.context import Context, Places, Value
from meshwright.rewrite.verify.polynomials import Element, Polynomial, factor
from meshwright.rewrite.verify.spaces import BeyondError, VacuousError
from meshwright.rewrite.verify.symbolic_laws import LAWS, SHORT, over
from meshwright.rewrite.verify.symbolic_operators import apply_definition


class Evaluation:
    """Terms in one world."""

    def __init__(
        self,
        world: World,
        most: int,
        known: Mapping[str, Definition] = DEFINITIONS,
        *,
        dims_only: bool = False,
    ) -> None:
        self.context = Context(world, dims_only=dims_only)
        self._most, self._known = most, known
        self._made: dict[Term, tuple[Value, ...]] = {}
        self._inputs: dict[str, Value] = {}

    def value(self, tensor: Tensor) -> Value:
        """A tensor of which all operators were made."""
        if isinstance(tensor, Variable):
            if tensor.name not in self._inputs:
                self._inputs[tensor.name] = self._input(tensor.name)
            return self._inputs[tensor.name]
        outputs = self._made[tensor.node]
        if tensor.output >= len(outputs):
            raise VacuousError
        return outputs[tensor.output]

    def outputs(self, terms: Sequence[Tensor]) -> tuple[Value, ...]:
        """The values of terms."""
        for node in nodes(tuple(terms)):
            if node not in self._made:
                self._made[node] = self._operator(node)
        return tuple(map(self.value, terms))

    def _input(self, name: str) -> Value:
        world = self.context.world
        axes = world.axes_of(name, world.rank(name, self._most))

        def at(places: Places) -> Polynomial:
            return factor(Element(name, (*places[:COPY], *places[COPY + 1 :])))

        return Value(axes, at)

    def _operator(self, node: Term) -> tuple[Value, ...]:
        if node.operator in self._known:
            definition = self._known[node.operator]
            self._guess_ranks(definition, node)
            inputs = list(map(self.value, node.inputs))
            return (apply_definition(self.context, definition, node.attributes, inputs),)
        inputs = list(map(self.value, node.inputs))
        law = LAWS.get(node.operator)
        if law is None:
            raise BeyondError(f"{node.operator} has no definition")
        if self.context.dims_only and node.operator in SHORT:
            number, _ = over(self.context, node.attributes, inputs[0], SHORT[node.operator])
            if number < FRONT:
                return (inputs[0]._replace(fronted=False),)
        return law(self.context, node.attributes, inputs)

    def _guess_ranks(self, definition: Definition, node: Term) -> None:
        """Ranks of inputs that follow from the definition and from the ranks of others."""
        free: int | None = None
        for operand, tensor in zip(definition.operands, node.inputs, strict=True):
            indices = definition.indices(operand)
            fixed = [index for index in indices if not many(index)]
            key = f"rank {tensor}"
            is_open = isinstance(tensor, Variable) and key not in self.context.world.numbers
            if is_open and len(fixed) == len(indices):
                raise ChooseError((key, len(fixed)))
            if is_open and free is not None:
                raise ChooseError((key, len(fixed) + free))
            if len(fixed) < len(indices):
                free = self.value(tensor).rank - len(fixed)


def highest_rank(rule: Rule, known: Mapping[str, Definition]) -> int:
    """The rank up to which a rule has to be proved.

    Dims are told apart if they are counted from the front, from the end, or named by a variable.
    Between those, dims that lie side by side behave as one whose size is their product, and a
    missing one as a dim of size one: of v variables, v + 1 such groups lie around them.
    """
    front = end = 0
    names: set[str] = set()
    for node in (*nodes(rule.source), *nodes(rule.target)):
        if node.operator in known:
            definition = known[node.operator]
            for operand in definition.operands:
                end = max(end, sum(not many(index) for index in definition.indices(operand)))
            continue
        beside = node.operator in ("flatten", "unflatten")
        for dim in node.attributes[: len(DIMS.get(node.operator, ()))]:
            if isinstance(dim, int):
                front, end = max(front, dim + 1 + beside), max(end, -dim)
            elif dim not in AXES:
                names |= {dim, f"{dim} + 1"} if beside else {dim}
    return front + end + 2 * len(names) + 1


def many(index: object) -> bool:
    """Whether an index stands for any number of dims."""
    return isinstance(index, Label) and index.many
