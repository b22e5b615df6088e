"""Predicted step time and memory of published rows, by the planner's simulator. Enters: rows, and
what captures a model. Leaves: a `JudgedRow` for each: seconds and bytes by the simulator that plans
are decided with, or the reason why there is no prediction.

A row becomes a model (`models`), a machine (`machines`) and a configuration (`configs`), these a
plan (`configs`), and the plan is simulated (`simulate.simulation`). Nothing is corrected
afterwards. A structure is captured once (`shapes`); rows that ask the same are predicted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL
from meshwright.cost.tables import pricer_of
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import Simulation, simulate
from meshwright.validate.published.configs import ORDERS, PublishedLayout, published_layout
from meshwright.validate.published.folds import Key, folds_of, held_out, key_of
from meshwright.validate.published.machines import machine_of
from meshwright.validate.published.models import shape_of
from meshwright.validate.published.rows import PublishedRow, load_published
from meshwright.validate.published.shapes import (
    GraphOf,
    PublishedSizes,
    captured_template,
    resize_template,
)

NO_FOLDS: Mapping[Key, int] = MappingProxyType({})


class JudgedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row beside its prediction."""

    row: PublishedRow
    predicted_s: Seconds | None = None
    predicted_bytes: Bytes | None = None
    fits: bool | None = None
    """Whether it is predicted to fit."""
    config: str = ""
    """What was simulated."""
    assumed: tuple[str, ...] = ()
    skipped: str | None = None
    """Why there is no prediction."""

    @property
    def ratio(self) -> float | None:
        """Predicted over measured seconds."""
        if self.predicted_s is None or self.row.measured_s is None:
            return None
        return self.predicted_s / self.row.measured_s

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured bytes."""
        if self.predicted_bytes is None or self.row.measured_bytes is None:
            return None
        return self.predicted_bytes / self.row.measured_bytes


class PublishedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prediction depends on."""

    shape: PublishedSizes
    cluster: Cluster
    layout: PublishedLayout


def judged(
    rows: Sequence[PublishedRow], graph_of: GraphOf, *, without: bool = False
) -> Iterator[JudgedRow]:
    """Every row beside its prediction, in their order; on request with rates that were fitted
    without it.
    """
    predictor = Predictor(graph_of, folds_of(load_published()) if without else {})
    for row in rows:
        yield predictor.judge(row)


class Predictor:
    """Predicts rows, each distinct question and each distinct model once."""

    def __init__(self, graph_of: GraphOf, folds: Mapping[Key, int] = NO_FOLDS) -> None:
        self._folds = folds
        self._template = lru_cache(maxsize=None)(lambda name: captured_template(name, graph_of))
        self._shaped = lru_cache(maxsize=4)(self._shape)
        self._known: dict[PublishedQuestion, JudgedRow] = {}

    def judge(self, row: PublishedRow) -> JudgedRow:
        """A row beside its prediction, or the reason why there is none."""
        try:
            question = self._question(row)
            if question not in self._known:
                self._known[question] = self._predict(row, question)
            return replace(self._known[question], row=row)
        except InputError as error:
            return JudgedRow(row=row, skipped=f"{error.problem}; {error.remedy}")
        except Exception as error:  # A row that nobody has seen must not end the others.
            return JudgedRow(row=row, skipped=f"{type(error).__name__}: {error}")

    def _question(self, row: PublishedRow) -> PublishedQuestion:
        question, fold = question_of(row), self._folds.get(key_of(row))
        if fold is None:
            return question
        return replace(question, cluster=held_out(question.cluster, fold))

    def _predict(self, row: PublishedRow, question: PublishedQuestion) -> JudgedRow:
        layout = question.layout
        simulation, assumed = self.simulated(question)
        prediction = simulation.prediction
        return JudgedRow(
            row=row,
            predicted_s=prediction.step,
            predicted_bytes=prediction.memory.total,
            fits=not prediction.missing,
            config=str(layout.config),
            assumed=(*layout.assumed, *assumed),
        )

    def simulated(self, question: PublishedQuestion) -> tuple[Simulation, tuple[str, ...]]:
        """The simulation of a row's plan, with what had to be changed for it to lie there."""
        layout = question.layout
        graph = self._shaped(question.shape, layout.samples, layout.dtype, layout.frozen)
        plan, assumed = placed(graph, question.cluster, layout.config)
        prices = CollectivePrices(Pricer(plan.cluster, NCCL, algorithm="best"), programs=False)
        return simulate(plan, prices, pricer_of(plan.cluster.device)), assumed

    def _shape(
        self, shape: PublishedSizes, samples: int, dtype: str, frozen: bool
    ) -> OperatorGraph:
        """A model with all its layers and samples."""
        graph = cast_graph(resize_template(self._template(shape.structure), shape, samples), dtype)
        return _frozen(graph) if frozen else graph


def question_of(row: PublishedRow) -> PublishedQuestion:
    """What is asked of a row; refuses one that cannot be expressed."""
    shape, cluster = shape_of(row), machine_of(row)
    layout = published_layout(row, shape.layers, cluster.hierarchy[-1])
    return PublishedQuestion(shape=shape, cluster=cluster, layout=layout)


def placed(
    graph: OperatorGraph, cluster: Cluster, config: ParallelConfig
) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a configuration, with what had to be changed for it to lie on the machine: the
    order of ranks, or machines of fewer devices.
    """
    first: InputError | None = None
    for machine in _machines(cluster):
        for order in ORDERS:
            try:
                plan = configured(graph, machine, replace(config, order=order))
            except InputError as error:
                first = first or error
                continue
            changed = []
            if order != ORDERS[0]:
                changed.append("the pipeline's ranks lie inside those of data")
            if machine is not cluster:
                changed.append(f"machines of {machine.hierarchy[-1]} devices, so that axes lie "
                               "evenly")  # fmt: skip
            return plan, tuple(changed)
    assert first is not None
    raise first


def _machines(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, and those with smaller machines."""
    yield cluster
    if len(cluster.levels) == 1:
        return
    outer, inner = cluster.levels[0], cluster.levels[-1]
    for each in reversed(divisors(inner.cardinality)[:-1]):
        count = outer.cardinality * inner.cardinality // each
        yield cluster.resized({outer.name: count, inner.name: each})


def _frozen(graph: OperatorGraph) -> OperatorGraph:
    """A model of which only weights of one dim are trained: norms."""
    parameters = tuple(
        replace(parameter, trainable=len(parameter.tensor.dims) == 1)
        for parameter in graph.parameters
    )
    return replace(graph, parameters=parameters)
