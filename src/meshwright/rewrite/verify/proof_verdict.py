"""Verification verdict of a rule: proved, refuted by a counterexample, or unproved. Enters: a rule.
Leaves: a `Verdict`.

Proved: there is a proof, and both sides were also run and found equal on tensors that fit. Refuted:
there are tensors on which the executable semantics gives two different answers, or on which the
target can never be taken although the source can. Unproved: neither was found in time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from meshwright.base.quantities import counted
from meshwright.graph.notation import Definition, MisfitError
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.published import for_plain_inputs
from meshwright.rewrite.language.shards import Shards, evaluate
from meshwright.rewrite.language.terms import AXES, Attribute, Rule
from meshwright.rewrite.language.types import FRONT, Type
from meshwright.rewrite.verify.prove import Open, Proof, prove
from meshwright.rewrite.verify.sample import Instance, instance_of_world, instances, types_of

TRIES = 3000
"""Random instances that are looked at; only those that fit are run."""

ENOUGH = 20
"""Fitting instances on which a proved rule is run."""

HOPELESS = 60
"""Instances after which a target that never could be taken is given up."""

TOLERANCE = 1e-9
"""Of functions that are not exact on whole numbers, relative to the largest element."""


class VariableShape(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a variable in a counterexample."""

    sizes: tuple[int, ...]
    degrees: tuple[int, ...]
    steps: int = 1
    copies: int = 1
    sums: int = 1


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors for which the two sides differ, as found by running them."""

    tensors: tuple[tuple[str, VariableShape], ...]
    attributes: tuple[tuple[str, Attribute], ...]
    seed: int
    """Of the values, which are whole numbers."""
    difference: str
    """What was seen, in words."""

    def __str__(self) -> str:
        tensors = ", ".join(f"{name} {_shown(shape)}" for name, shape in self.tensors)
        attributes = "".join(f", {name} = {value}" for name, value in self.attributes)
        return f"{tensors}{attributes}: {self.difference}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a rule."""

    name: str
    verdict: Literal["proved", "refuted", "unproved"]
    reason: str
    condition: str = ""
    """What the rule needs beyond what it says, if that is how it was proved."""
    worlds: int = 0
    """Cases of the proof."""
    counterexample: Counterexample | None = None


def verify(
    rule: Rule,
    known: Mapping[str, Definition] = DEFINITIONS,
    seconds: float = 30.0,
    seed: int = 0,
) -> Verdict:
    """The verdict on a rule as it stands.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> verify(parse_rule("r: reduce[copies, d](replicate[d](x)) => x")).verdict
    'refuted'
    """
    proof = prove(rule, known, seconds)
    met, failed, difference = 0, 0, None
    for instance in _instances(rule, proof, known, seed):
        outcome = try_instance(rule, instance, known)
        if outcome is None:
            met += 1
        elif not isinstance(outcome, Counterexample):
            failed += 1
            difference = difference or _counterexample(instance, outcome)
        elif isinstance(proof, Proof):
            raise AssertionError(f"{rule} was proved and is refuted by {outcome}")
        else:
            return _refuted(rule, outcome)
        if met >= ENOUGH if isinstance(proof, Proof) else failed >= HOPELESS and not met:
            break
    if isinstance(proof, Proof) and met:
        return Verdict(
            name=rule.name,
            verdict="proved",
            reason=f"{counted(proof.worlds, 'case')}, run on {counted(met, 'instance')}",
            worlds=proof.worlds,
        )
    if difference is not None and not met and isinstance(proof, Open):
        return _refuted(rule, difference)
    reason = proof.reason if isinstance(proof, Open) else "no tensors were found to run it on"
    return Verdict(name=rule.name, verdict="unproved", reason=reason)


def _instances(
    rule: Rule, proof: Proof | Open, known: Mapping[str, Definition], seed: int
) -> Iterator[Instance]:
    """Instances of the cases of a proof, then others by chance."""
    if isinstance(proof, Proof):
        for number, world in enumerate(proof.samples):
            seeds = range(seed + number * TRIES, seed + number * TRIES + 16)
            candidates = (instance_of_world(rule, world, case_seed, known) for case_seed in seeds)
            yield from itertools.islice(filter(None, candidates), 1)
    yield from instances(rule, seed, TRIES, known)


def has_proof(
    rule: Rule, known: Mapping[str, Definition] = DEFINITIONS, seconds: float = 30.0
) -> bool:
    """Whether a rule is proved; no counterexample is sought where there is no proof.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> has_proof(parse_rule("r: neg(neg(x)) => x"))
    True
    """
    proof = prove(rule, known, seconds)
    return isinstance(proof, Proof) and verify(rule, known, seconds).verdict == "proved"


def verify_published(
    rule: Rule, known: Mapping[str, Definition] = DEFINITIONS, seconds: float = 30.0
) -> Verdict:
    """The verdict on a published rule, which may have been meant for inputs in one piece.

    The published file does not say what its inputs may be. A rule that holds for all is proved; one
    that holds if its inputs are plain is proved under that condition.
    """
    general = verify(rule, known, seconds)
    if general.verdict == "proved":
        return general
    plain = verify(for_plain_inputs(rule), known, seconds)
    if plain.verdict == "proved":
        added = for_plain_inputs(rule).conditions[len(rule.conditions) :]
        return msgspec.structs.replace(plain, condition=" and ".join(map(str, added)))
    return plain if plain.verdict == "refuted" else general


def try_instance(
    rule: Rule, instance: Instance, known: Mapping[str, Definition] = DEFINITIONS
) -> Counterexample | str | None:
    """Runs both sides: a counterexample, why the target cannot be taken, or None if all is well."""
    before = types_of(rule.source, instance.types, instance.bound, known)
    try:
        after = types_of(rule.target, instance.types, instance.bound, known)
    except MisfitError as error:
        return f"the source can be taken, the target cannot: {error}"
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            return _counterexample(
                instance,
                f"output {number} is {_type(one)} on the left, {_type(other)} on the right",
            )
    values = instance.values()
    with np.errstate(all="ignore"):
        left = evaluate(rule.source, values, known, bound=instance.bound)
        right = evaluate(rule.target, values, known, bound=instance.bound)
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        difference = _difference(a, b)
        if difference:
            return _counterexample(instance, f"output {number}{difference}")
    return None


def _difference(left: Shards, right: Shards) -> str:
    one, other = left.whole, right.whole
    scale = np.nanmax(np.abs(one), initial=1.0, where=np.isfinite(one))
    same = np.isclose(one, other, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)
    if same.all():
        return ""
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    where = ", ".join(map(str, place[FRONT:]))
    return f"[{where}] is {one[place]:g} on the left, {other[place]:g} on the right"


def _refuted(rule: Rule, counterexample: Counterexample) -> Verdict:
    return Verdict(
        name=rule.name,
        verdict="refuted",
        reason=counterexample.difference,
        counterexample=counterexample,
    )


def _counterexample(instance: Instance, difference: str) -> Counterexample:
    return Counterexample(
        tensors=tuple((name, _shape(type_)) for name, type_ in instance.types.items()),
        attributes=tuple(instance.bound.items()),
        seed=instance.seed,
        difference=difference,
    )


def _shape(type_: Type) -> VariableShape:
    return VariableShape(
        sizes=tuple(axis.size for axis in type_[FRONT:]),
        degrees=tuple(axis.degree for axis in type_[FRONT:]),
        **{name: axis.size for name, axis in zip(AXES, type_, strict=False)},
    )


def _shown(shape: VariableShape) -> str:
    dims = ", ".join(
        f"{size}" if degree == 1 else f"{size}/{degree}"
        for size, degree in zip(shape.sizes, shape.degrees, strict=True)
    )
    front = "".join(
        f" {name}={value}"
        for name, value in (("steps", shape.steps), ("copies", shape.copies), ("sums", shape.sums))
        if value != 1
    )
    return f"[{dims}{front}]"


def _type(type_: Type) -> str:
    """A type in words; degrees of copies and sums only where they are not as many as there are."""
    shape = _shown(_shape(type_))
    odd = "".join(
        f", {name} in {axis.degree} pieces"
        for name, axis in zip(AXES, type_, strict=False)
        if axis.size > 1 and axis.degree != axis.size and name != "steps"
    )
    return shape + odd
