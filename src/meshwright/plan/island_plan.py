"""Plans over islands (uneven data parallelism, pipeline stages of different widths and devices).
Enters: regular plans, one for each part. Leaves: an `IslandPlan`, checked, and its file.

A part is a regular plan on an island, on some of it, or on several taken as one regular machine.
Parts of one stage share the samples of a step, `share` each: gradients are means weighted by
samples. Stages follow each other; between them micro-batches flow. Islands without a part are idle.

    sum of shares of the parts of a stage = batch                                     (each stage)
    a part's graph is the stage's with its share of the samples
    devices of an island's parts <= devices of the island

Whatever is planned can be predicted (`simulate.islands`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.files import write_atomically
from meshwright.base.quantities import Bytes, Seconds, counted, format_bytes, format_seconds
from meshwright.base.sheet import Sheet, printed
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import IslandCluster, levels_text
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import backend_named
from meshwright.graph.batch import samples_of
from meshwright.graph.operator_graph import Parameter
from meshwright.graph.stage_graph import GATE
from meshwright.plan.file import MAKE, parse_plan, plan_bytes
from meshwright.plan.plan import Plan, Prediction

VERSION = 1
KEY = "meshwright_island_plan"


class IslandPart(msgspec.Struct, frozen=True, kw_only=True):
    """A regular plan on an island, or on a regular machine that is some of several."""

    islands: tuple[str, ...]
    """By name; several: as many devices of each as make one regular machine."""
    plan: Plan
    share: int
    """Samples of a step."""
    stage: int = 0

    @property
    def name(self) -> str:
        """The islands, as people say it."""
        return "+".join(self.islands)


@printed
class IslandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who does what on a sum of islands."""

    origin: str
    cluster: IslandCluster
    batch: int
    parts: tuple[IslandPart, ...]
    micro_batches: int = 1
    """That flow through the stages; with one stage each part has its own number."""
    model: str = ""
    """As in `Plan`."""
    inputs: tuple[str, ...] = ()
    """Of the model, in order; none: those of the first part, which has all where islands share."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("the plan has no part", "give at least one island something to do")
        numbers = sorted({island_part.stage for island_part in self.parts})
        if numbers != list(range(len(numbers))):
            raise InputError(f"the stages are numbered {numbers}", "number them from 0 on")
        for number in numbers:
            total = sum(island_part.share for island_part in self.stage(number))
            if total != self.batch:
                raise InputError(
                    f"the parts of stage {number} share {counted(total, 'sample')}, and a step has "
                    f"{self.batch}",
                    "give shares that add up to the batch",
                )
        for part in self.parts:
            samples = samples_of(part.plan.graph)
            if part.share < 1 or not self._is_for_its_share(part, samples):
                raise InputError(
                    f"part {part.name!r} has a share of {part.share} and a plan for {samples}",
                    "plan it for its share",
                )
        self._refuse_crowded()
        self._refuse_unknown_inputs()

    def _is_for_its_share(self, part: IslandPart, samples: int | None) -> bool:
        # Of one sample nobody can tell which dim it lies along.
        if samples is None or part.share == 1:
            return True
        # What enters a later stage may have several rows for each sample.
        return samples == part.share if self.stages == 1 else samples % part.share == 0

    def _refuse_unknown_inputs(self) -> None:
        graphs = [part.plan.graph for part in self.parts]
        produced = {name for graph in graphs for name in graph.producers}
        read = {tensor.name for graph in graphs for tensor in graph.inputs} - produced
        if self.inputs and not read <= {*self.inputs}:
            raise InputError(
                f"the model's inputs are {', '.join(self.inputs)}, and the parts read "
                f"{', '.join(sorted(read))}",
                "name those that the parts read",
            )

    def _refuse_crowded(self) -> None:
        for island in self.cluster.islands:
            mine = [island_part for island_part in self.parts if island.name in island_part.islands]
            several = [island_part for island_part in mine if len(island_part.islands) > 1]
            used = sum(
                island_part.plan.cluster.devices
                for island_part in mine
                if len(island_part.islands) == 1
            )
            if used > island.cluster.devices or (several and len(mine) > 1):
                raise InputError(
                    f"parts on island {island.name!r} want more than its "
                    f"{counted(island.cluster.devices, 'device')}",
                    "give it fewer or smaller parts",
                )
        for part in self.parts:
            for name in part.islands:
                self.cluster.island(name)

    def stage(self, number: int) -> tuple[IslandPart, ...]:
        """The parts of a stage."""
        return tuple(part for part in self.parts if part.stage == number)

    @property
    def stages(self) -> int:
        """How many there are."""
        return 1 + max(part.stage for part in self.parts)

    @property
    def idle(self) -> tuple[str, ...]:
        """The islands that do nothing."""
        busy = {name for part in self.parts for name in part.islands}
        return tuple(island.name for island in self.cluster.islands if island.name not in busy)

    def sheet(self) -> Sheet:
        """Who does what."""
        return Sheet(
            f"plan '{self.origin}' on {self.cluster.name}",
            (
                ("batch", str(self.batch)),
                ("stages", str(self.stages)),
                ("micro-batches between stages", str(self.micro_batches)),
                ("idle", ", ".join(self.idle) or "none"),
            ),
            ("island", "stage", "share", "devices", "plan"),
            tuple(
                (
                    part.name,
                    str(part.stage),
                    str(part.share),
                    levels_text(part.plan.cluster),
                    part.plan.origin,
                )
                for part in self.parts
            ),
        )


@printed
class IslandPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted of a plan over islands. Predicted, not measured."""

    step: Seconds
    parts: tuple[Prediction, ...]
    """Of each part by itself, in the order of the plan."""
    paces: tuple[Seconds, ...] = ()
    """Of each part, what one more micro-batch takes; empty with one stage."""
    reduction: Seconds = Seconds(0.0)
    """What the reduction of gradients across islands takes, behind the slowest part."""
    transfer: Seconds = Seconds(0.0)
    """What crosses between stages takes, of one micro-batch, both ways."""
    missing: Bytes = Bytes(0)
    """By how much the fullest device is too small; 0 if the plan fits."""

    def sheet(self) -> Sheet:
        """The figures of a step."""
        fits = "yes" if not self.missing else f"no, {format_bytes(self.missing)} are missing"
        return Sheet(
            "predicted",
            (
                ("step", format_seconds(self.step)),
                ("slowest part", format_seconds(max(part.step for part in self.parts))),
                ("reduction across islands", format_seconds(self.reduction)),
                ("transfers between stages", format_seconds(self.transfer)),
                ("fits", fits),
            ),
        )


class _PartFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    islands: tuple[str, ...]
    share: int
    stage: int
    plan: msgspec.Raw


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    meshwright_island_plan: int
    origin: str
    model: str
    batch: int
    micro_batches: int
    cluster: IslandCluster
    parts: tuple[_PartFile, ...]
    inputs: tuple[str, ...] = ()


def island_plan_bytes(plan: IslandPlan) -> bytes:
    """A plan as its file has it."""
    return (
        msgspec.json.format(
            msgspec.json.encode(
                _File(
                    meshwright_island_plan=VERSION,
                    origin=plan.origin,
                    model=plan.model,
                    batch=plan.batch,
                    micro_batches=plan.micro_batches,
                    cluster=plan.cluster,
                    inputs=plan.inputs,
                    parts=tuple(
                        _PartFile(
                            islands=part.islands,
                            share=part.share,
                            stage=part.stage,
                            plan=msgspec.Raw(plan_bytes(part.plan)),
                        )
                        for part in plan.parts
                    ),
                )
            ),
            indent=0,
        )
        + b"\n"
    )


def save_island_plan(plan: IslandPlan, path: str | Path) -> None:
    """Write a plan, whole or not at all; `load_island_plan` is the way back."""
    write_atomically(path, island_plan_bytes(plan))


def load_island_plan(path: str | Path) -> IslandPlan:
    """The plan of a file that `save_island_plan` wrote."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read plan {str(path)!r} ({error.strerror})", MAKE) from None
    try:
        return parse_island_plan(content)
    except InputError as error:
        raise error.at(f"plan {str(path)!r}") from None


def parse_island_plan(content: bytes) -> IslandPlan:
    """The plan that a file's bytes say."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.ValidationError, ValueError) as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise InputError(
            f"it is not what it should be ({error})", f"correct it, or {MAKE}"
        ) from None
    if file.meshwright_island_plan != VERSION:
        raise InputError(
            f"it has version {file.meshwright_island_plan}, and this Meshwright reads {VERSION}",
            f"make it anew: {MAKE}",
        )
    return IslandPlan(
        origin=file.origin,
        model=file.model,
        batch=file.batch,
        micro_batches=file.micro_batches,
        cluster=file.cluster,
        inputs=file.inputs,
        parts=tuple(
            IslandPart(
                islands=part.islands,
                share=part.share,
                stage=part.stage,
                plan=parse_plan(bytes(part.plan)),
            )
            for part in file.parts
        ),
    )


def is_island_plan(path: str | Path) -> bool:
    """Whether a file begins as those do that `save_island_plan` writes."""
    try:
        with Path(path).open("rb") as file:
            return f'"{KEY}"'.encode() in file.read(64)
    except OSError:
        return False


def tied_weights(plan: IslandPlan) -> tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]:
    """The trainable parameters that several stages read, by the numbers of these stages."""
    readers: dict[str, list[int]] = {}
    for number in range(plan.stages):
        for parameter in plan.stage(number)[0].plan.graph.parameters:
            if parameter.trainable and not parameter.tensor.name.startswith(GATE):
                readers.setdefault(parameter.tensor.name, []).append(number)
    shared: dict[tuple[int, ...], list[str]] = {}
    for name, stages in readers.items():
        if len(stages) > 1:
            shared.setdefault(tuple(stages), []).append(name)
    return tuple((stages, tuple(names)) for stages, names in sorted(shared.items()))


@lru_cache(maxsize=256)
def collective_pricer(cluster: Cluster, backend: str) -> Pricer:
    """What collectives of a part, and across parts, cost: by this the gather inside is chosen."""
    return Pricer(cluster, backend_named(backend), algorithm="best")


def gradient_bytes(parameters: Iterable[Parameter]) -> int:
    """Bytes of the gradients that parts of a stage reduce."""
    return sum(
        parameter.tensor.spec.bytes
        for parameter in parameters
        if parameter.trainable and not parameter.tensor.name.startswith(GATE)
    )


def weights(parts: Sequence[IslandPart]) -> tuple[float, ...]:
    """What each part's gradients count in a mean over all samples."""
    total = sum(part.share for part in parts)
    return tuple(part.share / total for part in parts)
