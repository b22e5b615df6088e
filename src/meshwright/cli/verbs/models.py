"""The verbs `models` and `capture`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli.console import new_console, print_json, print_parts
from meshwright.cli.rule_options import OperatorsOption, defined_operators
from meshwright.cli.shared_options import (
    BatchOption,
    JsonOption,
    ModelArgument,
    SequenceOption,
    captured_graph,
    chosen,
)

if TYPE_CHECKING:
    from rich.table import Table

OptimizerOption = Annotated[str, typer.Option(help="sgd, momentum or adam, for the memory.")]


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these; all by default.", autocompletion=completion.zoo_names),
    ] = None,
    optimizer: OptimizerOption = "adam",
    json: JsonOption = False,
) -> None:
    """List the models that come with Meshwright: parameters, flops a step, memory.

    Each at its published size. Any class of Transformers is a model too: hf:ClassName.

    Example:  meshwright models bert-large resnet-50
    """
    from meshwright.capture.source.zoo_names import PUBLISHED
    from meshwright.cost.memory import OPTIMIZERS
    from meshwright.cost.zoo_figures import figures_of, zoo_figures

    kind = chosen(optimizer, OPTIMIZERS, "--optimizer")
    known = {name: figures_of(name) for name in names} if names else zoo_figures()
    figures = [figure.with_optimizer(kind) for figure in known.values()]
    batches = {name: figure.batch for name, figure in known.items()}
    if json:
        from meshwright.report.documents import model_document

        print_json({"models": [model_document(one, batches[one.name]) for one in figures]})
    else:
        from meshwright.report.terminal_tables import table_of_models

        parts: list[str | Table] = [table_of_models(figures, batches)]
        if not names:
            others = ", ".join(f"hf:{name}" for name in PUBLISHED)
            parts.append(f"Of Transformers, with their published configurations: {others}.")
        print_parts(*parts)


def capture(
    model: ModelArgument,
    batch: BatchOption = None,
    seq: SequenceOption = None,
    optimizer: OptimizerOption = "adam",
    mixed: Annotated[
        bool, typer.Option("--mixed", help="The optimizer keeps float32 copies of the weights.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Repeated layers keep only what enters them.")
    ] = False,
    save: Annotated[str | None, typer.Option(help="Write the graph as JSON to this file.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the graph as text.")] = False,
    operators: OperatorsOption = None,
    json: JsonOption = False,
) -> None:
    """Capture a PyTorch model as an operator graph and sum it up.

    A model is zoo:NAME[/tiny][?size=value], path/to/file.py:function, package.module:function,
    hf:ClassName[?key=value], a .pt2 program, a graph saved with --save or a plan.

    Example:  meshwright capture zoo:bert-large --batch 8
    """
    import msgspec

    from meshwright.base.errors import InputError
    from meshwright.base.files import write_atomically
    from meshwright.cost.figures import model_figures
    from meshwright.cost.memory import OPTIMIZERS
    from meshwright.report.documents import model_document
    from meshwright.report.words import describe_model
    from meshwright.search.resolve import with_sequence

    kind = chosen(optimizer, OPTIMIZERS, "--optimizer")
    if batch is not None and batch < 1:
        raise InputError(f"--batch is {batch}", "give 1 or more")
    graph = captured_graph(with_sequence(model, seq), batch, operators=defined_operators(operators))
    if save is not None:
        write_atomically(save, msgspec.json.encode(graph))
    figures = model_figures(graph, kind, mixed=mixed, recompute=recompute)
    if json:
        print_json(model_document(figures, batch))
    elif text:
        print(graph)
    else:
        new_console().print(describe_model(graph, figures))
