"""`capture_model`: a model captured from Python. Enters: what names a model, or a module with
example inputs. Leaves: its `OperatorGraph`. What the user should know comes as Python warnings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.capture.load import load_graph, load_model
from meshwright.capture.source.example import Example, Loss
from meshwright.graph.cast import cast_graph, dtype_named
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.library.rule_files import read_operators


def capture_model(
    model: str | nn.Module,
    *,
    inputs: Sequence[object] = (),
    targets: Sequence[Tensor] = (),
    loss: Loss | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    operators: str | Path | None = None,
) -> OperatorGraph:
    """The operators of one forward pass of a model.

    A model is a text that `meshwright capture` takes, with its batch, or a module with example
    inputs, which say the batch; its loss is `loss(model(*inputs), *targets)`. With a dtype the
    graph is cast. A file of operators defines those of your own (docs/rules.md).

    >>> from torch import nn, zeros
    >>> from meshwright import capture_model
    >>> capture_model("zoo:lenet/tiny", batch=2).parameter_count
    288
    >>> graph = capture_model(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), inputs=(zeros(3, 4),))
    >>> [operator.kind for operator in graph.operators]
    ['linear', 'relu']
    """
    known = {} if operators is None else read_operators(operators)
    if isinstance(model, str):
        if inputs or targets or loss is not None:
            raise InputError(
                f"{model!r} brings its own inputs and loss", "give them only with a module"
            )
        captured = load_model(model, batch, known)
    else:
        if batch is not None:
            raise InputError(
                f"batch is {batch}, but a module's batch is that of its inputs", "leave it out"
            )
        example = Example(model=model, inputs=tuple(inputs), loss=loss, targets=tuple(targets))
        captured = load_graph(example, known)
    for warning in captured.warnings:
        warnings.warn(warning, stacklevel=2)
    return captured.graph if dtype is None else cast_graph(captured.graph, dtype_named(dtype))
