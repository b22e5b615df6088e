"""TorchInductor compilation of segments (`compile_fx`, AOTAutograd). Enters: segments, and what
enters them in a step. Leaves: their outputs, with autograd's graph where gradients are wanted.

Each distinct graph (`segment_graphs`: the same operators, local shapes and strides, dtypes and
attributes) is compiled once, forward and backward, by `torch._inductor.compile_fx` with static
shapes; micro-batches and repeated layers share it, and Inductor's cache on disk serves ranks and
later runs. AOTAutograd makes the backward pass and decides what is saved inside of a graph; between
segments everything is as without graphs, so collectives keep the plan's order and overlap. There
are no guards: what a graph was made for is looked up by strides and mode in every call.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import GraphModule

from meshwright.run.exec.operator_kernels import DrawMoment
from meshwright.run.exec.recording import Recorder
from meshwright.run.exec.segment_execution import Compiled, Compiler, fetched, run_operations
from meshwright.run.exec.segment_graphs import (
    GraphPart,
    SegmentGraph,
    UntraceableError,
    parts_of,
    split,
    traced,
)

Call = Callable[..., Sequence[Tensor]]

Backend = Callable[[GraphModule, Sequence[Tensor]], Call]
"""What makes a function of a graph and of tensors like those that enter it."""

BEAT = 1.0
"""Seconds between signs of life while a graph is compiled."""


EARLY_BACKWARD = "force_non_lazy_backward_lowering"
"""The setting, where this PyTorch has it, by which a backward pass is compiled with its forward."""


def eager_backend(module: GraphModule, examples: Sequence[Tensor]) -> Call:
    """The graph itself, run by PyTorch operator by operator."""
    return module


def inductor(module: GraphModule, examples: Sequence[Tensor]) -> Call:
    """Compiled by Inductor, the backward pass at once too."""
    with warnings.catch_warnings():
        # PyTorch's, of its own code; one that is an error would leave us without a graph.
        warnings.simplefilter("ignore")
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx

        known = EARLY_BACKWARD in config.get_config_copy()
        with config.patch({EARLY_BACKWARD: True}) if known else nullcontext():
            return cast("Call", compile_fx(copy.deepcopy(module), list(examples)))


class CompileReport(NamedTuple):
    """What was compiled on a rank so far."""

    graphs: int
    """Distinct ones."""
    uses: int
    """Parts of segments that they are of, for each micro-batch and mode."""
    seconds: float
    eager: tuple[tuple[str, int], ...]
    """Why operators run by themselves, with how many."""


class _Ready(NamedTuple):
    call: Call
    graph: SegmentGraph


class Graphs:
    """The distinct graphs of a rank."""

    def __init__(self, backend: Backend, compiler: Compiler, pulse: Callable[[], object]) -> None:
        self._backend, self.compiler, self._pulse = backend, compiler, pulse
        self._calls: dict[Hashable, Call] = {}
        self._uses, self._seconds = 0, 0.0
        self._segments: dict[int, _GraphSegment] = {}
        self.told: Callable[[CompileReport], None] | None = None
        """Is told whenever a graph was compiled, or cannot be."""

    def of(
        self, segment: Compiled
    ) -> Callable[[Sequence[Tensor], Sequence[Tensor], Recorder], list[Tensor]]:
        """What runs a segment, which is kept, in the place of `Compiled.run`."""
        if id(segment) not in self._segments:
            self._segments[id(segment)] = _GraphSegment(self, segment)
        return self._segments[id(segment)].run

    def report(self) -> CompileReport:
        """What was compiled so far."""
        eager: Counter[str] = Counter()
        for segment in self._segments.values():
            for part in segment.parts:
                if part.eager is not None:
                    eager[part.eager] += len(part.operations)
        return CompileReport(len(self._calls), self._uses, self._seconds, tuple(eager.items()))

    def ready(self, part: GraphPart, inputs: Sequence[Tensor], moment: DrawMoment) -> _Ready:
        """A part's function, compiled if no part before it was the same."""
        begin = time.perf_counter()
        with _alive(self._pulse):
            graph = traced(part, inputs, moment, self.compiler)
            same = _identity(graph)
            new = same not in self._calls
            if new:
                self._calls[same] = self._compiled(graph)
        self._uses += 1
        self._seconds += time.perf_counter() - begin
        if new:
            self.tell()
        return _Ready(self._calls[same], graph)

    def tell(self) -> None:
        """Tell how far compiling is."""
        if self.told is not None:
            self.told(self.report())

    def _compiled(self, graph: SegmentGraph) -> Call:
        try:
            return self._backend(graph.module, graph.examples)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise UntraceableError(-1, f"Inductor fails: {reason}") from error


def _identity(graph: SegmentGraph) -> Hashable:
    """Equal for graphs that compute the same: constants are compared by identity."""
    nodes = graph.module.graph.nodes
    constants = tuple(id(graph.module) for node in nodes if node.op == "get_attr")[:1]
    likes = tuple(
        (example.shape, example.stride(), example.dtype, example.device, example.requires_grad)
        for example in graph.examples
    )
    return graph.module.code, likes, torch.is_grad_enabled(), constants


class _GraphSegment:
    """A segment for one micro-batch."""

    def __init__(self, graphs: Graphs, segment: Compiled) -> None:
        self._graphs, self._segment = graphs, segment
        self.parts = parts_of(segment)
        self._ready: dict[Hashable, _Ready] = {}

    def run(
        self, arriving: Sequence[Tensor], fixed: Sequence[Tensor], recorder: Recorder
    ) -> list[Tensor]:
        row = self._segment.filled(arriving, fixed)
        number = 0
        while number < len(self.parts):
            part = self.parts[number]
            inputs = [fetched(row, operand) for operand in part.inputs]
            if part.eager is not None or not all(map(_plain, inputs)):
                run_operations(part.operations, row, recorder)
            else:
                try:
                    ready = self._call(part, inputs)
                except UntraceableError as error:
                    place, reason = error.place, error.reason
                    self.parts = split(self.parts, number, place, reason, self._segment)
                    self._graphs.tell()
                    continue
                with recorder.timed("forward", _name(part)):
                    results = ready.call(*self._entering(ready, inputs))
                for slot, result in zip(part.outputs, results, strict=True):
                    row[slot] = result
            for slot in part.last:
                row[slot] = None
            number += 1
        return self._segment.results(row)

    def _call(self, part: GraphPart, inputs: Sequence[Tensor]) -> _Ready:
        moment = self._graphs.compiler.moment()
        key = (
            part.operations[0].name,
            len(part.operations),
            moment.training,
            moment.again,
            torch.is_grad_enabled(),
            *(tensor.stride() for tensor in inputs),
        )
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self._graphs.ready(part, inputs, moment)
        return ready

    def _entering(self, ready: _Ready, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if not ready.graph.places:
            return inputs
        moment = self._graphs.compiler.moment()
        return (ready.graph.numbers(moment, self._graphs.compiler.device), *inputs)


def _plain(tensor: Tensor) -> bool:
    """Whether strides say all of how a tensor lies."""
    return tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()


def _name(part: GraphPart) -> str:
    first, count = part.operations[0].name, len(part.operations)
    return first if count == 1 else f"{first} and {count - 1} more"


@contextmanager
def _alive(pulse: Callable[[], object]) -> Iterator[None]:
    """Give signs of life meanwhile: compiling takes longer than a rank may stand still."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            pulse()

    thread = threading.Thread(target=beat, name="meshwright compiling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
