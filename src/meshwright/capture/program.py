"""From an exported program to an `OperatorGraph`.

Enters: what `torch.export` traced, without decompositions. Leaves: the same computation as
operators over named tensors: state under the names of the module, tied weights as one parameter,
several results of one operator as its outputs, in-place updates as new tensors, regions without
gradient as detached results. What no output depends on is left out: assertions, and updates of
statistics such as batch normalisation's counters, which change no value of this step.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from meshwright.capture.aten import Described, described, kind_of, tensors_in
from meshwright.capture.dims import Names, input_dims, numbered, output_dims, parameter_dims
from meshwright.capture.names import Namer, layer_path
from meshwright.foundation.errors import InputError
from meshwright.graph.model import Call, Operator, OperatorGraph, Parameter, Spec, Tensor

SAME_IF_ALIKE = {
    *("alias", "broadcast_tensors", "clone", "contiguous", "expand", "expand_as"),
    *("lift_fresh_copy", "reshape", "to", "type_as", "view", "_to_copy"),
}
"""Kinds that return their input's values, if shape and dtype do not change."""

ONLY_FIRST_RESULT = {"embedding_bag"}
"""Kinds whose further results serve the backward pass alone."""

_LOCATION = re.compile(r'File "([^"]+)", line (\d+)')


class Step(msgspec.Struct, kw_only=True):
    """An operator before its dims have names."""

    name: str
    described: Described[str]
    outputs: tuple[tuple[str, Spec], ...]
    layer: str


class State(msgspec.Struct, kw_only=True):
    """A tensor that is there before the first operator."""

    name: str
    spec: Spec
    also: list[str] = msgspec.field(default_factory=list)
    trainable: bool = False


def graph_of(
    program: ExportedProgram,
    name: str,
    *,
    root: str = "",
    input_names: Sequence[str] | None = None,
) -> OperatorGraph:
    """The graph of an exported program.

    `root` is the path of the user's model in the program, which no name repeats; `input_names`
    are the user's names of the program's inputs.
    """
    if writes_through_views(program.graph):
        program = program.run_decompositions({})
    translation = _Translation(program, root, input_names)
    translation.run()
    return translation.graph(name)


def writes_through_views(graph: fx.Graph) -> bool:
    """Whether a tensor is changed that is a view of another or has views of its own.

    Any other change in place is a new tensor under the old one's name.
    """
    roots: dict[fx.Node, fx.Node] = {}
    views: set[fx.Node] = set()
    viewed: set[fx.Node] = set()
    for node in graph.nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        root = roots[node] = node if source is None else roots[source]
        if not isinstance(node.target, OpOverload):
            views |= {node} if source in views else set()
        elif _changes_first(node.target):
            if source in views or root in viewed:
                return True
        elif _gives_view(node.target):
            views.add(node)
            viewed.add(root)
        else:
            roots[node] = node
    return False


class _Translation:
    """The state of one walk over a program's nodes."""

    def __init__(
        self, program: ExportedProgram, root: str, input_names: Sequence[str] | None
    ) -> None:
        self.program, self.root = program, root
        self.namer = Namer()
        self.found: dict[fx.Node, tuple[str | None, ...]] = {}
        """The names of a node's results; None for one that is no tensor."""
        self.inputs: dict[str, State] = {}
        self.parameters: dict[str, State] = {}
        self.buffers: dict[str, State] = {}
        self.steps: list[Step] = []
        self.specs: dict[str, Spec] = {}
        self.learnt: set[str] = set()
        """Tensors through which gradients flow."""
        self._take_state(input_names)

    def run(self) -> None:
        """Translate all nodes."""
        for node in self.program.graph.nodes:
            self._take(node, self.program.graph_module)

    def _take_state(self, input_names: Sequence[str] | None) -> None:
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        owners: dict[int, str] = {}
        asked = iter(input_names or ())
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            value = node.meta.get("val")
            given = next(asked, node.name) if spec.kind is InputKind.USER_INPUT else spec.target
            if not isinstance(value, torch.Tensor):
                self.found[node] = (None,)
                continue
            stored = self.program.state_dict.get(spec.target or "")
            full = self._own(given or node.name)
            if spec.kind is InputKind.USER_INPUT:
                full = self.namer.fresh(full)
            name = owners.setdefault(id(node if stored is None else stored), full)
            self.found[node] = (name,)
            group = self._group(spec.kind)
            if name in group:
                group[name].also.append(full)
                continue
            trainable = isinstance(stored, torch.nn.Parameter) and stored.requires_grad
            group[name] = State(name=name, spec=_spec(node, value), trainable=trainable)
            if group is not self.inputs:
                self.namer.fresh(name)
            self.specs[name] = group[name].spec
            if trainable:
                self.learnt.add(name)

    def _group(self, kind: InputKind) -> dict[str, State]:
        match kind:
            case InputKind.USER_INPUT:
                return self.inputs
            case InputKind.PARAMETER:
                return self.parameters
            case _:
                return self.buffers

    def _own(self, name: str) -> str:
        return name.removeprefix(f"{self.root}.") if self.root else name

    def _take(self, node: fx.Node, owner: torch.nn.Module) -> None:
        if node.op != "call_function":
            return
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(index, int)
            results = self.found[source]
            self.found[node] = (results[index] if index < len(results) else None,)
        elif isinstance(node.target, HigherOrderOperator):
            self._take_region(node, owner)
        elif isinstance(node.target, OpOverload):
            self._take_operator(node, node.target)
        else:
            self.found[node] = (None,)

    def _take_operator(self, node: fx.Node, overload: OpOverload) -> None:
        values = list(tensors_in(node.meta.get("val")))
        if not all(isinstance(value, torch.Tensor) for value in values):
            self.found[node] = (None,) * len(values)
            return
        call = described(overload, node.args, node.kwargs, _is_node)
        call = _equal_bags(call) if call.kind == "embedding_bag" else call
        inputs = tuple(None if n is None else self._name(n) for n in call.inputs)
        specs = [_spec(node, value) for value in values]
        if call.kind in ONLY_FIRST_RESULT:
            specs = specs[:1]
        if call.kind in SAME_IF_ALIKE and self._alike(inputs, specs):
            self.found[node] = inputs[: len(specs)]
        else:
            named = Described(call.kind, inputs, call.attributes)
            self.found[node] = self._add(named, specs, self._layer(node))
        if _changes_first(overload):
            assert isinstance(node.args[0], fx.Node)
            self.found[node.args[0]] = self.found[node]

    def _alike(self, inputs: Sequence[str | None], specs: Sequence[Spec]) -> bool:
        """Whether each result has the shape and dtype of the input at its place."""
        given = [None if name is None else self.specs[name] for name in inputs]
        return bool(given) and given[: len(specs)] == list(specs)

    def _add(self, call: Described[str], specs: Sequence[Spec], layer: str) -> tuple[str, ...]:
        name = self.namer.fresh(layer, call.kind)
        names: tuple[str, ...] = (name,)
        if len(specs) != 1:
            names = tuple(self.namer.fresh(name, str(place)) for place in range(len(specs)))
        outputs = tuple(zip(names, specs, strict=True))
        self.steps.append(Step(name=name, described=call, outputs=outputs, layer=layer))
        self.specs |= outputs
        if call.kind != "detach" and not self.learnt.isdisjoint(filter(None, call.inputs)):
            self.learnt |= {name for name, spec in outputs if "float" in spec.dtype}
        return names

    def _take_region(self, node: fx.Node, owner: torch.nn.Module) -> None:
        """Operators that a traced context manager encloses stand in a module of their own."""
        assert isinstance(node.target, HigherOrderOperator)
        match node.target.__name__:
            case "wrap_with_set_grad_enabled":
                (enabled, region), given = node.args[:2], node.args[2:]
                detached = not enabled
            case "wrap_with_autocast":
                (_, _, enabled, _, region), given = node.args[:5], node.args[5:]
                detached = False
                if enabled:
                    raise _unsupported(node, "automatic mixed precision", "cast the model instead")
            case other:
                raise _unsupported(node, f"torch.{other}", "compute both ways, and select one")
        assert isinstance(region, fx.Node)
        assert isinstance(region.target, str)
        module = owner.get_submodule(region.target)
        assert isinstance(module, fx.GraphModule)
        arguments = iter(given)
        for inner in module.graph.nodes:
            if inner.op == "placeholder":
                argument = next(arguments)
                self.found[inner] = (self._name(argument),) if _is_node(argument) else (None,)
            elif inner.op == "output":
                results = [self._name(result) for result in tensors_in(inner.args[0])]
                self.found[node] = tuple(map(self._detached, results) if detached else results)
            else:
                self._take(inner, module)

    def _detached(self, name: str) -> str:
        """The same values without a gradient."""
        if name not in self.learnt:
            return name
        layer = next(step.layer for step in self.steps if name in dict(step.outputs))
        return self._add(Described("detach", (name,), ()), [self.specs[name]], layer)[0]

    def _name(self, node: object) -> str:
        assert isinstance(node, fx.Node)
        name = self.found[node][0]
        assert name is not None, f"{node} is no tensor"
        return name

    def _layer(self, node: fx.Node) -> str:
        stack = node.meta.get("nn_module_stack") or {}
        return layer_path([path for path, _ in stack.values()], self.root)

    def graph(self, name: str) -> OperatorGraph:
        """What was translated, as far as an output depends on it."""
        outputs = tuple(self._outputs())
        needed, steps = set(outputs), []
        for step in reversed(self.steps):
            if needed.isdisjoint(name for name, _ in step.outputs):
                continue
            needed |= {name for name in step.described.inputs if name is not None}
            steps.append(step)
        steps.reverse()
        dims = self._dims(steps)

        def tensor(name: str, spec: Spec) -> Tensor:
            return Tensor(
                name=name, dtype=spec.dtype, dims=tuple(zip(dims[name], spec.shape, strict=True))
            )

        scalar = len(outputs) == 1 and self.specs[outputs[0]].shape == ()
        return OperatorGraph(
            name=name,
            inputs=tuple(tensor(state.name, state.spec) for state in self.inputs.values()),
            parameters=tuple(
                Parameter(
                    tensor=tensor(state.name, state.spec),
                    also=tuple(state.also),
                    trainable=state.trainable,
                )
                for state in self.parameters.values()
            ),
            buffers=tuple(
                tensor(state.name, state.spec)
                for state in self.buffers.values()
                if state.name in needed
            ),
            operators=tuple(
                Operator(
                    name=step.name,
                    kind=step.described.kind,
                    inputs=step.described.inputs,
                    outputs=tuple(tensor(name, spec) for name, spec in step.outputs),
                    attributes=step.described.attributes,
                    layer=step.layer,
                )
                for step in steps
            ),
            outputs=outputs,
            loss=outputs[0] if scalar and outputs[0] in self.learnt else None,
        )

    def _outputs(self) -> Iterator[str]:
        nodes = {node.name: node for node in self.program.graph.nodes}
        for spec in self.program.graph_signature.output_specs:
            if spec.kind is OutputKind.USER_OUTPUT and spec.arg.name in nodes:
                yield from filter(None, self.found[nodes[spec.arg.name]])

    def _dims(self, steps: Sequence[Step]) -> Mapping[str, Names]:
        """Names of the dims of every tensor; state is named after its first reader."""
        dims = {
            state.name: input_dims(state.spec.shape, whole="int" in state.spec.dtype)
            for state in self.inputs.values()
        }
        for step in steps:
            call = step.described
            for place, name in enumerate(call.inputs):
                if name is not None and name not in dims:
                    dims[name] = parameter_dims(call.kind, place, len(self.specs[name].shape))
            shapes = Call(
                kind=call.kind,
                inputs=tuple(None if name is None else self.specs[name] for name in call.inputs),
                outputs=tuple(spec for _, spec in step.outputs),
                attributes=call.attributes,
            )
            known = [None if name is None else dims[name] for name in call.inputs]
            results = zip(step.outputs, output_dims(shapes, known), strict=True)
            dims |= {name: names for (name, _), names in results}
        unread = {name: numbered(len(self.specs[name].shape)) for name in self.parameters}
        return unread | dims


def _spec(node: fx.Node, value: torch.Tensor) -> Spec:
    if not all(isinstance(size, int) for size in value.shape):
        raise InputError(
            f"the shape {tuple(map(str, value.shape))} of {node.name!r} depends on data"
            f"{_place(node)}",
            "choose by a mask or by torch.where, which keep the shape",
        )
    return Spec(str(value.dtype).removeprefix("torch."), tuple(value.shape))


def _equal_bags(call: Described[fx.Node]) -> Described[fx.Node]:
    """Bags of one size as rows of a matrix, as the user gave them, without their offsets."""
    table, indices, offsets, *weights = (*call.inputs, None)[: max(len(call.inputs), 3)]
    if table is None or indices is None or offsets is None:
        return call
    matrix = indices.args[0] if kind_of_node(indices) in ("reshape", "view") else None
    if not isinstance(matrix, fx.Node) or kind_of_node(offsets) != "arange":
        return call
    assert isinstance(offsets.target, OpOverload)
    steps = dict(described(offsets.target, offsets.args, offsets.kwargs, _is_node).attributes)
    bags, size = matrix.meta["val"].shape if matrix.meta["val"].dim() == 2 else (0, 0)
    regular = (steps.get("start", 0), steps.get("end"), steps.get("step", 1))
    if regular != (0, bags * size, size) or any(weights):
        return call
    return Described(call.kind, (table, matrix), call.attributes)


def kind_of_node(node: fx.Node) -> str | None:
    """The kind of a node that calls an operator."""
    return kind_of(node.target) if isinstance(node.target, OpOverload) else None


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _changes_first(overload: OpOverload) -> bool:
    alias = overload._schema.arguments[0].alias_info if overload._schema.arguments else None
    return alias is not None and alias.is_write


def _gives_view(overload: OpOverload) -> bool:
    return any(result.alias_info is not None for result in overload._schema.returns)


def _place(node: fx.Node) -> str:
    """Where the user's model calls it: the innermost line that is not PyTorch's own."""
    lines = _LOCATION.findall(node.meta.get("stack_trace") or "")
    own = [line for line in lines if "/torch/" not in line[0]]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _unsupported(node: fx.Node, what: str, remedy: str) -> InputError:
    return InputError(f"the model uses {what}{_place(node)}, which is not captured", remedy)
