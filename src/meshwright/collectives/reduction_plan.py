"""`ReductionPlan`: a verified reduction program, and what it is for. Enters: a cluster and how much
is summed up. Leaves: a `ReductionPlan`: the placement, the axes that are summed over and the
program, checked by both judges, so that a communication library can carry it out. It knows of none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from meshwright.base.errors import InputError, shown
from meshwright.base.integers import parse_whole
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import Program
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.lowering import lower_program, reduction_groups
from meshwright.collectives.predict import cheapest
from meshwright.collectives.recipe import Recipe, recipe
from meshwright.collectives.verify import problem
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import backend_named
from meshwright.sharding.axes import Axis, checked_axes, fitted
from meshwright.sharding.placement import Matrix, Placement, parse_matrix, placements

NOTHING = "nothing"
"""How the program without a step is written: axes of size one need none."""

_TEXT = re.compile(r"sum over (\S+) of (\S+) as (\[.*\]) by (.+)")


class ReductionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Data summed over some axes of a placement on a cluster, and the program that does it.

    >>> plan = ReductionPlan.chosen(Cluster.named("gcp-a100", node=2), bytes=2**30)
    >>> print(plan)
    sum over data of data=32 as [[2 16]] by node.InsideGroup.ReduceScatter; \
node.Parallel(root).AllReduce; node.InsideGroup.AllGather
    >>> ReductionPlan.parse(str(plan), plan.cluster) == plan
    True
    """

    cluster: Cluster
    placement: Placement
    reduce: tuple[str, ...]
    program: Program

    def __post_init__(self) -> None:
        self.placement.on(self.cluster)
        wrong = problem(self.hierarchy, self.program)
        if wrong is not None:
            raise InputError(
                f"the program {str(self.program)!r} does not sum over {'+'.join(self.reduce)} "
                f"({wrong})",
                "give a program that 'meshwright reduce' lists",
            )

    def __str__(self) -> str:
        axes = ",".join(map(str, self.placement.axes))
        program = str(self.program) or NOTHING
        return f"sum over {'+'.join(self.reduce)} of {axes} as {self.placement} by {program}"

    @property
    def hierarchy(self) -> Hierarchy:
        """The levels that the program's instructions name."""
        return Hierarchy(self.placement, self.cluster.level_names, self.reduce)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices that reduce together."""
        return reduction_groups(self.hierarchy)

    def recipe(self, device: int) -> Recipe:
        """What one device does."""
        hierarchy = self.hierarchy
        return recipe(lower_program(hierarchy, self.program), reduction_groups(hierarchy), device)

    @staticmethod
    def chosen(
        cluster: Cluster,
        *,
        bytes: int,  # noqa: A002 the unit is the name
        axes: Mapping[str, int] | Sequence[Axis] | None = None,
        reduce: Sequence[str] | None = None,
        matrix: Matrix | str | None = None,
        backend: str = "nccl",
    ) -> ReductionPlan:
        """The program of least predicted time to sum up so many bytes.

        Without axes everybody sums up with everybody. What is summed over is the first axis unless
        `reduce` says otherwise; the placement is the best one unless a matrix says otherwise.
        """
        named = checked_axes({"data": cluster.devices} if axes is None else axes)
        over = (named[0].name,) if reduce is None else tuple(reduce)
        pricer = Pricer(cluster, backend_named(backend))
        candidates = [
            (placement, cheapest(Hierarchy(placement, cluster.level_names, over), pricer, bytes))
            for placement in _placements(cluster, named, matrix)
        ]
        placement, best = min(candidates, key=lambda pair: pair[1].seconds)
        return ReductionPlan(
            cluster=cluster, placement=placement, reduce=over, program=best.program
        )

    @staticmethod
    def parse(text: str, cluster: Cluster) -> ReductionPlan:
        """A plan from its text form, for a cluster."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"{shown(text)} is not a reduction plan",
                "write 'sum over AXES of AXIS=SIZE,... as MATRIX by PROGRAM'",
            )
        over, axes, matrix, program = match.groups()
        return ReductionPlan(
            cluster=cluster,
            placement=Placement(tuple(map(_axis, axes.split(","))), parse_matrix(matrix)),
            reduce=tuple(over.split("+")),
            program=Program(()) if program == NOTHING else Program.parse(program),
        )

    def to_json(self) -> bytes:
        """The plan with its cluster; `from_json` reads it back."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(content: bytes | str) -> ReductionPlan:
        """The plan that `to_json` wrote."""
        try:
            return msgspec.json.decode(content, type=ReductionPlan)
        except msgspec.DecodeError as error:
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise InputError(
                f"this is no reduction plan ({error})", "give what 'to_json' wrote"
            ) from None


def _placements(
    cluster: Cluster, axes: tuple[Axis, ...], matrix: Matrix | str | None
) -> Iterable[Placement]:
    if matrix is None:
        return placements(cluster, axes, idle=True)
    rows = parse_matrix(matrix) if isinstance(matrix, str) else matrix
    return [Placement(fitted(axes, cluster, idle=True), rows).on(cluster)]


def _axis(text: str) -> Axis:
    """An axis of a placement, which may be idle."""
    name, _, size = text.partition("=")
    return Axis(name, parse_whole(size))
