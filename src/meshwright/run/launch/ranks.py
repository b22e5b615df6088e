"""Local process launcher: ranks forked from a preloaded server (multiprocessing forkserver).
Enters: a function that can be imported, and how many ranks run it. Leaves: what each of them
returned, in the order of the ranks.

Ranks are forked from a server that has imported what they need and done nothing else, which takes
a twentieth of a second for each instead of four. Users start theirs with torchrun; what runs in a
rank does not know the difference.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.run.launch.thread_affinity import pin_to_core_share, pin_to_one_core

PRELOADED = ("meshwright.run.launch.quiet", "meshwright.run.preloaded")
"""What ranks need not import themselves, in this order."""

PATIENCE = Seconds(300.0)
"""How long ranks may take if nothing else is said."""

GRACE = 2.0
"""Seconds that the others have to end by themselves once a rank has failed."""


class Home(NamedTuple):
    """Where ranks live: the address at which the first is found, and how each goes there."""

    address: str = "127.0.0.1"
    interface: str = "lo"
    enter: Callable[[int], None] | None = None
    """Called in each rank with its number before anything else; can be imported."""
    gpus: int = 0
    """How many GPUs the ranks have or share, as NCCL ranks; none: they are gloo ranks on CPUs."""


class Meeting(NamedTuple):
    """Where the ranks of a run find each other."""

    home: Home
    ranks: int
    port: int
    door: socket.socket | None = None
    """For the first rank: bound to the port, so that nobody else takes it meanwhile."""

    def join(self, rank: int) -> None:
        """Make a process group of all ranks."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore

        from meshwright.run.launch.gpus import sharing_environment

        os.environ |= {
            "MASTER_ADDR": self.home.address,
            "MASTER_PORT": str(self.port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "GLOO_SOCKET_IFNAME": self.home.interface,
            "OMP_NUM_THREADS": "1",
        }
        torch.set_num_threads(1)
        gpu: torch.device | None = None
        if self.home.gpus:
            os.environ["NCCL_SOCKET_IFNAME"] = self.home.interface
            if self.home.gpus < self.ranks or self.home.interface != Home().interface:
                # Ranks with a GPU each talk over NVLink, unless a network is to be emulated.
                os.environ |= sharing_environment(rank)
            gpu = torch.device("cuda", rank * self.home.gpus // self.ranks)
            pin_to_core_share(rank, self.ranks)
            torch.cuda.set_device(gpu)
        else:
            pin_to_one_core(rank, self.ranks)
        listening = None if self.door is None else self.door.detach()
        store = TCPStore(
            self.home.address, self.port, self.ranks, rank == 0, master_listen_fd=listening
        )
        backend = "gloo" if gpu is None else "nccl"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=self.ranks, device_id=gpu
        )


@contextmanager
def open_rendezvous(ranks: int, home: Home | None = None) -> Iterator[list[Meeting]]:
    """For each rank where it meets the others; ranks are started inside."""
    host = home or Home()
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        meeting = Meeting(host, ranks, door.getsockname()[1])
        # A door does not open into another network.
        first = meeting._replace(door=door) if host.address == Home().address else meeting
        yield [first, *[meeting] * (ranks - 1)]


class RankError(Exception):
    """A rank that did not return: what it said."""

    def __init__(self, rank: int, said: str) -> None:
        super().__init__(f"rank {rank} failed:\n{said}")
        self.rank, self.said = rank, said


def run_ranks(
    body: Callable[..., object],
    *arguments: object,
    ranks: int,
    home: Home | None = None,
    timeout: Seconds | None = PATIENCE,
) -> list[object]:
    """What each rank returns from `body(*arguments)`, with a process group around it.

    With no timeout they may take as long as they want.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    started: list[tuple[ForkServerProcess, Connection]] = []
    with open_rendezvous(ranks, home) as all_:
        for rank, meeting in enumerate(all_):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(sender, rank, meeting, body, arguments), daemon=True
            )
            process.start()
            sender.close()
            started.append((process, receiver))
    try:
        until = math.inf if timeout is None else time.monotonic() + timeout
        return _collected(started, until)
    finally:
        # All at once: who outlived another would complain of its death.
        for process, _ in started:
            process.kill()
        for process, connection in started:
            process.join()
            connection.close()


def _rank(
    report: Connection,
    rank: int,
    meeting: Meeting,
    body: Callable[..., object],
    arguments: Sequence[object],
) -> None:
    """What a forked process does. Ctrl-C reaches all processes: who started the ranks ends them."""
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if meeting.home.enter is not None:
            meeting.home.enter(rank)
        meeting.join(rank)
        result = body(*arguments)
        # Who leaves first takes the store along, which the others may still need.
        dist.barrier()
        dist.destroy_process_group()
        report.send((True, result))
    except InputError as mistake:
        report.send((False, (mistake.problem, mistake.remedy)))
        os._exit(2)
    except BaseException:
        report.send((False, traceback.format_exc()))
        os._exit(1)


def _collected(
    started: Sequence[tuple[ForkServerProcess, Connection]], deadline: float
) -> list[object]:
    """The results; a `RankError` for the first rank that fails, dies or takes too long.

    A user's mistake is told as what it is.
    """
    waiting = {connection: rank for rank, (_, connection) in enumerate(started)}
    results: dict[int, object] = {}
    failed: dict[int, object] = {}
    while waiting:
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        ready = wait(list(waiting), left)
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = waiting.pop(connection)
            well, said = _received(connection, started[rank][0])
            if well:
                results[rank] = said
            else:
                failed[rank] = said
                # What the others say of it follows; the first is the cause.
                deadline = min(deadline, time.monotonic() + GRACE)
    if failed:
        rank, said = next(iter(failed.items()))
        if isinstance(said, tuple):
            raise InputError(*said)
        raise RankError(rank, str(said))
    if waiting:
        raise RankError(min(waiting.values()), "it did not end in time")
    return [results[rank] for rank in range(len(started))]


def _received(connection: Connection, process: ForkServerProcess) -> tuple[bool, object]:
    try:
        well, said = connection.recv()
    except EOFError:
        process.join(GRACE)
        return False, f"it died with exit code {process.exitcode}"
    return bool(well), said
