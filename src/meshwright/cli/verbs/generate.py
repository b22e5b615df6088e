"""The verb `rules generate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.rule_options import (
    JobsOption,
    OperatorsOption,
    SecondsOption,
    counting,
    require_seconds,
)
from meshwright.cli.shared_options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from meshwright.graph.notation import Definition
    from meshwright.rewrite.generate.operator_templates import Templates
    from meshwright.rewrite.generate.run import GeneratedRules
    from meshwright.rewrite.generate.verdicts import Prove
    from meshwright.rewrite.language.terms import Rule


def generate_rules(
    operators: OperatorsOption = None,
    forms: Annotated[
        bool, typer.Option("--forms", help="Forms of parallelism, read off the definitions.")
    ] = False,
    set_: Annotated[
        str | None, typer.Option("--set", help="algebra, elements, parallel or unity.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Most operators of a graph.")] = 2,
    general: Annotated[
        bool, typer.Option("--general", help="For any rank and degree, where that is proved.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the rules to this file.")
    ] = None,
    jobs: JobsOption = 2,
    seconds: SecondsOption = 30.0,
    resume: Annotated[
        str | None, typer.Option(help="A folder that keeps the work; go on with what is in it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find rules: all equal graphs up to a size, or the forms of parallelism of operators.

    Only what the verifier proves is a rule. With --operators, the operators of a file are tried
    together with those of the set, or with a few that are near to them.

    Example:  meshwright rules generate --set algebra --size 2 -o found.rules
    """
    from functools import partial

    from meshwright.base.files import require_writable, write_atomically
    from meshwright.base.quantities import counted, format_seconds
    from meshwright.report.json.rule_documents import generated_document
    from meshwright.report.text.rules import table_of_tallies
    from meshwright.rewrite.generate.sets import operator_set
    from meshwright.rewrite.language.definitions import DEFINITIONS
    from meshwright.rewrite.language.syntax import lines
    from meshwright.rewrite.library.rule_files import read_operators
    from meshwright.rewrite.verify.proof_verdict import has_proof

    require_seconds(seconds)
    if output is not None:
        require_writable(output)
    definitions = {} if operators is None else read_operators(operators)
    if forms:
        rules, document, summary = _forms(definitions, seconds, jobs)
    else:
        templates = operator_set(set_, definitions)
        certain = partial(has_proof, known={**DEFINITIONS, **definitions}, seconds=seconds)
        generated, taken = _enumerated(templates, size, certain, definitions, jobs, _folder(resume))
        rules = _general(generated.rules, certain) if general else generated.rules
        document = generated_document(rules, generated, taken)
        summary = [
            table_of_tallies(generated.tallies),
            f"Proved: {counted(len(rules), 'rule')}, found in {format_seconds(taken)}.",
        ]
        if generated.stopped == "interrupted":
            if not generated.rules:
                raise KeyboardInterrupt
            summary.append("Interrupted: these are the rules so far; --resume DIR goes on.")
    if output is not None:
        write_atomically(output, lines(rules).encode())
    if json:
        print_json(document)
    else:
        print_parts(*(["\n".join(map(str, rules))] if output is None else []), *summary)


def _forms(
    definitions: dict[str, Definition], seconds: float, jobs: int
) -> tuple[tuple[Rule, ...], dict[str, object], list[str | Table]]:
    """Rules for every way to cut the operators of a file, or all shipped ones."""
    from meshwright.base.quantities import counted
    from meshwright.report.json.rule_documents import forms_document
    from meshwright.rewrite.language.definitions import DEFINITIONS
    from meshwright.rewrite.library.parallelization import forms
    from meshwright.rewrite.verify.many import judge

    candidates = [rule for one in (definitions or DEFINITIONS).values() for rule in forms(one)]
    with progress_bar("proving") as show:
        judged = judge(
            candidates,
            {**DEFINITIONS, **definitions},
            seconds=seconds,
            processes=jobs,
            progress=counting(show, len(candidates)),
        )
    if judged.stopped == "interrupted":
        raise KeyboardInterrupt
    proved = tuple(rule for rule, verdict in judged.verdicts if verdict.verdict == "proved")
    summary: list[str | Table] = [f"Proved: {counted(len(proved), 'form')} of parallelism."]
    summary += [
        f"{rule.name} is left out: {verdict.reason}."
        for rule, verdict in judged.verdicts
        if verdict.verdict != "proved"
    ]
    return proved, forms_document(proved), summary


def _enumerated(
    templates: Templates,
    size: int,
    certain: Prove,
    definitions: dict[str, Definition],
    jobs: int,
    folder: Path | None,
) -> tuple[GeneratedRules, float]:
    """What the generator finds, and the seconds that it took."""
    from meshwright.rewrite.generate.run import generate
    from meshwright.rewrite.language.definitions import DEFINITIONS

    begin = time.perf_counter()
    with progress_bar("enumerating") as show:
        generated = generate(
            templates,
            size,
            certain,
            known={**DEFINITIONS, **definitions},
            processes=jobs,
            folder=folder,
            progress=lambda what, done, total: show(done / total, f"{what}: {done} of {total}"),
        )
    return generated, time.perf_counter() - begin


def _general(rules: Sequence[Rule], certain: Prove) -> tuple[Rule, ...]:
    """Each rule for any rank and degree, where that is proved."""
    from meshwright.rewrite.generate.general import most_general_rule

    general_rules = []
    with progress_bar("any rank and degree") as show:
        for number, rule in enumerate(rules, 1):
            general_rules.append(most_general_rule(rule, certain))
            show(number / len(rules), f"any rank and degree: {number} of {len(rules)}")
    return tuple(general_rules)


def _folder(path: str | None) -> Path | None:
    """A folder that is there when it is used."""
    from meshwright.base.errors import InputError

    if path is None:
        return None
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--resume {path!r} cannot be a folder ({error.strerror})", "name another"
        ) from None
    return Path(path)
