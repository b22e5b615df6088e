"""Header comments of exported configuration files. Enters: a configuration, sizes of a model.
Leaves: lines that more than one target has: the head that says what was planned and what is lost.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from meshwright.base.quantities import format_bytes, format_seconds
from meshwright.cluster.software import describe_software
from meshwright.plan.plan import Plan, Prediction

WIDTH = 96


def head(
    plan: Plan,
    written: Plan,
    predicted: tuple[Prediction, Prediction],
    config: object,
    lost: Sequence[str],
) -> list[str]:
    """What a person should know who opens the file; predicted is the plan, and what is written."""
    before, after = predicted
    levels = " x ".join(f"{level.cardinality} {level.name}" for level in plan.cluster.levels)
    lines = [
        f"Written by 'meshwright export' from the plan {plan.origin!r}.",
        f"model:   {plan.model or plan.graph.name}, {plan.batch or 'its own'} samples a step"
        if plan.batch
        else f"model:   {plan.model or plan.graph.name}",
        f"machine: {plan.cluster.name} ({levels})",
        f"layout:  {config}",
        f"step:    {format_seconds(after.step)} predicted ({describe_software(written.cluster)}), "
        f"{format_seconds(before.step)} of the plan itself ({describe_software(plan.cluster)})",
        f"memory:  {format_bytes(after.memory.total)} a device predicted"
        + (f": {format_bytes(after.missing)} TOO MUCH" if after.missing else ""),
    ]
    if lost:
        lines.append("Not said here, for the target has no word for it:")
        for note in lost:
            wrapped = textwrap.wrap(note, WIDTH - 4, break_on_hyphens=False)
            lines += [f"- {wrapped[0]}", *(f"  {line}" for line in wrapped[1:])]
    return lines


def comment(lines: Sequence[str]) -> str:
    """Lines as a comment of a shell script, TOML, YAML or Python."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
