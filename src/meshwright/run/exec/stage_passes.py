"""A pipeline stage on an island (1F1B, Narayanan et al. 2019). Enters: the plan of the stage for
one micro-batch, and what enters and leaves it. Leaves: its part of a step: gradients of its
parameters, and on the last stage the loss.

Each micro-batch is a call of its own whose passes are apart (`two_passes`): what enters comes from
earlier stages, what leaves goes to later ones, and gradients come back the same way. With s the
stage of S, min(K, S - s) of K micro-batches go forward before the first one comes back, so that no
more of them are kept.

The gradient of what enters is that of what its gate makes (`graph.stage_graph`), which autograd
tells when it comes by. Gradients are summed inside of the island for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.graph.stage_graph import GATE
from meshwright.lower.boxes import shape_of
from meshwright.lower.data_shares import data_shares
from meshwright.lower.script import Instruction
from meshwright.run.comm.stage_mail import StageLink, StageMail
from meshwright.run.exec.across_islands import Across
from meshwright.run.exec.executor import Executor
from meshwright.run.exec.two_passes import TwoPasses, Waiting


class StagePlace(NamedTuple):
    """Which stage this is of how many, and of how many micro-batches."""

    stage: int
    stages: int
    micro_batches: int
    links: tuple[StageLink, ...]
    """Of all stages."""

    @property
    def last(self) -> bool:
        """Whether the loss is computed here."""
        return self.stage == self.stages - 1


class MicroBatch(NamedTuple):
    """The model's own inputs of a micro-batch, and what its loss counts in that of the batch."""

    inputs: Mapping[str, Tensor]
    weight: float


def one_forward_one_backward(
    stage: int, stages: int, micro_batches: int
) -> Iterator[tuple[bool, int]]:
    """The passes of a stage in order: whether it is a forward one, and of which micro-batch.

    >>> [("F" if forward else "B") + str(n) for forward, n in one_forward_one_backward(0, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    first = min(micro_batches, stages - stage)
    yield from ((True, number) for number in range(first))
    for number in range(micro_batches):
        yield False, number
        if number + first < micro_batches:
            yield True, number + first


class StagePasses(TwoPasses):
    """A stage's part of steps, beside an executor with its parameters."""

    def __init__(
        self, steps: Executor, place: StagePlace, mail: StageMail, tied: Sequence[Across]
    ) -> None:
        """Enter besides: what sums gradients of weights that other stages have, too."""
        self._place, self._mail, self._tied = place, mail, tied
        self._entering = [link for link in place.links if link.receiver == place.stage]
        self._leaving = [link for link in place.links if link.sender == place.stage]
        graph = steps.script.plan.graph
        assert graph.loss is not None
        leaving = dict.fromkeys(link.tensor for link in self._leaving)
        flowing = dict.fromkeys(link.tensor for link in self._leaving if link.backward)
        self._made = [*leaving, graph.loss] if place.last else [*leaving]
        self._gates = [link.gate for link in self._entering if link.backward]
        super().__init__(steps, [*self._made, *self._gates])
        shares = data_shares(self.script)
        self._outputs = self.gathering(shares, self._made)
        self._wanted = list(flowing)
        self._given_back = self.gathering(shares, self._wanted)
        self._sent_back = {gate: self.gathering(shares, [gate]) for gate in self._gates}
        self._came: dict[str, Tensor] = {}
        """Gradients of what gates made, of the micro-batch that is under way."""
        self._weight = 1.0
        self.micro: Sequence[MicroBatch] = ()
        """Of the step that is next."""

    def step(
        self, inputs: Mapping[str, Tensor], *, train: bool = True, training: bool = True
    ) -> Tensor:
        """The loss of the batch that `micro` has, of which `inputs` are not read."""
        place = self._place
        calls: dict[int, Waiting] = {}
        totals: dict[str, Tensor] = {}
        loss = torch.zeros((), dtype=torch.float64)
        order = one_forward_one_backward(place.stage, place.stages, place.micro_batches)
        for forward, number in order:
            micro = self.micro[number]
            if forward:
                loss += micro.weight * self._forward(micro, train=train, training=training)
                calls[number] = self.waiting()
            elif train:
                self._weight = micro.weight
                self._backward(calls.pop(number))
                self._add_up(totals)
        for name, total in totals.items():
            self.parameters.pieces[name].gradient = total
        self.pulse(waiting=True)
        for tie in self._tied if train else ():
            tie.reduce(self, 1.0)
        self._mail.finish()
        whole_loss = self._mail.total(loss / self.script.plan.cluster.devices)
        self.pulse()
        return whole_loss

    def _forward(self, micro: MicroBatch, *, train: bool, training: bool) -> float:
        """Of one micro-batch; its loss on the last stage."""
        arrived = {
            entering.tensor: self._received(entering, backward=False) for entering in self._entering
        }
        self.forward({**micro.inputs, **arrived}, train=train, training=training)
        outputs = dict(zip(self._made, self.outputs(self._outputs, share=False), strict=True))
        for link in self._leaving:
            self._mail.send(link, outputs[link.tensor])
        return outputs[self._made[-1]].item() if self._place.last else 0.0

    def _backward(self, call: Waiting) -> None:
        """Of one micro-batch."""
        arriving: dict[str, Tensor] = {}
        for link in self._leaving:
            if link.backward:
                value = self._received(link, backward=True)
                known = arriving.get(link.tensor)
                arriving[link.tensor] = value if known is None else known + value
        self._came = {}
        gradients = [arriving[name] for name in self._wanted]
        self.backward(call, gradients, self._given_back, share=False)
        for link in self._entering:
            if link.backward:
                self._mail.send(link, self._whole_gradient(link.gate), backward=True)

    def _whole_gradient(self, gate: str) -> Tensor:
        """The gradient of what entered by a gate, put together on every rank."""
        placement, piece = self.script.parallel.made[gate].forward, self._came.get(gate)
        if piece is None and placement.holds(self._here):
            shape = shape_of(placement.box(self._here))
            piece = torch.zeros(shape, dtype=self._mover.dtype(gate), device=self.device)
        came = {} if piece is None else {(gate, 0): piece.contiguous()}

        def job() -> Tensor:
            (gradient,) = self._sent_back[gate].gathered(came, share=False)
            self.wire.finish()
            return gradient

        return self._await(self._lane.begin(job), "outputs")

    def _add_up(self, totals: dict[str, Tensor]) -> None:
        """Add the gradients of a micro-batch to those of the ones before."""
        for name, piece in self.parameters.pieces.items():
            if piece.gradient is not None and not name.startswith(GATE):
                known = totals.get(name)
                totals[name] = piece.gradient if known is None else known + piece.gradient
            piece.gradient = None

    def _run(self, instruction: Instruction, train: bool) -> None:
        super()._run(instruction, train)
        kept = self._tape.get((instruction.number, instruction.micro_batch))
        if kept is None or not self._gates:
            return
        compiled = self._segment(instruction.number, instruction.micro_batch)
        for (name, _), edge in zip(compiled.outputs, kept.outputs, strict=True):
            if name in self._gates and edge is not None:
                note = partial(self._note, name, edge.output_nr)
                edge.node.register_prehook(note)

    def _note(self, gate: str, place: int, gradients: Sequence[Tensor]) -> None:
        self._came[gate] = gradients[place].detach()

    def _gradient(self, name: str, micro: int) -> Tensor | None:
        if name == self.script.plan.graph.loss and self._place.last:
            return torch.full_like(self._losses[0], self._weight)
        return super()._gradient(name, micro)

    def _received(self, link: StageLink, *, backward: bool) -> Tensor:
        """What comes over a link, whole."""
        self.pulse(waiting=True)
        received = self._mail.receive(link, backward=backward).to(self.device)
        self.pulse()

        def job() -> Tensor:
            whole = self._mail.together(link, received, backward=backward)
            self.wire.finish()
            return whole

        return self._await(self._lane.begin(job), "outputs")
