"""JSON that scripts can rely on: one function a document; docs/json.md tells what each field is.

Times end in `_s` and are seconds; a field is predicted unless its name says measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import Machine
from meshwright.collectives.predict import PricedProgram
from meshwright.search.rank import RankedPlacement, Ranker, Ranking, Reduction
from meshwright.sharding.placement import Placement

if TYPE_CHECKING:
    from meshwright.cost.figures import ModelFigures

Document = dict[str, object]


def cluster_document(cluster: Cluster) -> Document:
    """A cluster, all of it."""
    document: Document = msgspec.to_builtins(cluster)
    return document | {"hierarchy": list(cluster.hierarchy), "devices": cluster.devices}


def machine_document(machine: Machine) -> Document:
    """A cluster, regular or a sum of islands, all of it."""
    if isinstance(machine, Cluster):
        return cluster_document(machine)
    document: Document = msgspec.to_builtins(machine)
    return document | {"devices": machine.devices}


def model_document(figures: ModelFigures, batch: int | None) -> Document:
    """A model of `models --json` or `capture --json`."""
    document: Document = msgspec.to_builtins(figures)
    total = {"flops": figures.flops, "memory_bytes": figures.memory.total, "batch": batch}
    return document | total


def ranking_document(ranker: Ranker, ranking: Ranking) -> Document:
    """`place --json`."""
    return _header(ranker) | {
        "placements": [_placement_document(ranker, ranked) for ranked in ranking.placements],
        "stopped": ranking.stopped,
        "without_program": ranking.without_program,
    }


def _placement_document(ranker: Ranker, ranked: RankedPlacement) -> Document:
    counts = [ranker.programs(ranked.placement, p.reduction) for p in ranked.reductions]
    reductions = [
        _reduction_document(price.reduction)
        | {
            "allreduce_s": price.all_reduce_seconds,
            "best_s": price.best_seconds,
            "program": str(price.best.program),
            "programs": count,
        }
        for price, count in zip(ranked.reductions, counts, strict=True)
    ]
    return {
        "axes": {axis.name: axis.size for axis in ranked.placement.axes},
        "matrix": ranked.placement.matrix,
        "allreduce_s": ranked.all_reduce_seconds,
        "best_s": ranked.best_seconds,
        "program": str(ranked.reductions[0].best.program),
        "programs": counts[0],
        "speedup": ranked.speedup,
        "reductions": reductions,
    }


def pairs_document(ranker: Ranker, pairs: Sequence[tuple[Placement, PricedProgram]]) -> Document:
    """`place --all-programs --json`."""
    return _header(ranker) | {
        "pairs": [{"matrix": p.matrix} | _program_document(priced) for p, priced in pairs]
    }


def sweep_document(ranker: Ranker, sweep: Sequence[tuple[Reduction, RankedPlacement]]) -> Document:
    """`place --sweep --json`: the best placement for each payload."""
    return _header(ranker) | {
        "sweep": [
            {"bytes": reduction.bytes} | _placement_document(ranker, ranked)
            for reduction, ranked in sweep
        ]
    }


def programs_document(
    ranker: Ranker, placement: Placement, reduction: Reduction, programs: Sequence[PricedProgram]
) -> Document:
    """`reduce --json`."""
    return _header(ranker) | {
        "axes": {axis.name: axis.size for axis in placement.axes},
        "matrix": placement.matrix,
        "reduction": _reduction_document(reduction),
        "programs": [_program_document(priced) for priced in programs],
    }


def _header(ranker: Ranker) -> Document:
    pricer = ranker.pricer
    return {
        "cluster": pricer.cluster.name,
        "hierarchy": pricer.cluster.hierarchy,
        "backend": pricer.backend.name,
        "algorithm": pricer.algorithm,
    }


def _reduction_document(reduction: Reduction) -> Document:
    return {"reduce": reduction.axes, "bytes": reduction.bytes, "count": reduction.count}


def _program_document(priced: PricedProgram) -> Document:
    steps = [
        {
            "instruction": str(step.instruction),
            "held_bytes": step.held,
            "predicted_s": step.seconds,
            "link": step.link,
        }
        for step in priced.steps
    ]
    return {"program": str(priced.program), "predicted_s": priced.seconds, "steps": steps}
