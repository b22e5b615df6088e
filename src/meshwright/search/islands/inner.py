"""Inner plans of islands: the joint search's plan of each part, memoised. Enters: a regular
machine, operators and samples. Leaves: the best regular plan that was found, once for each.

The joint search plans a part for some samples; for others near by the same layouts are simulated
again, unless the question is small enough to search each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.cost.backend import Backend
from meshwright.graph.batch import with_samples
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.stage_graph import stage_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.constraints import Constraints, parse_constraints
from meshwright.search.joint.request.question import PlanRequest
from meshwright.simulate.island_step import simulated_part

Run = tuple[int, int]
"""Operators of a graph: from, to."""

Key = tuple[Cluster, Run]


class InnerPlans:
    """Plans of one graph, by machine, operators and samples."""

    def __init__(
        self,
        graph: OperatorGraph,
        training: Options,
        budget: Budget,
        backend: Backend,
        seed: int,
        cores: int,
        *,
        thorough: bool,
    ) -> None:
        """Enter besides: the budget of each search; whether each number of samples has its own."""
        self._graph, self._training, self._budget = graph, training, budget
        self._backend, self._seed, self._cores = backend, seed, cores
        self._thorough = thorough
        self._graphs: dict[tuple[Run, int], OperatorGraph] = {}
        self._known: dict[tuple[Key, int], Candidate | None] = {}
        self._plans: dict[Key, list[Plan]] = {}
        self._running: dict[Cluster, list[Plan]] = {}
        """Plans of the whole graph that others have found, by machine."""
        self.searched = self.simulated = 0
        self.told: Callable[[str], None] = lambda _: None

    def learn(self, plan: Plan) -> None:
        """Take a plan of the whole graph into account, besides what is searched for."""
        names = [operator.name for operator in self._graph.operators]
        if [operator.name for operator in plan.graph.operators] == names:
            cluster = _plain(plan.cluster)
            self._running.setdefault(cluster, []).append(plan.changed(cluster=cluster))

    @property
    def whole(self) -> Run:
        """All operators."""
        return 0, len(self._graph.operators)

    def graph(self, run: Run, samples: int) -> OperatorGraph:
        """A run of operators with so many samples."""
        key = run, samples
        if key not in self._graphs:
            sized = with_samples(self._graph, samples)
            if run != self.whole:
                names = [operator.name for operator in sized.operators[run[0] : run[1]]]
                sized = stage_graph(sized, names, f"operators {run[0]} to {run[1]}")
            self._graphs[key] = sized
        return self._graphs[key]

    def best(self, cluster: Cluster, run: Run, samples: int) -> Candidate | None:
        """The best plan that is known for a part; searched for where none is, or always."""
        named = _plain(cluster)
        key, where = (named, run), ((named, run), samples)
        if where not in self._known:
            usable = self._usable(self._plans.get(key, ()), run, samples)
            if not usable or self._thorough:
                searched = self._search(named, run, samples)
                if searched is not None:
                    self._plans.setdefault(key, []).append(searched.plan)
                    usable.append(searched)
            if run == self.whole:
                usable += self._usable(self._running.get(named, ()), run, samples)
            self._known[where] = min(usable, key=_rank) if usable else None
        return self._known[where]

    def _usable(self, plans: Iterable[Plan], run: Run, samples: int) -> list[Candidate]:
        candidates = (self._resized(plan, run, samples) for plan in plans)
        return [candidate for candidate in candidates if candidate is not None]

    def _resized(self, plan: Plan, run: Run, samples: int) -> Candidate | None:
        """A plan for other samples; None if its layouts cannot cut them."""
        try:
            changed = plan.changed(graph=self.graph(run, samples))
            self.simulated += 1
            return Candidate(changed, simulated_part(changed))
        except InputError:
            return None

    def _search(self, cluster: Cluster, run: Run, samples: int) -> Candidate | None:
        """The best plan of the joint search; None if there is none."""
        self.told(f"{cluster.devices} x {cluster.device.name}, {samples} samples")
        stage = run != self.whole
        constraints = parse_constraints(fixes=FLAT) if stage else Constraints()
        try:
            question = PlanRequest(
                graph=self.graph(run, samples),
                cluster=cluster,
                memory=cluster.device.memory,
                training=self._training,
                constraints=constraints,
            )
            best = best_plan(
                question,
                self._budget,
                backend=self._backend,
                rewrites=False,
                bounded=False,
                seed=self._seed,
                cores=self._cores,
            ).best
        except InputError:
            return None
        self.searched += 1
        plan = msgspec.structs.replace(best.plan, origin=f"joint on {cluster.devices} devices")
        return Candidate(plan, best.prediction)


FLAT = ("stages=1", "micro-batches=1")
"""What a part that is a stage keeps to: micro-batches flow between stages, not inside of one."""


def _plain(cluster: Cluster) -> Cluster:
    """A cluster without its name: islands of one kind share plans."""
    return msgspec.structs.replace(cluster, name="island", description="", source="")


def _rank(candidate: Candidate) -> tuple[int, float]:
    return candidate.prediction.missing, candidate.prediction.step
