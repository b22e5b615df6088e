"""`IslandReductionPlan`: a verified program over unequal groups, and what it is for. Enters: a sum
of islands and how much is summed up. Leaves: an `IslandReductionPlan`, checked by both judges, so
that a communication library can carry it out. It knows of none.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from meshwright.base.errors import InputError, shown
from meshwright.cluster.island_cluster import IslandCluster, regular_parts
from meshwright.collectives.islands.cheapest_island_program import IslandPredictor
from meshwright.collectives.islands.island_lowering import LoweredIslands, lower_island_program
from meshwright.collectives.islands.island_program import IslandProgram
from meshwright.collectives.islands.island_synthesis import inner_hierarchy
from meshwright.collectives.islands.island_verification import island_problem
from meshwright.collectives.recipe import Recipe, recipe
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import backend_named

_TEXT = re.compile(r"sum over (\d+) devices of (.+?) by (.+)")


class IslandReductionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Data summed over all devices of a sum of islands, and the program that does it.

    Rank i is device i, counted island by island.

    >>> from meshwright.cluster.island_toml import named_machine
    >>> plan = IslandReductionPlan.chosen(named_machine("mixed-v100-t4"), bytes=2**20)
    >>> print(plan)  # doctest: +ELLIPSIS
    sum over 16 devices of v100, t4 by [v100: node.InsideGroup.ReduceScatter; ...
    >>> IslandReductionPlan.parse(str(plan), plan.cluster) == plan
    True
    """

    cluster: IslandCluster
    program: IslandProgram

    def __post_init__(self) -> None:
        names = tuple(island.name for island in self.cluster.islands)
        if self.program.islands != names:
            raise InputError(
                f"the program is of islands {', '.join(self.program.islands)}, and the cluster has "
                f"{', '.join(names)}",
                "give a program of these islands",
            )
        wrong = island_problem(self.cluster, self.program)
        if wrong is not None:
            raise InputError(
                f"the program {str(self.program)!r} does not sum over all devices of "
                f"{self.cluster.name!r} ({wrong})",
                "give a program that 'meshwright reduce' lists",
            )

    def __str__(self) -> str:
        names = ", ".join(self.program.islands)
        return f"sum over {self.cluster.devices} devices of {names} by {self.program}"

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices that reduce together: all."""
        return (tuple(range(self.cluster.devices)),)

    def recipe(self, device: int) -> Recipe:
        """What one device does."""
        steps, weights = _lowered(self)
        return recipe(steps, self.groups, device, weights)

    @staticmethod
    def chosen(
        cluster: IslandCluster,
        *,
        bytes: int,  # noqa: A002 the unit is the name
        backend: str = "nccl",
    ) -> IslandReductionPlan:
        """The program of least predicted time to sum up so many bytes."""
        library = backend_named(backend)
        cheapest = IslandPredictor(
            cluster, lambda regular: Pricer(regular, library), bytes
        ).cheapest()
        return IslandReductionPlan(cluster=cluster, program=cheapest.program)

    @staticmethod
    def parse(text: str, cluster: IslandCluster) -> IslandReductionPlan:
        """A plan from its text form, for a cluster."""
        match = _TEXT.fullmatch(text.strip())
        names = [island.name for island in cluster.islands]
        if match is None:
            raise InputError(
                f"{shown(text)} is not a reduction plan over islands",
                "write 'sum over N devices of ISLAND, ... by PROGRAM'",
            )
        devices, islands, program = match.groups()
        if int(devices) != cluster.devices or islands != ", ".join(names):
            raise InputError(
                f"the plan is for {devices} devices of {islands}, and cluster {cluster.name!r} has "
                f"{cluster.devices} of {', '.join(names)}",
                "give a plan for this cluster",
            )
        return IslandReductionPlan(cluster=cluster, program=IslandProgram.parse(program, names))

    def to_json(self) -> bytes:
        """The plan with its cluster; `from_json` reads it back."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(content: bytes | str) -> IslandReductionPlan:
        """The plan that `to_json` wrote."""
        try:
            return msgspec.json.decode(content, type=IslandReductionPlan)
        except msgspec.DecodeError as error:
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise InputError(
                f"this is no reduction plan over islands ({error})", "give what 'to_json' wrote"
            ) from None


@lru_cache(maxsize=16)
def _lowered(plan: IslandReductionPlan) -> LoweredIslands:
    islands = [inner_hierarchy(part) for part in regular_parts(plan.cluster)]
    return lower_island_program(islands, plan.program)
