"""Translation of `torch.export` nodes to operators, with in-place writes functionalized. Enters: a
program. Leaves: `Applied` operators and the `State` they start from.

Every node becomes the names of its results. Several results of one operator are its outputs; a
write in place is a new tensor under the old one's name, and views of what was written are taken
anew when they are next read; a region without gradients gives detached results; a composite
operator is taken apart. Knows no graph.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from meshwright.capture.operators.aten import Described, attribute, described, tensors_in
from meshwright.capture.operators.autocast import (
    Autocast,
    autocast_dtypes,
    refuse_autocast_casts,
    region_of,
)
from meshwright.capture.operators.composites import Composites, arguments_of
from meshwright.capture.operators.forms import (
    FORMS,
    convolution_form,
    is_number,
    number_of,
    scalar_tensor_attributes,
)
from meshwright.capture.operators.node_names import Namer
from meshwright.capture.operators.nodes import (
    is_tensor,
    layer_of,
    mutated_node,
    root_of_view,
    source_of_view,
    spec_of,
    stride_order,
    unsupported,
)
from meshwright.capture.operators.writes import REVERSIBLE, functionalized_write
from meshwright.capture.translation.applied import Applied, State
from meshwright.graph.counts import is_differentiable
from meshwright.graph.families import BUILT_IN
from meshwright.graph.operator_graph import Attributes, Spec, Value

SAME_IF_ALIKE = {
    *("alias", "broadcast_tensors", "cat", "expand", "expand_as", "lift_fresh_copy"),
    *("reshape", "to", "type_as", "view"),
}
"""Kinds that return their inputs' values, if shapes and dtypes do not change."""

ONLY_FIRST_RESULT = {"embedding_bag"}
"""Kinds whose further results serve the backward pass alone."""


class Translation:
    """One walk over a program's nodes, and what it has found."""

    def __init__(self, program: ExportedProgram, root: str, input_names: Sequence[str]) -> None:
        self.program, self.root = program, root
        self.inputs: dict[str, State] = {}
        self.parameters: dict[str, State] = {}
        self.buffers: dict[str, State] = {}
        self.operators: list[Applied] = []
        self.specs: dict[str, Spec] = {}
        self.learnt: set[str] = set()
        """Tensors through which gradients flow to a parameter."""
        self._namer = Namer()
        self._composites = Composites()
        self._autocast: Autocast | None = None
        """The region of automatic mixed precision in which the walk is."""
        self._weights: dict[tuple[str, Spec], str] = {}
        """Parameters that it has cast, which `torch.autocast` casts once."""
        self.found: dict[fx.Node, tuple[str | None, ...]] = {}
        """The names of a node's results; None for one that is no tensor."""
        self._stale: set[fx.Node] = set()
        """Views of something that was written since they were taken."""
        self._take_state(input_names)
        for node in program.graph.nodes:
            self._take(node, program.graph_module)

    def names(self, node: fx.Node) -> tuple[str | None, ...]:
        """The names of a node's results as they are now."""
        if node in self._stale:
            self._stale.discard(node)
            written = mutated_node(node)
            if written is None:
                self._take(node, self.program.graph_module)
            else:
                # A write is not done again: what it returned is what it has written, as it is now.
                self.found[node] = self.names(written)
        return self.found[node]

    def _take_state(self, input_names: Sequence[str]) -> None:
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        owners: dict[int, str] = {}
        asked = iter(input_names)
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            known_name = next(asked, None) if spec.kind is InputKind.USER_INPUT else spec.target
            constant = self.program.constants.get(spec.target or "")
            if not is_tensor(node):
                self.found[node] = (None,)
            elif spec.kind is InputKind.CONSTANT_TENSOR and is_number(constant):
                number: Described[str] = Described(
                    "scalar_tensor", (), scalar_tensor_attributes(constant)
                )
                self.found[node] = self._add(number, [spec_of(node, constant)], "")
            else:
                path = (known_name or node.name).removeprefix(f"{self.root}." if self.root else "")
                self.found[node] = (self._state_name(spec, node, path, owners),)

    def _state_name(self, spec: InputSpec, node: fx.Node, path: str, owners: dict[int, str]) -> str:
        """The name of a tensor of the state; that of its first owner, if its weight is tied."""
        stored = self.program.state_dict.get(spec.target or "")
        owner = owners.setdefault(id(node if stored is None else stored), path)
        if owner != path:
            self._group(spec)[owner].also.append(path)
            return owner
        name = self._namer.fresh(path)
        trainable = isinstance(stored, torch.nn.Parameter) and stored.requires_grad
        self.specs[name] = spec_of(node, node.meta["val"])
        self._group(spec)[name] = State(name=name, spec=self.specs[name], trainable=trainable)
        if trainable:
            self.learnt.add(name)
        return name

    def _group(self, spec: InputSpec) -> dict[str, State]:
        groups = {InputKind.USER_INPUT: self.inputs, InputKind.PARAMETER: self.parameters}
        return groups.get(spec.kind, self.buffers)

    def _take(self, node: fx.Node, owner: torch.nn.Module) -> None:
        if node.op != "call_function":
            return
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(index, int)
            results = self.names(source)
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
        specs = [spec_of(node, value) for value in values]
        parts = self._composites.parts(node)
        if parts is None:
            self._take_call(node, overload, specs)
        else:
            refuse_autocast_casts(node, self._autocast)
            owner = self.program.graph_module
            self.found[node] = tuple(self._inlined(parts, arguments_of(node), owner, None))
        written = mutated_node(node)
        if written is not None:
            self._write(written, node)

    def _take_call(self, node: fx.Node, overload: OpOverload, specs: list[Spec]) -> None:
        call = self._described(node, overload)
        if call.kind in ONLY_FIRST_RESULT:
            specs = specs[:1]
        if call.kind in SAME_IF_ALIKE and self._alike(call, specs):
            self.found[node] = call.inputs[: len(specs)]
        else:
            self.found[node] = self._add(call, specs, layer_of(node, self.root))

    def _described(self, node: fx.Node, overload: OpOverload) -> Described[str]:
        """A node's call over the names of tensors, in the one form in which the graph has it."""
        call = described(overload, node.args, node.kwargs, is_tensor)
        if call.kind in FORMS:
            call = FORMS[call.kind](call)
        casts = autocast_dtypes(node, self._autocast)
        inputs = tuple(None if n is None else self._cast(n, casts.get(n)) for n in call.inputs)
        match call.kind, inputs:
            case (("copy" | "fill"), (str(target), str(value))):
                return self._assigned(target, value, layer_of(node, self.root))
            case "fill", (str(),):
                filling = dict(call.attributes)["value"]
                return Described("full_like", inputs, (("fill_value", filling),))
            case "view", _ if "dtype" in dict(call.attributes):
                raise unsupported(node, "bits of one dtype read as another", "use .to(dtype)")
            case "to", ():
                attributes = dict(call.attributes)
                return Described(
                    "scalar_tensor", (), number_of(attributes["dtype"], attributes["self"])
                )
            case "as_strided", (str(source),):
                inputs = (self._permuted(source, stride_order(node), layer_of(node, self.root)),)
            case (("add" | "sub" | "mul" | "div"), (str(other),)) if "self" in dict(
                call.attributes
            ):
                return self._of_number(call.kind, dict(call.attributes), other, node)
            case "zero", _:
                return Described("zeros_like", inputs, ())
            case "convolution", (str(), str(weight), *_):
                return convolution_form(inputs, call.attributes, len(self.specs[weight].shape) - 2)
            case "linear", (str(), str(weight)) if len(self.specs[weight].shape) == 1:
                return Described("matmul", inputs, call.attributes)
            case "cat", _:
                # Tensors of shape (0,) take no part, whatever the shape of the others.
                inputs = tuple(name for name in inputs if name and self.specs[name].shape != (0,))
        return Described(call.kind, inputs, call.attributes)

    def _cast(self, node: fx.Node, dtype: torch.dtype | None) -> str:
        """The name of an operand, in the dtype to which it is cast first."""
        name = self._name(node)
        if dtype is None:
            return name
        spec = Spec(str(attribute(dtype)), self.specs[name].shape)
        known = self._weights.get((name, spec))
        call = Described("to", (name,), (("dtype", spec.dtype),))
        cast = known or self._add(call, [spec], layer_of(node, self.root))[0]
        if name in self.parameters:
            self._weights[name, spec] = cast
        return cast

    def _of_number(
        self, kind: str, attributes: dict[str, Value], other: str, node: fx.Node
    ) -> Described[str]:
        """A call whose first operand is a number, which PyTorch takes for a tensor."""
        dtype = spec_of(node, node.meta["val"]).dtype
        number = Described[str]("scalar_tensor", (), number_of(dtype, attributes.pop("self")))
        (name,) = self._add(number, [Spec(dtype, ())], layer_of(node, self.root))
        return Described(kind, (name, other), tuple(attributes.items()))

    def _permuted(self, name: str, order: tuple[int, ...], layer: str) -> str:
        if order == tuple(range(len(order))):
            return name
        spec = self.specs[name]
        permuted = Spec(spec.dtype, tuple(spec.shape[dim] for dim in order))
        (output,) = self._add(Described("permute", (name,), (("dims", order),)), [permuted], layer)
        return output

    def _assigned(self, target: str, value: str, layer: str) -> Described[str]:
        """A value that takes the place of a target, in the target's dtype and shape."""
        target_spec, value_spec = self.specs[target], self.specs[value]
        if value_spec.dtype != target_spec.dtype:
            cast = Described("to", (value,), (("dtype", target_spec.dtype),))
            (value,) = self._add(cast, [Spec(target_spec.dtype, value_spec.shape)], layer)
        return Described("expand", (value,), (("size", target_spec.shape),))

    def _alike(self, call: Described[str], specs: Sequence[Spec]) -> bool:
        """Whether each result has the shape and dtype of the input at its place."""
        inputs = [None if name is None else self.specs[name] for name in call.inputs]
        if call.kind == "cat" and len(inputs) != 1:
            return False
        return bool(inputs) and inputs[: len(specs)] == list(specs)

    def _add(self, call: Described[str], specs: Sequence[Spec], layer: str) -> tuple[str, ...]:
        name = self._namer.fresh(layer, call.kind)
        names: tuple[str, ...] = (name,)
        if len(specs) != 1:
            names = tuple(self._namer.fresh(name, str(index)) for index in range(len(specs)))
        outputs = tuple(zip(names, specs, strict=True))
        self.operators.append(Applied(name=name, described=call, outputs=outputs, layer=layer))
        self.specs |= outputs
        differentiable = call.kind not in BUILT_IN or BUILT_IN[call.kind].differentiable
        if differentiable and not self.learnt.isdisjoint(filter(None, call.inputs)):
            self.learnt |= {name for name, spec in outputs if is_differentiable(spec.dtype)}
        return names

    def _name(self, node: object) -> str:
        assert isinstance(node, fx.Node)
        name = self.names(node)[0]
        assert name is not None, f"{node} is no tensor"
        return name

    def _write(self, written: fx.Node, writer: fx.Node) -> None:
        """Give a written tensor, and all that it is a view of, their new values."""
        self._put(written, self._name(writer), writer, {writer, written})

    def _put(self, written: fx.Node, value: str, writer: fx.Node, chain: set[fx.Node]) -> None:
        layer = layer_of(writer, self.root)
        self.found[written] = (value,)
        while (source := source_of_view(written)) is not None:
            if not isinstance(written.target, OpOverload):
                raise unsupported(writer, "a write into one of several views", "write into one")
            if mutated_node(written) is None:
                view = described(written.target, written.args, written.kwargs, is_tensor)
                value = self._written_through(view, self._name(source), value, layer)
            self.found[source] = (value,)
            written = source
            chain.add(source)
        self._stale |= {
            node for node in self.found if root_of_view(node) is written and node not in chain
        }

    def _written_through(
        self, view: Described[fx.Node], source: str, value: str, layer: str
    ) -> str:
        """The viewed tensor with the view's part replaced by a value."""
        spec = self.specs[source]
        if view.kind in REVERSIBLE:
            call = functionalized_write(view.kind, view.attributes, source, spec, value)
            return self._add(call, [spec], layer)[0]
        return self._scattered(view, source, value, layer)

    def _scattered(self, view: Described[fx.Node], source: str, value: str, layer: str) -> str:
        """The same for a view of any kind: seen through it, the elements' places say where each
        element of the value belongs.
        """

        def add(result: Spec, kind: str, inputs: Sequence[str], attributes: Attributes) -> str:
            return self._add(Described(kind, tuple(inputs), attributes), [result], layer)[0]

        def reshaped(name: str, shape: tuple[int, ...]) -> str:
            result = Spec(self.specs[name].dtype, shape)
            return add(result, "reshape", (name,), (("shape", shape),))

        whole, part = self.specs[source], self.specs[value]
        flat = Spec("int64", (whole.elements,))
        places = reshaped(add(flat, "arange", (), (("end", whole.elements),)), whole.shape)
        seen = add(Spec("int64", part.shape), view.kind, (places,), view.attributes)
        operands = [reshaped(name, (self.specs[name].elements,)) for name in (source, seen, value)]
        result = Spec(whole.dtype, flat.shape)
        return reshaped(add(result, "scatter", operands, (("dim", 0),)), whole.shape)

    def _take_region(self, node: fx.Node, owner: torch.nn.Module) -> None:
        """Operators inside a traced context manager stand in a module of their own."""
        region = region_of(node, self._autocast)
        module = owner.get_submodule(str(region.module.target))
        assert isinstance(module, fx.GraphModule)
        entering = [
            (argument, self._name(argument))
            for argument in region.given
            if isinstance(argument, fx.Node) and is_tensor(argument)
        ]
        layer = layer_of(node, self.root)
        results = self._inlined(module.graph, region.given, module, region.autocast)
        self.found[node] = tuple(
            self._detached(name, layer) if region.detached else name for name in results
        )
        inside = [
            placeholder
            for placeholder in module.graph.nodes
            if placeholder.op == "placeholder" and is_tensor(placeholder)
        ]
        for inner, (outer, before) in zip(inside, entering, strict=True):
            if self._name(inner) != before:
                writer = next(
                    candidate
                    for candidate in module.graph.nodes
                    if mutated_node(candidate) is not None
                )
                self._write_out(outer, before, self._name(inner), writer, region.detached)

    def _inlined(
        self,
        graph: fx.Graph,
        operands: Sequence[object],
        owner: torch.nn.Module,
        autocast: Autocast | None,
    ) -> list[str]:
        """The results of a graph within the graph, its operators taken as if they stood here."""
        arguments, results = iter(operands), list[str]()
        outside, self._autocast = self._autocast, autocast
        for inner in graph.nodes:
            if inner.op == "placeholder":
                argument = next(arguments)
                self.found[inner] = (self._name(argument),) if is_tensor(argument) else (None,)
            elif inner.op == "output":
                results = [self._name(result) for result in tensors_in(inner.args[0])]
            else:
                self._take(inner, owner)
        self._autocast = outside
        if outside is None:
            self._weights.clear()
        return results

    def _write_out(
        self, written: fx.Node, before: str, value: str, writer: fx.Node, detached: bool
    ) -> None:
        """What a region wrote into a tensor that it was given."""
        if detached:
            if before in self.learnt:
                what = "a write without gradients into a tensor that has one"
                raise unsupported(writer, what, "write into a detached copy of it")
            value = self._detached(value, layer_of(writer, self.root))
        self._put(written, value, writer, {written})

    def _detached(self, name: str, layer: str) -> str:
        """The same values without a gradient."""
        if name not in self.learnt:
            return name
        return self._add(Described("detach", (name,), ()), [self.specs[name]], layer)[0]
