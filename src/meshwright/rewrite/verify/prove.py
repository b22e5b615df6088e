"""Symbolic equivalence proofs of rules for all ranks, sizes and degrees, by case split. Enters: a
rule. Leaves: a `Proof`, or why there is none.

What is proved: wherever the conditions hold and both sides can be taken, all outputs have equal
axes (size and degree of every dim, copies, sums, steps) and equal elements. Degrees of parallel
operators are two or more. Worlds are explored until each is decided far enough for both sides to be
written out; then canonical forms are compared.

A rule about tensors of any rank is proved up to the rank beyond which it can tell nothing apart
(`symbolic.highest_rank`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from meshwright.graph.notation import Definition
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import (
    Condition,
    Plain,
    Rank,
    Rule,
    nodes,
    numbers,
    quantities,
    variables,
)
from meshwright.rewrite.language.types import COPY, DUALS
from meshwright.rewrite.verify.case_split import ChooseError, Decision, World, require
from meshwright.rewrite.verify.context import Value
from meshwright.rewrite.verify.polynomials import equal
from meshwright.rewrite.verify.spaces import (
    UNIT,
    BeyondError,
    RefineError,
    VacuousError,
    resolve,
)
from meshwright.rewrite.verify.symbolic import Evaluation, highest_rank
from meshwright.rewrite.verify.symbolic_operators import unordered_copies

DEEPEST = 200
"""Decisions after which a world is given up."""

HIGHEST = 7
"""A rule that would have to be proved for more dims than these is left open."""

LARGEST = 64
"""A rule with a larger number in it is left open: an axis is written out piece by piece."""


SAMPLES = 12
"""Worlds of a proof that are kept: the first ones, and the last."""


class Proof(msgspec.Struct, frozen=True):
    """That a rule holds: how many worlds were compared, and how many had nothing to compare."""

    worlds: int
    vacuous: int
    samples: tuple[World, ...] = ()
    """Some of the worlds, from which tensors to run the rule on can be made."""


class Open(msgspec.Struct, frozen=True):
    """No proof was found, and why."""

    reason: str


def prove(
    rule: Rule, known: Mapping[str, Definition] = DEFINITIONS, seconds: float = 30.0
) -> Proof | Open:
    """A proof that both sides are equal wherever both can be taken.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> prove(parse_rule("r: relu(partition[k, d](x)) => partition[k, d](relu(x))")).worlds
    6
    >>> prove(parse_rule("r: reduce[copies, d](replicate[d](x)) => relu(x)"))
    Open(reason='the sides differ')
    """
    largest = max(numbers(rule), default=0)
    if largest > LARGEST:
        return Open(f"it has the number {largest} in it, and a proof would count so far")
    most = _most(rule, known)
    if most > HIGHEST:
        return Open(f"it may tell tensors of {most} dims apart")
    degrees = _degrees(rule)
    deadline = time.monotonic() + seconds
    worlds = vacuous = 0
    samples: list[World] = []
    waiting = [(World(), 0)]
    while waiting:
        if time.monotonic() > deadline:
            return Open(f"no proof within {seconds:g} s")
        world, depth = waiting.pop()
        if depth > DEEPEST:
            return Open("too many decisions")
        try:
            agree = _compare(rule, world, most, known)
        except (RefineError, ChooseError) as undecided:
            options = list(_worlds(world, undecided.options, degrees))
            waiting += [(option, depth + 1) for option in options]
            vacuous += not options
            continue
        except VacuousError:
            vacuous += 1
            continue
        except BeyondError as beyond:
            return Open(f"the argument does not reach so far: {beyond}")
        if not agree:
            return Open("the sides differ")
        worlds += 1
        samples = [*samples[: SAMPLES - 1], world]
    if not worlds:
        return Open("no tensors were found to compare")
    return Proof(worlds, vacuous, tuple(samples))


def _worlds(world: World, options: Sequence[Decision], degrees: Collection[str]) -> Iterator[World]:
    """The worlds that decisions lead to, without those in which nothing is to be proved."""
    for option in options:
        try:
            decided = world.deciding(option)
        except VacuousError:
            continue
        if all(resolve(((name,),), decided.known) != UNIT for name in degrees):
            yield decided


def _degrees(rule: Rule) -> set[str]:
    """Degrees of parallel operators that are variables: they are two or more."""
    operators = (*nodes(rule.source), *nodes(rule.target))
    last = {node.attributes[-1] for node in operators if node.operator in DUALS and node.attributes}
    return {name for name in last if isinstance(name, str)}


def _most(rule: Rule, known: Mapping[str, Definition]) -> int:
    """The highest rank to be looked at: what conditions name is looked at in any case."""
    named = [q for c in rule.conditions for q in quantities(c) if isinstance(q, int)]
    if all(any(_fixes(c, v.name) for c in rule.conditions) for v in variables(rule.source)):
        return max(named)
    return max(highest_rank(rule, known), *named, 0)


def _fixes(condition: Condition | Plain, tensor: str) -> bool:
    """Whether a condition says how many dims a tensor has."""
    return (
        isinstance(condition, Condition)
        and condition.relation == "="
        and condition.left == Rank(tensor)
        and isinstance(condition.right, int)
    )


def _compare(rule: Rule, world: World, most: int, known: Mapping[str, Definition]) -> bool:
    require(rule, world)
    # What dims must be is asked first: it decides much of what copies and sums can be.
    Evaluation(world, most, known, dims_only=True).outputs((*rule.source, *rule.target))
    evaluation = Evaluation(world, most, known)
    sources, targets = evaluation.outputs(rule.source), evaluation.outputs(rule.target)
    evaluation.context.settle()
    return all(_equal(a, b) for a, b in zip(sources, targets, strict=True))


def _equal(one: Value, other: Value) -> bool:
    one, other = _orderless(one), _orderless(other)
    if one.axes != other.axes:
        return False
    spaces = [axis.space for axis in one.axes]
    for segments in itertools.product(*(range(len(space)) for space in spaces)):
        places = tuple(
            (segment, tuple(f"i{axis}.{n}" for n in range(len(space[segment]))))
            for axis, (space, segment) in enumerate(zip(spaces, segments, strict=True))
        )
        if not equal(one.at(places), other.at(places)):
            return False
    return True


def _orderless(value: Value) -> Value:
    if not value.same:
        return value
    axes = (*value.axes[:COPY], unordered_copies(value.axes[COPY]), *value.axes[COPY + 1 :])
    return value._replace(axes=axes)
