"""What a run has shown, over all ranks. Enters: one rank's times, bytes and memory. Leaves: a
`Measurement`, the same on every rank.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from meshwright.cluster.model import Cluster
from meshwright.foundation.integers import to_digits
from meshwright.foundation.units import Bytes, Seconds
from meshwright.plan.model import Held, Measurement
from meshwright.run.module import Parallelized
from meshwright.run.recording import COMPUTING, TRAVELLING

MOST = 40
"""Names that a list of a measurement has at most."""


class Ran(NamedTuple):
    """Some steps of one rank."""

    seconds: list[float]
    losses: list[float]
    moved: int
    """Bytes that it sent in the last one."""


class Memory:
    """How much more memory a process takes at its fullest than at the beginning."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before = 0
        else:
            _forget_peak()
            self._before = _status("VmRSS")

    def grown(self) -> int:
        """Bytes since then, at the fullest moment."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return max(0, _status("VmHWM") - self._before)


def _forget_peak() -> None:
    """Have Linux forget how much memory the process ever had; where that fails it is too much."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _status(key: str) -> int:
    """A number of bytes that Linux knows of this process, 0 elsewhere."""
    try:
        found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def measurement(
    module: Parallelized, optimizer: torch.optim.Optimizer, ran: Ran, memory: Memory
) -> Measurement:
    """What all ranks have shown: the slowest rank's times, the sum of what they sent."""
    executor = module.executor
    own: dict[str, Any] = {
        "seconds": ran.seconds,
        "moved": ran.moved,
        "levels": _by_level(executor.wire.sent_to, executor.script.plan.cluster, executor.rank),
        "held": _held(module, optimizer, memory),
        "recorded": dict(executor.recorder.seconds),
    }
    found: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, own)
    steps = [max(each) for each in zip(*(one["seconds"] for one in found), strict=True)]
    busiest = max(found, key=lambda one: _computing(one["recorded"]))
    fullest = max(range(len(found)), key=lambda rank: found[rank]["held"].total)
    count = executor.steps
    levels: Counter[str] = sum((Counter(one["levels"]) for one in found), Counter())
    return Measurement(
        step=Seconds(statistics.median(steps)),
        steps=tuple(map(Seconds, steps)),
        compute=Seconds(_computing(busiest["recorded"])),
        moved=Bytes(sum(one["moved"] for one in found)),
        memory=msgspec.structs.replace(found[fullest]["held"], device=f"device {fullest}"),
        operators=_longest(busiest["recorded"], ("forward",)),
        segments=_longest(busiest["recorded"], ("backward",)),
        transfers=_longest(busiest["recorded"], TRAVELLING, named=True),
        levels=tuple(
            (level.name, Bytes(levels[level.name] // max(1, count)))
            for level in executor.script.plan.cluster.levels
        ),
        loss=tuple(ran.losses),
    )


def _computing(recorded: dict[tuple[str, str], float]) -> float:
    return sum(seconds for (kind, _), seconds in recorded.items() if kind in COMPUTING)


def _longest(
    recorded: dict[tuple[str, str], float], kinds: tuple[str, ...], *, named: bool = False
) -> tuple[tuple[str, Seconds], ...]:
    own = [
        (f"{kind} {name}".strip() if named else name, Seconds(seconds))
        for (kind, name), seconds in recorded.items()
        if kind in kinds
    ]
    return tuple(sorted(own, key=lambda it: -it[1])[:MOST])


def _by_level(sent_to: Counter[int], cluster: Cluster, rank: int) -> dict[str, int]:
    """Bytes that a rank sent, by the outermost level at which the receiver is elsewhere."""
    here, found = to_digits(rank, cluster.hierarchy), Counter[str]()
    for peer, sent in sent_to.items():
        there = to_digits(peer, cluster.hierarchy)
        pairs = enumerate(zip(here, there, strict=True))
        depth = next(number for number, (a, b) in pairs if a != b)
        found[cluster.levels[depth].name] += sent
    return dict(found)


def _held(module: Parallelized, optimizer: torch.optim.Optimizer, memory: Memory) -> Held:
    """What a rank holds: parts that can be counted, and what else its memory has grown by."""
    pieces = module.executor.parameters.pieces.values()
    parameters = sum(piece.seen.nbytes for piece in pieces)
    parameters += sum(
        piece.data.untyped_storage().nbytes() for piece in pieces if piece.sharing is not None
    )
    gradients = sum(own.grad.nbytes for own in module.parameters() if own.grad is not None)
    states = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    return Held(
        parameters=Bytes(parameters),
        gradients=Bytes(gradients),
        optimizer=Bytes(states),
        activations=Bytes(max(0, memory.grown() - gradients - states)),
        workspace=Bytes(0),
        device="",
        seconds=Seconds(0.0),
    )
