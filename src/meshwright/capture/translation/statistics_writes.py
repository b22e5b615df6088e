"""Batch normalisation's running statistics: uses that a plan cannot follow. Enters: a translation,
and which operators a graph keeps of it. Leaves: nothing, or a sentence that names the line.

Batch normalisations write their running statistics while the graph knows these as they were before
the step. So nobody else may read them, and no call may be left out beside others.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from meshwright.base.errors import InputError
from meshwright.capture.operators.nodes import place
from meshwright.capture.translation.applied import Applied
from meshwright.capture.translation.translate import Translation
from meshwright.graph.running_statistics import follows


def refuse_unfollowed(translation: Translation, kept: AbstractSet[str]) -> None:
    """Refuse a graph that reads statistics which it follows, or leaves out some of their calls."""
    followed = {
        name
        for operator in translation.operators
        if operator.name in kept
        for name in _written(operator)
    }
    for operator in translation.operators:
        written = _written(operator)
        name = next((name for name in operator.described.inputs if name in followed), None)
        if name is None or (written and operator.name in kept):
            continue
        output, _ = operator.outputs[0]
        where = next(
            (place(node) for node, names in translation.found.items() if output in names), ""
        )
        if written:
            raise InputError(
                f"the model normalises more than once by {name.rpartition('.')[0]!r}, and what the "
                f"call{where} makes is not used: a plan would leave out what its running "
                "statistics follow there",
                "leave that call out, or use what it makes",
            )
        if operator.name in kept:
            raise InputError(
                f"the model reads {name!r}{where}, which a batch normalisation changes in the same "
                "step: a plan does not tell before from after",
                "read it in the loop, between steps, and give it to the model as an input",
            )


def _written(operator: Applied) -> tuple[str, ...]:
    """The statistics that a call follows."""
    call = operator.described
    return follows(call.kind, call.inputs, call.attributes)
