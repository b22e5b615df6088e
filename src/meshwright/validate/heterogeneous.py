"""Measured steps on mixed and uneven machines (AMP's trials, NeurIPS 2022) beside predictions.
Enters: rows. Leaves: a `HetJudged` for each: seconds by the composition that plans over islands are
decided with (`simulate.islands`), or the reason why there is none.

AMP's GPT-2 is DeepSpeed's pipeline of 30 units: embedding, glue, 24 layers, glue, norm, head, glue;
a row says how many units each stage has. Ranks go tensor, data, pipeline from the inside, over the
nodes in the order in which the source tells of them: the T4 node comes last. Stages and parts of
a stage on unlike nodes, are the parts of an `IslandPlan`; replicas have equal shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import layer_starts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import Island, IslandCluster
from meshwright.cluster.island_toml import named_machine
from meshwright.cost.alpha_beta import Pricer, cheapest_line
from meshwright.cost.backend import NCCL
from meshwright.cost.collective import Movement
from meshwright.cost.pattern import Digit, PatternUse
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.stage_graph import stage_graph
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.simulate.island_step import (
    PartFigures,
    compose_prediction,
    crossing,
    simulated_part,
)
from meshwright.validate.csv_table import Cells, embedded_table, parse_table, read_table
from meshwright.validate.published.shapes import (
    GraphOf,
    PublishedSizes,
    captured_template,
    resize_template,
)

FILE = "steps_heterogeneous.csv"

SIZES = {
    "hidden": "hidden",
    "heads": "heads",
    "inner": "ffn",
    "vocabulary": "vocab",
    "sequence": "seq",
    "layers": "layers",
}
"""Sizes of a model, and their columns."""

COLUMNS = (
    "source", "model", "units_per_stage", "tp", "dp", "micro_batch", "global_batch", "step_s",
    "predicted_by_source_s", *SIZES.values(),
)  # fmt: skip

BEFORE = 2
"""Units in front of the first layer."""

NODE = 4
"""GPUs of a node."""

V100, T4 = "v100", "t4"
MIXED = (V100, V100, V100, T4)
EVEN = (T4, T4, T4, T4)


class HetRow(NamedTuple):
    """A measured step."""

    experiment: str
    model: str
    stages: tuple[int, ...]
    """Units of each stage."""
    tensor: int
    data: int
    micro_batch: int
    batch: int
    measured: float | None
    """Seconds; None if it failed."""
    by_source: float
    """What the source itself predicted."""
    sizes: tuple[tuple[str, int], ...]


class HetJudged(NamedTuple):
    """A row beside its prediction."""

    row: HetRow
    predicted: Seconds | None = None
    skipped: str = ""

    @property
    def error(self) -> float | None:
        """By how much the prediction is off, as a share of what was measured."""
        if self.predicted is None or self.row.measured is None:
            return None
        return abs(self.predicted / self.row.measured - 1)


def embedded_rows() -> tuple[HetRow, ...]:
    """The rows that come with Meshwright."""
    return parse_rows(embedded_table(FILE), FILE)


def load_rows(path: str) -> tuple[HetRow, ...]:
    """The rows of a file with the same columns."""
    return parse_rows(read_table(path, COLUMNS), path)


def parse_rows(text: str, file: str) -> tuple[HetRow, ...]:
    """Rows of a table; those of other sources than AMP are left out."""
    rows = parse_table(text, file, COLUMNS, _row)
    return tuple(row for row in rows if row is not None)


def _row(cells: Cells) -> HetRow | None:
    if not cells["source"].startswith("AMP"):
        return None
    step = cells["step_s"]
    try:
        return HetRow(
            experiment=cells["source"].split(") ")[-1].split("_results")[0],
            model=cells["model"],
            stages=tuple(map(int, cells["units_per_stage"].split())),
            tensor=int(cells["tp"]),
            data=int(cells["dp"]),
            micro_batch=int(cells["micro_batch"]),
            batch=int(cells["global_batch"]),
            measured=None if step == "failed" else float(step),
            by_source=float(cells["predicted_by_source_s"]),
            sizes=tuple((name, int(cells[key])) for name, key in SIZES.items() if cells[key]),
        )
    except ValueError as error:
        raise InputError(f"a cell is no number ({error})", "correct it") from None


class Judge:
    """Predicts rows; what rows have in common is found once."""

    def __init__(
        self, graph_of: GraphOf, machine: IslandCluster | None = None, *, recompute: bool = False
    ) -> None:
        described = machine or named_machine("mixed-v100-t4")
        assert isinstance(described, IslandCluster)
        self._nodes = {
            island.name: island.cluster.resized({"node": 1}) for island in described.islands
        }
        self._template = lru_cache(lambda: captured_template("gpt", graph_of))
        self._graphs: dict[tuple[object, ...], OperatorGraph] = {}
        self._figures: dict[tuple[object, ...], PartFigures] = {}
        self._recompute = recompute

    def judged(self, row: HetRow) -> HetJudged:
        """A row beside its prediction."""
        if "gpt" not in row.model:
            return HetJudged(row, skipped="its model is not described")
        try:
            return HetJudged(row, predicted=Seconds(self._predicted(row)))
        except InputError as error:
            return HetJudged(row, skipped=str(error))

    def _predicted(self, row: HetRow) -> float:
        nodes = MIXED if "het_cluster" in row.experiment else EVEN
        count = len(row.stages)
        width = NODE * len(nodes) // count
        micro = row.batch // (row.data * row.micro_batch)
        parts: list[IslandPart] = []
        figures: list[PartFigures] = []
        for number in range(count):
            kinds = [nodes[d // NODE] for d in range(number * width, (number + 1) * width)]
            for kind in dict.fromkeys(kinds):
                devices = kinds.count(kind)
                stage_plan, part_figures = self._part(row, number, kind, devices, micro)
                name = f"p{len(parts)}"
                share = row.batch * devices // width
                parts.append(
                    IslandPart(islands=(name,), plan=stage_plan, share=share, stage=number)
                )
                figures.append(part_figures)
        islands = [Island(name=part.islands[0], cluster=part.plan.cluster) for part in parts]
        if len(islands) == 1:
            islands.append(Island(name="nothing", cluster=islands[0].cluster))
        plan = IslandPlan(
            origin="AMP",
            cluster=IslandCluster(name="AMP", islands=tuple(islands)),
            batch=row.batch,
            parts=tuple(parts),
            micro_batches=micro,
        )
        cuts = [
            self._inside(plan, number, micro)
            if (number + 1) * width % NODE
            else crossing(plan.cluster, plan.stage(number), plan.stage(number + 1), micro)
            for number in range(count - 1)
        ]
        if count == 1:
            steps = [figure.prediction.step + (micro - 1) * figure.pace for figure in figures]
            longest = max(steps)
            return longest + compose_prediction(plan, figures).reduction
        return compose_prediction(plan, figures, cuts).step

    def _part(
        self, row: HetRow, number: int, kind: str, devices: int, micro: int
    ) -> tuple[Plan, PartFigures]:
        """The plan of a part for all micro-batches, and its figures."""
        cluster = self._cluster(kind, devices)
        samples = row.micro_batch * devices // row.tensor
        key = (row.sizes, row.stages, number, kind, devices, samples, row.tensor)
        if key not in self._figures:
            one, two = (
                simulated_part(self._plan(row, number, samples, count, cluster)) for count in (1, 2)
            )
            pace = Seconds(max(0.0, two.step - one.step))
            self._figures[key] = PartFigures(prediction=one, pace=pace)
        return self._plan(row, number, samples, micro, cluster), self._figures[key]

    def _cluster(self, kind: str, devices: int) -> Cluster:
        node = self._nodes[kind]
        if devices >= NODE:
            return node.resized({"node": devices // NODE})
        return node.resized({"gpu": devices})

    def _plan(
        self,
        row: HetRow,
        number: int,
        samples: int,
        micro: int,
        cluster: Cluster,
    ) -> Plan:
        graph = self._graph(row, number, samples * micro)
        options = Options(mixed=True, micro_batches=micro, recompute=self._recompute)
        if row.tensor == 1:
            # A stage of one layer has no layers that repeat, which degrees are told by.
            return data_parallel(graph, cluster).changed(options=options)
        config = ParallelConfig(
            data=cluster.devices // row.tensor,
            tensor=row.tensor,
            mixed=True,
            micro_batches=micro,
            recompute=self._recompute,
        )
        return configured(graph, cluster, config)

    def _graph(self, row: HetRow, number: int, samples: int) -> OperatorGraph:
        """The operators of a stage with so many samples."""
        key = (row.sizes, row.stages, number, samples)
        if key not in self._graphs:
            whole = self._whole(row, samples)
            starts = (*layer_starts(whole), len(whole.operators))
            ends = [0]
            for units in row.stages[:-1]:
                ends.append(ends[-1] + units)
            ends.append(sum(row.stages))
            first, last = (
                self._position(end, starts, sum(row.stages)) for end in ends[number : number + 2]
            )
            if len(row.stages) == 1:
                self._graphs[key] = whole
            else:
                names = [operator.name for operator in whole.operators[first:last]]
                self._graphs[key] = stage_graph(whole, names, f"stage {number}")
        return self._graphs[key]

    def _position(self, units: int, starts: Sequence[int], total: int) -> int:
        """Operators before a cut behind so many units."""
        if units == 0:
            return 0
        if units == total:
            return starts[-1]
        layers = units - BEFORE
        if not 0 <= layers < len(starts) - 1:
            raise InputError(f"a stage ends behind unit {units}, not at a layer", "skip the row")
        return starts[layers]

    def _whole(self, row: HetRow, samples: int) -> OperatorGraph:
        key = (row.sizes, samples)
        if key not in self._graphs:
            sizes = dict(row.sizes)
            layers = sizes.pop("layers")
            shape = PublishedSizes(
                structure="gpt",
                layers=layers,
                sizes=(*sizes.items(), ("key_value_heads", sizes["heads"])),
            )
            graph = resize_template(self._template(), shape, samples)
            self._graphs[key] = cast_graph(graph, "float16")
        return self._graphs[key]

    def _inside(self, plan: IslandPlan, number: int, micro: int) -> float:
        """Seconds of what crosses a cut inside of a node, both ways."""
        sender, receiver = plan.stage(number)[0], plan.stage(number + 1)[0]
        size = sum(
            tensor.spec.bytes
            for tensor in receiver.plan.graph.inputs
            if tensor.name in sender.plan.graph.producers
        )
        devices = sender.plan.cluster.devices
        held = size / micro / devices
        cluster = sender.plan.cluster
        pair = cluster.resized({"node": 1, "gpu": 2 * devices})
        beside = (Digit(devices, PatternUse.EVERY),) if devices > 1 else ()
        pattern = ((), (Digit(2, PatternUse.MEMBER), *beside))
        lines = Pricer(pair, NCCL, algorithm="best").lines(Movement.SEND, pattern)
        return 2 * cheapest_line(lines, held).at(held)


def median_error(judged: Sequence[HetJudged]) -> float:
    """The median of the errors of rows that were measured and predicted."""
    errors = sorted(row.error for row in judged if row.error is not None)
    if not errors:
        return math.nan
    middle = len(errors) // 2
    return errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2


def pairs_in_order(judged: Sequence[HetJudged]) -> float:
    """The share of pairs of rows of one experiment whose order is predicted."""
    right = total = 0
    known = [row for row in judged if row.error is not None]
    for number, one in enumerate(known):
        for other in known[:number]:
            same = one.row.experiment == other.row.experiment
            if same and one.row.measured != other.row.measured:
                total += 1
                assert one.predicted is not None
                assert other.predicted is not None
                assert one.row.measured is not None
                assert other.row.measured is not None
                right += (one.predicted < other.predicted) == (
                    one.row.measured < other.row.measured
                )
    return right / total if total else math.nan
