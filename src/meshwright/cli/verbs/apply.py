"""The verb `rules apply`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import new_console, print_json, print_left_out, print_parts
from meshwright.cli.rule_options import (
    OperatorsOption,
    all_rules,
    chosen_parameters,
    defined_operators,
    known_operators,
    named_rule,
)
from meshwright.cli.shared_options import (
    BatchOption,
    JsonOption,
    ModelArgument,
    TopOption,
    captured_graph,
    require_lines,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshwright.graph.notation import Definition
    from meshwright.graph.operator_graph import OperatorGraph
    from meshwright.rewrite.language.terms import Rule


def apply_rules(
    model: ModelArgument,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", help="A rule by its name; repeatable, in order.")
    ] = None,
    at: Annotated[
        list[int] | None,
        typer.Option(help="Place of the first, second ... rule, as --list counts; 1 by default."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=N", help="What a rule leaves open; repeatable."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show where the rules fit.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the new graph to this file.")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the new graph as text.")] = False,
    batch: BatchOption = None,
    operators: OperatorsOption = None,
    file: Annotated[str | None, typer.Option("--rules", help="A file of further rules.")] = None,
    certificates: Annotated[
        str | None, typer.Option(help="Their certificates, from 'verify --certify'.")
    ] = None,
    top: TopOption = 20,
    json: JsonOption = False,
) -> None:
    """Replace operators of a model's graph by what rules say; only proved rules are applied.

    Example:  meshwright rules apply zoo:lenet --rule linear-bias-cut-o --set d=2 -o graph.json
    """
    import msgspec

    from meshwright.base.errors import InputError
    from meshwright.base.files import require_writable, write_atomically
    from meshwright.report.json.rule_documents import applied_document
    from meshwright.report.text.rules import describe_applied
    from meshwright.rewrite.graphs.chain import apply_chain

    known = known_operators(operators)
    available = all_rules(file, certificates, known)
    named = [named_rule(name, available) for name in rule or ()]
    parameters = chosen_parameters(set_ or [])
    if output is not None:
        require_writable(output)
    if list_:
        require_lines(top)
        rules = named or available
        _show_matches(
            captured_graph(model, batch, operators=defined_operators(operators)),
            rules,
            parameters,
            known,
            top,
            json,
        )
        return
    if not named:
        raise InputError("no rule is given", "give --rule NAME, or --list to see what fits")
    places = [*(at or ()), *[1] * len(named)][: len(named)]
    if len(at or ()) > len(named):
        raise InputError(f"--at is given {len(at or ())} times", f"give it {len(named)} times")
    graph = captured_graph(model, batch, operators=defined_operators(operators))
    steps = list(zip(named, places, strict=True))
    applied = list(apply_chain(graph, steps, parameters, known))
    if output is not None:
        write_atomically(output, msgspec.json.encode(applied[-1].graph))
    if json:
        print_json(applied_document(applied))
    elif text:
        print(applied[-1].graph)
    else:
        print_parts(*map(describe_applied, applied))


def _show_matches(
    graph: OperatorGraph,
    rules: Sequence[Rule],
    parameters: dict[str, list[int]],
    known: dict[str, Definition],
    top: int,
    json: bool,
) -> None:
    from meshwright.base.quantities import counted
    from meshwright.report.json.rule_documents import matches_document
    from meshwright.report.text.rules import table_of_matches
    from meshwright.rewrite.graphs.match import Matcher
    from meshwright.rewrite.graphs.patterns import RuleSet

    # The same rule may be named twice in a chain.
    once = tuple({rule.name: rule for rule in rules}.values())
    matches = Matcher(graph, RuleSet(once, known), parameters).matches
    if json:
        print_json(matches_document(graph, matches))
        return
    console = new_console()
    operators = counted(len(graph.operators), "operator")
    console.print(f"{graph.name}: {operators}, rules fit at {counted(len(matches), 'place')}\n")
    console.print(table_of_matches(matches, top))
    print_left_out(console, len(matches), top, "place")
