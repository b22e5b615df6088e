"""What ranks run in tests of collectives and reduction programs; they import it by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import meshwright
from meshwright.base.errors import InputError
from meshwright.calibrate.comm_overhead import measure_comm_overhead
from meshwright.cluster.cluster import CommOverhead
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.cost.collective import Collective
from meshwright.cost.collective_bytes import ring_parts, sent_bytes
from meshwright.run.comm import ddp_hook as hook
from meshwright.run.comm.communicator import Communicator
from meshwright.run.comm.programs import AnyReductionPlan, Reducer
from meshwright.run.launch.gpus import device_of_rank

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
SIZES = ((3, 3, 3, 3), (5, 0, 1, 2), (0, 0, 0, 0), (1, 0, 0, 0), (70_000, 1, 40_000, 3))
"""How a whole is cut among up to four members; the last is more than a segment."""


def drawn(size: int, dtype: torch.dtype, rank: int, salt: int = 0) -> Tensor:
    """What a rank contributes: small whole numbers, whose sums every dtype here holds exactly."""
    random = torch.Generator().manual_seed(1000 * salt + rank)
    numbers = torch.randint(0, 2 if dtype == torch.bool else 9, (size,), generator=random)
    return numbers.to(device_of_rank(), dtype)


def summed(parts: Sequence[Tensor]) -> Tensor:
    """The sum from its definition; of Booleans whether any is true."""
    if parts[0].dtype == torch.bool:
        return torch.stack(list(parts)).any(0)
    return torch.stack(list(parts)).sum(0, dtype=parts[0].dtype)


class _Counted:
    """A wire whose count is compared with the formula after each collective."""

    def __init__(self, wire: Communicator, members: tuple[int, ...]) -> None:
        self.wire, self.before = wire, wire.sent
        self.position = members.index(dist.get_rank())

    def expect(self, collective: Collective, sizes: Sequence[int]) -> None:
        sent, self.before = self.wire.sent - self.before, self.wire.sent
        assert sent == sent_bytes(collective, sizes, self.position), (collective, sizes, sent)


def every_collective(groups: Sequence[tuple[int, ...]]) -> int:
    """Check each collective in each group that this rank is in; how many checks there were."""
    wire, rank, checks = Communicator(), dist.get_rank(), 0
    wire.prepare(groups)
    wire.prepare(groups)
    for members in groups:
        if rank in members:
            for cut in SIZES:
                for dtype in DTYPES:
                    _check(wire, members, cut[: len(members)], dtype)
                    checks += 1
    wire.finish()
    return checks


def _check(
    wire: Communicator, members: tuple[int, ...], sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    whole, position = sum(sizes), members.index(dist.get_rank())
    everyone = [drawn(whole, dtype, member) for member in members]
    total, local = summed(everyone), everyone[position]
    item = local.element_size()
    cut = [size * item for size in sizes]
    counted = _Counted(wire, members)

    data = local.clone()
    wire.all_reduce(data, members)
    assert torch.equal(data, total)
    counted.expect(Collective.ALL_REDUCE, ring_parts(whole, item, len(members)))

    scattered = wire.reduce_scatter(torch.split(local, list(sizes)), members)
    assert torch.equal(scattered, torch.split(total, list(sizes))[position])
    assert torch.equal(local, everyone[position])
    counted.expect(Collective.REDUCE_SCATTER, cut)

    gathered = wire.all_gather(scattered, sizes, members)
    assert [part.numel() for part in gathered] == list(sizes)
    assert torch.equal(torch.cat(gathered), total)
    counted.expect(Collective.ALL_GATHER, cut)

    data = local.clone()
    wire.reduce(data, members)
    assert torch.equal(data, total if position == 0 else local)
    counted.expect(Collective.REDUCE, cut)

    data = local.clone()
    wire.broadcast(data, members)
    assert torch.equal(data, everyone[0])
    counted.expect(Collective.BROADCAST, cut)


def summed_in_groups(groups: Sequence[tuple[int, ...]]) -> list[int]:
    """The sum of the ranks of each group that this rank is in."""
    wire, rank = Communicator(), dist.get_rank()
    wire.prepare(groups)
    sums = []
    for members in groups:
        if rank in members:
            total = torch.tensor(rank)
            wire.all_reduce(total, members)
            sums.append(int(total))
    return sums


HEADER = 48
"""Bytes in front of every message of gloo's."""


def written_bytes() -> list[tuple[int, int]]:
    """For several collectives the bytes that were counted, and how many more were written."""
    wire, rank, members = Communicator(), dist.get_rank(), tuple(range(dist.get_world_size()))
    sizes = [100_000, 7, 30_001][: len(members)]
    data = torch.ones(sum(sizes))
    parts = torch.split(data, sizes)
    counts = []
    for perform in (
        lambda: wire.all_reduce(data[:5], members),
        lambda: wire.all_reduce(data, members),
        lambda: wire.reduce_scatter(parts, members),
        lambda: wire.all_gather(parts[rank], sizes, members),
        lambda: wire.all_gather(data, [data.numel()] * len(members), members),
    ):
        dist.barrier()
        counted, written = wire.sent, _written()
        perform()
        counted, written = wire.sent - counted, _written() - written
        counts.append((counted, written - counted))
    return counts


def _written() -> int:
    """Bytes that this process has handed to the kernel."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("wchar:") + 1])


def two_threads() -> list[float]:
    """Two threads, each with a wire of its own, whose collectives meet in any order."""
    world = dist.get_world_size()
    wires = [Communicator(), Communicator(dist.new_group())]
    members, pair = tuple(range(world)), (0, 1)
    for wire in wires:
        wire.prepare([pair])

    def work(number: int) -> float:
        data = torch.full((50_000,), float(number + 1))
        for _ in range(20):
            wires[number].all_reduce(data, members)
            scattered = wires[number].reduce_scatter(torch.split(data, 50_000 // world), members)
            wires[number].broadcast(scattered, members)
            if dist.get_rank() in pair:
                wires[number].all_reduce(scattered, pair)
            data = torch.full_like(data, number + 1.0)
        return scattered[0].item()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work, dist.get_rank() % 2)
        second = threads.submit(work, 1 - dist.get_rank() % 2)
        return sorted([first.result(), second.result()])


def strided() -> None:
    """Tensors that do not lie in one row, or that gradients flow through."""
    wire, rank, world = Communicator(), dist.get_rank(), dist.get_world_size()
    members = tuple(range(world))
    ranks = sum(members)
    base = torch.arange(12.0).view(3, 4)

    for data in ((base + rank).t(), (base + rank)[:, ::2], (base + rank).requires_grad_()):
        before = data.detach().clone()
        wire.all_reduce(data, members)
        assert torch.equal(data, (before - rank) * world + ranks)
    data = (base + rank).t()
    wire.reduce(data, members)
    assert torch.equal(data, base.t() * world + ranks if rank == 0 else base.t() + rank)
    data = (base + rank).t()
    wire.broadcast(data, members)
    assert torch.equal(data, base.t())

    parts = [(base + rank).t()[:, :1] for _ in members]
    assert torch.equal(wire.reduce_scatter(parts, members), torch.arange(4.0) * world + ranks)
    gathered = wire.all_gather((base + rank)[:, 1], [3] * world, members)
    assert torch.equal(torch.stack(gathered), base[:, 1] + torch.arange(world)[:, None])


def exchanged() -> int:
    """Everybody sends to everybody, itself excepted: three messages of different sizes in order."""
    wire, rank, world = Communicator(), dist.get_rank(), dist.get_world_size()
    others = [other for other in range(world) if other != rank]
    sizes = (5, 0, 70_000)
    sends = [(to, drawn(size, torch.float32, rank, to)) for to in others for size in sizes]
    device = device_of_rank()
    receives = [
        (sender, torch.full((size,), -1.0, device=device)) for sender in others for size in sizes
    ]
    wire.exchange(sends, receives)
    for sender, data in receives:
        assert torch.equal(data, drawn(data.numel(), torch.float32, sender, rank))
    into = torch.zeros(4, 3, device=device).t()
    right, left = (rank + 1) % world, (rank - 1) % world
    wire.exchange([(right, torch.full((4, 3), float(rank), device=device).t())], [(left, into)])
    assert torch.equal(into.cpu(), torch.full((3, 4), float(left)))
    wire.finish()
    return wire.sent


def sends_that_wait() -> float:
    """The first rank goes on before its messages are received, through a collective too."""
    wire, rank = Communicator(), dist.get_rank()
    first, second, total = torch.ones(1000), torch.full((1000,), 2.0), torch.tensor(1.0)
    if rank == 0:
        wire.exchange([(1, first)], [])
        wire.exchange([(1, second)], [])
    wire.all_reduce(total, (0, 1))
    wire.broadcast(total, (0, 1))
    if rank == 1:
        into = [torch.zeros(1000), torch.zeros(1000)]
        wire.exchange([], [(0, into[0])])
        wire.exchange([], [(0, into[1])])
        assert torch.equal(into[0], first)
        assert torch.equal(into[1], second)
    wire.finish()
    return total.item()


CASES = ((0, torch.int64), (5, torch.int64), (1001, torch.int64), (1001, torch.float64))


def programs_sum(plans: Sequence[AnyReductionPlan]) -> int:
    """Each plan sums up what its definition says, by as many bytes as its recipe says."""
    wire, rank = Communicator(), dist.get_rank()
    for plan in plans:
        recipe = plan.recipe(rank)
        reducer = Reducer(wire, recipe)
        for length, dtype in CASES:
            before = wire.sent
            data = contribution(length, dtype, rank)
            reducer.all_reduce(data)
            _expect_sum(plan, data)
            assert wire.sent - before == recipe.sent(length, data.element_size()), str(plan)
    return len(plans)


def contribution(length: int, dtype: torch.dtype, rank: int) -> Tensor:
    random = torch.Generator().manual_seed(rank)
    if dtype == torch.int64:
        numbers = torch.randint(-(10**15), 10**15, (length,), generator=random)
    else:
        numbers = torch.randn(length, dtype=dtype, generator=random)
    return numbers.to(device_of_rank())


def _expect_sum(plan: AnyReductionPlan, data: Tensor) -> None:
    rank = dist.get_rank()
    together = next((group for group in plan.groups if rank in group), (rank,))
    terms = [contribution(data.numel(), data.dtype, member) for member in together]
    total = torch.stack(terms).sum(0)
    if data.dtype == torch.int64:
        assert torch.equal(data, total), str(plan)
    else:
        torch.testing.assert_close(data, total, rtol=1e-12, atol=1e-12)


def as_plain_all_reduce(plans: Sequence[AnyReductionPlan]) -> int:
    """By each plan the public function leaves what torch's own does."""
    for plan in plans:
        data = torch.arange(31, dtype=torch.int64).view(31, 1) * (dist.get_rank() + 1)
        expected = data.clone()
        dist.all_reduce(expected)
        meshwright.all_reduce(data, plan)
        assert torch.equal(data, expected), str(plan)
    return len(plans)


def plain_function(plan: ReductionPlan) -> None:
    """The public function, on a tensor that does not lie in one row, beside torch's own."""
    for _ in range(2):
        data = torch.randn(5, 3, dtype=torch.float64).t()
        plain = data.clone()
        dist.all_reduce(plain)
        meshwright.all_reduce(data, plan)
        torch.testing.assert_close(data, plain, rtol=1e-12, atol=1e-12)


def refused(plan: AnyReductionPlan) -> str:
    try:
        meshwright.all_reduce(torch.ones(3), plan)
    except InputError as error:
        return str(error)
    return "nothing was wrong"


def trained(plans: Sequence[AnyReductionPlan | None], steps: int) -> list[list[list[float]]]:
    """A small model under DDP, by each plan."""
    return [_trained(plan, steps) for plan in plans]


def _trained(plan: AnyReductionPlan | None, steps: int) -> list[list[float]]:
    """All gradients of the first step, all parameters after the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 30), nn.Linear(30, 1))
    device = device_of_rank()
    parallel = DistributedDataParallel(model.to(device), bucket_cap_mb=0.01)
    if plan is not None:
        meshwright.use_reduction_plan(parallel, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    random = torch.Generator().manual_seed(dist.get_rank())
    vectors: list[list[float]] = []
    for step in range(steps):
        optimizer.zero_grad()
        parallel(torch.randn(8, 40, generator=random).to(device)).square().mean().backward()
        if step == 0:
            vectors.append(_flattened(p.grad for p in model.parameters() if p.grad is not None))
        optimizer.step()
    vectors.append(_flattened(p.detach() for p in model.parameters()))
    return vectors


def _flattened(tensors: Iterable[Tensor]) -> list[float]:
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


def refused_hook(plan: ReductionPlan) -> str:
    parallel = DistributedDataParallel(nn.Linear(2, 2))
    try:
        meshwright.use_reduction_plan(parallel, plan)
    except InputError as error:
        return str(error)
    return "nothing was wrong"


class _Broken:
    def all_reduce(self, data: Tensor) -> None:
        raise ValueError("out of paper")


def broken_program() -> str:
    """A program that fails in its thread fails the backward pass."""
    parallel = DistributedDataParallel(nn.Linear(2, 2))
    broken, device = _Broken(), torch.device("cpu")
    state = hook._State(broken, dist.get_world_size(), device)  # type: ignore[arg-type]
    parallel.register_comm_hook(state, hook._averaged)
    try:
        parallel(torch.ones(1, 2)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing was wrong"


def busy_wire(kind: str, megabytes: int) -> int:
    """One collective of uneven parts among all; what this rank counts as sent."""
    wire, rank, members = Communicator(), dist.get_rank(), tuple(range(dist.get_world_size()))
    unit = (megabytes << 20) // 4 // sum(range(1, len(members) + 1))
    sizes = [unit * (member + 1) for member in members]
    data = torch.ones(sum(sizes))
    parts = torch.split(data, sizes)
    match kind:
        case "all_reduce":
            wire.all_reduce(data, members)
        case "reduce_scatter":
            wire.reduce_scatter(parts, members)
        case "all_gather":
            wire.all_gather(parts[rank], sizes, members)
        case "reduce":
            wire.reduce(data, members)
        case "broadcast":
            wire.broadcast(data, members)
    return wire.sent


def holders_of_the_default_group() -> int:
    """How many more hold the default process group once there is a wire that was used."""
    before = sys.getrefcount(dist.group.WORLD)
    wire = Communicator()
    wire.all_reduce(torch.ones(2), tuple(range(dist.get_world_size())))
    return sys.getrefcount(dist.group.WORLD) - before


def measured_toll() -> CommOverhead:
    """What talking takes of computing here."""
    return measure_comm_overhead(Communicator())


def policies_of_gloo() -> list[int]:
    """How the threads of gloo are scheduled, of the default group and of another one."""
    Communicator().prepare([(0, 1), (1, 2)])
    threads = Path("/proc/self/task").glob("*")
    names = {int(task.name): (task / "comm").read_text() for task in threads}
    return [
        os.sched_getscheduler(thread)
        for thread, name in names.items()
        if name.startswith("gloo_tcp")
    ]


def core_of_this_rank() -> set[int]:
    """On which cores this rank may compute."""
    return os.sched_getaffinity(0)


def paired() -> None:
    """Complex numbers, some of which are conjugates that nobody has carried out yet."""
    wire, rank, world = Communicator(), dist.get_rank(), dist.get_world_size()
    members = tuple(range(world))
    wire.prepare([members])
    whole = [torch.complex(torch.arange(6.0) + r, torch.arange(6.0) - r).conj() for r in members]
    total = torch.stack([tensor.resolve_conj() for tensor in whole]).sum(0)

    data = whole[rank].clone()
    wire.all_reduce(data, members)
    assert torch.equal(data, total)
    data = whole[rank].clone()
    wire.reduce(data, members)
    assert torch.equal(data, total if rank == 0 else whole[rank])
    data = whole[rank].clone()
    wire.broadcast(data, members)
    assert torch.equal(data, whole[0])

    parts = torch.split(whole[rank], 6 // world)
    scattered = wire.reduce_scatter(parts, members)
    assert torch.equal(scattered, torch.split(total, 6 // world)[rank])
    gathered = wire.all_gather(scattered, [6 // world] * world, members)
    assert torch.equal(torch.cat(gathered), total)

    got = torch.empty(6, dtype=torch.complex64)
    wire.exchange([((rank + 1) % world, whole[rank])], [((rank - 1) % world, got)])
    wire.finish()
    assert torch.equal(got, whole[rank - 1])
