"""Certified rule library: shipped rules and their proof certificates. Enters: files of rules and
their certificates. Leaves: rules.

A certificate is what the verifier wrote down when it proved a rule: a digest of the rule and of
every definition that its operators have. A rule without one, or whose text or definitions have
changed since, is not loaded. `meshwright rules verify --certify` writes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.resources import files

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.notation import Definition
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.syntax import parse_rules
from meshwright.rewrite.language.terms import Rule, nodes
from meshwright.rewrite.language.types import arities

FILES = ("algebra", "elements", "parallel", "forms")
"""In the order in which rules are listed."""

CERTIFICATES = "certificates.json"


class RuleSection(msgspec.Struct, frozen=True):
    """Rules that stand together in a file under a comment."""

    file: str
    title: str
    rules: tuple[Rule, ...]


class Certificate(msgspec.Struct, frozen=True):
    """That a rule was proved, with the number of cases of the proof."""

    rule: str
    digest: str
    cases: int


class UserRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a user adds to the library: operators, and rules that are proved."""

    operators: tuple[Definition, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def known(self) -> dict[str, Definition]:
        """All operators that rules may speak of."""
        return {**DEFINITIONS, **{operator.name: operator for operator in self.operators}}


def digest(rule: Rule, known: Mapping[str, Definition] = DEFINITIONS) -> str:
    """What a proof depends on: the rule and the definitions of its operators."""
    operators = sorted({node.operator for node in nodes((*rule.source, *rule.target))})
    lines = (known[name].line for name in operators if name in known)
    text = "\n".join((str(rule), *lines))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def certified(
    rules: Iterable[Rule],
    certificates: Iterable[Certificate],
    known: Mapping[str, Definition] = DEFINITIONS,
) -> tuple[Rule, ...]:
    """The rules, each of which has to have a certificate."""
    digests = {certificate.digest for certificate in certificates}
    listed = tuple(rules)
    for rule in listed:
        if digest(rule, known) not in digests:
            raise InputError(
                f"rule {rule.name!r} has no certificate",
                "prove it with 'meshwright rules verify FILE --certify CERTIFICATES'",
            )
    return listed


def shipped_rules() -> tuple[Rule, ...]:
    """The rules of the library as they stand in its files, without a look at certificates."""
    arity = arities()
    return tuple(rule for name in FILES for rule in parse_rules(_text(f"{name}.rules"), arity))


def shipped_certificates() -> tuple[Certificate, ...]:
    """The certificates of the library."""
    return msgspec.json.decode(_text(CERTIFICATES), type=tuple[Certificate, ...])


def library() -> tuple[Rule, ...]:
    """Every rule of the library, certified.

    >>> next(str(rule) for rule in library() if rule.name == "linear-bias-unfuse")
    'linear-bias-unfuse: linear_bias(x, w, b) => bias(linear(x, w), b)'
    """
    return certified(shipped_rules(), shipped_certificates())


def sections() -> tuple[RuleSection, ...]:
    """The library as its files arrange it; a comment begins a section.

    >>> [section.title for section in sections()][:2]
    ['fusion and un-fusion', 'merging products of one input']
    """
    rules = {rule.name: rule for rule in library()}
    groups: list[tuple[str, str, list[Rule]]] = []
    for file in FILES:
        for line in _text(f"{file}.rules").splitlines():
            if line.startswith("#"):
                groups.append((file, line.lstrip("# "), []))
            elif line:
                groups[-1][2].append(rules[line.partition(":")[0]])
    return tuple(
        RuleSection(file, title, tuple(section_rules))
        for file, title, section_rules in groups
        if section_rules
    )


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text()
