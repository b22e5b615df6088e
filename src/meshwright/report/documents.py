"""JSON that scripts can rely on: one function a document; docs/json.md tells what each field is.

Times end in `_s` and are seconds; a field is predicted unless its name says measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from meshwright.cluster.model import Cluster
from meshwright.place.placement import Placement
from meshwright.price.figures import ModelFigures
from meshwright.price.table import Origin
from meshwright.reduce.predict import PricedProgram
from meshwright.search.rank import RankedPlacement, Ranker, Ranking, Reduction
from meshwright.validate.collectives import AllReduceComparison, CollectiveSummary
from meshwright.validate.device import StepComparison
from meshwright.validate.operators import OperatorComparison, OperatorErrors
from meshwright.validate.p2 import Comparison
from meshwright.validate.step_summary import IterationComparison, StepSummary
from meshwright.validate.summary import Summary

Document = dict[str, object]


def cluster_document(cluster: Cluster) -> Document:
    """A cluster, all of it."""
    document: Document = msgspec.to_builtins(cluster)
    return document | {"hierarchy": list(cluster.hierarchy), "devices": cluster.devices}


def figures_document(figures: ModelFigures, batch: int | None) -> Document:
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


def validation_document(comparisons: Sequence[Comparison], summary: Summary) -> Document:
    """`validate p2 --json`."""
    rows = [
        {
            "gpu": it.row.gpu,
            "nodes": it.row.nodes,
            "gpus_per_node": it.row.gpus_per_node,
            "axes": it.row.axes,
            "reduce_axes": it.row.reduce_axes,
            "matrix": it.row.matrix,
            "algorithm": it.algorithm,
            "kind": it.kind,
            "measured_s": it.measured_s,
            "predicted_s": it.predicted_s,
            "error": it.error,
            "program": str(it.program),
            "link": it.link,
            "across_nodes": it.row.across_nodes,
            "aligned": it.aligned,
            "predicted_axis_order_s": it.axis_order_s,
        }
        for it in comparisons
    ]
    return {"rows": rows, "summary": msgspec.to_builtins(summary)}


def operators_document(
    origin: Origin,
    comparisons: Sequence[OperatorComparison],
    errors: Mapping[str, OperatorErrors],
) -> Document:
    """`validate operators --json`."""
    rows = [
        {
            "call": msgspec.to_builtins(it.call),
            "pass": it.which,
            "measured_s": it.measured_s,
            "predicted_s": it.predicted_s,
            "source": it.source,
            "error": it.error,
        }
        for it in comparisons
    ]
    summary = {kind: msgspec.to_builtins(own) for kind, own in errors.items()}
    return {"origin": msgspec.to_builtins(origin), "rows": rows, "summary": summary}


def device_document(comparisons: Sequence[StepComparison]) -> Document:
    """`validate device --json`."""
    rows = [
        {
            "model": it.row.workload,
            "batch": it.row.batch,
            "optimizer": it.row.optimizer,
            "measured_s": it.row.measured.seconds,
            "predicted_s": it.predicted_s,
            "time_error": it.time_error,
            "measured_bytes": it.row.measured.peak,
            "predicted_bytes": it.predicted_bytes,
            "memory_error": it.memory_error,
        }
        for it in comparisons
    ]
    return {"rows": rows}


def collectives_document(
    comparisons: Sequence[AllReduceComparison], summary: CollectiveSummary
) -> Document:
    """`validate collectives --json`."""
    rows = [
        {
            "gpu": it.row.gpu,
            "ranks": it.row.ranks,
            "bytes": it.row.bytes,
            "measured_s": it.row.measured_s,
            "predicted_s": it.predicted_s,
            "error": it.error,
            "protocol": it.protocol,
        }
        for it in comparisons
    ]
    return {"rows": rows, "summary": msgspec.to_builtins(summary)}


def steps_document(comparisons: Sequence[IterationComparison], summary: StepSummary) -> Document:
    """`validate steps --json`."""
    rows = [
        msgspec.to_builtins(it.row)
        | {
            "measured_s": it.row.reference_s,
            "predicted_s": it.predicted_s,
            "error": it.error,
            "fitted": it.fitted,
        }
        for it in comparisons
    ]
    return {"rows": rows, "summary": msgspec.to_builtins(summary)}


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
