"""Model statistics: parameters, FLOPs and memory of a training step on one device. Enters: a graph.
Leaves: `ModelFigures`, for lists and summaries.
"""

from __future__ import annotations

import msgspec

from meshwright.cost.memory import Memory, Optimizer, training_memory
from meshwright.graph.counts import backward_counts, forward_counts
from meshwright.graph.layers import LayerRepeat, layers
from meshwright.graph.operator_graph import OperatorGraph


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one training step of a model on one device amounts to."""

    name: str
    operators: int
    parameters: int
    forward_flops: int
    backward_flops: int
    memory: Memory
    repeats: tuple[LayerRepeat, ...]

    @property
    def flops(self) -> int:
        """Forward and backward."""
        return self.forward_flops + self.backward_flops


def model_figures(
    graph: OperatorGraph,
    optimizer: Optimizer = "adam",
    *,
    mixed: bool = False,
    recompute: bool = False,
) -> ModelFigures:
    """The figures of a graph.

    >>> from meshwright.graph.text import parse_graph
    >>> figures = model_figures(parse_graph('''graph one layer
    ... input x: float32[batch=4, in=8]
    ... parameter w: float32[out=2, in=8]
    ... operator fc: y: float32[batch=4, out=2] = linear(x, w)
    ... operator sum: l: float32[] = sum(y)
    ... output l
    ... loss l'''), "sgd")
    >>> figures.parameters, figures.forward_flops, figures.memory.parameters
    (16, 136, 64)
    """
    return ModelFigures(
        name=graph.name,
        operators=len(graph.operators),
        parameters=graph.parameter_count,
        forward_flops=forward_counts(graph).flops,
        backward_flops=backward_counts(graph).flops,
        memory=training_memory(graph, optimizer, mixed=mixed, recompute=recompute),
        repeats=layers(graph),
    )
