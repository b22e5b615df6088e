"""Well-formedness checks of user rules and definitions. Enters: rules, definitions. Leaves:
nothing, or the sentence that says what is wrong. The parsers have seen to the grammar; here are
counts and names.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base.errors import InputError
from meshwright.graph.family import DEFINITION, PYTHON_KERNEL
from meshwright.graph.meaning import require_valid_notation
from meshwright.graph.notation import Apply, Definition, parts
from meshwright.rewrite.language.terms import Rule, Term, nodes
from meshwright.rewrite.language.types import PARALLEL, STRUCTURAL, arities

_ATTRIBUTES: Mapping[str, tuple[int, ...]] = {
    "partition": (2,), "combine": (2,), "replicate": (1, 2), "reduce": (1, 2),
    "pipeline": (2,), "batch": (2,), "halo": (3,),
    "concat": (1,), "transpose": (2,), "flatten": (1,), "unflatten": (2,),
}  # fmt: skip
"""How many attributes the operators take that no line of index notation defines."""

_COUNTED = (*PARALLEL, "split", "unflatten")
"""Operators with a number of pieces, steps, rows or elements behind their axis."""


def require_rule(rule: Rule, known: Mapping[str, Definition]) -> None:
    """Refuse a rule whose operators have the wrong number of inputs, attributes or outputs.

    >>> from meshwright.rewrite.language.definitions import DEFINITIONS
    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> require_rule(parse_rule("r: partition[d](x) => x"), DEFINITIONS)
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: rule 'r': partition[d](x) has 1 attribute; give it 2.
    """
    if not rule.source:
        raise InputError(f"rule {rule.name!r} replaces no tensor", "give it an output")
    read = [term for node in _nodes(rule) for term in node.inputs if isinstance(term, Term)]
    ends = [end for end in (*rule.source, *rule.target) if isinstance(end, Term)]
    arity = arities(known)
    for node in _nodes(rule):
        if len(node.inputs) not in arity[node.operator]:
            expected = " or ".join(map(str, arity[node.operator]))
            raise InputError(
                f"rule {rule.name!r}: {node.operator} has {len(node.inputs)} inputs",
                f"give it {expected}",
            )
        _require_attributes(rule, node, known)
        _require_positive(rule, node)
    for term in (*read, *ends):
        outputs = len(term.attributes) if term.operator == "split" else 1
        if not 0 <= term.output < outputs:
            raise InputError(
                f"rule {rule.name!r}: {term} is output {term.output} of {outputs}",
                f"give 0 to {outputs - 1}" if outputs > 1 else "leave the number out",
            )


def _nodes(rule: Rule) -> tuple[Term, ...]:
    return nodes((*rule.source, *rule.target))


def _require_attributes(rule: Rule, node: Term, known: Mapping[str, Definition]) -> None:
    count = len(node.attributes)
    if node.operator == "split":
        expected: tuple[int, ...] = () if count < 2 else (count,)
    elif node.operator in _ATTRIBUTES:
        expected = _ATTRIBUTES[node.operator]
    else:
        expected = (len(known[node.operator].parameters),)
    if count not in expected:
        words = " or ".join(map(str, expected)) or "a dim and the size of every part but the last"
        plural = "" if count == 1 else "s"
        raise InputError(
            f"rule {rule.name!r}: {node} has {count or 'no'} attribute{plural}",
            f"give it {words.replace('0', 'none')}",
        )


def _require_positive(rule: Rule, node: Term) -> None:
    """Degrees, sizes and numbers of steps are 1 or more; rows of neighbours may be none."""
    if node.operator not in _COUNTED:
        return
    for count in node.attributes[1:] if len(node.attributes) > 1 else node.attributes:
        least = 0 if node.operator == "halo" else 1
        if isinstance(count, int) and count < least:
            raise InputError(f"rule {rule.name!r}: {node} counts {count}", f"give {least} or more")


def require_definition(definition: Definition, known: Mapping[str, Definition]) -> None:
    """Refuse a line that defines what is there already, or reads what is not.

    >>> from meshwright.graph.notation import parse_definition
    >>> from meshwright.rewrite.language.definitions import DEFINITIONS
    >>> require_definition(parse_definition("f(x)[i, j] = x[i]"), DEFINITIONS)
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: operator 'f': no operand is read at j, so its size \
is not known; read one there, or write 'j < n' with an attribute n that says its size.
    """
    try:
        if definition.name in (*known, *PARALLEL, *STRUCTURAL):
            raise InputError("there is one of this name already", "take another name")
        if taken := {DEFINITION, PYTHON_KERNEL}.intersection(definition.parameters):
            raise InputError(f"no attribute can be called {min(taken)}", "rename it")
        require_valid_notation(definition)
        _require_functions(definition, known)
    except InputError as error:
        raise error.at(f"operator {definition.name!r}") from None


def _require_functions(definition: Definition, known: Mapping[str, Definition]) -> None:
    """A function takes as many numbers as it does elsewhere."""
    counts = {
        part.function: len(part.arguments)
        for other in known.values()
        for part in parts(other.body)
        if isinstance(part, Apply)
    }
    for part in parts(definition.body):
        if isinstance(part, Apply):
            expected = counts.setdefault(part.function, len(part.arguments))
            if len(part.arguments) != expected:
                raise InputError(
                    f"{part.function} is given {len(part.arguments)} numbers", f"give it {expected}"
                )
