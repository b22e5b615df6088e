"""Files of rules, operators and certificates: reading and writing. Enters: paths. Leaves: nouns, or
what is wrong.

A file of rules is in our text form or in the published JSON form; a file of operators has lines of
index notation, which are added to those that come with Meshwright.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.notation import Definition, parse_definitions
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.published import (
    for_plain_inputs,
    is_published_form,
    parse_published,
)
from meshwright.rewrite.language.syntax import parse_rules
from meshwright.rewrite.language.terms import Rule
from meshwright.rewrite.language.types import arities
from meshwright.rewrite.language.wellformed import require_definition, require_rule
from meshwright.rewrite.library import Certificate, certified, digest


class RuleFile(msgspec.Struct, frozen=True):
    """The rules of a file, and whether it was in the published form."""

    rules: tuple[Rule, ...]
    published: bool = False


def read_rules(path: str | Path, known: Mapping[str, Definition] = DEFINITIONS) -> RuleFile:
    """The rules of a file in either form."""
    text = _text(path)
    published = is_published_form(text)
    try:
        rules = parse_published(text) if published else parse_rules(text, arities(known))
        for rule in rules:
            require_rule(rule, known)
    except InputError as error:
        raise error.at(str(path)) from None
    except RecursionError:
        raise InputError(f"{path}: a rule is nested too deep", "write it flatter") from None
    return RuleFile(rules, published)


def read_certified(
    path: str | Path, certificates: str | Path, known: Mapping[str, Definition] = DEFINITIONS
) -> tuple[Rule, ...]:
    """The rules of a file, all of which have to have a certificate in another."""
    rule_file, proofs = read_rules(path, known), read_certificates(certificates)
    digests = {proof.digest for proof in proofs}
    if rule_file.published:
        # A published rule may have been proved for inputs in one piece only.
        rules = tuple(
            rule if digest(rule, known) in digests else for_plain_inputs(rule)
            for rule in rule_file.rules
        )
    else:
        rules = rule_file.rules
    return certified(rules, proofs, known)


def read_operators(path: str | Path) -> dict[str, Definition]:
    """The operators of a file alone, which may not be called like shipped ones."""
    try:
        return parse_definitions(
            _text(path), lambda definition: require_definition(definition, DEFINITIONS)
        )
    except InputError as error:
        raise error.at(str(path)) from None


def read_certificates(path: str | Path) -> tuple[Certificate, ...]:
    """The certificates that `certificates_text` wrote."""
    try:
        return msgspec.json.decode(_text(path), type=tuple[Certificate, ...])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"{path}: no certificates can be read ({error})",
            "give a file that 'meshwright rules verify --certify' wrote",
        ) from None


def certificates_text(certificates: Iterable[Certificate]) -> str:
    """Certificates as a file, a line each.

    >>> print(certificates_text([Certificate("r", "00", 2)]), end="")
    [
    {"rule":"r","digest":"00","cases":2}
    ]
    """
    lines = ",\n".join(msgspec.json.encode(certificate).decode() for certificate in certificates)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read {str(path)!r} ({error.strerror})", "name a file that exists"
        ) from None
    except ValueError:  # not UTF-8, or a path that no file can have
        raise InputError(f"{str(path)!r} is not a text file", "give one in UTF-8") from None
