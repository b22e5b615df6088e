"""Buffer mutation: state that a model's own forward writes (EMA, codebooks, queues). Enters: an
exported program. Leaves: nothing, or a sentence that names the tensor and the line.

A plan computes every step from the parameters and from buffers as they were given; what a step
writes into them would be gone in the next (EMA, codebooks, queues, counters, `max_norm`). Let
through is what batch normalisation keeps: operators follow its running statistics by themselves,
and its counter is read by nobody; where it is (`momentum=None`), the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from meshwright.base.errors import InputError
from meshwright.capture.operators.nodes import kind_of_node, mutated_node, place, source_of_view

COUNTER, STATISTIC = "num_batches_tracked", "running_mean"

WORDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "tensor",
}

MADE_OF_NUMBERS = "lifted_tensor_"
"""How a trace calls tensors that forward makes of numbers, anew in each call."""

REMEDIES = {
    "embedding_renorm": "leave max_norm out, and shorten the rows in the loop after each update",
    "instance_norm": "leave track_running_stats out",
}
LOST = (
    "the model makes a leaf of autograd in its forward pass, of which a trace loses the origin "
    "(x.detach().requires_grad_(), say)"
)
KEPT = "call requires_grad_ on nothing there; torch.func.grad differentiates without it"
PARAMETRIZED = ".parametrizations."
FOLLOWED = (
    "leave spectral_norm out, and divide the weight by its norm in the loop after each update"
)
COUNTED = "give the normalisation a momentum, which is the same in every step"
REMEDY = "give it to the model as an input, and write it in the loop, outside of the model"


def refuse_state_writes(program: ExportedProgram, root: str = "") -> None:
    """Refuse a program that writes into its own state; `root` is no part of a name."""
    entering = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node, written in _writes(program.graph_module):
        spec = entering.get(written.name)
        if spec is not None and spec.kind in WORDS and not _passes(spec, program, node):
            name = (spec.target or written.name).removeprefix(f"{root}." if root else "")
            raise InputError(
                f"the model writes into its {WORDS[spec.kind]} {name!r}{place(node)}; "
                f"no later step of a plan would see it",
                _remedy(spec, program, node),
            )


def refuse_baked_constants(program: ExportedProgram) -> None:
    """Refuse a program that takes for a constant what forward computes of its inputs.

    `torch.export` refuses it itself, but for models whose inputs are fake tensors already. Tensors
    that a `state_dict` leaves out (rotary frequencies) are constants too, which need no gradient.
    """
    constants = program.constants.values()
    if any(isinstance(constant, FakeTensor) and constant.requires_grad for constant in constants):
        raise InputError(LOST, KEPT)


def _remedy(spec: InputSpec, program: ExportedProgram, write: fx.Node) -> str:
    if _is_counter(spec, program):
        return COUNTED
    if PARAMETRIZED in (spec.target or ""):
        return FOLLOWED
    return REMEDIES.get(kind_of_node(write) or "", REMEDY)


def _passes(spec: InputSpec, program: ExportedProgram, write: fx.Node) -> bool:
    """Whether a tensor is a counter that nobody reads, or made by forward."""
    by_forward = (spec.target or "").rpartition(".")[2].startswith(MADE_OF_NUMBERS)
    return by_forward or (_is_counter(spec, program) and _only_counts(write))


def _is_counter(spec: InputSpec, program: ExportedProgram) -> bool:
    """Whether a tensor counts the batches of a batch normalisation."""
    owner, _, name = (spec.target or "").rpartition(".")
    beside = f"{owner}.{STATISTIC}" if owner else STATISTIC
    return name == COUNTER and beside in program.graph_signature.buffers


def _only_counts(write: fx.Node) -> bool:
    """Whether nobody reads a counter but who counts on, as each further call of its module does."""
    return all(
        (mutated_node(user) is write and _only_counts(user))
        or any(outer is write and _only_counts(inner) for inner, outer in _entering(user))
        for user in write.users
    )


def _entering(node: fx.Node) -> Iterator[tuple[fx.Node, object]]:
    """What a region that a node calls is given, each as it is inside, and outside."""
    for place_, argument in enumerate(node.args):
        if isinstance(argument, fx.Node) and (region := _region(argument)) is not None:
            inside = (inner for inner in region.graph.nodes if inner.op == "placeholder")
            yield from zip(inside, node.args[place_ + 1 :], strict=False)


def _region(node: fx.Node) -> fx.GraphModule | None:
    owner = node.graph.owning_module
    region = getattr(owner, str(node.target), None) if node.op == "get_attr" else None
    return region if isinstance(region, fx.GraphModule) else None


def _writes(module: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The nodes that write, each with the node whose memory that is, in regions too."""
    for node in module.graph.nodes:
        written = _written(node)
        if written is not None:
            yield node, _root(written)
        if (region := _region(node)) is not None:
            for user in node.users:
                outside = dict(_entering(user))
                for writer, inner in _writes(region):
                    target = outside.get(inner)
                    if isinstance(target, fx.Node):
                        yield writer, _root(target)


def _written(node: fx.Node) -> fx.Node | None:
    """What a node writes into; running statistics are not in the schema of a normalisation."""
    if kind_of_node(node) == "instance_norm":
        statistic, follows = node.args[3], node.args[5]
        return statistic if isinstance(statistic, fx.Node) and follows else None
    return mutated_node(node)


def _root(node: fx.Node) -> fx.Node:
    source = source_of_view(node)
    return node if source is None else _root(source)
