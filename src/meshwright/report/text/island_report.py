"""Terminal report and JSON of plans over islands (heterogeneous clusters). Enters: `IslandPlanned`,
or a plan and its prediction. Leaves: what the verbs `plan`, `explain` and `replan` show; every
figure in it is predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
from rich.table import Table

from meshwright.base.quantities import Seconds, counted, format_gibibytes, format_seconds
from meshwright.cluster.island_cluster import levels_text
from meshwright.explain.stragglers import LeftOut, straggler
from meshwright.plan.island_plan import IslandPlan, IslandPrediction
from meshwright.report.documents import Document
from meshwright.report.terminal_tables import new_table
from meshwright.search.islands.island_question import IslandCandidate, IslandPlanned

EQUAL, REGULAR = "equal shares", "one regular machine"


def describe_island_question(planned: IslandPlanned) -> str:
    """What was asked."""
    machine, graph = planned.question.cluster, planned.question.graph
    islands = " + ".join(
        f"{island.name} ({levels_text(island.cluster)} {island.cluster.device.name})"
        for island in machine.islands
    )
    return (
        f"{graph.name} on {machine.name}: {islands}; batch {planned.best.plan.batch}; every figure "
        "is predicted"
    )


def table_of_alternatives(planned: IslandPlanned) -> Table:
    """The best of each kind, the fastest first."""
    table = new_table("strategy", "islands~", "step>", "speed-up>", "fits")
    slowest = max(other.prediction.step for other in planned.alternatives)
    for candidate in planned.alternatives:
        step = candidate.prediction.step
        table.add_row(
            f"{candidate.plan.origin}{' (plan)' if candidate is planned.best else ''}",
            "; ".join(_does(candidate.plan)),
            format_seconds(step),
            f"{slowest / step:.2f}x",
            "yes" if not candidate.prediction.missing else "no",
        )
    return table


def _does(plan: IslandPlan) -> list[str]:
    """What each part does, in a few words."""
    if plan.stages > 1:
        return [f"{part.name} stage {part.stage + 1} of {plan.stages}" for part in plan.parts]
    return [f"{part.name} {part.share} of {plan.batch}" for part in plan.parts]


def table_of_island_parts(plan: IslandPlan, prediction: IslandPrediction) -> Table:
    """Which island does what, and how long it takes."""
    table = new_table(
        "island", "does", "devices>", "samples/s/device>", "step>", "peak memory>", "of>"
    )
    for part, predicted in zip(plan.parts, prediction.parts, strict=True):
        devices = part.plan.cluster.devices
        samples = part.share if plan.stages == 1 else part.share / plan.micro_batches
        table.add_row(
            part.name,
            _work(plan, part.stage, part.share, len(part.plan.graph.operators)),
            str(devices),
            f"{samples / predicted.step / devices:,.4g}",
            format_seconds(predicted.step),
            format_gibibytes(predicted.memory.total),
            format_gibibytes(part.plan.cluster.device.memory),
        )
    for name in plan.idle:
        devices = plan.cluster.island(name).cluster.devices
        table.add_row(name, "idle", str(devices), "", "", "", "")
    return table


def _work(plan: IslandPlan, stage: int, share: int, operators: int) -> str:
    if plan.stages == 1:
        return f"{share} of {counted(plan.batch, 'sample')} ({share / plan.batch:.1%})"
    micro = f"{plan.micro_batches} micro-batches"
    return f"stage {stage + 1} of {plan.stages}: {operators} operators, {micro}"


def describe_island_planned(planned: IslandPlanned) -> str:
    """How good the plan is, against what people would do."""
    best, by_origin = (
        planned.best,
        {candidate.plan.origin: candidate for candidate in planned.alternatives},
    )
    lines = [describe_composition(best.plan, best.prediction)]
    against = [
        (f"{EQUAL} for every device", by_origin.get(EQUAL)),
        ("one regular machine, odd devices dropped", by_origin.get(REGULAR)),
        *(
            (f"{name}", candidate)
            for name, candidate in by_origin.items()
            if name.endswith(" alone")
        ),
    ]
    for words, other in against:
        if other is not None and other is not best:
            lines.append(f"against {words}: {_ratio(best, other)}.")
    lines.append(
        f"lower bound: {format_seconds(planned.bound)} (the model's FLOPs at the peaks of all "
        f"devices); optimality gap at most {planned.gap:.1%}."
    )
    lines += [f"not tried: {what}: {why}" for what, why in planned.refused]
    lines.append(
        f"search: {counted(planned.searched, 'regular plan')} searched for, "
        f"{counted(planned.simulated, 'part')} simulated again, in {planned.seconds:.3g} s."
    )
    return "\n".join(lines)


def _ratio(best: IslandCandidate, other: IslandCandidate) -> str:
    if other.prediction.missing and not best.prediction.missing:
        return f"it does not fit ({format_gibibytes(other.prediction.missing)} are missing)"
    ratio = other.prediction.step / best.prediction.step
    return f"{ratio:.3f}x as fast ({format_seconds(other.prediction.step)})"


def describe_composition(plan: IslandPlan, prediction: IslandPrediction) -> str:
    """Of what a step is made."""
    step = f"step: {format_seconds(prediction.step)}"
    slowest = format_seconds(Seconds(max(part.step for part in prediction.parts)))
    if plan.stages == 1:
        return (
            f"{step} = slowest island {slowest} + gradients across islands "
            f"{format_seconds(prediction.reduction)}."
        )
    return (
        f"{step}: the slowest stage takes {format_seconds(max(prediction.paces))} a micro-batch, "
        f"transfers between stages {format_seconds(prediction.transfer)}."
    )


def describe_straggler(plan: IslandPlan, prediction: IslandPrediction) -> str:
    """The slowest island, for each device, if one is clearly behind."""
    slowest = straggler(plan, prediction)
    if slowest is None:
        return "No island is a straggler: all compute about as fast for each device."
    return (
        f"straggler: a device of {slowest.island!r} does {slowest.share:.0%} of what one of "
        f"{slowest.fastest!r} does; with equal shares all would wait for it, so it has "
        f"{slowest.samples:.3g} samples a device, and {slowest.fastest!r} has {slowest.most:.3g}."
    )


def table_of_left_out(left_out: Sequence[LeftOut]) -> Table:
    """What leaving each island out would give."""
    table = new_table("without", "step>", "change>", "what is left~")
    for case in left_out:
        if case.step is None:
            table.add_row(case.island, "", "", case.why)
        else:
            table.add_row(case.island, format_seconds(case.step), f"{case.change:+.1%}", case.why)
    return table


def island_document(planned: IslandPlanned) -> Document:
    """What a script gets."""
    return {
        "step_s": planned.best.prediction.step,
        "bound_s": planned.bound,
        "gap": planned.gap,
        "plan": plan_document(planned.best),
        "alternatives": [plan_document(candidate) for candidate in planned.alternatives],
        "refused": dict(planned.refused),
        "seconds": planned.seconds,
    }


def plan_document(candidate: IslandCandidate) -> Document:
    """A plan over islands without its graphs."""
    return {
        "origin": candidate.plan.origin,
        "batch": candidate.plan.batch,
        "stages": candidate.plan.stages,
        "micro_batches": candidate.plan.micro_batches,
        "idle": list(candidate.plan.idle),
        "parts": [
            {
                "islands": list(part.islands),
                "stage": part.stage,
                "share": part.share,
                "devices": part.plan.cluster.devices,
                "prediction": msgspec.to_builtins(prediction),
            }
            for part, prediction in zip(
                candidate.plan.parts, candidate.prediction.parts, strict=True
            )
        ],
        "step_s": candidate.prediction.step,
        "reduction_s": candidate.prediction.reduction,
        "transfer_s": candidate.prediction.transfer,
        "missing_bytes": candidate.prediction.missing,
    }


def describe_island_run(
    plan: IslandPlan, predicted: Seconds, seconds: Sequence[float], losses: Sequence[float]
) -> str:
    """What was run, and how long a step took beside what was predicted."""
    step = Seconds(statistics.median(seconds))
    parts = "; ".join(_does(plan))
    return (
        f"Plan '{plan.origin}' on {plan.cluster.name} ({parts}): "
        f"{counted(len(seconds), 'step')} measured after one to warm up, loss {losses[0]:.6g} -> "
        f"{losses[-1]:.6g}.\n"
        f"step: {format_seconds(step)} measured, {format_seconds(predicted)} predicted "
        f"({step / predicted:.2f}x)."
    )


def island_run_document(
    predicted: Seconds, seconds: Sequence[float], losses: Sequence[float]
) -> Document:
    """`run --json` of a plan over islands."""
    return {
        "predicted": {"step_s": predicted},
        "measured": {
            "step_s": statistics.median(seconds),
            "steps_s": list(seconds),
            "loss": list(losses),
        },
    }
