"""Run measurements reduced over ranks: step time, bytes sent, peak memory. Enters: one rank's
times, bytes and memory. Leaves: a `Measurement`, the same on every rank.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from meshwright.base.integers import to_digits
from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.plan.plan import Held, Measurement
from meshwright.run.exec.recording import TRAVELLING, Recorded, computing, waiting
from meshwright.run.module import Parallelized

MOST = 40
"""Names that a list of a measurement has at most."""


class Ran(NamedTuple):
    """Some steps of one rank."""

    seconds: list[float]
    losses: list[float]
    moved: int
    """Bytes that it sent in the last one."""


class MeasuredMemory:
    """The most memory that a rank takes for training: on a GPU what PyTorch's allocator has handed
    out, on a CPU what its pieces of parameters take and the process grows by.
    """

    def __init__(self, module: Parallelized) -> None:
        self._executor = module.executor
        self._peak = 0
        """Of what was allocated before the allocator's own peak was last forgotten."""
        self._gradients: int | None = None
        """At the fullest moment, if that was looked for."""
        pieces = self._executor.parameters.pieces.values()
        held = (piece.data if piece.stays else piece.seen for piece in pieces)
        self.parameters = sum(tensor.nbytes for tensor in held)
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(self._executor.device)
        else:
            _forget_peak()
            self._before = _status("VmRSS")

    @property
    def _on_gpu(self) -> bool:
        return self._executor.device.type == "cuda"

    @property
    def total(self) -> int:
        """Bytes at the fullest moment."""
        if self._on_gpu:
            return max(self._peak, torch.cuda.max_memory_allocated(self._executor.device))
        return self.parameters + max(0, _status("VmHWM") - self._before)

    @contextmanager
    def looking(self) -> Iterator[Callable[[], None]]:
        """Look for the fullest moment of a step, and for what gradients take then.

        A GPU's allocator is asked after each instruction; what it gives is asked once more.
        """
        if not self._on_gpu:
            yield lambda: None
            return
        self._peak = self.total
        torch.cuda.reset_peak_memory_stats(self._executor.device)
        pulse, fullest = self._executor.pulse, 0

        def look() -> None:
            nonlocal fullest
            now = torch.cuda.max_memory_allocated(self._executor.device)
            if now > fullest:
                fullest, self._gradients = now, self._executor.gradient_bytes()

        def looked(*, waiting: bool = False) -> None:
            look()
            pulse(waiting=waiting)

        self._executor.pulse = looked
        try:
            yield look
        finally:
            self._executor.pulse = pulse

    def held(self, module: Parallelized, optimizer: torch.optim.Optimizer) -> Held:
        """By what it is for; what cannot be counted is activations and workspace together."""
        states = sum(
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.device == self._executor.device
        )
        gradients = self._gradients
        if gradients is None:
            gradients = sum(
                parameter.grad.nbytes
                for parameter in module.parameters()
                if parameter.grad is not None
            )
        rest = max(0, self.total - self.parameters - gradients - states)
        return Held(
            parameters=Bytes(self.parameters),
            gradients=Bytes(gradients),
            optimizer=Bytes(states),
            activations=Bytes(rest),
            workspace=Bytes(0),
            device="",
            seconds=Seconds(0.0),
        )


def _forget_peak() -> None:
    """Have Linux forget how much memory the process ever had; where that fails it is too much."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _status(key: str) -> int:
    """A number of bytes that Linux knows of this process, 0 elsewhere."""
    try:
        match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def measurement(
    module: Parallelized, optimizer: torch.optim.Optimizer, ran: Ran, memory: MeasuredMemory
) -> Measurement:
    """What all ranks have shown: the slowest rank's times, the sum of what they sent."""
    executor = module.executor
    measured: dict[str, Any] = {
        "seconds": ran.seconds,
        "moved": ran.moved,
        "levels": _by_level(executor.wire.sent_to, executor.script.plan.cluster, executor.rank),
        "held": memory.held(module, optimizer),
        "recorded": executor.recorder.seconds,
    }
    gathered: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, measured)
    steps = [max(each) for each in zip(*(one["seconds"] for one in gathered), strict=True)]
    busiest = max(gathered, key=lambda one: computing(one["recorded"]))
    fullest = max(range(len(gathered)), key=lambda rank: gathered[rank]["held"].total)
    count = executor.steps
    levels: Counter[str] = sum((Counter(one["levels"]) for one in gathered), Counter())
    return Measurement(
        step=Seconds(statistics.median(steps)),
        steps=tuple(map(Seconds, steps)),
        compute=Seconds(computing(busiest["recorded"])),
        exposed=Seconds(waiting(busiest["recorded"])),
        moved=Bytes(sum(one["moved"] for one in gathered)),
        memory=msgspec.structs.replace(gathered[fullest]["held"], device=f"device {fullest}"),
        operators=_longest(busiest["recorded"], ("forward",)),
        segments=_longest(busiest["recorded"], ("backward",)),
        transfers=_longest(busiest["recorded"], TRAVELLING, named=True),
        levels=tuple(
            (level.name, Bytes(levels[level.name] // max(1, count)))
            for level in executor.script.plan.cluster.levels
        ),
        loss=tuple(ran.losses),
    )


def _longest(
    recorded: Recorded, kinds: tuple[str, ...], *, named: bool = False
) -> tuple[tuple[str, Seconds], ...]:
    rows = [
        (f"{kind} {name}".strip() if named else name, Seconds(seconds))
        for (kind, name), seconds in recorded.items()
        if kind in kinds
    ]
    return tuple(sorted(rows, key=lambda it: -it[1])[:MOST])


def _by_level(sent_to: Counter[int], cluster: Cluster, rank: int) -> dict[str, int]:
    """Bytes that a rank sent, by the outermost level at which the receiver is elsewhere."""
    sender, levels = to_digits(rank, cluster.hierarchy), Counter[str]()
    for peer, sent in sent_to.items():
        receiver = to_digits(peer, cluster.hierarchy)
        pairs = enumerate(zip(sender, receiver, strict=True))
        depth = next(number for number, (a, b) in pairs if a != b)
        levels[cluster.levels[depth].name] += sent
    return dict(levels)
