"""Model loading: from a source (zoo, function, Transformers, .pt2, graph file) to a graph.

Enters: a source, as text. Leaves: `Captured`, the operator graph with warnings to show. Knows the
forms of a source; each form has its own function, which knows nothing of the others.

    zoo:NAME[/tiny][?size=value&...]         a model that comes with Meshwright
    path/to/file.py:function[?key=value&...] a function that returns a model and example inputs
    package.module:function[?key=value&...]  the same, importable
    hf:ClassName[?key=value&...]             a class of Transformers, from a configuration
    hf:path/config.json[?key=value&...]      the same, from a configuration file
    path/to/program.pt2                      a program saved by torch.export
    path/to/graph.json                       a graph saved by Meshwright

Each takes ?unroll=N: recurrent layers become N operators each, one after the other in time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import Bytes
from meshwright.capture.export import Capture, captured
from meshwright.capture.recognised.disagreeing import with_opaque_mismatches
from meshwright.capture.recognised.independence import with_independent_samples
from meshwright.capture.recognised.merged_rows import with_unflattened_rows
from meshwright.capture.recognised.mixtures import with_routed_experts
from meshwright.capture.recognised.user_operators import with_definitions
from meshwright.capture.source.example import Example
from meshwright.capture.source.function import example_of_function, seeded
from meshwright.capture.source.model_source import Source, parse_source
from meshwright.capture.trace.tracing import has_values, silent
from meshwright.capture.transformers import example_of_class
from meshwright.capture.translation.program import graph_of
from meshwright.capture.zoo import entry
from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.unroll import is_recurrent, unrolled
from meshwright.graph.validation import check, unknown_kinds

TINY = "/tiny"
NO_OPERATORS: Mapping[str, Definition] = MappingProxyType({})

MOST_WEIGHTS = Bytes(4 * 2**30)
"""A model with more is never built with weights only to look at what it does with data."""

_log = logging.getLogger(__name__)


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A graph, where it came from, and what its user should know."""

    source: str
    graph: OperatorGraph
    warnings: tuple[str, ...] = ()


def load_model(
    source: str, batch: int | None = None, operators: Mapping[str, Definition] = NO_OPERATORS
) -> Captured:
    """The operator graph of a model, built without a byte of weights where its code allows.

    Operators are those that the user has defined; they carry their definitions in the graph.

    >>> captured = load_model("zoo:bert-large/tiny", batch=2)
    >>> captured.graph.parameter_count, captured.warnings
    (5284, ())
    """
    if batch is not None and batch < 1:
        raise InputError(f"the batch is {batch}", "give 1 sample or more")
    parsed, began = parse_source(source), time.monotonic()
    graph, warnings = _captured(parsed, batch)
    problems = check(graph)
    if problems:
        raise InputError(
            f"the graph of {source!r} is not consistent: {problems[0]}",
            "correct the model's example inputs, or the graph's file",
        )
    if parsed.unroll is not None:
        graph = _unrolled(graph, parsed)
    graph, untried = with_definitions(graph, operators)
    _log.info(
        "captured %s in %.2f s: %d operators, %d parameters",
        source,
        time.monotonic() - began,
        len(graph.operators),
        graph.parameter_count,
    )
    warnings = (*warnings, *_warnings(graph), *_hints(parsed, graph), *untried)
    return Captured(source=source, graph=graph, warnings=warnings)


def load_graph(example: Example, operators: Mapping[str, Definition] = NO_OPERATORS) -> Captured:
    """The operator graph of a module with example inputs, as `load_model` has it of a text."""
    name = type(example.model).__name__
    traced, warnings = captured(example, name)
    graph, untried = with_definitions(_settled(traced), operators)
    return Captured(source=name, graph=graph, warnings=(*warnings, *_warnings(graph), *untried))


def load_example(source: str, batch: int | None, device: torch.device) -> Example:
    """A model with weights and inputs on a device.

    >>> example = load_example("zoo:lenet/tiny", 2, torch.device("cpu"))
    >>> sum(parameter.numel() for parameter in example.model.parameters())
    288
    """
    parsed = parse_source(source)
    match parsed.form:
        case "zoo":
            return zoo_example(parsed, batch, device)
        case "hf":
            return example_of_class(parsed, batch, device)
        case "function":
            return example_of_function(parsed, batch, device)
        case "program" | "graph":
            raise InputError(
                f"{source!r} is a trace, not a model with weights",
                "give the model itself, as file.py:function",
            )


def weight_bytes(example: Example) -> Bytes:
    """The memory that an example's model takes once it has values."""
    state = (*example.model.parameters(), *example.model.buffers())
    return Bytes(sum(tensor.nbytes for tensor in state))


def _unrolled(graph: OperatorGraph, source: Source) -> OperatorGraph:
    if not any(map(is_recurrent, graph.operators)):
        raise InputError(f"there is nothing to unroll in {source.text!r}", "leave unroll out")
    try:
        return unrolled(graph, None if source.unroll == "each" else source.unroll)
    except InputError as error:
        raise error.at(source.text) from error


def _captured(source: Source, batch: int | None) -> Capture:
    match source.form:
        case "zoo":
            capture = captured(zoo_example(source, batch), source.name)
        case "hf":
            capture = _with_values(source, batch, example_of_class(source, batch), source.name)
        case "function":
            example = example_of_function(source, batch)
            capture = _with_values(source, batch, example, source.function)
        case "program":
            capture = Capture(_program_graph(source, batch))
        case "graph":
            return Capture(_saved_graph(source, batch))
    return capture._replace(graph=_settled(capture.graph))


def _with_values(source: Source, batch: int | None, example: Example, name: str) -> Capture:
    """What is captured without weights if it can be, and else, if they are few, with weights."""
    try:
        return captured(example, name)
    except InputError:
        if has_values(example) or weight_bytes(example) > MOST_WEIGHTS:
            raise
    with seeded():
        example = load_example(source.text, batch, torch.device("cpu"))
    return captured(example, name)


def _settled(graph: OperatorGraph) -> OperatorGraph:
    """A captured graph without needless merging, with mixtures of experts as one operator each, and
    with what was found out about operators that no family knows.
    """
    return with_independent_samples(
        with_opaque_mismatches(with_routed_experts(with_unflattened_rows(graph)))
    )


def zoo_example(source: Source, batch: int | None, device: torch.device | None = None) -> Example:
    """A model of the zoo with the sizes that the source overrides; on meta tensors by default."""
    model = entry(source.name.removesuffix(TINY))
    sizes = model.tiny if source.name.endswith(TINY) else model.sizes
    known = {field.name for field in msgspec.structs.fields(sizes)}
    values = msgspec.structs.asdict(sizes)
    for key, value in source.options:
        if key not in known:
            raise InputError(f"model {model.name!r} has no size {key!r}", nearest(key, known))
        values[key] = value.split(",") if isinstance(values[key], tuple) else value
    try:
        chosen = msgspec.convert(values, type(sizes), strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__.at(source.text) from error
        raise InputError(
            f"the sizes in {source.text!r} do not fit: {error}",
            f"write numbers as in '{source.text.partition('?')[0]}?{_some_option(sizes)}'",
        ) from error
    with device or torch.device("meta"):
        return model.example(chosen, batch or model.batch)


def _some_option(sizes: msgspec.Struct) -> str:
    key, value = next(iter(msgspec.structs.asdict(sizes).items()))
    return f"{key}={value}"


def _program_graph(source: Source, batch: int | None) -> OperatorGraph:
    _refuse_batch(source, batch)
    path = _existing(source)
    try:
        with silent():
            program = loaded_program(path)
    except Exception as error:
        raise InputError(
            f"{str(path)!r} is not a program that this PyTorch can load: {error}",
            "save it with torch.export.save, by the PyTorch that is installed here",
        ) from error
    return graph_of(program, path.stem)


def _saved_graph(source: Source, batch: int | None) -> OperatorGraph:
    _refuse_batch(source, batch)
    path = _existing(source)
    try:
        return msgspec.json.decode(path.read_bytes(), type=OperatorGraph)
    except (msgspec.MsgspecError, InputError) as error:
        raise InputError(
            f"{str(path)!r} is not a saved graph: {error}",
            "save one with 'meshwright capture MODEL --save FILE'",
        ) from error


def loaded_program(path: Path) -> ExportedProgram:
    """A saved program whose traced tensors know again which of them share memory."""
    program = torch.export.load(path)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    entering = [node.meta.get("val") for node in nodes]
    mode = next(value.fake_mode for value in entering if isinstance(value, FakeTensor))
    FakeTensorProp(program.graph_module, mode).propagate_dont_convert_inputs(*entering)
    return program


def _existing(source: Source) -> Path:
    path = Path(source.name)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}", "give the path of a saved model")
    return path


def _refuse_batch(source: Source, batch: int | None) -> None:
    if batch is not None:
        raise InputError(
            f"{source.text!r} has its batch built in, and --batch is {batch}",
            "leave it out, or give the model's own source",
        )


def _hints(source: Source, graph: OperatorGraph) -> list[str]:
    if source.form != "hf" or graph.loss is not None:
        return []
    return [
        f"{source.name!r} computes no loss from its example inputs, so that it can be planned but "
        "not trained; take a class with a head, such as BertForMaskedLM, or write a function that "
        "returns the model, its inputs and a loss"
    ]


def _warnings(graph: OperatorGraph) -> list[str]:
    unknown = unknown_kinds(graph)
    if not unknown:
        return []
    named = ", ".join(f"{kind} ({count} times)" for kind, count in unknown)
    return [
        f"graph {graph.name!r} has operators that no family tells about: {named}; they count as "
        "bytes only and are split only where samples proved to be independent"
    ]
