"""Memory that two CUDA streams use: nothing is handed out again while the other still needs it.

Each test makes one stream late, drops what it has yet to read, and writes to newly allocated memory
on the other: without `CommStream`'s care the late stream reads the new numbers. All is done once
before without delay, since a kernel that is not loaded yet waits for all streams.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.run.comm.comm_stream import CommStream

pytestmark = pytest.mark.gpu

SIZE = 1 << 22
LATE = 200_000_000
"""Cycles that a stream is kept busy: about a tenth of a second."""


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def be_late(cycles: int) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("cycles", [1, LATE])
def test_what_a_job_reads_is_kept_until_it_has_been_read(cycles: int) -> None:
    lane, device = CommStream(cuda()), cuda()
    operand = torch.ones(SIZE, device=device)

    def late_sum(data: Tensor) -> Tensor:
        be_late(cycles)
        return data.sum()

    launched = lane.begin(lambda tensor=operand: late_sum(tensor))  # type: ignore[misc]
    launched._ready.wait()
    del operand
    others = [torch.full((SIZE,), 2.0, device=device) for _ in range(4)]
    assert launched.result().item() == SIZE
    assert all(other[0].item() == 2.0 for other in others)
    lane.close()


@pytest.mark.parametrize("cycles", [1, LATE])
def test_what_a_job_returns_is_kept_until_its_reader_is_done(cycles: int) -> None:
    lane, device = CommStream(cuda()), cuda()
    arrived = lane.begin(lambda: torch.ones(SIZE, device=device)).result()
    lane.begin(lambda: None).result()  # The thread holds on to its last handle.
    be_late(cycles)
    read = arrived * 1.0
    del arrived
    with torch.cuda.stream(lane._stream):
        overwritten = [torch.full((SIZE,), 2.0, device=device) for _ in range(4)]
    assert read.sum().item() == SIZE
    assert all(other[0].item() == 2.0 for other in overwritten)
    lane.close()
