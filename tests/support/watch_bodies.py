"""What watched ranks do in tests and benchmarks; they import it by name.

Each writes what it says on standard error to a file of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.run.health.consistency import Statement, agree
from meshwright.run.health.watchdog import LIMIT, Watchdog


def speak_to(folder: str, rank: int) -> None:
    """Have standard error go to a file."""
    file = os.open(Path(folder) / f"{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def train(watch: Watchdog, steps: int, pause: float = 0.0, note: Path | None = None) -> None:
    """Steps that compute a little and add up over all ranks; a note says which has begun."""
    weight = torch.ones(64, 64)
    noted = os.open(note, os.O_WRONLY | os.O_CREAT) if note else None
    for number in range(steps):
        watch.step(number)
        if noted is not None:
            os.pwrite(noted, number.to_bytes(8, "big"), 0)
        gradient = weight @ weight
        time.sleep(pause)
        watch.progress(waiting=True)
        dist.all_reduce(gradient)
        watch.progress()


def misbehave(kind: str, number: int) -> None:
    """Go wrong in one of several ways, in a step."""
    match kind:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleeps":
            time.sleep(600)
        case "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raises":
            raise KeyError(f"no paper in step {number}")
        case "refuses":
            raise InputError("the batch is 7", "make it 8")
        case "spins":
            while True:
                pass
        case "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
        case _:
            raise AssertionError(kind)


STANDING_STILL = ("sleeps", "spins", "stops")
"""What is noticed only after the limit, which is short for these; a busy machine can have any rank
stand still for a moment, so that the others have the limit that users have."""


def goes_wrong(folder: str, bad: int, kind: str, at: int, marked: bool) -> None:
    """One rank goes wrong in a step; the others wait for it in a collective."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    limit = Seconds(3.0) if kind in STANDING_STILL else LIMIT
    with Watchdog(store, rank, ranks, limit=limit) as watch:
        for number in range(at + 5):
            watch.step(number)
            if rank == bad and number == at:
                misbehave(kind, number)
            watch.progress(waiting=marked)
            dist.all_reduce(torch.ones(8))
            watch.progress()


def half_checkpoint(folder: str, bad: int) -> None:
    """One rank dies while the others are in the middle of a file."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    with Watchdog(dist.distributed_c10d._get_default_store(), rank, ranks) as watch:
        watch.step(0)
        whole = Path(folder) / f"{rank}.whole"
        with watch.written_whole(whole) as part:
            part.write_text("whole")
        watch.rest()
        half = Path(folder) / f"{rank}.half"
        with watch.written_whole(half) as part:
            part.write_text("half")
            dist.barrier()
            if rank == bad:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)


def at_different_times(folder: str) -> int:
    """Ranks begin late, compile longer than the limit, are stopped, and finish one by one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    time.sleep(0.3 * rank)
    store = dist.distributed_c10d._get_default_store()
    for _ in range(2):
        with Watchdog(store, rank, ranks, limit=Seconds(3.0)) as watch:
            if rank == 1:
                time.sleep(4.0)
            train(watch, 5)
            watch.rest()
            time.sleep(0.3 * (ranks - rank))
    return rank


def slow_but_alive(folder: str) -> int:
    """Others wait longer than the limit for a rank that makes progress all the time."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    with Watchdog(store, rank, ranks, limit=Seconds(3.0)) as watch:
        watch.step(0)
        for _ in range(24 if rank == 2 else 0):
            time.sleep(0.2)
            watch.progress()
        watch.progress(waiting=True)
        dist.all_reduce(torch.ones(8))
    return rank


def in_a_circle(folder: str) -> None:
    """Each waits for a message that the next never sends."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    with Watchdog(store, rank, ranks, limit=Seconds(2.0)) as watch:
        watch.step(7)
        watch.progress(waiting=True)
        dist.recv(torch.ones(8), (rank + 1) % ranks)


def long_training(folder: str, steps: int, pause: float, limit: float = LIMIT) -> None:
    """Plain training under a watch, to be disturbed from outside."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    (Path(folder) / f"{rank}.pid").write_text(str(os.getpid()))
    store = dist.distributed_c10d._get_default_store()
    with Watchdog(store, rank, ranks, limit=Seconds(limit)) as watch:
        train(watch, steps, pause, Path(folder) / f"{rank}.step")


def await_groups(store: Store, ranks: int) -> None:
    """Go on when all ranks have said that they are grouped: who is lost before is not watched."""
    while store.add("grouped", 0) < ranks:
        time.sleep(0.01)


def loses_the_first(folder: str, sign: int) -> None:
    """Rank 0, which serves the store, is killed or stopped before the others have joined."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    store.add("grouped", 1)
    if rank == 0:
        await_groups(store, ranks)
        os.kill(os.getpid(), sign)
    time.sleep(0.5)
    with Watchdog(store, rank, ranks, joining=Seconds(1.0)) as watch:
        train(watch, 5)


def comes_alone(folder: str, missing: int) -> None:
    """One rank never joins, though it lives."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    if rank == missing:
        time.sleep(600)
    with Watchdog(store, rank, ranks, joining=Seconds(2.0)) as watch:
        train(watch, 5)


def dies_while_joining(folder: str, bad: int, after: float) -> None:
    """One rank is killed some time after it has begun to join; the others are late or early."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    store.add("grouped", 1)
    if rank == bad:
        await_groups(store, ranks)
        threading.Timer(after, os.kill, [os.getpid(), signal.SIGKILL]).start()
    else:
        time.sleep(0.2 * rank)
    with Watchdog(store, rank, ranks, joining=Seconds(2.0)) as watch:
        train(watch, 10**6, 0.05)


def disagrees(folder: str, bad: int, field: str, value: str) -> None:
    """One rank states something else than the others."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    stated: dict[str, str] = {
        "backend": "gloo",
        "plan": "p" * 16,
        "graph": "g" * 16,
        "dtype": "float32",
    }
    statement = stated | ({field: value} if rank == bad else {})
    with Watchdog(dist.distributed_c10d._get_default_store(), rank, ranks):
        agree(Statement(ranks=ranks, **statement))


def miscounts(folder: str, bad: int) -> None:
    """One rank believes in another number of ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    with Watchdog(store, rank, ranks + (rank == bad), joining=Seconds(3.0)) as watch:
        train(watch, 5)


def hears_too_late(folder: str, cause: bool) -> None:
    """A rank runs into what looks like the loss of another, which is told only then, if at all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    with Watchdog(dist.distributed_c10d._get_default_store(), rank, ranks) as watch:
        watch.step(6)
        if rank == 1:
            raise RuntimeError("Connection closed by peer")
        if rank == 2 and cause:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


def forks(folder: str, bad: int) -> None:
    """A rank dies that has forked a process which lives on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speak_to(folder, rank)
    with Watchdog(dist.distributed_c10d._get_default_store(), rank, ranks) as watch:
        watch.step(3)
        dist.all_reduce(torch.ones(8))
        if rank == bad:
            if os.fork() == 0:
                # Longer than others wait for a beat.
                time.sleep(25)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier(timeout=timedelta(seconds=60))
