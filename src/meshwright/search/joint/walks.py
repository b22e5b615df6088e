"""Metropolis walks from the best plans. Enters: starts, each on one graph with one set of options.
Leaves: the best roles of each.

The starts are walked from one by one, or each in a process of its own; they do not know of each
other, so that the number of cores does not change what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from meshwright.foundation.units import Seconds
from meshwright.parallelize.reshard import Codes
from meshwright.plan.model import Options
from meshwright.search.budget import Budget
from meshwright.search.compare import told_apart
from meshwright.search.joint.bench import Bench
from meshwright.search.joint.frames import Frame
from meshwright.search.mcmc import search
from meshwright.search.walk import space, stranger
from meshwright.simulate.problem import Problem

PROPOSALS = 600_000
"""For each start and over all units, unless the budget says how many a start has."""

FEWEST, MOST = 2_000, 20_000
"""For each start."""


class Start(NamedTuple):
    """Plans of one graph with one set of options."""

    bench: Bench
    options: Options
    roles: dict[str, Codes]
    """By their origin."""

    @property
    def origin(self) -> str:
        """Where the best of them comes from."""
        return next(iter(self.roles))


def walked(
    starts: list[Start],
    seconds: float | None,
    proposals: int | None,
    seed: int,
    cores: int | None,
    tell: Callable[[str], None],
) -> Iterator[tuple[Start, Codes]]:
    """The best roles of every start."""
    for start in starts:
        budget = Budget(
            seconds=None if seconds is None else Seconds(seconds / len(starts)),
            proposals=proposals or _proposals(start),
        )
        bench, frame = start.bench, Frame((), start.options)
        problem = Problem(
            bench.graph,
            bench.question.cluster,
            start.options,
            apart=told_apart(bench.question.cluster),
            prices=bench.prices,
            operators=bench.operators,
            allowed=bench.permit(frame),
        )
        room = space(problem)
        inside = {
            name: own for name, own in start.roles.items() if stranger(problem, room, own) is None
        }
        if not inside:
            continue
        found = search(
            problem,
            inside,
            budget,
            seed=seed,
            progress=lambda now: tell(now.doing),
        )
        yield start, found.roles
        if found.stopped == "interrupted":
            raise KeyboardInterrupt


def _proposals(start: Start) -> int:
    return max(FEWEST, min(MOST, PROPOSALS // len(start.bench.units)))
