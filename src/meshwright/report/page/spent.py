"""Where the time goes. Enters: a simulated step. Leaves: a section: what the step waits for, how
busy links are, what collectives take.
"""

from __future__ import annotations

from meshwright.base.units import counted, format_gibibytes, format_seconds
from meshwright.explain.explanation import Spending, spending
from meshwright.report.explained import describe_categories
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.simulate.simulation import Simulation

MOST = 20
"""Lines of a table."""


def spent_section(simulation: Simulation) -> Markup:
    """The critical path and what is busy beside it."""
    found = spending(simulation)
    waits = describe_categories(found.stretches)
    parts = [element("p", f"A step: {waits}."), _path(found), _links(found)]
    return joined([*parts, *([_collectives(found)] if found.collectives else [])])


def _path(found: Spending) -> Markup:
    rows = [
        (
            own.category,
            own.subject,
            str(own.times),
            format_seconds(own.seconds),
            bar(own.share, f"{own.share:.1%}"),
        )
        for own in found.stretches[:MOST]
    ]
    rest = len(found.stretches) - len(rows)
    left = f"; {counted(rest, 'shorter one')} not shown" if rest else ""
    heads = ("critical path", "namely~", "times>", "predicted>", "of the step")
    return table(heads, rows, f"The critical path, copies of a layer as one line{left}")


def _links(found: Spending) -> Markup:
    rows = [
        (
            own.link,
            format_gibibytes(own.bytes),
            format_seconds(own.seconds),
            bar(own.share, f"{own.share:.1%}"),
            format_seconds(own.exposed),
        )
        for own in found.links
    ]
    heads = ("link", "carries>", "busy>", "of the step", "exposed>")
    return table(heads, rows, "The busiest link of every kind, predicted")


def _collectives(found: Spending) -> Markup:
    rows = [
        (
            own.operation,
            own.over,
            own.purpose,
            format_gibibytes(own.bytes),
            str(own.times),
            format_seconds(own.seconds),
            format_seconds(own.exposed),
        )
        for own in found.collectives[:MOST]
    ]
    heads = ("collective", "over~", "of~", "bytes>", "times>", "total>", "exposed>")
    return table(heads, rows, "Collectives; what is not exposed overlaps with something else")
