"""Terminal rendering of rewrite rules: trees, conditions, verdicts and matches. Enters: rules,
sections, verdicts. Leaves: drawings, tables, sentences.

What an operator computes is told by its own line of index notation; the few that have none are
told here, in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from meshwright.base.quantities import counted
from meshwright.graph.notation import Definition
from meshwright.report.terminal_tables import new_table
from meshwright.rewrite.generate.pairs import Tally
from meshwright.rewrite.graphs.chain import RewriteStep, free_symbols
from meshwright.rewrite.graphs.places import Match
from meshwright.rewrite.language.terms import (
    AXES,
    Attribute,
    Condition,
    Degree,
    Plain,
    Quantity,
    Rank,
    Rule,
    Size,
    Tensor,
    Variable,
    nodes,
)
from meshwright.rewrite.language.types import PARALLEL
from meshwright.rewrite.library import Certificate, RuleSection
from meshwright.rewrite.verify.many import JudgedRules
from meshwright.rewrite.verify.proof_verdict import Verdict

MEANINGS: Mapping[str, str] = {
    "partition": "partition[axis, d]: every piece along the axis is cut into d",
    "combine": "combine[axis, d]: d neighbouring pieces along the axis become one",
    "replicate": "replicate[axis, d]: d times the same, one after the other; over copies if no "
    "axis is given",
    "reduce": "reduce[axis, d]: d parts along the axis are added up; over sums if no axis is given",
    "pipeline": "pipeline[dim, m]: m parts of a dim follow each other as steps",
    "batch": "batch[dim, m]: m steps become parts of a dim again",
    "halo": "halo[dim, b, a]: pieces also hold b rows of the piece before and a of the one after",
    "concat": "concat[axis]: tensors put one after the other along an axis",
    "split": "split[axis, n, ...]: parts of n, ... and the rest along an axis",
    "transpose": "transpose[dim, dim]: two dims change places",
    "flatten": "flatten[dim]: a dim and the one after it become one",
    "unflatten": "unflatten[dim, n]: a dim becomes two, the first of size n",
}

MARK = "bold cyan"
"""Of an operator that moves data between devices, where there are colours."""

_RELATIONS = {
    "=": "is", "!=": "is not", "<": "is less than", "<=": "is at most", "divides": "divides",
}  # fmt: skip
_COLOURS = {"proved": "green", "refuted": "red", "unproved": "yellow"}


def describe_section(section: RuleSection, rules: Sequence[Rule]) -> str:
    """A heading and the rules below it."""
    heading = f"{section.file}: {section.title} ({len(rules)})"
    return "\n".join((heading, *(f"  {rule}" for rule in rules)))


def draw_rule(rule: Rule) -> Group:
    """Both sides as trees: under each operator its operands, in their order.

    >>> from rich import print
    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> print(draw_rule(parse_rule("r: add(relu(x), y) => add(y, relu(x))")))
    add
    ├── relu
    │   └── x
    └── y
    =>
    add
    ├── y
    └── relu
        └── x
    """
    source, target = (map(_tree, side) for side in (rule.source, rule.target))
    return Group(*source, "=>", *target)


def _tree(term: Tensor) -> Tree:
    if isinstance(term, Variable):
        return Tree(term.name)
    attributes = f"[{', '.join(map(str, term.attributes))}]" if term.attributes else ""
    output = f".{term.output}" if term.output else ""
    style = MARK if term.operator in PARALLEL else ""
    tree = Tree(Text(f"{term.operator}{attributes}{output}", style))
    for operand in term.inputs:
        tree.children.append(_tree(operand))
    return tree


def describe_rule(
    rule: Rule, certificate: Certificate | None, known: Mapping[str, Definition]
) -> str:
    """The text of a rule, its conditions, its certificate and what its operators mean."""
    lines = [str(rule), "", *describe_conditions(rule)]
    if certificate is None:
        lines.append("not certified: prove it with 'meshwright rules verify FILE --certify OUT'")
    else:
        lines.append(f"certificate {certificate.digest}: {counted(certificate.cases, 'case')}")
    return "\n".join((*lines, "", *meanings(rule, known).values()))


def meanings(rule: Rule, known: Mapping[str, Definition]) -> dict[str, str]:
    """What each operator of a rule computes."""
    operators = dict.fromkeys(node.operator for node in nodes((*rule.source, *rule.target)))
    return {name: known[name].line if name in known else MEANINGS[name] for name in operators}


def describe_conditions(rule: Rule) -> Iterator[str]:
    """What has to hold where a rule is applied, and what is chosen there."""
    for condition in rule.conditions:
        yield f"if {describe_condition(condition)}"
    for name in rule.free:
        yield f"for any tensor {name}, which the source does not read"
    for name in free_symbols(rule):
        yield f"{name} is chosen where the rule is applied"


def describe_condition(condition: Condition | Plain) -> str:
    """What has to hold.

    >>> describe_condition(Condition(Degree("x", -1), "=", 1))
    'the degree of dim -1 of x is 1'
    """
    if isinstance(condition, Plain):
        return f"{condition.tensor} is in one piece: not cut, no copies, no sums, no steps"
    left, right = (_quantity(quantity) for quantity in (condition.left, condition.right))
    return f"{left} {_RELATIONS[condition.relation]} {right}"


def _quantity(quantity: Quantity) -> str:
    match quantity:
        case Size(tensor=tensor, dim=dim):
            return f"the number of {dim} of {tensor}" if dim in AXES else (
                f"the size of dim {dim} of {tensor}"
            )  # fmt: skip
        case Degree(tensor=tensor, axis=axis):
            return f"the degree of {_axis(axis)} of {tensor}"
        case Rank(tensor=tensor, less=less):
            return f"the number of dims of {tensor}" + (f" less {less}" if less else "")
        case _:
            return str(quantity)


def _axis(axis: Attribute) -> str:
    return f"the {axis}" if axis in AXES else f"dim {axis}"


def table_of_verdicts(judged: JudgedRules) -> Table:
    """Every rule with its verdict and why."""
    table = new_table("rule", "verdict", "because~")
    for _, verdict in judged.verdicts:
        word = Text(verdict.verdict, style=_COLOURS[verdict.verdict])
        table.add_row(verdict.name, word, _because(verdict))
    return table


def _because(verdict: Verdict) -> str:
    if verdict.counterexample is not None:
        return str(verdict.counterexample)
    return f"{verdict.reason}; if {verdict.condition}" if verdict.condition else verdict.reason


def describe_tally(judged: JudgedRules) -> str:
    """How many rules got which verdict."""
    tally = judged.tally
    only = f" ({judged.conditional} of them for inputs in one piece)" if judged.conditional else ""
    words = (
        f"{counted(len(judged.verdicts), 'rule')}: {tally['proved']} proved{only}, "
        f"{tally['refuted']} refuted, {tally['unproved']} unproved."
    )
    return words + (" Interrupted: these were judged." if judged.stopped != "complete" else "")


def table_of_matches(matches: Sequence[Match], most: int) -> Table:
    """Where rules fit; places are counted for each rule."""
    table = new_table("rule", "place>", "replaces~", "with~")
    places: dict[str, int] = {}
    for match in matches[:most]:
        name = match.rule.name
        places[name] = places.get(name, 0) + 1
        bound = ", ".join(
            f"{variable} = {value}" for variable, value in (*match.tensors, *match.settings)
        )
        table.add_row(name, str(places[name]), ", ".join(match.outputs), bound)
    return table


def describe_applied(applied: RewriteStep) -> str:
    """What a rule did to a graph: operators that went and those that came."""
    gone = (f"  - {line.removeprefix('operator ')}" for line in applied.gone)
    came = (f"  + {line.removeprefix('operator ')}" for line in applied.came)
    return "\n".join((str(applied.match), *gone, *came))


def table_of_tallies(tallies: Sequence[Tally]) -> Table:
    """What the generator saw and found, a line for each size of graphs."""
    table = new_table("operators>", "graphs>", "with names>", "equal pairs>", "implied>", "rules>",
                      "unproved>")  # fmt: skip
    for tally in tallies:
        table.add_row(*map(str, (tally.operators, tally.graphs, tally.elements, tally.candidates,
                                 tally.pruned, tally.rules, tally.unproved)))  # fmt: skip
    return table
