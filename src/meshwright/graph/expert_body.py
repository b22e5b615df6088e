"""MoE expert body as text: the operators that one expert applies to its tokens.

Enters: the operators between the permutation of tokens by expert and its inverse. Leaves: a text
that an attribute can hold, and from it the calls that it stands for at any sizes.

    v0 = transpose(w0) {dim0=1, dim1=2}; v1 = _grouped_mm(rows, v0, ends); v2 = silu(v1); ...

Names that are given:
    rows   [r, h]     tokens in the order of their experts, a token once for each expert it chose
    ids    [r]        the expert of each row
    ends   [e]        where the rows of each expert end
    w0 ..  [e, ...]   operands of which each expert has its own: weights and biases
The last value is the result. With T tokens that choose k experts each there are r = k T rows, also
on a device that holds some of the experts and has sent away tokens and got others for them: loads
are taken to be balanced (a capacity factor of 1); what runs is exact for any load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from meshwright.graph.family import ShapeError, Wanted
from meshwright.graph.operator_graph import Attributes, Call, Spec
from meshwright.graph.text import format_attributes, parse_attributes

ROWS, IDS, ENDS = "rows", "ids", "ends"

OPERANDS = 3
"""The place of the first operand of the experts: tokens, choices and weights come before."""

_STAGE = re.compile(
    r"(?P<outputs>[\w, ]+) = (?P<kind>[\w.]+)\((?P<inputs>[^)]*)\)(?: \{(?P<attributes>.*)\})?"
)


class ExpertStage(NamedTuple):
    """One operator of a body."""

    outputs: tuple[str, ...]
    kind: str
    inputs: tuple[str, ...]
    attributes: Attributes = ()

    def __str__(self) -> str:
        outputs, read = ", ".join(self.outputs), ", ".join(self.inputs)
        return f"{outputs} = {self.kind}({read}){format_attributes(self.attributes)}"


class SizedOperator(NamedTuple):
    """An operator of a body with its sizes."""

    stage: ExpertStage
    call: Call
    wanted: Wanted
    """For each input whether its gradient is made."""


def operand(number: int) -> str:
    """The name of an operand of the experts."""
    return f"w{number}"


def format_body(stages: Iterable[ExpertStage]) -> str:
    """A body as text."""
    return "; ".join(map(str, stages))


@lru_cache(maxsize=1024)
def parse_body(text: str) -> tuple[ExpertStage, ...]:
    """A body from its text.

    >>> body = "v0 = _grouped_mm(rows, w0, ends); v1, v2 = chunk(v0) {chunks=2, dim=-1}"
    >>> format_body(parse_body(body)) == body
    True
    """
    stages = []
    for line in text.split("; "):
        match = _STAGE.fullmatch(line)
        if match is None:
            raise ShapeError(f"{line!r} is no operator of an expert's body")
        stages.append(
            ExpertStage(
                tuple(match["outputs"].split(", ")),
                match["kind"],
                tuple(filter(None, match["inputs"].split(", "))),
                parse_attributes(match["attributes"] or ""),
            )
        )
    return tuple(stages)


@lru_cache(maxsize=4096)
def inside(call: Call, wanted: Wanted = ()) -> tuple[SizedOperator, ...]:
    """All that routed experts run, one after the other: sorting, the body, the weighted sum.

    `wanted` says of which inputs gradients are made, by default of none.
    """
    x, index, weights, *operands = call.inputs
    if x is None or index is None or weights is None or not operands or None in operands:
        raise ShapeError("routed experts need tokens, choices, weights and operands")
    if len(x.shape) != 2 or len(index.shape) != 2 or index.shape != weights.shape:
        raise ShapeError(f"tokens are {x.shape}, choices {index.shape}, weights {weights.shape}")
    if x.shape[0] != index.shape[0]:
        raise ShapeError(f"there are {x.shape[0]} tokens and choices of {index.shape[0]}")
    learnt = dict(enumerate(wanted))
    telling = _Telling(
        {"x": x, "index": index, "weights": weights}
        | {operand(n): spec for n, spec in enumerate(operands) if spec is not None},
        {"x": learnt.get(0, False), "weights": learnt.get(2, False)}
        | {operand(n): learnt.get(OPERANDS + n, False) for n in range(len(operands))},
    )
    telling.tell(*index.shape, local_expert_count(call), str(call["body"]))
    return tuple(telling.told)


def local_expert_count(call: Call) -> int:
    """How many experts there are operands of: all of them, or those of a piece."""
    counts = {spec.shape[:1] for spec in call.inputs[OPERANDS:] if spec is not None}
    if len(counts) != 1 or counts == {()}:
        raise ShapeError(f"operands are of {sorted(counts)} experts")
    return counts.pop()[0]


class _Telling:
    """Stages with the sizes that follow from what they read."""

    def __init__(self, specs: Mapping[str, Spec], learns: Mapping[str, bool]) -> None:
        self.specs, self.learns = dict(specs), dict(learns)
        self.told: list[SizedOperator] = []

    def tell(self, tokens: int, chosen: int, experts: int, body: str) -> None:
        """Everything, in order."""
        rows = tokens * chosen
        self.specs |= {
            ENDS: Spec("int64", (experts,)),
            "flat": Spec("int64", (rows,)),
        }
        self._add(ExpertStage((IDS, "order"), "sort", ("flat",)))
        self._add(ExpertStage((ROWS,), "index", ("x", "order")))
        stages = parse_body(body)
        for stage in stages:
            self._add(stage)
        result = stages[-1].outputs[0]
        self._add(ExpertStage(("back",), "index", (result, "order")))
        width = self.specs["back"].shape[1:]
        self._add(ExpertStage(("slots",), "view", ("back",), (("size", (tokens, chosen, *width)),)))
        self._add(ExpertStage(("columns",), "unsqueeze", ("weights",), (("dim", -1),)))
        self._add(ExpertStage(("weighted",), "mul", ("slots", "columns")))
        self._add(ExpertStage(("out",), "sum", ("weighted",), (("dim", (1,)),)))

    def _add(self, stage: ExpertStage) -> None:
        from meshwright.graph.families import family_of  # Which knows the family that asks.

        specs = tuple(self._spec(name) for name in stage.inputs)
        unfinished = Call(kind=stage.kind, inputs=specs, outputs=(), attributes=stage.attributes)
        family = family_of(unfinished)
        outputs = family.outputs(unfinished)
        if len(outputs) < len(stage.outputs):
            raise ShapeError(f"{stage} makes {len(outputs)} tensors")
        call = Call(kind=stage.kind, inputs=specs, outputs=outputs, attributes=stage.attributes)
        wanted = tuple(self.learns.get(name, False) for name in stage.inputs)
        flows = family.differentiable and any(wanted)
        self.told.append(SizedOperator(stage, call, wanted if flows else (False,) * len(wanted)))
        for name, spec in zip(stage.outputs, outputs, strict=False):
            self.specs[name] = spec
            self.learns[name] = flows and spec.dtype.startswith(("float", "bfloat"))

    def _spec(self, name: str) -> Spec:
        if name not in self.specs:
            raise ShapeError(f"an expert's body reads {name!r}, which nobody makes")
        return self.specs[name]
