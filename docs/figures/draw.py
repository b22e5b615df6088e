"""Draws the README's picture: a real ranking, as a terminal shows it. Run with `make figures`."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

from meshwright import Cluster, Pricer, Ranker, Reduction, rank
from meshwright.report.text.drawing import draw_placement
from meshwright.report.text.placements import table_of_placements
from meshwright.report.words import explain_ranking

COMMAND = "meshwright place --nodes 4 --axes data=4,tensor=16 --reduce tensor --bytes 1GiB"


def main() -> None:
    """Write place.svg beside this file."""
    cluster = Cluster.named("gcp-a100", node=4)
    reduction = Reduction.parse("tensor=1GiB")
    ranking = rank(Ranker(Pricer(cluster)), {"data": 4, "tensor": 16}, [reduction])
    with Path("/dev/null").open("w") as nowhere:
        console = Console(
            record=True, width=118, file=nowhere, force_terminal=True, highlight=False
        )
        console.print(f"[bold]$ {COMMAND}")
        console.print(table_of_placements(ranking.placements, most=20))
        console.print()
        best = ranking.best.placement
        console.print(draw_placement(best, cluster.level_names, reduction.axes, 118))
        console.print()
        console.print(explain_ranking(ranking.placements, cluster.level_names))
        svg = console.export_svg(title="meshwright place")
    # The fonts would be fetched from the network; the viewer's own will do.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    (Path(__file__).parent / "place.svg").write_text(svg)


if __name__ == "__main__":
    main()
