"""Chains of collectives, carried out on lists of numbers by every device of a machine."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Collective
from meshwright.graph.text import parse_graph
from meshwright.lower.chains import ChainLink, DeviceChains, sent, sent_bytes_of_tensor
from meshwright.lower.device_mesh import MeshSizes
from meshwright.plan.plan import Plan, PlannedChain

GRAPH = parse_graph("""graph tiny
input x: float32[n=64]
operator y: y: float32[n=64] = relu(x)
output y""")
CLUSTER = Cluster.named("summit", node=4)
MACHINE = MeshSizes.of(CLUSTER)
DEVICES = CLUSTER.devices
FACTORS = range(len(MACHINE.sizes))


@st.composite
def chains(draw: st.DrawFn, kind: Collective) -> PlannedChain:
    """Some factors of the machine, in any steps."""
    over = tuple(sorted(draw(st.sets(st.sampled_from(FACTORS), min_size=1))))
    order = draw(st.permutations(over))
    cuts = sorted(draw(st.sets(st.integers(1, len(over) - 1)))) if len(over) > 1 else []
    steps = tuple(tuple(sorted(order[a:b])) for a, b in pairwise((0, *cuts, len(over))))
    return PlannedChain(collective=kind.value, over=over, bytes=8.0, steps=steps)


def planned(chain: PlannedChain) -> list[DeviceChains]:
    """What every device does."""
    layouts = (("y", " ".join("replica" for _ in FACTORS)),)
    plan = Plan(origin="by hand", graph=GRAPH, cluster=CLUSTER, layouts=layouts, chains=(chain,))
    return [DeviceChains(plan, device) for device in range(DEVICES)]


def group(over: tuple[int, ...], device: int) -> list[int]:
    """The devices that a device is in one group with."""
    return [MACHINE.device(member) for member in MACHINE.along(over, MACHINE.coordinates(device))]


@given(chains(Collective.REDUCE_SCATTER), st.integers(0, 99))
def test_a_chain_scatters_as_one_does(chain: PlannedChain, seed: int) -> None:
    draw = random.Random(seed)
    count = len(group(chain.over, 0))
    given_ = [[draw.randrange(1000) for _ in range(count)] for _ in range(DEVICES)]
    links = [device_chain.scattered(chain.over, 8.0) for device_chain in planned(chain)]
    held = [dict(enumerate(values)) for values in given_]
    for step in range(len(chain.steps)):
        before = held
        held = [
            {
                piece: sum(before[member][piece] for member in links[d][step].members)
                for piece in links[d][step].pieces[links[d][step].place]
            }
            for d in range(DEVICES)
        ]
    for device in range(DEVICES):
        members = group(chain.over, device)
        place = members.index(device)
        assert held[device] == {place: sum(given_[member][place] for member in members)}


@given(chains(Collective.ALL_GATHER))
def test_a_chain_gathers_as_one_does(chain: PlannedChain) -> None:
    links = [device_chain.gathered(chain.over, 8.0) for device_chain in planned(chain)]
    held = [{group(chain.over, d).index(d): d} for d in range(DEVICES)]
    for step in range(len(chain.steps)):
        before = held
        for device in range(DEVICES):
            link = links[device][step]
            for member, pieces in zip(link.members, link.pieces, strict=True):
                assert set(before[member]) == set(pieces)
        held = [
            {p: owner for member in links[d][step].members for p, owner in before[member].items()}
            for d in range(DEVICES)
        ]
    for device in range(DEVICES):
        assert held[device] == dict(enumerate(group(chain.over, device)))


@given(chains(Collective.REDUCE), st.integers(0, DEVICES - 1))
def test_a_chain_reduces_to_the_root(chain: PlannedChain, root: int) -> None:
    links = _rooted(chain, Collective.REDUCE, root)
    held = {device: {device} for device in group(chain.over, root)}
    for members in _in_order(links, chain, Collective.REDUCE):
        for member in members[1:]:
            held[members[0]] |= held.pop(member)
    assert held == {root: set(group(chain.over, root))}


@given(chains(Collective.BROADCAST), st.integers(0, DEVICES - 1))
def test_a_chain_broadcasts_from_the_root(chain: PlannedChain, root: int) -> None:
    links = _rooted(chain, Collective.BROADCAST, root)
    have = {root}
    for members in _in_order(links, chain, Collective.BROADCAST):
        assert members[0] in have
        have |= set(members)
    assert have == set(group(chain.over, root))


def _rooted(chain: PlannedChain, kind: Collective, root: int) -> dict[int, tuple[ChainLink, ...]]:
    every = planned(chain)
    return {d: every[d].rooted(kind, chain.over, 8.0, root) for d in group(chain.over, root)}


def _in_order(
    links: dict[int, tuple[ChainLink, ...]], chain: PlannedChain, kind: Collective
) -> list[tuple[int, ...]]:
    """The groups of all steps; every member of a group knows of it."""
    order: dict[tuple[int, ...], int] = {}
    for device, device_links in links.items():
        # Who sends what it has is done; who gets it comes in late.
        first = 0 if kind is Collective.REDUCE else len(chain.steps) - len(device_links)
        for number, link in enumerate(device_links):
            assert link.members[link.place] == device
            order[link.members] = first + number
    for members in order:
        assert all(members in [hop.members for hop in links[m]] for m in members)
    return sorted(order, key=lambda members: order[members])


@given(chains(Collective.REDUCE_SCATTER))
def test_equal_pieces_move_as_many_bytes_by_any_chain(chain: PlannedChain) -> None:
    count = len(group(chain.over, 0))
    links = planned(chain)[5].scattered(chain.over, 8.0)
    assert sent(Collective.REDUCE_SCATTER, links, [4] * count) == 4 * (count - 1)


def test_the_chain_of_the_nearest_bytes_counts_and_none_is_one_step() -> None:
    chain = PlannedChain(collective="AllGather", over=(0, 3), bytes=8.0, steps=((0,), (3,)))
    device_chain = planned(chain)[0]
    assert [len(link.members) for link in device_chain.gathered((0, 3), 1e6)] == [2, 3]
    assert [len(link.members) for link in device_chain.gathered((0, 2), 8.0)] == [4]
    assert [len(link.members) for link in device_chain.scattered((0, 3), 8.0)] == [6]


def test_something_whole_leaves_each_who_sends_once() -> None:
    chain = PlannedChain(collective="Reduce", over=(0, 1), bytes=8.0, steps=((1,), (0,)))
    links = _rooted(chain, Collective.REDUCE, 0)
    assert [
        sent_bytes_of_tensor(Collective.REDUCE, device_links, 8) for device_links in links.values()
    ] == [
        0,
        8,
        8,
        8,
    ]
