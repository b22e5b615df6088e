"""Parser and printer of the rule language. Enters: text. Leaves: rules. `str(rule)` is the way
back.

    rules     one rule a line; `#` begins a comment
    rule      NAME : side => side [if condition and ...] [for any NAME, ...]
    side      term, or (term, term, ...) for a rule with several outputs
    term      NAME, or NAME [attribute, ...] (term, ...) .OUTPUT
    condition plain(TENSOR), or quantity = | != | < | <= | divides quantity
    quantity  NUMBER, NAME, TENSOR.DIM, degree(TENSOR, AXIS), rank(TENSOR), rank(TENSOR)-NUMBER

A mistake is reported with its position, what stands there and what was expected. Whether operators
exist and how many inputs they take is checked against a table that the caller gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from meshwright.base.errors import InputError, nearest
from meshwright.base.reader import Reader
from meshwright.rewrite.language.terms import (
    Attribute,
    Condition,
    Degree,
    Plain,
    Quantity,
    Rank,
    Relation,
    Rule,
    Size,
    Tensor,
    Term,
    Variable,
    tensors_in,
    variables,
)

_RELATIONS: Mapping[str, Relation] = {
    "=": "=", "!=": "!=", "<": "<", "<=": "<=", "divides": "divides",
}  # fmt: skip
_WORDS = {"if", "and", "for", "any", "divides", "degree", "rank", "plain"}


def parse_rules(text: str, arity: Mapping[str, tuple[int, ...]] | None = None) -> tuple[Rule, ...]:
    """The rules of a file, each named once."""
    rules: dict[str, Rule] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        try:
            rule = parse_rule(bare, arity)
        except InputError as error:
            raise error.at(f"line {number}") from None
        if rule.name in rules:
            raise InputError(f"line {number} names a second rule {rule.name!r}", "rename one")
        rules[rule.name] = rule
    return tuple(rules.values())


def parse_rule(text: str, arity: Mapping[str, tuple[int, ...]] | None = None) -> Rule:
    """A rule; `arity` tells for each known operator how many inputs it may have.

    >>> print(parse_rule("fuse: relu( linear(x,w) ) => linear_relu(x, w)"))
    fuse: relu(linear(x, w)) => linear_relu(x, w)
    >>> parse_rule("fuse: relu(linear(x, w) => y")
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: 'fuse: relu(linear(x, w) => y' has '=>' at column 25; \
expected ',' or ')'.
    """
    reader = Reader(text, _WORDS)
    name = reader.name("the name of the rule")
    reader.expect(":")
    source = _side(reader, arity)
    reader.expect("=>")
    target = _side(reader, arity)
    conditions: list[Condition | Plain] = []
    if reader.accept("if"):
        conditions.append(_condition(reader))
        while reader.accept("and"):
            conditions.append(_condition(reader))
    free: tuple[str, ...] = ()
    if reader.accept("for"):
        reader.expect("any")
        free = reader.listed(lambda: reader.name("a tensor"))
    reader.end()
    rule = Rule(name=name, source=source, target=target, conditions=tuple(conditions), free=free)
    _refuse_unbound(rule)
    return rule


def parse_term(text: str, arity: Mapping[str, tuple[int, ...]] | None = None) -> Tensor:
    """A graph with one output, as an expression."""
    reader = Reader(text, _WORDS)
    term = _term(reader, arity)
    reader.end()
    return term


def _refuse_unbound(rule: Rule) -> None:
    known = {v.name for v in variables(rule.source)}
    if len(rule.source) != len(rule.target):
        raise InputError(
            f"rule {rule.name!r} replaces {len(rule.source)} tensors by {len(rule.target)}",
            "give both sides equally many",
        )
    unbound = [v.name for v in variables(rule.target) if v.name not in known]
    if missing := [name for name in unbound if name not in rule.free]:
        raise InputError(
            f"the target of rule {rule.name!r} reads {', '.join(missing)}, which its source does "
            f"not bind",
            f"use {', '.join(sorted(known))}, or end the rule with 'for any {', '.join(missing)}'",
        )
    named = known | set(rule.free)
    for condition in rule.conditions:
        for tensor in tensors_in(condition):
            if tensor not in named:
                raise InputError(
                    f"the condition '{condition}' of rule {rule.name!r} speaks of {tensor!r}",
                    f"speak of {', '.join(sorted(named))}",
                )


def _side(reader: Reader, arity: Mapping[str, tuple[int, ...]] | None) -> tuple[Tensor, ...]:
    if reader.accept("("):
        terms = reader.listed(lambda: _term(reader, arity))
        reader.expect(",", ")")
        return terms
    return (_term(reader, arity),)


def _term(reader: Reader, arity: Mapping[str, tuple[int, ...]] | None) -> Tensor:
    begin = reader.peek()
    name = reader.name("a tensor or an operator")
    if reader.peek() not in ("[", "("):
        return Variable(name)
    if arity is not None and name not in arity:
        raise InputError(f"there is no operator {begin!r}", nearest(name, arity))
    attributes: tuple[Attribute, ...] = ()
    if reader.accept("["):
        attributes = reader.listed(lambda: _attribute(reader))
        reader.expect(",", "]")
    reader.expect("(")
    inputs = reader.listed(lambda: _term(reader, arity))
    reader.expect(",", ")")
    if arity is not None and len(inputs) not in arity[name]:
        expected = " or ".join(map(str, arity[name]))
        raise InputError(f"{name} has {len(inputs)} inputs", f"give it {expected}")
    output = reader.number("the number of an output") if reader.accept(".") else 0
    return Term(name, inputs, attributes, output)


def _attribute(reader: Reader) -> Attribute:
    if re.fullmatch(r"-?\d+", reader.peek()):
        return reader.number("a number")
    return reader.name("a number or a name")


def _condition(reader: Reader) -> Condition | Plain:
    if reader.accept("plain"):
        reader.expect("(")
        tensor = reader.name("a tensor")
        reader.expect(")")
        return Plain(tensor)
    left = _quantity(reader)
    relation = _RELATIONS[reader.expect(*_RELATIONS)]
    return Condition(left, relation, _quantity(reader))


def _quantity(reader: Reader) -> Quantity:
    if reader.accept("rank"):
        reader.expect("(")
        tensor = reader.name("a tensor")
        reader.expect(")")
        return Rank(tensor, -reader.number("") if reader.peek().startswith("-") else 0)
    if reader.accept("degree"):
        reader.expect("(")
        tensor = reader.name("a tensor")
        reader.expect(",")
        axis = _attribute(reader)
        reader.expect(")")
        return Degree(tensor, axis)
    if re.fullmatch(r"-?\d+", reader.peek()):
        return reader.number("a number")
    name = reader.name("a number, a name, a size, 'degree' or 'rank'")
    return Size(name, _attribute(reader)) if reader.accept(".") else name


def lines(rules: Iterable[Rule]) -> str:
    """Rules as a file."""
    return "".join(f"{rule}\n" for rule in rules)
