"""The verb `rules`: what may be replaced by what, and the proof of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import new_console, print_json, print_parts, progress_bar
from meshwright.cli.rule_options import (
    JobsOption,
    OperatorsOption,
    SecondsOption,
    counting,
    known_operators,
    named_rule,
    require_seconds,
)
from meshwright.cli.shared_options import JsonOption
from meshwright.cli.verbs.apply import apply_rules
from meshwright.cli.verbs.generate import generate_rules

if TYPE_CHECKING:
    from meshwright.rewrite.language.terms import Rule

rules = typer.Typer(
    help="Rewrite rules: list, show, verify, generate, apply.", no_args_is_help=True
)


@rules.command("list")
def list_rules(
    pattern: Annotated[
        str | None, typer.Argument(help="Part of a name or text; * and ? stand for anything.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the rules of the library, all of which are proved.

    Example:  meshwright rules list 'linear-cut-*'
    """
    from meshwright.base.quantities import counted
    from meshwright.report.json.rule_documents import library_document
    from meshwright.report.text.rules import describe_section
    from meshwright.rewrite.library import sections, shipped_certificates

    chosen = [
        (section, [rule for rule in section.rules if _fits(rule, pattern)])
        for section in sections()
    ]
    listed = [(section, fitting) for section, fitting in chosen if fitting]
    if json:
        certificates = {certificate.rule: certificate for certificate in shipped_certificates()}
        print_json(library_document(listed, certificates))
        return
    total = counted(sum(len(fitting) for _, fitting in listed), "rule")
    print_parts(
        *(describe_section(section, fitting) for section, fitting in listed), f"Proved: {total}."
    )


def _fits(rule: Rule, pattern: str | None) -> bool:
    import re

    if pattern is None:
        return True
    words = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.search(words, str(rule)) is not None


@rules.command("show")
def show_rule(
    name: Annotated[str, typer.Argument(help="The name of a rule.")],
    file: Annotated[str | None, typer.Option(help="Of this file, not of the library.")] = None,
    operators: OperatorsOption = None,
    json: JsonOption = False,
) -> None:
    """Show the two sides of a rule as trees, what it needs and what its operators mean.

    Under each operator stand its operands in their order; parallel operators are coloured.

    Example:  meshwright rules show linear-cut-k
    """
    from meshwright.report.json.rule_documents import rule_document
    from meshwright.report.text.rules import describe_rule, draw_rule
    from meshwright.rewrite.library import digest, library, shipped_certificates
    from meshwright.rewrite.library.rule_files import read_rules

    known = known_operators(operators)
    available = library() if file is None else read_rules(file, known).rules
    rule = named_rule(name, available)
    proofs = {proof.digest: proof for proof in shipped_certificates()}
    certificate = proofs.get(digest(rule, known))
    if json:
        print_json(rule_document(rule, certificate, known))
        return
    console = new_console()
    console.print(draw_rule(rule))
    console.print()
    console.print(describe_rule(rule, certificate, known), soft_wrap=True)


@rules.command("verify")
def verify_rules(
    file: Annotated[
        str | None,
        typer.Argument(help="Rules in text or in Unity's JSON form; the library by default."),
    ] = None,
    operators: OperatorsOption = None,
    seconds: SecondsOption = 60.0,
    jobs: JobsOption = 2,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Judge so many rules, the first of the file.")
    ] = None,
    certify: Annotated[
        str | None, typer.Option(help="Write certificates of the proved rules to this file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Prove every rule of a file, or refute it with tensors on which its sides differ.

    Exit code 0 says that all rules were judged, whatever the verdicts. Ctrl-C shows those there
    are. The file of the example is the one that the example of 'rules generate' writes.

    Example:  meshwright rules verify found.rules --certify found.json
    """
    from meshwright.base.files import require_writable, write_atomically
    from meshwright.base.quantities import counted
    from meshwright.report.json.rule_documents import verdicts_document
    from meshwright.report.text.rules import describe_tally, table_of_verdicts
    from meshwright.rewrite.library import shipped_rules
    from meshwright.rewrite.library.rule_files import RuleFile, certificates_text, read_rules
    from meshwright.rewrite.verify.many import certificates, judge

    require_seconds(seconds)
    if certify is not None:
        require_writable(certify)
    known = known_operators(operators)
    whole = RuleFile(shipped_rules()) if file is None else read_rules(file, known)
    limited = RuleFile(whole.rules[:limit], whole.published)
    with progress_bar("starting") as show:
        judged = judge(
            limited.rules,
            known,
            published=limited.published,
            seconds=seconds,
            processes=jobs,
            progress=counting(show, len(limited.rules)),
        )
    if not judged.verdicts and judged.stopped == "interrupted":
        raise KeyboardInterrupt
    if certify is not None:
        write_atomically(certify, certificates_text(certificates(judged, known)).encode())
    if json:
        print_json(verdicts_document(judged))
    else:
        left = len(whole.rules) - len(limited.rules)
        further = f" {counted(left, 'rule')} beyond --limit {limit} not looked at." if left else ""
        print_parts(table_of_verdicts(judged), describe_tally(judged) + further)


rules.command("generate")(generate_rules)
rules.command("apply")(apply_rules)
