"""Critical path breakdown by operator and kind of collective. Enters: a `Simulation` and its path.
Leaves: `PathStretch`es: how much of the step each operator and each kind of collective takes.

Copies of a layer count as one, and so do micro-batches. A task that is several operators or
collectives is shared out among them by what each takes by itself. Together all stretches last as
long as the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from meshwright.base.quantities import Seconds
from meshwright.explain.critical_path import PathPiece
from meshwright.explain.utilisation import is_op_group_pass
from meshwright.graph.layers import first_copies
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.host import LAUNCH
from meshwright.simulate.listed_collectives import moves, ways_by_level
from meshwright.simulate.simulation import Simulation

K = TypeVar("K", bound=Hashable)

LATENCY = "latency"
"""The category of what a collective takes however small it is."""


class PathStretch(msgspec.Struct, frozen=True):
    """What one thing takes of the critical path."""

    category: str
    """forward, backward, launch, update; of what moves the link that paces it, as "node/nic", or
    latency."""
    subject: str
    times: int
    """How many pieces of the path."""
    seconds: Seconds = msgspec.field(name="predicted_s")
    share: float
    """Of the step."""


class PathPart(NamedTuple):
    """Some of a piece of the path."""

    nanoseconds: float
    pieces: int


def stretches(simulation: Simulation, path: Sequence[PathPiece]) -> tuple[PathStretch, ...]:
    """The stretches of a path, the longest first."""
    telling = _Telling(simulation)
    ranked = sorted(dealt(path, telling.parts).items(), key=lambda it: -it[1].nanoseconds)
    path_stretches = []
    for (category, subject), part in ranked:
        seconds = Seconds(part.nanoseconds / NANO)
        share = seconds / simulation.prediction.step
        path_stretches.append(PathStretch(category, subject, part.pieces, seconds, share))
    return tuple(path_stretches)


class _Telling:
    """What the tasks of a step stand for."""

    def __init__(self, simulation: Simulation) -> None:
        self._problem = simulation.problem
        self._moves, self._first = moves(self._problem), first_copies(self._problem.graph)

    def parts(self, piece: PathPiece) -> Iterator[tuple[tuple[str, str], float]]:
        """A category and a subject for each part of a piece, with its weight."""
        problem, task = self._problem, piece.task
        kind, subject = problem.labels.kind[task], problem.labels.subject[task]
        if is_op_group_pass(kind):
            name = problem.units[subject].name
            yield (kind, self._first.get(name, name)), 1.0
        elif kind == "update":
            yield (kind, "optimizer"), 1.0
        elif kind == LAUNCH:
            yield (kind, "the host's launches of kernels"), 1.0
        else:
            what = purpose(kind, problem.bundles[subject].parameters)
            for move in self._moves[kind, subject]:
                where = ways_by_level(problem.cluster, move.over)
                words = f"{move.operation} over {where} of {what}"
                yield (move.link(problem.cluster), words), move.way.slope * move.held
                if not piece.held:  # A link is held for bytes, not for latencies.
                    yield (LATENCY, words), move.way.fixed


def by_category(path_stretches: Iterable[PathStretch]) -> dict[str, Seconds]:
    """How long the stretches of each category are together, the longest first."""
    total: dict[str, list[float]] = {}
    for stretch in path_stretches:
        total.setdefault(stretch.category, []).append(stretch.seconds)
    sums = {category: Seconds(math.fsum(seconds)) for category, seconds in total.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def purpose(kind: str, parameters: bool) -> str:
    """What the tensors are that tasks of a kind (`Labels.kind`) move.

    >>> purpose("return", parameters=True)
    'gradients'
    """
    match kind:
        case "return":
            return "gradients" if parameters else "gradients of activations"
        case "regather":
            return "updated parameters"
        case _:
            return "parameters" if parameters else "activations"


def dealt(
    path: Iterable[PathPiece], parts: Callable[[PathPiece], Iterable[tuple[K, float]]]
) -> dict[K, PathPart]:
    """A path shared out: every piece among its parts, by their weights.

    >>> dealt([PathPiece(7, 0, 12, False)], lambda _: [("a", 1.0), ("b", 3.0)])
    {'a': PathPart(nanoseconds=3.0, pieces=1), 'b': PathPart(nanoseconds=9.0, pieces=1)}
    """
    shares: dict[K, PathPart] = {}
    for piece in path:
        weighted = [(key, weight) for key, weight in parts(piece) if weight]
        whole = math.fsum(weight for _, weight in weighted)
        for key, weight in weighted:
            before = shares.get(key, PathPart(0.0, 0))
            length = (piece.end - piece.start) * weight / whole
            shares[key] = PathPart(before.nanoseconds + length, before.pieces + 1)
    return shares
