"""Module structure for export: nn.Module names of layers and stage ends, and TP styles. Enters: a
graph, a plan. Leaves: names of layers, of what comes before and behind them, and the
tensor-parallel style of each linear layer or table.

Names are those of `nn.Module.named_modules`; an operator knows the module that it came from and a
parameter its own name. What a pipeline may be cut at is judged here: one tensor that depends on
parameters may cross a cut, and no parameter may be used on both sides.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.configured import cuts_of
from meshwright.baselines.degrees.facts import layer_starts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.graph.families.embedding import KINDS as TABLES
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import IDLE, REPLICA

Style = Literal["columns", "rows", "table", "flat_table", "head"]

Names = tuple[str, ...]

NORMS = ("layer_norm", "rms_norm", "mul")

DTENSOR = frozenset({*NORMS, *TABLES, "linear", "addmm", "matmul", "add", "expand", "cat"})
"""Operators on parameters that DTensor computes as one device does."""

EXPERTS = "routed_experts"

HIDDEN_DIMS = 3
"""Samples, positions, features."""

_LAYER = re.compile(r"(?:\w+\.)*?\w+\.\d+(?=\.|$)")


def layer_modules(graph: OperatorGraph) -> tuple[str, ...]:
    """The modules of repeated attention layers, in their order; nothing if they are none."""
    try:
        starts = layer_starts(graph)
    except InputError:
        return ()
    period = {
        repeat.layer(index).start: repeat.period
        for repeat in layers(graph)
        for index in range(repeat.count)
    }
    modules = []
    for start in starts:
        names = Counter[str]()
        for operator in graph.operators[start : start + period[start]]:
            match = _LAYER.match(operator.layer)
            if match:
                names[match[0]] += 1
        if not names:
            return ()
        modules.append(names.most_common(1)[0][0])
    return tuple(modules) if len(set(modules)) == len(modules) else ()


def pattern(name: str, among: tuple[str, ...]) -> str:
    """A module's name with * for the number of its layer.

    >>> pattern("layers.3.attention.query", ("layers.0", "layers.3"))
    'layers.*.attention.query'
    """
    for layer in among:
        if name == layer or name.startswith(f"{layer}."):
            stem = layer.rpartition(".")[0]
            return f"{stem}.*{name[len(layer) :]}"
    return name


class Styles(NamedTuple):
    """Tensor-parallel styles by the pattern of a module's name."""

    styles: dict[str, Style]
    left: tuple[str, ...]
    """Modules that the plan cuts and no style of PyTorch can."""
    local: tuple[str, ...]
    """Modules that DTensor has no rules for."""
    gathered: tuple[str, ...]
    """Norms whose outputs nothing but layers that are cut by columns reads."""


def tensor_styles(written: Plan, taken: tuple[int, ...]) -> Styles:
    """How each module with parameters is cut along the tensor axis."""
    graph, among = written.graph, layer_modules(written.graph)
    parameters = {
        parameter.tensor.name: parameter for parameter in graph.parameters if parameter.tensor.name
    }
    styles: dict[str, Style] = {}
    left: list[str] = []
    norms: dict[str, str] = {}
    last = max((n for n, op in enumerate(graph.operators) if op.kind == "linear"), default=-1)
    for unit in written.units:
        roles = {written.layout[unit.name].roles[factor] for factor in taken}
        role = roles.pop() if len(roles) == 1 else REPLICA
        for member in unit.members:
            operator = graph.named[member.operator]
            held = [name for name in operator.inputs if name in parameters]
            if not held or role == REPLICA or role.startswith(IDLE):
                continue
            module = pattern(_module(operator, parameters[held[0] or ""]), among)
            if operator.kind in NORMS:
                norms[operator.outputs[0].name] = module
                continue
            style = _style(operator, role, graph.operators[last].name == operator.name)
            if style is None:
                left.append(module or str(held[0]))
            else:
                styles[module] = style
    _with_ties(graph, styles)
    local = tuple(dict.fromkeys(pattern(name, among) for name in _local(graph, set(parameters))))
    styles = {name: cut for name, cut in styles.items() if not _within(f"{name}.", local)}
    gathered = _gathered(graph, norms, styles, among)
    return Styles(styles, tuple(dict.fromkeys(left)), local, gathered)


def _module(operator: Operator, parameter: Parameter) -> str:
    """The module whose parameter an operator reads; of a tied one that which computes."""
    names = (parameter.tensor.name, *parameter.also)
    modules = [name.rpartition(".")[0] for name in names]
    return operator.layer if operator.layer in modules else modules[0]


def _style(operator: Operator, role: str, last: bool) -> Style | None:
    match operator.kind, role:
        case "linear", "channel":
            return "head" if last else "columns"
        case "linear", "inner":
            return "rows"
        case ("embedding", "vocabulary"):
            return "table" if len(operator.outputs[0].dims) == HIDDEN_DIMS else "flat_table"
        case _:
            return None


def _local(graph: OperatorGraph, parameters: set[str]) -> Iterator[str]:
    """Modules with operators that DTensor has no rules for; experts with their router."""
    for operator in graph.operators:
        if operator.kind in DTENSOR:
            continue
        for name in operator.inputs:
            if name in parameters and name is not None:
                module = name.rpartition(".")[0]
                yield module.rpartition(".")[0] if operator.kind == EXPERTS else module


def _gathered(
    graph: OperatorGraph, norms: Mapping[str, str], module_styles: Mapping[str, Style], among: Names
) -> tuple[str, ...]:
    parameters = {parameter.tensor.name: parameter for parameter in graph.parameters}
    readers = defaultdict[str, set[Style | None]](set)
    for operator in graph.operators:
        read = [name for name in operator.inputs if name is not None]
        held = [parameters[name] for name in read if name in parameters]
        style = module_styles.get(pattern(_module(operator, held[0]), among)) if held else None
        for name in read:
            if name in norms:
                readers[norms[name]].add(style)
    return tuple(name for name, styles in readers.items() if styles <= {"columns", "head"})


def supports_sequence_parallel(graph: OperatorGraph) -> bool:
    """Whether layers hand on samples x positions x features, which sequence parallelism cuts."""
    rows = {operator.name for operator in graph.operators if operator.kind == "linear"}
    starts = layer_starts(graph)
    inside = graph.operators[starts[0] : starts[-1]]
    return all(
        len(operator.outputs[0].dims) == HIDDEN_DIMS for operator in inside if operator.name in rows
    )


def _with_ties(graph: OperatorGraph, module_styles: dict[str, Style]) -> None:
    """Leave whole what is tied to something that is not cut alike."""
    rows = {"table", "flat_table", "head", "columns"}
    for parameter in graph.parameters:
        modules = {name.rpartition(".")[0] for name in (parameter.tensor.name, *parameter.also)}
        if len(modules) > 1:
            styles = {module_styles.get(module) for module in modules}
            if not styles <= rows:
                for module in modules:
                    module_styles.pop(module, None)


def tied(graph: OperatorGraph) -> tuple[tuple[str, ...], ...]:
    """The names of parameters that a model uses under several."""
    return tuple(
        (parameter.tensor.name, *parameter.also) for parameter in graph.parameters if parameter.also
    )


class ModuleEnds(NamedTuple):
    """Modules outside the layers, by name."""

    before: tuple[str, ...]
    """Tables in front of them."""
    behind: tuple[str, ...]
    """Everything with parameters after the last."""


def modules_outside_layers(graph: OperatorGraph, among: tuple[str, ...]) -> ModuleEnds:
    """What the first and the last stage have besides layers."""
    inside = {
        parameter.tensor.name
        for parameter in graph.parameters
        if _within(parameter.tensor.name, among)
    }
    parameters = {parameter.tensor.name for parameter in graph.parameters} - inside
    start = layer_starts(graph)[0]
    before, behind = dict[str, None](), dict[str, None]()
    for number, operator in enumerate(graph.operators):
        for name in operator.inputs:
            if name not in parameters or name is None:
                continue
            module = name.rpartition(".")[0]
            if number >= start and module:
                behind[module] = None
            elif operator.kind in TABLES:
                before[module] = None
    return ModuleEnds(tuple(before), tuple(behind))


def _within(name: str, among: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{layer}.") for layer in among)


def stages_of(graph: OperatorGraph, config: ParallelConfig) -> tuple[tuple[str, ...], ...]:
    """The layers of each stage; refuses what cannot be cut between layers."""
    among, count = layer_modules(graph), config.pipeline * config.chunks
    if len(among) < count:
        raise InputError(
            "the model's layers are no modules of a list, so that no stage can be made of them",
            "plan without a pipeline: --fix stages=1",
        )
    starts = layer_starts(graph)
    cuts = cuts_of(config, len(among))
    for cut in cuts[1:-1]:
        _refuse_crossing(graph, starts[cut], among[cut])
    return tuple(among[one:two] for one, two in pairwise(cuts))


def _refuse_crossing(graph: OperatorGraph, start: int, name: str) -> None:
    """Refuse a cut that more than hidden states cross, or with a parameter on both sides."""
    parameters = {parameter.tensor.name for parameter in graph.parameters}
    front, rest = graph.operators[:start], graph.operators[start:]
    learned = set(parameters)
    for operator in front:
        if learned.intersection(filter(None, operator.inputs)):
            learned.update(tensor.name for tensor in operator.outputs)
    before, behind = (
        {name for op in part for name in op.inputs if name is not None} for part in (front, rest)
    )
    shared = sorted(parameters & before & behind)
    if shared:
        raise InputError(
            f"parameter {shared[0]!r} is used on both sides of the cut in front of {name!r}",
            "PyTorch's stages hold their own parameters: plan without a pipeline (--fix stages=1)",
        )
    produced = {tensor.name for op in front for tensor in op.outputs}
    crossing = sorted(behind & produced & learned)
    if len(crossing) != 1:
        raise InputError(
            f"{len(crossing)} tensors cross the cut before {name!r}: {', '.join(crossing[:3])}",
            "PyTorch's stages hand on hidden states only: plan without a pipeline (--fix stages=1)",
        )
