"""Opaque operators: unknown kinds, kept with the shapes that were seen.

Bytes are counted, flops are not. Such an operator may be cut only where a capture has proven that
each sample is treated alone; it says so in the attribute `independent`: the dim of each input and
then of each output along which samples lie, -1 for what every sample needs whole.
"""

from __future__ import annotations

from typing import final

from meshwright.graph.family import Family, Saved, Split, Wanted, integers
from meshwright.graph.operator_graph import Call, Spec


@final
class Opaque(Family):
    """Any operator at all."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """What was seen."""
        return call.outputs

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The sample dim, if it is proven to be one."""
        dims = tuple(dim if dim >= 0 else None for dim in integers(call, "independent", ()))
        inputs, outputs = dims[: len(call.inputs)], dims[len(call.inputs) :]
        first = outputs[0] if outputs else None
        if first is None or len(outputs) != len(call.outputs):
            return ()
        extent = call.outputs[0].shape[first]
        return (Split(name="sample", role="sample", extent=extent, inputs=inputs, outputs=outputs),)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Everything, since nobody knows better."""
        return Saved(inputs=tuple(range(len(call.inputs))), outputs=tuple(range(len(call.outputs))))
