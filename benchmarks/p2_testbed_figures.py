"""The figures of `p2_testbed.py`. Enters: the records of a results file. Leaves: printed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from meshwright.base.quantities import format_bandwidth, format_seconds
from meshwright.cli.console import new_console
from meshwright.cluster.cluster import Cluster
from meshwright.report.terminal_tables import new_table
from meshwright.report.text.validations import table_of_errors, table_of_gains
from meshwright.validate.bed_rows import Record, Result, cases, described
from meshwright.validate.bed_summary import BedSummary, summarize_bed, timings
from p2_testbed_cases import Campaign, predictions


def print_figures(campaign: Campaign, records: Sequence[Record]) -> None:
    """Print the figures of what was measured."""
    clusters = described(campaign.clusters, records)
    every = [case for name, cluster in clusters.items() for case in cases(name, cluster)]
    measured = {it.case for it in records if isinstance(it, Result)}
    priced = {
        it.key: predictions(campaign, it, clusters[it.network])
        for it in every
        if it.key in measured
    }
    times = timings(records, priced)
    figures = summarize_bed(every, times)
    console = new_console()
    console.print(f"{len(times)} of {len(every)} cases, {sum(map(len, times.values()))} programs\n")
    tables = (table_of_links(clusters), table_of_errors(figures), table_of_gains(figures))
    for table in (*tables, table_of_choices(figures)):
        console.print(table)
        console.print()


def table_of_links(clusters: Mapping[str, Cluster]) -> Table:
    """What was fitted."""
    table = new_table("network", "link", "latency>", "bandwidth>")
    for name, cluster in clusters.items():
        for link in (link for level in cluster.levels for link in level.links):
            rate, wait = format_bandwidth(link.out), format_seconds(link.latency)
            table.add_row(name, link.name, wait, rate)
    return table


def table_of_choices(figures: BedSummary) -> Table:
    """How well predictions choose."""
    table = new_table("choosing by prediction", "measured>")
    accuracy = figures.accuracy
    for words, cell in (
        ("cases with more than 10 programs", str(accuracy.cases)),
        *((f"top-{k}", f"{share:.1%}") for k, share in accuracy.top.items()),
        ("rank correlation, median case", f"{accuracy.correlation:.3f}"),
        ("rank correlation, worst case", f"{accuracy.lowest_correlation:.3f}"),
        ("regret of the first choice, median", f"{accuracy.regret:.1%}"),
        ("regret of the first choice, mean", f"{accuracy.mean_regret:.1%}"),
        ("regret of the first choice, worst", f"{accuracy.largest_regret:.1%}"),
        ("programs faster than AllReduce", f"{figures.programs_ahead:.1%}"),
        ("spread of repetitions, median program", f"{figures.spread:.1%}"),
    ):
        table.add_row(words, cell)
    return table
