"""JSON of the verb `validate`: one function a document; docs/json.md tells what each field is.

Apart from the other documents, so that those do not load what is validated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from meshwright.cost.profile_table import Origin
from meshwright.report.documents import Document
from meshwright.validate.collectives import AllReduceComparison, AllReduceErrors
from meshwright.validate.device import StepComparison
from meshwright.validate.operator_prices import OperatorComparison, OperatorErrors
from meshwright.validate.p2 import P2Comparison
from meshwright.validate.p2_accuracy import Summary


def validation_document(comparisons: Sequence[P2Comparison], summary: Summary) -> Document:
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
    summary = {kind: msgspec.to_builtins(stats) for kind, stats in errors.items()}
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
    comparisons: Sequence[AllReduceComparison], summary: Sequence[AllReduceErrors]
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
        }
        for it in comparisons
    ]
    return {"rows": rows, "summary": msgspec.to_builtins(summary)}
