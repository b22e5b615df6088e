"""Options that the verbs about rules share, and what they turn into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshwright.graph.notation import Definition
    from meshwright.rewrite.language.terms import Rule
    from meshwright.rewrite.verify.proof_verdict import Verdict

OperatorsOption = Annotated[
    str | None, typer.Option("--operators", help="A file that defines further operators.")
]
JobsOption = Annotated[int, typer.Option(min=1, help="How many processes work.")]
SecondsOption = Annotated[float, typer.Option(help="Time for each proof; beyond it, unproved.")]


def known_operators(operators: str | None) -> dict[str, Definition]:
    """The operators that come with Meshwright and those of a file."""
    from meshwright.rewrite.language.definitions import DEFINITIONS

    return {**DEFINITIONS, **defined_operators(operators)}


def defined_operators(operators: str | None) -> dict[str, Definition]:
    """The operators of a file."""
    from meshwright.rewrite.library.rule_files import read_operators

    return {} if operators is None else read_operators(operators)


def named_rule(name: str, rules: Iterable[Rule]) -> Rule:
    """The rule of that name; there are too many to list them all in a sentence."""
    import difflib

    from meshwright.base.errors import InputError

    named = {rule.name: rule for rule in rules}
    if name in named:
        return named[name]
    close = difflib.get_close_matches(name, named, n=3)
    guess = f"did you mean {' or '.join(map(repr, close))}? See" if close else "see"
    raise InputError(f"there is no rule {name!r}", f"{guess} 'meshwright rules list'")


def all_rules(
    file: str | None, certificates: str | None, known: dict[str, Definition]
) -> tuple[Rule, ...]:
    """The library and the rules of a file, which are proved if their certificates are not given."""
    from meshwright.base.errors import InputError
    from meshwright.rewrite.library import library
    from meshwright.rewrite.verify.user_rules import proved_rules

    if file is None:
        if certificates is not None:
            raise InputError("--certificates is given without --rules", "give both")
        return library()
    return (*library(), *proved_rules(file, certificates, known))


def chosen_parameters(texts: list[str]) -> dict[str, list[int]]:
    """What --set says: a name with the values that are tried for it."""
    from meshwright.base.errors import InputError, shown
    from meshwright.base.integers import parse_whole

    parameters: dict[str, list[int]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not name.strip() or not all(value.strip().isdecimal() for value in values.split(",")):
            raise InputError(f"--set {shown(text)} is no NAME=N", "write it as 'd=2' or 'd=2,4'")
        parameters[name.strip()] = [parse_whole(value) for value in values.split(",")]
    return parameters


def require_seconds(seconds: float) -> None:
    """Refuse a time in which nothing can be proved, or that has no end."""
    import math

    from meshwright.base.errors import InputError

    if not 0 < seconds < math.inf:
        raise InputError(f"--seconds is {seconds:g}", "give a number above 0")


def counting(show: Callable[[float, str], None], total: int) -> Callable[[Verdict], None]:
    """Counts verdicts on a bar."""
    done = [0]

    def told(verdict: Verdict) -> None:
        done[0] += 1
        show(done[0] / total, f"{done[0]} of {total}: {verdict.name} {verdict.verdict}")

    return told
