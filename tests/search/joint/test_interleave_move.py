"""Virtual stages of a pipeline that was found: equally many runs of units on every stage."""

from __future__ import annotations

from msgspec.structs import replace

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.tables import pricer_of
from meshwright.lower.stage_runs import runs_of, stages_of
from meshwright.plan.options import Options
from meshwright.search.joint.coarse.global_config import GlobalConfig
from meshwright.search.joint.coarse.layout_dp import LayoutWeights
from meshwright.search.joint.moves.interleave_move import simulate_interleaved
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.evaluate import Evaluator
from meshwright.simulate.collective_table import CollectivePrices
from support.baseline_graphs import transformer

CLUSTER = Cluster.named("laptop", process=2)


def test_every_stage_gets_as_many_runs_and_all_else_stays() -> None:
    graph = transformer(batch=8, layers=4)
    question = PlanRequest(graph=graph, cluster=CLUSTER, memory=Bytes(1 << 40), training=Options())
    prices = CollectivePrices(Pricer(CLUSTER, algorithm="best"))
    trials = Evaluator(question, prices, pricer_of(CLUSTER.device), lambda: False, lambda _: None)
    context = trials.context(graph)
    plain = Options(micro_batches=4)
    solution = context.solution(GlobalConfig((0,), plain), LayoutWeights(), fine=False)
    before = trials.add(
        context.simulated("joint", plain, context.roles(solution)), context, solution
    )
    assert before is not None
    simulate_interleaved(trials, lambda: False)
    assert trials.kept.simulated >= 2
    options = replace(plain, schedule="interleaved")
    candidate = context.simulated("joint", options, context.virtual(solution, 2))
    layouts = [candidate.plan.layout[unit.name] for unit in context.units]
    stages = stages_of(runs_of(layouts, options), options)
    assert [len(runs) for runs in stages.values()] == [2, 2]
    assert candidate.prediction.moved > before.candidate.prediction.moved
