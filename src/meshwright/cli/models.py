"""The verbs `models` and `capture`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli.console import new_console, print_json, progress
from meshwright.cli.options import BatchOption, JsonOption, ModelArgument, captured_graph, chosen
from meshwright.cli.rule_options import OperatorsOption, defined_operators

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshwright.cost.figures import ModelFigures

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

    Each is captured anew at its published size, without weights, which takes seconds.

    Example:  meshwright models bert-large resnet-50
    """
    from meshwright.capture.zoo import ENTRIES, entry
    from meshwright.report.documents import figures_document
    from meshwright.report.tables import table_of_models

    chosen_entries = [entry(name) for name in names] if names else list(ENTRIES)
    batches = {known.name: known.batch for known in chosen_entries}
    figures = _figures([f"zoo:{name}" for name in batches], optimizer)
    if json:
        print_json({"models": [figures_document(one, batches[one.name]) for one in figures]})
    else:
        new_console().print(table_of_models(figures, batches))


def capture(
    model: ModelArgument,
    batch: BatchOption = None,
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
    hf:ClassName[?key=value], a .pt2 program or a graph saved with --save.

    Example:  meshwright capture zoo:bert-large --batch 8
    """
    import msgspec

    from meshwright.base.errors import InputError
    from meshwright.base.files import write_whole
    from meshwright.cost.figures import model_figures
    from meshwright.cost.memory import OPTIMIZERS
    from meshwright.report.documents import figures_document
    from meshwright.report.words import describe_model

    kind = chosen(optimizer, OPTIMIZERS, "--optimizer")
    if batch is not None and batch < 1:
        raise InputError(f"--batch is {batch}", "give 1 or more")
    graph = captured_graph(model, batch, operators=defined_operators(operators))
    if save is not None:
        write_whole(save, msgspec.json.encode(graph))
    figures = model_figures(graph, kind, mixed=mixed, recompute=recompute)
    if json:
        print_json(figures_document(figures, batch))
    elif text:
        print(graph)
    else:
        new_console().print(describe_model(graph, figures))


def _figures(sources: Iterable[str], optimizer: str) -> list[ModelFigures]:
    """Figures of each model; those there are when interrupted."""
    from meshwright.capture.load import load_model
    from meshwright.cost.figures import model_figures
    from meshwright.cost.memory import OPTIMIZERS

    kind = chosen(optimizer, OPTIMIZERS, "--optimizer")
    found: list[ModelFigures] = []
    try:
        with progress("models captured") as tick:
            for source in sources:
                found.append(model_figures(load_model(source).graph, kind))
                tick()
    except KeyboardInterrupt:
        if not found:
            raise
    return found
