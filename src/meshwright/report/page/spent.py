"""HTML section of the critical path, link utilisation and collectives. Enters: a simulated step.
Leaves: a section: what the step waits for, how busy links are, what collectives take.
"""

from __future__ import annotations

from meshwright.base.quantities import counted, format_gibibytes, format_seconds
from meshwright.explain.explanation import Spending, spending
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.report.text.explained import describe_categories
from meshwright.simulate.simulation import Simulation

MOST = 20
"""Lines of a table."""


def bottlenecks_section(simulation: Simulation) -> Markup:
    """The critical path and what is busy beside it."""
    spent = spending(simulation)
    waits = describe_categories(spent.stretches)
    parts = [element("p", f"A step: {waits}."), _path(spent), _links(spent)]
    return joined([*parts, *([_collectives(spent)] if spent.collectives else [])])


def _path(spent: Spending) -> Markup:
    rows = [
        (
            stretch.category,
            stretch.subject,
            str(stretch.times),
            format_seconds(stretch.seconds),
            bar(stretch.share, f"{stretch.share:.1%}"),
        )
        for stretch in spent.stretches[:MOST]
    ]
    rest = len(spent.stretches) - len(rows)
    left = f"; {counted(rest, 'shorter one')} not shown" if rest else ""
    heads = ("critical path", "namely~", "times>", "predicted>", "of the step")
    return table(heads, rows, f"The critical path, copies of a layer as one line{left}")


def _links(spent: Spending) -> Markup:
    rows = [
        (
            link.link,
            format_gibibytes(link.bytes),
            format_seconds(link.seconds),
            bar(link.share, f"{link.share:.1%}"),
            format_seconds(link.exposed),
        )
        for link in spent.links
    ]
    heads = ("link", "carries>", "busy>", "of the step", "exposed>")
    return table(heads, rows, "The busiest link of every kind, predicted")


def _collectives(spent: Spending) -> Markup:
    rows = [
        (
            collective.operation,
            collective.over,
            collective.purpose,
            format_gibibytes(collective.bytes),
            str(collective.times),
            format_seconds(collective.seconds),
            format_seconds(collective.exposed),
        )
        for collective in spent.collectives[:MOST]
    ]
    heads = ("collective", "over~", "of~", "bytes>", "times>", "total>", "exposed>")
    return table(heads, rows, "Collectives; what is not exposed overlaps with something else")
